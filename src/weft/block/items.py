"""The values of an interpreted program: items and memory, and how the one comes from the other.

Where iterations are side by side (`weft.block.iterations`), an item that differs from one to the other has, before the dimensions
of its axes, one for each loop on whose iterations it depends; so has memory that each iteration has for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from weft.block.iterations import Around, ElementNumbers, LoopSteps
from weft.block.moves import transposed, written
from weft.block.program import Load, Store
from weft.block.residency import SharedBytes
from weft.tensor.axes import Axis
from weft.tensor.domain import Array, Domain, at, broadcast, looked_up
from weft.tensor.dtypes import DType

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class ItemValue(Generic[V]):
    """A block, vector or scalar: an array of its axes' lanes, of which each axis's step says how much is valid.

    Attributes:
        array: with a dimension for each of `runs` and of `dims`.
        initial: it is one that a loop's state begins with, and that no iteration has changed.
        runs: the loops, in the order in which they are inside each other, that have it once for each iteration side by side.
    """

    array: V
    dims: tuple[Axis, ...]
    dtype: DType
    initial: bool = False
    runs: tuple[Axis, ...] = ()


@dataclass
class MemoryValue(Generic[V]):
    """A list in memory: an array over its axes, of which what nobody stored is poison.

    Attributes:
        name: of its buffer, or of the input.
        local: bytes of it that are held by an iteration of the grid; None of global memory.
        runs: the loops that have it once for each iteration side by side: all that were when it was made.
    """

    name: str
    array: V
    axes: tuple[Axis, ...]
    local: SharedBytes | None = None
    runs: tuple[Axis, ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of one dimension of memory that an item is, or an element of it is in.

    Attributes:
        first: its first element.
        count: how many elements it has.
        along: the item's axis along which they lie; None where there is one.
        index: the number of the item of integers that says instead where each element lies.
    """

    first: ElementNumbers
    count: int
    along: Axis | None
    index: int | None = None

    def numbers(self, runs: Sequence[int], dims: tuple[Axis, ...]) -> Array:
        """Return the numbers of its elements, with a dimension for each of those `runs` of the loops around, and of `dims`."""
        first = np.asarray(self.first)
        if first.ndim:
            first = first.reshape([first.shape[d] for d in runs])
        first = first.reshape(first.shape + (1,) * len(dims))
        if self.along is None:
            return first
        return first + np.arange(self.count).reshape([-1 if a == self.along else 1 for a in dims])


