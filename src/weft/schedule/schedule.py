"""Schedules: data that says where each loop of a block program runs and in what steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from weft.block.program import BlockProgram, Map
from weft.block.ranges import All
from weft.block.walk import maps
from weft.errors import ScheduleError
from weft.schedule.ties import begins_where, tied
from weft.tensor.axes import Axis


class LevelPlace(Enum):
    """Places of a level: grid and loop take a tile size, split a number of segments, whole nothing."""

    grid = "grid"
    loop = "loop"
    whole = "whole"
    split = "split"


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a loop.

    Attributes:
        place: where its iterations run.
        size: grid, loop: elements per iteration, fewer from level to level; split: how many segments; whole: 0.
    """

    place: LevelPlace
    size: int = 0

    def __str__(self) -> str:
        return self.place.value + (f" {self.size}" if self.size else "")


@dataclass(frozen=True, slots=True)
class LoopSchedule:
    """The levels of one loop, outermost first; `peel` gives the iteration with less than a block a loop of its own."""

    levels: tuple[Level, ...]
    peel: bool = False

    @property
    def form(self) -> LoopSchedule:
        """The levels without sizes of blocks."""
        levels = (v if v.place is LevelPlace.split else Level(v.place) for v in self.levels)
        return LoopSchedule(tuple(levels), self.peel)

    def __str__(self) -> str:
        return ", ".join(map(str, self.levels)) + (", peeled" if self.peel else "")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, keyed by loop node: one axis may be tiled differently in producer and consumer.

    Attributes:
        loops: (map name, its levels), for every map of the program.
        rows: names of Dot nodes whose row operand is copied to dense local memory first (it is not unit-stride along
            the contracted axis).
        panels: names of Dot nodes whose other operand is staged as the panel a matrix unit wants.
        transposed: names, in the bodies of loops, of items of two axes that are copied to dense local memory first, the axes in the
            other order: points in space, of which a body goes through one coordinate after the other.
        beforehand: names of guarded loops of which a launch before finds out which iterations are idle.
        apart: names of guarded loops whose full blocks have a loop of their own, which reads no mask.
        merging: (map name, elements of a block on the grid) of loops that go by smaller blocks in the kernels that merge segments.
        together: how many parts such a kernel merges at once, where the state allows more than one; with more than one each segment
            of a scan merges those before it by itself, if it can, in the kernel that goes over it.
        warps, stages: on a GPU, of each thread block: its warps, and how many iterations of a loop are in flight at once.
        merging_warps: of each program of a kernel that merges segments; 0: as of the others.
    """

    loops: tuple[tuple[str, LoopSchedule], ...]
    rows: frozenset[str] = frozenset()
    panels: frozenset[str] = frozenset()
    transposed: frozenset[str] = frozenset()
    beforehand: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()
    merging: tuple[tuple[str, int], ...] = ()
    together: int = 1
    warps: int = 4
    stages: int = 1
    merging_warps: int = 0

    def warps_of(self, *, merges: bool) -> int:
        """Count the warps of each program of a kernel that merges segments, or of one that does not."""
        return self.merging_warps or self.warps if merges else self.warps

    def of(self, name: str) -> LoopSchedule:
        """Return the levels of the loop `name`.

        Raises:
            ScheduleError: where it has none.
        """
        for loop, levels in self.loops:
            if loop == name:
                return levels
        raise ScheduleError(
            f"the schedule says nothing of loop {name!r}", todo="give every loop of the program its levels"
        )

    @property
    def form(self) -> Schedule:
        """The schedule without the sizes of blocks, which no part of `apply` looks at, and without what a launch alone needs."""
        loops = tuple((name, loop.form) for name, loop in self.loops)
        merging = tuple((name, 1) for name, _ in self.merging)
        return replace(self, loops=loops, merging=merging, warps=4, stages=1, merging_warps=0)

    def __str__(self) -> str:
        lines = [f"{name}: {levels}" for name, levels in self.loops]
        lines += [
            f"{what}: {', '.join(sorted(names))}"
            for what, names in (
                ("rows", self.rows),
                ("panels", self.panels),
                ("transposed", self.transposed),
                ("beforehand", self.beforehand),
                ("full blocks apart", self.apart),
            )
            if names
        ]
        merged = [f"{name} {size}" for name, size in self.merging]
        merged += [f"{self.together} parts"] if self.together > 1 else []
        merged += [f"warps {self.merging_warps}"] if self.merging_warps else []
        lines += [f"merging by {', '.join(merged)}"] if merged else []
        lines += [f"warps {self.warps}, stages {self.stages}"] if (self.warps, self.stages) != (4, 1) else []
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Loops:
    """What of a program a schedule must fit.

    Attributes:
        nodes: its loops, by name.
        rests: `weft.schedule.ties.begins_where` of it.
        tied: `weft.schedule.ties.tied` of it.
    """

    nodes: Mapping[str, Map]
    rests: Mapping[Axis, Axis]
    tied: tuple[tuple[Axis, Axis], ...]

    @staticmethod
    def of(program: BlockProgram) -> Loops:
        """Find the loops of `program`."""
        return Loops({m.name: m for m in maps(program.graph)}, begins_where(program), tuple(tied(program)))


def validate(loops: Loops, schedule: Schedule) -> None:
    """Raise `ScheduleError` unless `schedule` names just `loops`, with levels that make sense."""
    named = [name for name, _ in schedule.loops]
    if sorted(named) != sorted(loops.nodes):
        raise ScheduleError(f"the schedule is for loops {sorted(named)}, the program has {sorted(loops.nodes)}")
    unasked = [name for name in sorted(schedule.apart) if name not in loops.nodes or loops.nodes[name].guard is None]
    if unasked:
        raise ScheduleError(f"loop {unasked[0]!r} has no guard: it has no full blocks to part")
    for name, loop in schedule.loops:
        node = loops.nodes[name]
        if loop.peel and loop.levels[-1].place is not LevelPlace.loop:
            raise ScheduleError(f"loop {name!r}: only a loop that goes block by block has an edge to peel")
        _validate_levels(name, loop, unit=node.unit, state=node.state is not None)
        _validate_range(node, loop)
    _validate_ties(loops, schedule)


def _validate_range(node: Map, loop: LoopSchedule) -> None:
    if node.range.one_block and (len(loop.levels) != 1 or loop.peel):
        raise ScheduleError(f"loop {node.name!r} has one iteration: it takes one level, and is not peeled")
    if node.range != All() and loop.levels[0].place is LevelPlace.split:
        raise ScheduleError(f"loop {node.name!r} cannot be split: it does not run over its whole range")


def _validate_ties(loops: Loops, schedule: Schedule) -> None:
    given = dict(schedule.loops)
    levels = {node.axis: tuple(v for v in given[name].levels if v.place is not LevelPlace.split)
              for name, node in loops.nodes.items()}  # fmt: skip
    for rest, first in loops.rests.items():
        if not _alike(levels[first][:1], levels[rest][:1]):
            raise ScheduleError(
                f"the rest of a loop begins where its first block ends: {levels[rest][0]} after {levels[first][0]}"
            )
    for one, other in loops.tied:
        sizes = [level.size for level in levels[one]]
        if not _alike(levels[one], levels[other]) or any(a % b for a, b in pairwise(sizes) if b):
            raise ScheduleError(
                f"loops {one} and {other} share a list of blocks: their levels must be alike, and divide each other"
            )


def _alike(one: tuple[Level, ...], other: tuple[Level, ...]) -> bool:
    """Tell whether both go by the same blocks, wherever these run."""
    return [(v.size, v.place is LevelPlace.whole) for v in one] == [
        (v.size, v.place is LevelPlace.whole) for v in other
    ]


def _validate_levels(name: str, loop: LoopSchedule, *, unit: bool, state: bool) -> None:
    places = [level.place for level in loop.levels]
    if not places:
        raise ScheduleError(f"loop {name!r} has no level")
    tiled = [level.size for level in loop.levels if level.place in (LevelPlace.grid, LevelPlace.loop)]
    if any(size < 1 for size in tiled) or any(a <= b for a, b in pairwise(tiled)):
        raise ScheduleError(f"loop {name!r}: sizes must be positive and fall from level to level, not {tiled}")
    if LevelPlace.whole in places[:-1] or (
        LevelPlace.whole in places and len(places) > 1 and LevelPlace.split not in places
    ):
        raise ScheduleError(f"loop {name!r}: 'whole' can only be its one level")
    if LevelPlace.split in places[1:] or (
        LevelPlace.split in places and (not state or loop.levels[0].size < 1 or len(places) < 2)
    ):
        raise ScheduleError(
            f"loop {name!r}: 'split' must come first, with a level for the segments, on a loop with state"
        )
    if state and LevelPlace.grid in places:
        raise ScheduleError(f"loop {name!r} carries state: its iterations cannot run on the grid; split it")
    if unit and tiled[-1:] != [1]:
        raise ScheduleError(f"loop {name!r} goes by single elements: its innermost level must have size 1")
