"""Dimensions split in two and more: views of a value whose index has a term for each digit of the dimension's.

    y[m, n]  split into (h, d), d < D        ==>        y'[m, h, d] = y[m, D*h + d]

With merged dimensions, which are names for several axes, this is every reshape between mixed radices that share their digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.errors import Location
from weft.tensor.axes import Affine, Axis, present
from weft.tensor.builder.merge import Ref
from weft.tensor.builder.view import Views
from weft.tensor.program import Reindex


class Reshapes(Views):
    """The methods that split dimensions, and know how long each axis is."""

    def tell(self, axis: Axis, length: Any) -> None:
        """Notes the length of `axis` as whoever builds the program writes it, a number or an expression."""
        self._spaces.tell(axis.space, length)

    def length(self, axis: Axis) -> Any:
        """Returns what was told of the length of `axis`, or of one over the same space; None where nothing was."""
        return self._spaces.length(axis.space)

    def pin(self, axis: Axis) -> None:
        """Fixes the size of `axis`, since something else is made from that number."""
        self._spaces.pin(axis.space)

    def spread(self, ref: Ref) -> Ref:
        """Returns `ref` with a dimension for each axis that operations on it run over, and none of size 1."""
        return replace(ref, dims=self._atoms(ref.dims))

    def split(self, ref: Ref, dim: int, outer: int, inner: Sequence[int], location: Location | None = None) -> Ref:
        """Splits dimension `dim`, an axis, into several of these sizes: `outer` in the example, `inner` always.

        Raises:
            UnsupportedError: an inner size is only read at each call.
        """
        axis = ref.dims[dim]
        assert axis is not None, "a dimension of size 1 has no digits"
        first = self.axis(outer, shown=not self._spaces.fixed(axis.space))
        model = self._one(present((first, *(self.axis(size) for size in inner))))
        assert model is not None, "more than one size, none of them 1"
        made, parts = self._split(ref, axis, model, location)
        return replace(made, dims=(*ref.dims[:dim], *parts, *ref.dims[dim + 1 :]))

    def undivided(self, ref: Ref) -> tuple[Ref, tuple[tuple[Axis, ...], ...]] | None:
        """Returns the value that `ref`, a split of it and nothing else, looks at, with the axes that each of its own is split into.

        None where `ref` is no split.
        """
        node = self._made.get(ref.value)
        if not isinstance(node, Reindex) or all(index.axis is not None for index in node.index):
            return None
        parts = tuple(tuple(axis for axis, _ in index.terms) for index in node.index)
        if not all(map(self._counts_all, node.index, self._own[node.source])):
            return None
        return Ref(node.source, self._own[node.source], ref.dtype), parts

    def _counts_all(self, index: Affine, axis: Axis) -> bool:
        """Tells whether `index` is each number of `axis` once, in order: its terms are the digits."""
        step = 1
        for own, coefficient in reversed(index.terms):
            if coefficient != step:
                return False
            step *= self._size(own)
        return not index.offset and not index.from_end and step == self._size(axis)
