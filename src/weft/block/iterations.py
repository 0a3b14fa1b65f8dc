"""The iterations of loops as the interpreter makes them: one after the other, or several side by side.

Iterations of a loop without a state know nothing of each other. So neighbours that are whole blocks, with loops of one shape in
them, are computed together, and in values that differ from one to the other each has its place along a dimension of its own; what
does not depend on them has no such dimension, and is computed once. The last, shorter block follows by itself.

    forall i in range(I):  # blocks of 3, I = 11        i = 0..2, 3..5, 6..8 at once, then i = 9..10
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from weft.block.places import Place
from weft.block.program import Load, Map
from weft.block.size import axes_of, value
from weft.block.walk import graphs, maps, stored, touched
from weft.tensor.axes import Axis

ElementNumbers: TypeAlias = int | npt.NDArray[np.int64]
"""One number, or one for each of the iterations side by side: a dimension for each loop of `Around.runs`."""

AT_ONCE = 1024
"""At most so many iterations are computed at once: enough for the arithmetic to cost more than the interpreting, and few enough for
values to stay in a processor's cache.
"""


@dataclass(frozen=True, slots=True)
class LoopStep:
    """The current iteration of a loop, or several side by side.

    Attributes:
        base: the first element of each.
        valid: how many elements each has.
        tile: how many a whole block has.
        count: how many iterations they are.
    """

    base: ElementNumbers
    valid: int
    tile: int
    count: int = 1

    @property
    def lanes(self) -> int:
        """The number of elements that items have along the axis: one of padding is enough to see who reads it."""
        return min(self.tile, self.valid + 1)


@dataclass(frozen=True, slots=True)
class Around:
    """The current iterations of the loops around, outermost first.

    Attributes:
        steps: by axis of the loop.
        runs: the axes of those several of whose iterations are side by side.
    """

    steps: Mapping[Axis, LoopStep] = field(default_factory=dict[Axis, LoopStep])
    runs: tuple[Axis, ...] = ()

    def __getitem__(self, axis: Axis) -> LoopStep:
        """Return the iteration of the loop over `axis`, its base with a dimension for each of `runs`, if it has any."""
        step = self.steps[axis]
        if isinstance(step.base, int) or step.base.ndim == len(self.runs):
            return step
        more = (1,) * (len(self.runs) - step.base.ndim)
        return LoopStep(step.base.reshape(step.base.shape + more), step.valid, step.tile, step.count)

    def inside(self, axis: Axis, step: LoopStep) -> Around:
        """Return what is around the body of the loop over `axis`."""
        return Around({**self.steps, axis: step}, self.runs if step.count == 1 else (*self.runs, axis))

    def counts(self, runs: Iterable[Axis]) -> tuple[int, ...]:
        """Return how many iterations of the loops over `runs` are side by side."""
        return tuple([self.steps[a].count for a in runs])

    def valid(self, dims: Iterable[Axis]) -> tuple[int, ...]:
        """Return how many elements of `dims` items have, without padding."""
        return tuple([self.steps[a].valid for a in dims])

    def lanes(self, dims: Iterable[Axis]) -> tuple[int, ...]:
        """Return how many elements of `dims` items have."""
        return tuple([self.steps[a].lanes for a in dims])

    @property
    def times(self) -> int:
        """Count the iterations that are side by side, of all loops together."""
        return prod(self.counts(self.runs))


_Shape: TypeAlias = tuple[tuple[int, int, "tuple[_Shape, ...]"], ...]
"""Of each iteration of a loop which of the range's runs it is of, how many elements it has, and the shapes of the loops in it that
depend on which it is.
"""


@dataclass
class LoopSteps:
    """Finds the iterations of a program's loops.

    Attributes:
        sizes: elements of each space, by name.
        blocks: elements per block of each space, by name, for loops that no schedule has placed.
        ranks: the axes of rankings, whose loops have one block.
        at_once: at most so many iterations are computed side by side.
    """

    sizes: Mapping[str, int]
    blocks: Mapping[str, int]
    ranks: frozenset[Axis]
    at_once: int
    _bounds: dict[int, frozenset[Axis]] = field(default_factory=dict[int, frozenset[Axis]])
    _alone: dict[int, bool] = field(default_factory=dict[int, bool])
    _apart: dict[int, bool] = field(default_factory=dict[int, bool])
    _known: dict[tuple[int, int], list[LoopStep]] = field(default_factory=dict[tuple[int, int], list[LoopStep]])

    def steps(self, node: Map, around: Around) -> list[LoopStep]:
        """Return the iterations of `node`, those side by side as one; in order but for these."""
        room = self.at_once // around.times
        if room < 2 or not self.independent(node):
            return self._one_by_one(node, around)
        if not self._is_alone(node):
            return list(self._together(node, around, room))
        if (id(node), room) not in self._known:
            self._known[id(node), room] = list(self._together(node, around, room))
        return [self._deep(step, around) for step in self._known[id(node), room]]

    def _is_alone(self, node: Map) -> bool:
        """Tell whether the iterations of `node`, and of the loops in it, depend on none around it."""
        if id(node) not in self._alone:
            self._alone[id(node)] = self._bounded_by(node) <= {node.axis, *(m.axis for m in maps(node.body))}
        return self._alone[id(node)]

    def _deep(self, step: LoopStep, around: Around) -> LoopStep:
        """Return `step` of a loop whose range depends on no other, for a body with other loops around it."""
        if isinstance(step.base, int):
            return step
        return LoopStep(step.base.reshape((*(1,) * len(around.runs), -1)), step.valid, step.tile, step.count)

    def independent(self, node: Map) -> bool:
        """Tell whether no iteration of `node` can see what another did: it carries nothing, hands out nothing but by stores, and
        reads no memory that it stores.
        """
        if id(node) not in self._apart:
            alone = node.state is None and not node.outputs and not node.range.one_block
            self._apart[id(node)] = alone and set(stored(node)).isdisjoint(touched(node, Load))
        return self._apart[id(node)]

    def _together(self, node: Map, around: Around, room: int) -> Iterator[LoopStep]:
        """Yield the iterations of `node`, neighbours together where all in them has one shape, as many as there is `room` for.

        All stay in order: of two that store at one place, by right or by mistake, the later one's value remains.
        """

        def shape(step: LoopStep) -> tuple[int, tuple[_Shape, ...]]:
            return step.valid, self._shapes(node, around.inside(node.axis, step), frozenset((node.axis,)))

        for _, alike in groupby(self._one_by_one(node, around), key=shape):
            steps = list(alike)
            for first in range(0, len(steps), room):
                some = steps[first : first + room]
                if len(some) == 1:
                    yield some[0]
                    continue
                runs = len(around.runs)
                bases = [np.asarray(s.base).reshape(np.shape(s.base) or (1,) * runs) for s in some]
                yield LoopStep(np.stack(bases, axis=-1), some[0].valid, some[0].tile, len(some))

    def _shapes(self, node: Map, around: Around, varying: frozenset[Axis]) -> tuple[_Shape, ...]:
        """Return the shapes of the loops in the body of `node` that depend on the iterations of the loops over `varying`."""
        found: list[_Shape] = []
        for inner in (n for graph in graphs(node) for n in graph.nodes if isinstance(n, Map)):
            if self._bounded_by(inner).isdisjoint(varying):
                continue
            shapes: list[tuple[int, int, tuple[_Shape, ...]]] = []
            for number, run in enumerate(self._by_runs(inner, around)):
                for step in run:
                    within = self._shapes(inner, around.inside(inner.axis, step), varying | {inner.axis})
                    shapes.append((number, step.valid, within))
            found.append(tuple(shapes))
        return tuple(found)

    def _bounded_by(self, node: Map) -> frozenset[Axis]:
        """Return the axes of the loops on whose iterations those of `node` depend, or of loops in it."""
        if id(node) not in self._bounds:
            runs = node.range.runs(node.axis.space, self._tile(node))
            found = frozenset[Axis]().union(
                *(axes_of(each) for run in runs for each in (run.first, run.last, run.stop))
            )
            for inner in (n for graph in graphs(node) for n in graph.nodes if isinstance(n, Map)):
                found |= self._bounded_by(inner)
            self._bounds[id(node)] = found
        return self._bounds[id(node)]

    def _tile(self, node: Map) -> int | None:
        """Return the elements of a block of `node`; None where it has all of them at once."""
        if node.place is Place.whole:
            return None
        space = node.axis.space
        size = space.size(self.sizes)
        blocks = size if node.axis in self.ranks else self.blocks.get(space.name, size)
        return node.tile if node.tile is not None else 1 if node.unit else blocks

    def _one_by_one(self, node: Map, around: Around) -> list[LoopStep]:
        """Return the iterations of `node`, in order."""
        return [step for run in self._by_runs(node, around) for step in run]

    def _by_runs(self, node: Map, around: Around) -> Iterator[list[LoopStep]]:
        """Yield the iterations of each run of the range of `node`, in order."""
        tile = self._tile(node)
        for run in node.range.runs(node.axis.space, tile):
            first, last, stop = (value(each, self.sizes, around) for each in (run.first, run.last, run.stop))
            if tile is None:
                count = _same(stop - first, node)
                yield [LoopStep(first, count, count)] if count > 0 else []
                continue
            bases = [first + number * tile for number in range(_same(-((first - last) // tile), node))]
            yield [LoopStep(base, min(tile, _same(stop - base, node, tile)), tile) for base in bases]


def _same(numbers: ElementNumbers, node: Map, most: int | None = None) -> int:
    """Return the number that `numbers` all are, or that they all are no more than `most`."""
    if isinstance(numbers, int):
        return numbers
    if most is not None:
        numbers = np.minimum(numbers, most)
    low, high = int(numbers.min()), int(numbers.max())
    assert low == high, f"iterations side by side have loops {node.name} of different lengths"
    return low
