"""Dimensions merged into one, which is then several axes: what a reshape merges is split wherever it is met.

    k[b, a, n, d]                       expanded over r, (a, r) merged to s
    q[b, s, m, d] * k[b, s, n, d]  ==>  q'[b, a, r, m, d] * k[b, a, n, d],   q'[b, a, r, m, d] = q[b, R*a + r, m, d]

Nothing is copied: a merged dimension is a name for its axes, and the same dimension of another operand becomes a view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from weft.errors import Location, ShapeError, UnsupportedError
from weft.tensor.axes import Affine, Axis, present
from weft.tensor.builder.unify import Sliced, Spaces
from weft.tensor.dtypes import DType
from weft.tensor.program import Cast, Elementwise, Input, Lookup, Node, Reindex

AsItLies: TypeAlias = Elementwise | Cast | Lookup | Reindex
"""What lies in memory as what it reads does."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor: a value, seen with dimensions.

    Attributes:
        value: the value's name.
        dims: per dimension the axis, no axis twice; None for size 1. Every axis of the value is
            among them, or among those that one of them is merged of, in any order; one that the value does not have is a
            dimension that it is expanded over.
        dtype: the element type that eager's tensor has.
    """

    value: str
    dims: tuple[Axis | None, ...]
    dtype: DType


class Merges:
    """The nodes made so far, and the axes that merged dimensions stand for: no node runs over a merged one itself."""

    def __init__(self) -> None:
        self._spaces = Spaces()
        self._inputs: list[Input] = []
        self._nodes: list[Node] = []
        self._made: dict[str, Node] = {}
        self._own: dict[str, tuple[Axis, ...]] = {}
        # Of values that lie in another order than their dimensions', and of what follows them: their axes, outermost first.
        self._turned: dict[str, tuple[Axis, ...]] = {}
        self._parts: dict[Axis, tuple[Axis, ...]] = {}
        self._wholes: dict[tuple[Axis, ...], Axis] = {}
        self._count = 0

    def merge(self, ref: Ref, runs: Sequence[int]) -> Ref:
        """Merges neighbouring dimensions of `ref` that are not of size 1: `runs` says how many make each one of the
        result; 0: size 1.
        """
        rest = iter(present(ref.dims))
        dims = [tuple(next(rest) for _ in range(run)) for run in runs]
        return replace(ref, dims=tuple(self._one(each) for each in dims))

    def merges(self, ref: Ref) -> bool:
        """Tells whether a dimension of `ref` is merged of several axes."""
        return any(d in self._parts for d in present(ref.dims))

    def expanded(self, ref: Ref, first: int, count: int) -> bool:
        """Tells whether `ref` is expanded along one of `count` dimensions that are not of size 1, from number `first`
        of these on.
        """
        dims = present(ref.dims)[first : first + count]
        return not set(self._atoms(dims)) <= set(self._own[ref.value])

    def last_run(self, ref: Ref, *, every: bool = False) -> tuple[int, int, Axis]:
        """Returns the first and last of its value's axes that the last merged dimension of `ref`, which has one, is made of, and
        its own axis.

        Raises:
            UnsupportedError: they do not lie side by side in the value, or it does not have them all; `every`: those of any other
                merged dimension do not. `dense` makes one of which they do.
        """
        own, merged = self._own[ref.value], [d for d in present(ref.dims) if d in self._parts]
        for axis in merged if every else merged[-1:]:
            parts = self._parts[axis]
            first = own.index(parts[0]) if parts[0] in own else 0
            if own[first : first + len(parts)] != parts:
                raise UnsupportedError("dimensions that are merged do not lie side by side")
        parts = self._parts[merged[-1]]
        first = own.index(parts[0])
        return first, first + len(parts) - 1, merged[-1]

    def _one(self, axes: tuple[Axis, ...]) -> Axis | None:
        """Returns the dimension that is merged of `axes`."""
        if len(axes) < 2:
            return axes[0] if axes else None
        parts = self._atoms(axes)
        outer, *inner = (axis.space for axis in parts)
        fixed = all(self._spaces.fixed(space) for space in inner)
        for space in inner if fixed else ():
            self._spaces.pin(space)
        known = self._wholes.get(parts)
        if known is not None:
            return known
        times = prod(self._size(axis) for axis in parts[1:])
        rules = Sliced(outer, times=times) if fixed else None
        return self._named(self._spaces.axis(self._spaces.space(times * self._size(parts[0]), sliced=rules)), parts)

    def _atoms(self, dims: Sequence[Axis | None]) -> tuple[Axis, ...]:
        """Returns the axes that operations on `dims` run over."""
        return tuple(part for axis in present(dims) for part in self._parts.get(axis, (axis,)))

    def _aligned(
        self, refs: Sequence[Ref], places: Sequence[Sequence[int | None]], location: Location | None
    ) -> tuple[list[Ref], list[Axis | None]]:
        """Returns `refs` with dimensions split where they must be, so that none is merged and each runs beside its like.

        Args:
            refs: operands.
            places: per dimension of what they have in common, which dimension of each ref that is; each dimension is in one.
            location: the user's line.

        Returns:
            The refs, and for each of `places` the merged dimension that has become several; None where it is as it was.
        """
        models: list[Axis | None] = []
        dims: list[dict[int, tuple[Axis | None, ...]]] = [{} for _ in refs]
        made = list(refs)
        for place in places:
            axes = [None if d is None else ref.dims[d] for ref, d in zip(refs, place, strict=True)]
            model = next((axis for axis in axes if axis in self._parts), None)
            models.append(model)
            for number, (own, d) in enumerate(zip(axes, place, strict=True)):
                if d is None:
                    continue
                parts: tuple[Axis | None, ...] = (own,)
                if model is not None:
                    made[number], parts = self._split(made[number], own, model, location)
                dims[number][d] = parts
        if not any(models):
            return list(refs), models
        wide = [tuple(axis for d in sorted(each) for axis in each[d]) for each in dims]
        return [replace(ref, dims=each) for ref, each in zip(made, wide, strict=True)], models

    def _split(
        self, ref: Ref, axis: Axis | None, model: Axis, location: Location | None
    ) -> tuple[Ref, tuple[Axis | None, ...]]:
        """Splits dimension `axis` of `ref` into axes like those that `model` is merged of; returned behind the value with these.

        Raises:
            ShapeError: it has another size.
            UnsupportedError: no view of the value has these axes.
        """
        like = self._parts[model]
        if axis is None:
            return ref, (None,) * len(like)
        if axis in self._parts and [*map(self._size, self._parts[axis])] != [*map(self._size, like)]:
            raise UnsupportedError("of dimensions merged of others", where=location)
        if not self._spaces.unify(axis.space, model.space):
            raise ShapeError(
                f"The size of tensor a ({self._size(model)}) must match the size of tensor b ({self._size(axis)})",
                where=location,
            )
        if axis in self._parts:
            for own, other in zip(self._parts[axis], like, strict=True):
                self._spaces.unify(own.space, other.space)
            return ref, self._parts[axis]
        parts = tuple(self._spaces.axis(part.space) for part in like)
        own = self._own[ref.value]
        if axis not in own:
            return ref, parts
        if not all(self._spaces.fixed(part.space) for part in like[1:]):
            raise UnsupportedError("of a dimension merged of others whose sizes are read at each call", where=location)
        sizes = [self._size(part) for part in like]
        split = Affine(tuple((part, prod(sizes[i + 1 :])) for i, part in enumerate(parts)))
        index = tuple(split if a == axis else Affine.of(a) for a in own)
        axes = tuple(new for a in own for new in (parts if a == axis else (a,)))
        node = Reindex(self._name(), axes, ref.dtype, ref.value, index, location)
        return replace(ref, value=self._add_like(node, ref, {axis: parts}).value), parts

    def _spread(self, ref: Ref) -> tuple[Ref, list[Axis | None]]:
        """Splits the merged dimensions of `ref` alone, as `_aligned` does."""
        found, models = self._aligned([ref], [[d] for d in range(len(ref.dims))], None)
        return found[0], models

    def _merged(self, dims: Sequence[Axis | None], models: Sequence[Axis | None]) -> tuple[Axis | None, ...]:
        """Returns the dimensions of a result, those merged again that `_aligned` had split."""
        rest = iter(dims)
        found: list[Axis | None] = []
        for model in models:
            if model is None:
                found.append(next(rest))
                continue
            found.append(self._whole(model, present([next(rest) for _ in self._parts[model]])))
        return tuple(found)

    def _whole(self, model: Axis, parts: tuple[Axis, ...]) -> Axis:
        """Returns the dimension like `model` that is merged of `parts`."""
        return self._wholes.get(parts) or self._named(self._spaces.axis(model.space), parts)

    def _named(self, axis: Axis, parts: tuple[Axis, ...]) -> Axis:
        """Makes `axis` the dimension that is merged of `parts`."""
        self._parts[axis], self._wholes[parts] = parts, axis
        return axis

    def _over(self, axis: Axis, new: Mapping[Axis, Axis]) -> Axis:
        """Returns `axis` with its value's axes replaced by `new` ones."""
        parts = self._parts.get(axis)
        if axis in new or parts is None:
            return new.get(axis, axis)
        return self._whole(axis, tuple(new.get(part, part) for part in parts))

    def _name(self) -> str:
        while (name := f"t{self._count}") in self._own:
            self._count += 1
        return name

    def _add(self, node: Node) -> Ref:
        self._nodes.append(node)
        self._made[node.name] = node
        self._own[node.name] = node.axes
        return Ref(node.name, node.axes, node.dtype)

    def _add_like(self, node: AsItLies, ref: Ref, read: Mapping[Axis, tuple[Axis, ...]]) -> Ref:
        """Adds `node`, which reads `ref`, with its axes in the order in which that lies in memory, where this is not that of its
        dimensions.

        read: for axes of the value of `ref`, those of `node` that it is read over; others stay as they are.
        """
        turned = self._turned.get(ref.value)
        if turned is None:
            return self._add(node)
        follows = dict.fromkeys(new for own in turned for new in read.get(own, (own,)))
        node = replace(
            node, axes=(*(a for a in follows if a in node.axes), *(a for a in node.axes if a not in follows))
        )
        self._turned[node.name] = node.axes
        return self._add(node)

    def _size(self, axis: Axis | None) -> int:
        """Returns the size in the example."""
        return 1 if axis is None else self._spaces.hint(axis.space)
