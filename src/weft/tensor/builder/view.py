"""Views: another look at a value, or a reindexing where elements move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.errors import Location, ShapeError, UnsupportedError
from weft.tensor.axes import Affine, Axis, present
from weft.tensor.builder.base import Base, Ref, SizeOrAxis, dim_of
from weft.tensor.builder.unify import Sliced
from weft.tensor.program import (
    Reindex,
)


class Views(Base):
    """The methods that make views."""

    def permute(self, ref: Ref, order: Sequence[int]) -> Ref:
        """Puts the dimensions in another order."""
        return replace(ref, dims=tuple(ref.dims[d] for d in order))

    def transpose(self, ref: Ref, first: int, second: int) -> Ref:
        """Swaps two dimensions."""
        rank = len(ref.dims)
        order = list(range(rank))
        if rank:
            i, j = dim_of(first, rank), dim_of(second, rank)
            order[i], order[j] = order[j], order[i]
        return self.permute(ref, order)

    def unsqueeze(self, ref: Ref, dim: int) -> Ref:
        """Inserts a dimension of size 1 before `dim`."""
        dim = dim_of(dim, len(ref.dims) + 1)
        return replace(ref, dims=(*ref.dims[:dim], None, *ref.dims[dim:]))

    def squeeze(self, ref: Ref) -> Ref:
        """Removes dimensions of size 1."""
        return replace(ref, dims=present(ref.dims))

    def expand(self, ref: Ref, sizes: Sequence[SizeOrAxis], location: Location | None = None) -> Ref:
        """Repeats dimensions of size 1, and new ones in front, up to `sizes`; -1 keeps one."""
        missing = len(sizes) - len(ref.dims)
        dims: list[Axis | None] = []
        for position, size in enumerate(sizes):
            old = ref.dims[position - missing] if position >= missing else None
            if old is None and size != -1:
                dims.append(self.axis(size))
                continue
            if isinstance(size, Axis):
                fits = old is not None and self._spaces.unify(old.space, size.space)
            else:
                fits = size in (-1, self._size(old)) and position >= missing
            if not fits:
                raise ShapeError(f"dimension {position} of {self.shape(ref)} has another size", where=location)
            dims.append(old)
        return replace(ref, dims=tuple(dims))

    def slice(
        self,
        ref: Ref,
        dim: int,
        start: int | None = None,
        stop: int | None = None,
        step: int = 1,
        location: Location | None = None,
    ) -> Ref:
        """Slices as `ref[start:stop:step]` along `dim`, clamped as in Python; step > 0.

        Where `start` counts from the end, the result is right for every size of at least `-start`.
        """
        dim = dim_of(dim, len(ref.dims))
        axis = ref.dims[dim]
        size = self._size(axis)
        first, last, _ = slice(start, stop, step).indices(size)
        count = len(range(first, last, step))
        if count == size:
            return ref
        if count == 1:
            index = first if start is None or start >= 0 else first - size
            return self.unsqueeze(self.select(ref, dim, index, location), dim)
        if axis is None:
            raise UnsupportedError("an empty slice of a dimension of size 1", where=location)
        begin = Affine() if start is None else Affine((), start)
        if start is not None and start < 0:
            begin = Affine((), start + 1, from_end=True) if -start <= size else Affine()
        fixed = self._spaces.fixed(axis.space)
        sliced = Sliced(axis.space, start, stop, step)
        made = self._spaces.axis(self._spaces.space(count, fixed=fixed, sliced=sliced))
        return self._reindexed(ref, dim, made, replace(begin, terms=((made, step),)), location)

    def flip(self, ref: Ref, dims: Sequence[int], location: Location | None = None) -> Ref:
        """Reverses the order of elements along `dims`."""
        for dim in sorted({dim_of(d, len(ref.dims)) for d in dims}):
            axis = ref.dims[dim] if ref.dims else None
            if axis is not None:
                ref = self._reindexed(ref, dim, axis, Affine(((axis, -1),), 0, True), location)
        return ref

    def select(self, ref: Ref, dim: int, index: int, location: Location | None = None) -> Ref:
        """Selects the element at `index` along `dim`, which goes; an index below 0 counts from the end."""
        dim = dim_of(dim, len(ref.dims))
        axis = ref.dims[dim]
        if axis is not None:
            place = Affine((), index) if index >= 0 else Affine((), index + 1, from_end=True)
            ref = self._reindexed(ref, dim, None, place, location)
        return replace(ref, dims=(*ref.dims[:dim], *ref.dims[dim + 1 :]))

    def _reindexed(self, ref: Ref, dim: int, axis: Axis | None, index: Affine, location: Location | None) -> Ref:
        """Returns `ref` with dimension `dim` running over `axis`, read at `index` of the old dimension."""
        old = ref.dims[dim]
        if self.merges(ref):
            wide, models = self._spread(ref)
            if models[dim] is not None:
                raise UnsupportedError("a part of merged dimensions", where=location)
            place = len(self._spread(replace(ref, dims=ref.dims[:dim]))[0].dims)
            made = self._reindexed(wide, place, axis, index, location)
            return replace(made, dims=self._merged(made.dims, models))
        dims = (*ref.dims[:dim], axis, *ref.dims[dim + 1 :])
        own = self._own[ref.value]
        if old not in own:
            return replace(ref, dims=dims)
        indices = tuple(index if a == old else Affine.of(a) for a in own)
        axes = tuple(a for a in dims if a is not None and (a == axis or a in own))
        node = Reindex(self._name(), axes, ref.dtype, ref.value, indices, location)
        return replace(self._add_like(node, ref, {old: present([axis])}), dims=dims)
