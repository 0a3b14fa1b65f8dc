"""Building tensor programs by calls on positional tensors, like PyTorch's.

The builder infers axes: it unifies the spaces of dimensions that an operation demands to be equal,
and never two spaces because their sizes are. Views (permute, expand, unsqueeze, squeeze) make no
node: a `Ref` says which dimension of the tensor is which axis of the value, and every use binds
axes anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from weft.errors import Location, ShapeError, UnsupportedError
from weft.tensor.axes import Space, present
from weft.tensor.builder.base import Ref, SizeOrAxis, dim_of
from weft.tensor.builder.lookup import Lookups
from weft.tensor.builder.matmul import Matmuls
from weft.tensor.builder.name import named
from weft.tensor.builder.promote import promote, promote_types
from weft.tensor.builder.reshape import Reshapes
from weft.tensor.dtypes import DType
from weft.tensor.merge import StateMerge
from weft.tensor.order import Order
from weft.tensor.program import Monoid, Ranking, Reduction, Scan, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, Number, Scalar, apply

__all__ = ["Builder", "Number", "Ref", "SizeOrAxis", "promote", "promote_types"]


class Builder(Matmuls, Reshapes, Lookups):
    """Collects the nodes of one program; `finish` resolves and names its spaces and axes.

    What eager refuses for its shapes or dtypes does not come here: PyTorch has run each call on tensors without data. Float
    results are computed in the accumulator type of the dtype, then cast to it by a precision cast:
    the program says where eager rounds. `location` is the user's line; dimensions may be negative,
    as in PyTorch.
    """

    def reduce(
        self,
        monoid: Monoid,
        ref: Ref,
        dims: Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DType | None = None,
        location: Location | None = None,
    ) -> Ref:
        """Combines `ref` over `dims`; None, or an empty list, means all.

        dtype: the operand is cast to it first; by default to int64 for sums and products of
        integers and bools, else not at all.
        """
        if dtype is None:
            adds = monoid in (Monoid.sum, Monoid.prod) and not ref.dtype.is_float
            dtype = DType.int64 if adds else ref.dtype
        made = self._reduced(monoid, self.cast(ref, dtype, None, location), dims, keepdim, location)
        return self._rounded(made, dtype, location)

    def mean(
        self,
        ref: Ref,
        dims: Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: DType | None = None,
        location: Location | None = None,
    ) -> Ref:
        """Returns the sum over `dims` (none: all) divided by the number of elements, a run-time scalar."""
        dtype = ref.dtype if dtype is None else dtype
        ref = self.cast(ref, dtype, None, location)
        total = self._reduced(Monoid.sum, ref, dims, keepdim, location)
        over = self._atoms([ref.dims[d] for d in self._dims(ref, dims)])
        counts = [self.extent(axis, total.dtype) for axis in over]
        expr: Scalar = Arg(1) if counts else Lit(1.0)
        for number in range(1, len(counts)):
            expr = apply("mul", expr, Arg(number + 1))
        expr = apply("div", Arg(0), expr)
        mean = self._pointwise(expr, (total, *counts), total.dtype, location)
        return self._rounded(mean, dtype, location)

    def scan(
        self, monoid: Monoid, ref: Ref, dim: int, dtype: DType | None = None, location: Location | None = None
    ) -> Ref:
        """Combines each element of `ref` along `dim` by `monoid` with all that come before it.

        dtype: the operand is cast to it first; by default sums and products of integers and bools are int64, and all else is of
        the operand's type.

        Raises:
            UnsupportedError: `dim` is merged of several.
        """
        if dtype is None:
            adds = monoid in (Monoid.sum, Monoid.prod) and not ref.dtype.is_float
            dtype = DType.int64 if adds else ref.dtype
        if dtype.is_float or ref.dtype.is_float:
            ref = self.cast(ref, dtype, None, location)
        if not ref.dims or ref.dims[dim_of(dim, len(ref.dims))] is None:  # each element comes first
            return self._rounded(self.cast(ref, dtype.accumulator, None, location), dtype, location)
        (made,) = self.scan_states(StateMerge.of(monoid), (Arg(0),), ref, dim, (dtype.accumulator,), location)
        return self._rounded(made, dtype, location)

    def scan_states(
        self,
        merge: StateMerge,
        element: Sequence[Scalar],
        ref: Ref,
        dim: int,
        kinds: Sequence[DType],
        location: Location | None = None,
    ) -> tuple[Ref, ...]:
        """Merges the state of each element of `ref` along `dim`, which is not of size 1, with all that come before it.

        Args:
            merge: of two states.
            element: the state of an element, `Arg(0)`.
            ref: the tensor.
            dim: of it.
            kinds: the type of each component, which is that of its result.
            location: the user's line.

        Raises:
            UnsupportedError: `dim` is merged of several.
        """
        dim = dim_of(dim, len(ref.dims))
        if len(self._atoms(ref.dims[dim : dim + 1])) > 1:
            raise UnsupportedError("along merged dimensions")
        wide, models = self._spread(ref) if self.merges(ref) else (ref, None)
        over = ref.dims[dim]
        assert over is not None, "the dimension has elements to merge"
        if over not in self._own[wide.value]:
            wide = self.dense(wide)
        own = self._own[wide.value]
        use = (Use(wide.value, own),)
        found: list[Ref] = []
        for result, kind in enumerate(kinds):
            node = Scan(self._name(), own, kind, merge, use, tuple(element), tuple(kinds), result, over, location)
            made = replace(self._add(node), dims=wide.dims)
            found.append(made if models is None else replace(made, dims=tuple(self._merged(wide.dims, models))))
        return tuple(found)

    def ranking(
        self,
        ref: Ref,
        dim: int,
        count: int | None,
        order: Order,
        keepdim: bool = False,
        location: Location | None = None,
    ) -> tuple[Ref, Ref]:
        """Returns the elements of `ref` along `dim` that come first in `order`, and their indices, int64; the lowest
        among equal ones.

        count: how many; None for the first one, whose dimension goes unless `keepdim`.

        Raises:
            ShapeError: there are fewer elements, in the example at least.
        """
        if self.merges(ref):
            raise UnsupportedError("of merged dimensions")
        dim = dim_of(dim, len(ref.dims)) if ref.dims else 0
        over = ref.dims[dim] if ref.dims else None
        if self._size(over) < (1 if count is None else count):
            raise ShapeError(f"{count or 1} of {self._size(over)} elements", where=location)
        if over is not None and over not in self._own[ref.value]:
            ref = self.dense(ref)
        rank = self.axis(1 if count is None else count)
        if rank is not None:  # how many there are is a number of the ranking, whatever tensors of that size it meets
            self._spaces.pin(rank.space)
        rest = tuple(
            rank if i == dim else d for i, d in enumerate(ref.dims) if i != dim or count is not None or keepdim
        )
        if over is None:  # one element is the first
            return replace(ref, dims=rest), replace(self.constant(0, DType.int64), dims=rest)
        own = self._own[ref.value]
        axes = tuple(a for a in present(rest) if a in own or a == rank)
        made: list[Ref] = []
        for places in (False, True):
            dtype = DType.int64 if places else ref.dtype.accumulator
            node = Ranking(self._name(), axes, dtype, Use(ref.value, own), over, rank, order, places, location)
            made.append(replace(self._add(node), dims=rest))
        return self._rounded(made[0], ref.dtype, location), made[1]

    def finish(self, outputs: Sequence[Ref]) -> TensorProgram:
        """Returns the finished program, which returns `outputs`, without merged dimensions (`flatten`).

        Spaces are M, K, N, D .. and axes m, k, n, d .., in order of appearance. An output that is
        expanded is copied first; one that is permuted is so in `output_dims`.
        """
        dense = [self.dense(r) if self._expanded(r) else r for r in outputs]
        names = tuple(r.value for r in dense)
        dims = tuple(r.dims for r in dense)
        program = TensorProgram(tuple(self._inputs), tuple(self._nodes), names, dims)
        made, self._resolved = named(program, self._spaces)
        return made

    def lengths(self) -> Iterator[tuple[Space, Any]]:
        """Lists the spaces of the finished program whose sizes were told (`tell`), with what was told."""
        for root, space in self._resolved.items():
            length = self._spaces.length(Space(root))
            if length is not None:
                yield space, length

    def _dims(self, ref: Ref, dims: Sequence[int] | None) -> list[int]:
        rank = len(ref.dims)  # dimension 0, or -1, of a tensor without dimensions is a way to say all of it
        return [dim_of(d, rank) for d in dims or range(rank)] if rank else []

    def _reduced(
        self,
        monoid: Monoid,
        ref: Ref,
        dims: Sequence[int] | None,
        keepdim: bool,
        location: Location | None,
    ) -> Ref:
        """Reduces `ref` over `dims`, without rounding the result."""
        gone = set(self._dims(ref, dims))
        if self.merges(ref):
            return self._reduced_apart(monoid, ref, gone, keepdim, location)
        over = present([d for i, d in enumerate(ref.dims) if i in gone])
        if monoid in (Monoid.max, Monoid.min) and any(self._size(a) == 0 for a in over):
            raise ShapeError(f"a{monoid.name}(): Expected reduction dim to have non-zero size", where=location)
        if not set(over) <= set(self._own[ref.value]):
            return self._reduced(monoid, self.dense(ref), dims, keepdim, location)
        rest = tuple(None if i in gone else d for i, d in enumerate(ref.dims) if keepdim or i not in gone)
        if not over:
            return self.cast(replace(ref, dims=rest), ref.dtype.accumulator, None, location)
        own = self._own[ref.value]
        axes = tuple(a for a in own if a not in over)
        made = self._add(
            Reduction(
                self._name(),
                axes,
                ref.dtype.accumulator,
                monoid,
                Use(ref.value, own),
                over,
                location,
            )
        )
        return replace(made, dims=rest)

    def _reduced_apart(self, monoid: Monoid, ref: Ref, gone: set[int], keepdim: bool, location: Location | None) -> Ref:
        """Reduces, as `_reduced` does, over each axis of merged dimensions."""
        wide, models = self._spread(ref)
        places = [d for d, model in enumerate(models) for _ in self._atoms([model]) or (None,)]
        made = self._reduced(monoid, wide, [i for i, d in enumerate(places) if d in gone], False, location)
        rest = iter(self._merged(made.dims, [model for d, model in enumerate(models) if d not in gone]))
        dims = tuple(None if d in gone else next(rest) for d in range(len(models)) if keepdim or d not in gone)
        return replace(made, dims=dims)