@dataclass(frozen=True, slots=True)
class Items(Generic[V]):
    """Makes items, and moves them to and from memory.

    Attributes:
        domain: what values are.
        loops: the sizes of spaces.
    """

    domain: Domain[V]
    loops: LoopSteps

    def aligned(self, item: ItemValue[V], dims: tuple[Axis, ...], runs: tuple[Axis, ...]) -> V:
        """Return the item's array with a dimension for each of `runs` and of `dims`, of size 1 where the item lacks it."""
        if item.dims == dims and item.runs == runs:
            return item.array
        own = len(item.runs)
        order = (*range(own), *(own + item.dims.index(a) for a in dims if a in item.dims))
        array = item.array if order == tuple(range(len(order))) else self.domain.lift(transposed(order), item.array)
        present = [slice(None) if a in item.runs else None for a in runs]
        present += [slice(None) if a in item.dims else None for a in dims]
        return self.domain.lift(at(tuple(present)), array) if None in present else array

    def runs(self, items: Sequence[ItemValue[V]], around: Around) -> tuple[Axis, ...]:
        """Return the loops that have any of `items` once for each iteration side by side, outermost first."""
        if not around.runs:
            return ()
        return tuple([a for a in around.runs if any(a in item.runs for item in items)])

    def valid(self, item: ItemValue[V], around: Around) -> ItemValue[V]:
        """Return `item` without its padding."""
        valid = around.valid(item.dims)
        if valid == around.lanes(item.dims):
            return item
        array = self.domain.lift(at((..., *map(slice, valid))), item.array)
        return ItemValue(array, item.dims, item.dtype, runs=item.runs)

    def padded(self, item: ItemValue[V], around: Around) -> ItemValue[V]:
        """Return the item whose valid elements `item` holds, with nothing known in its other lanes."""
        shape = self.domain.shape(item.array)
        lanes = (*around.counts(item.runs), *around.lanes(item.dims))
        if shape == lanes:
            return item
        padding = self.domain.poison(lanes, item.dtype)
        array = self.domain.lift(written(tuple(map(slice, shape))), padding, item.array)
        return ItemValue(array, item.dims, item.dtype, runs=item.runs)

    def filled(self, item: ItemValue[V], value: float, around: Around) -> ItemValue[V]:
        """Return `item` with `value` in its padding."""
        valid, lanes = around.valid(item.dims), around.lanes(item.dims)
        if valid == lanes:
            return item
        window = (..., *map(slice, valid))
        padding = self.domain.full((*around.counts(item.runs), *lanes), value, item.dtype)
        array = self.domain.lift(written(window), padding, self.domain.lift(at(window), item.array))
        return ItemValue(array, item.dims, item.dtype, runs=item.runs)

    def load(self, node: Load, memory: MemoryValue[V], indices: Sequence[ItemValue[V]], around: Around) -> ItemValue[V]:
        """Load an item, padded to its axes' lanes; where `indices` say, if there are any.

        Raises:
            IndexError: an element is out of bounds.
        """
        parts = self._parts(node, memory, node.dims, around)
        runs, varying = self._runs_of(parts, memory, indices, around)
        if indices or varying:
            item = self._gathered(node, memory, parts, indices, around, runs)
        else:
            array = self.domain.lift(at((..., *map(_plain, parts))), memory.array)
            own = [part.along for part in parts if part.along is not None]
            order = (*range(len(runs)), *(len(runs) + own.index(a) for a in node.dims))
            if order != tuple(range(len(order))):
                array = self.domain.lift(transposed(order), array)
            item = ItemValue(array, node.dims, node.dtype, runs=runs)
        return self.padded(item, around)

    def _runs_of(
        self, parts: Sequence[_Part], memory: MemoryValue[V], items: Sequence[ItemValue[V]], around: Around
    ) -> tuple[tuple[Axis, ...], bool]:
        """Return the loops on whose iterations side by side any of these depends, and whether a place in memory does."""
        if not around.runs:
            return (), False
        shapes = [part.first.shape for part in parts if not isinstance(part.first, int)]
        places = {a for shape in shapes for a, count in zip(around.runs, shape, strict=True) if count > 1}
        others = {*memory.runs, *(a for item in items for a in item.runs)}
        return tuple([a for a in around.runs if a in places or a in others]), bool(places)

    def _gathered(
        self,
        node: Load,
        memory: MemoryValue[V],
        parts: Sequence[_Part],
        indices: Sequence[ItemValue[V]],
        around: Around,
        runs: tuple[Axis, ...],
    ) -> ItemValue[V]:
        """Return the valid elements of `memory` where `parts` and `indices` say, of the iterations of `runs`."""
        shown = [around.runs.index(a) for a in runs]
        places: list[V | Array] = [self._own(a, runs, len(node.dims), around) for a in memory.runs]
        for part in parts:
            if part.index is None:
                places.append(part.numbers(shown, node.dims))
            else:
                places.append(self.aligned(self.valid(indices[part.index], around), node.dims, runs))
        checked = (
            [len(memory.runs) + d for d, part in enumerate(parts) if part.index is not None] if node.masked else []
        )
        if indices:
            array = looked_up(self.domain, memory.array, places, checked, node.dtype)
        else:
            array = self.domain.lift(at(tuple(places)), memory.array)
        shape = (*around.counts(runs), *around.valid(node.dims))
        array = array if self.domain.shape(array) == shape else self.domain.lift(broadcast(shape), array)
        return ItemValue(array, node.dims, node.dtype, runs=runs)

    def _own(self, run: Axis, runs: tuple[Axis, ...], dims: int, around: Around) -> Array:
        """Return which iteration of the loop over `run` each of those side by side is."""
        numbers = np.arange(around.steps[run].count)
        return numbers.reshape([*(-1 if a == run else 1 for a in runs), *(1,) * dims])

    def store(self, node: Store, memory: MemoryValue[V], item: ItemValue[V], around: Around) -> None:
        """Store the valid elements of an item; of iterations that store at one place, those of the last remain.

        Raises:
            IndexError: an element is out of bounds.
        """
        parts = self._parts(node, memory, item.dims, around)
        runs, varying = self._runs_of(parts, memory, (), around)
        item = self.valid(item, around)
        if not set(item.runs) <= set(runs):
            last = tuple(slice(None) if a in runs else -1 for a in item.runs)
            kept = tuple(a for a in item.runs if a in runs)
            item = ItemValue(self.domain.lift(at(last), item.array), item.dims, item.dtype, runs=kept)
        own = tuple(part.along for part in parts if part.along is not None)
        array = self.aligned(item, own, runs)
        if varying:
            shown = [around.runs.index(a) for a in runs]
            places = (self._own(a, runs, len(own), around) for a in memory.runs)
            window: tuple[Any, ...] = (*places, *(part.numbers(shown, own) for part in parts))
        else:
            window = (..., *map(_plain, parts))
        memory.array = self.domain.lift(written(window), memory.array, array)

    def _parts(self, node: Load | Store, memory: MemoryValue[V], dims: tuple[Axis, ...], around: Around) -> list[_Part]:
        """Return the part of each dimension of `memory` that an item with axes `dims` is; an element out of bounds is an error."""
        found: list[_Part] = []
        for subscript, axis in zip(node.at, memory.axes, strict=True):
            if subscript.index is not None:
                found.append(_Part(0, 0, None, subscript.index))
                continue
            first, count, along = subscript.offset, 1, None
            for factor, digit in subscript.terms:
                step = around[digit.axis]
                if digit.axis in dims:
                    count, along = step.valid, digit.axis
                number = step.base // digit.div
                first = first + factor * (number if digit.mod is None else number % digit.mod)
            low, high = (first, first) if isinstance(first, int) else (int(first.min()), int(first.max()))
            if low < 0 or high + count > axis.space.size(self.loops.sizes):
                raise IndexError(f"elements {low} to {high + count - 1} of {axis.space} in {memory.name}")
            found.append(_Part(first, count, along))
        return found


def _plain(part: _Part) -> slice | int:
    """Return the index of a part that is the same in all iterations."""
    assert isinstance(part.first, int)
    return part.first if part.along is None else slice(part.first, part.first + part.count)
