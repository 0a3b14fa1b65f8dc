"""Elements that integers name: rows of a table, indexing by tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.errors import Location, ShapeError, UnsupportedError
from weft.tensor.axes import Axis, present
from weft.tensor.builder.base import Ref, SizeOrAxis
from weft.tensor.builder.view import Views
from weft.tensor.domain import ZERO
from weft.tensor.dtypes import DType
from weft.tensor.program import Lookup, Use
from weft.tensor.scalar import Arg, Lit, apply


class Lookups(Views):
    """The methods that read where values say. What they are given must be indices of the dimension: that is checked elsewhere."""

    def lookup(self, ref: Ref, indices: Sequence[Ref | None], location: Location | None = None) -> Ref:
        """Indexes as `ref[indices]` does, None standing for `:`; integers broadcast, and none counts from the end.

        The dimensions of the indices stand where the first of them stood, or in front if there is a `:` between two of them.

        Of a dimension of size 1 the constant 0 is known to be an index.

        Raises:
            UnsupportedError: a dimension that is indexed by other numbers has size 1, or one is merged.
        """
        if any(self.merges(index) for index in indices if index is not None):
            raise UnsupportedError("of merged dimensions", where=location)
        indices = [*indices, *[None] * (len(ref.dims) - len(indices))]
        given = [d for d, index in enumerate(indices) if index is not None]
        refs = [index for index in indices if index is not None]
        shapes, bound = [r.dims for r in refs], [dict[Axis, Axis]() for _ in refs]
        taken = set[Axis]()
        shared = self._broadcast(shapes, bound, taken, location)
        kept = [d for d in range(len(ref.dims)) if d not in given]
        along = {d: None if (axis := ref.dims[d]) is None else self._free(axis, taken) for d in kept}
        first = given[0] if given[-1] - given[0] < len(given) else 0
        before = [along[d] for d in kept[:first]] if first else []
        dims = (*before, *shared, *(along[d] for d in kept[len(before) :]))
        where: dict[int, Axis | Use | None] = {
            d: None if ref.dims[d] is None and self.number(r) == 0 else self._use(r, b)
            for d, r, b in zip(given, refs, bound, strict=True)
        }
        if all(each is None for each in where.values()) and all(along[d] == ref.dims[d] for d in kept):
            return replace(ref, dims=dims)
        return self._looked_up(ref, {**along, **where}, dims, location)

    def gather(self, ref: Ref, dim: int, index: Ref, location: Location | None = None) -> Ref:
        """Reads for each element of `index`, which has as many dimensions, the one at its place but along `dim`, where it says.

        Raises:
            ShapeError: `index` has another size than `ref` in another dimension.
            UnsupportedError: the dimension has size 1, or one is merged.
        """
        if self.merges(index):
            raise UnsupportedError("of merged dimensions", where=location)
        dim %= len(ref.dims)
        where: dict[int, Axis | Use | None] = {}
        for d, (own, axis) in enumerate(zip(ref.dims, index.dims, strict=True)):
            if d == dim:
                where[d] = Use(index.value, self._own[index.value])
                continue
            if (own is None) != (axis is None) or (own and axis and not self._spaces.unify(own.space, axis.space)):
                raise ShapeError(
                    f"dimension {d} of {self.shape(index)} is not that of {self.shape(ref)}", where=location
                )
            where[d] = axis
        return self._looked_up(ref, where, index.dims, location)

    def window(self, ref: Ref, dim: int, index: Ref, location: Location | None = None) -> Ref:
        """Reads `ref` along `dim`, the same dimension of the result, where `index`, int64 of rank 1, says; 0 where that is none.

        Of a merged dimension `index` is split into digits.

        Raises:
            UnsupportedError: an inner size of the merged dimension is only read at each call.
        """
        if ref.dims[dim] is None:
            beside = replace(index, dims=(*index.dims, *[None] * (len(ref.dims) - dim - 1)))
            expr = apply("where", apply("eq", Arg(1), Lit(0)), Arg(0), ZERO[ref.dtype.kind])
            return self._pointwise(expr, (ref, beside), ref.dtype, location)
        wide, models = self._spread(ref)
        first = len(self._spread(replace(ref, dims=ref.dims[:dim]))[0].dims)
        model = models[dim]
        digits = self._digits(index, 1 if model is None else len(self._parts[model]), wide, first, location)
        dims = (*wide.dims[:first], index.dims[0], *wide.dims[first + len(digits) :])
        where: dict[int, Axis | Use | None] = dict(enumerate(wide.dims))
        for place, digit in enumerate(digits, first):
            where[place] = Use(digit.value, self._own[digit.value])
        made = self._looked_up(wide, where, dims, location, masked=True)
        return replace(made, dims=self._merged(made.dims, [*models[:dim], None, *models[dim + 1 :]]))

    def _digits(self, index: Ref, count: int, ref: Ref, first: int, location: Location | None) -> list[Ref]:
        """Splits `index` into `count` digits, numbers of dimension `first` of `ref` and of those behind it, outermost first."""
        found: list[Ref] = []
        for axis in reversed(present(ref.dims[first + 1 : first + count])):
            if not self._spaces.fixed(axis.space):
                raise UnsupportedError("a part of merged dimensions whose sizes are read at each call", where=location)
            size = Lit(self._size(axis))
            quotient = apply("floor_divide", Arg(0), size)
            rest = apply("sub", Arg(0), apply("mul", quotient, size))
            found.append(self._pointwise(rest, (index,), DType.int64, location))
            index = self._pointwise(quotient, (index,), DType.int64, location)
        return [index, *reversed(found)]

    def bounded(self, index: Ref, size: SizeOrAxis, location: Location | None = None) -> Ref:
        """Returns the integers `index`, int64, as indices of a dimension of that size: as all indices, they are checked.

        Raises:
            UnsupportedError: the size is 1, or the dimensions of `index` are merged.
        """
        return self.lookup(self.iota(size), [index], location)

    def from_the_end(self, index: Ref, size: Axis | None, location: Location | None = None) -> Ref:
        """Returns `index`, int64, with what is negative counted from the end of a dimension as long as the axis `size`."""
        index = self.cast(index, DType.int64, None, location)
        expr = apply("where", apply("lt", Arg(0), Lit(0)), apply("add", Arg(0), Arg(1)), Arg(0))
        return self._pointwise(expr, (index, self.extent(size, DType.int64)), DType.int64, location)

    def _looked_up(
        self,
        ref: Ref,
        where: dict[int, Axis | Use | None],
        dims: Sequence[Axis | None],
        location: Location | None,
        *,
        masked: bool = False,
    ) -> Ref:
        """Makes the node that reads dimension d of `ref` where `where[d]` says."""
        if self.merges(ref):
            raise UnsupportedError("of merged dimensions", where=location)
        indexed = [ref.dims[d] for d, each in where.items() if isinstance(each, Use)]
        if None in indexed:
            raise UnsupportedError("a dimension of size 1 has one index, which PyTorch checks", where=location)
        if not set(present(indexed)) <= set(self._own[ref.value]):
            ref = self.dense(ref)
        index: list[Axis | Use] = []
        for axis in self._own[ref.value]:
            each = where[ref.dims.index(axis)]
            assert each is not None, "a dimension of size 1 has no axis"
            index.append(each)
        read = {a for each in index for a in ((each,) if isinstance(each, Axis) else each.axes)}
        axes = tuple(a for a in present(dims) if a in read)
        node = Lookup(self._name(), axes, ref.dtype, ref.value, tuple(index), location, masked)
        over = {a: (i,) if isinstance(i, Axis) else i.axes for a, i in zip(self._own[ref.value], index, strict=True)}
        return replace(self._add_like(node, ref, over), dims=tuple(dims))
