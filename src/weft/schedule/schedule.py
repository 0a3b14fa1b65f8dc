"""Schedules: data that says where each loop of a block program runs and in what steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from weft.block.program import BlockProgram, First, Map, Rest, maps
from weft.errors import ScheduleError


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

    def __str__(self) -> str:
        return ", ".join(map(str, self.levels)) + (", peeled" if self.peel else "")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, keyed by loop node: one axis may be tiled differently in producer and consumer (design.md, Forms).

    Attributes:
        loops: (map name, its levels), for every map of the program.
        rows: names of Dot nodes whose row operand is copied to dense local memory first (it is not unit-stride along
            the contracted axis).
        panels: names of Dot nodes whose other operand is staged as the panel a matrix unit wants.
    """

    loops: tuple[tuple[str, LoopSchedule], ...]
    rows: frozenset[str] = frozenset()
    panels: frozenset[str] = frozenset()

    def of(self, name: str) -> LoopSchedule:
        """The levels of the loop `name`.

        Raises:
            ScheduleError: where it has none.
        """
        for loop, levels in self.loops:
            if loop == name:
                return levels
        raise ScheduleError(
            f"the schedule says nothing of loop {name!r}", todo="give every loop of the program its levels"
        )

    def __str__(self) -> str:
        lines = [f"{name}: {levels}" for name, levels in self.loops]
        lines += [
            f"{what}: {', '.join(sorted(names))}"
            for what, names in (("rows", self.rows), ("panels", self.panels))
            if names
        ]
        return "\n".join(lines)


def validate(program: BlockProgram, schedule: Schedule) -> None:
    """Raise `ScheduleError` unless `schedule` names just the loops of `program`, with levels that make sense."""
    loops = {m.name: m for m in maps(program.graph)}
    named = [name for name, _ in schedule.loops]
    if sorted(named) != sorted(loops):
        raise ScheduleError(f"the schedule is for loops {sorted(named)}, the program has {sorted(loops)}")
    for name, loop in schedule.loops:
        _validate_range(loops[name], schedule)
        if loop.peel and loop.levels[-1].place is not LevelPlace.loop:
            raise ScheduleError(f"loop {name!r}: only a loop that goes block by block has an edge to peel")
        _validate_levels(name, loop, unit=loops[name].unit, state=loops[name].state is not None)
    _validate_rests(program, schedule)


def _validate_range(node: Map, schedule: Schedule) -> None:
    """A first block is one iteration, and the rest begins where it ends."""
    loop = schedule.of(node.name)
    if isinstance(node.range, First) and (len(loop.levels) != 1 or loop.peel):
        raise ScheduleError(f"loop {node.name!r} has one iteration: it takes one level, and is not peeled")
    if isinstance(node.range, First | Rest) and loop.levels[:1] and loop.levels[0].place is LevelPlace.split:
        raise ScheduleError(f"loop {node.name!r} cannot be split: it does not run over its whole range")


def _validate_rests(program: BlockProgram, schedule: Schedule) -> None:
    first = {m.axis: schedule.of(m.name).levels[0] for m in maps(program.graph) if isinstance(m.range, First)}
    for node in maps(program.graph):
        if isinstance(node.range, Rest):
            ends, begins = first[node.range.after], schedule.of(node.name).levels[0]
            whole = (ends.place is LevelPlace.whole, begins.place is LevelPlace.whole)
            if ends.size != begins.size or whole[0] != whole[1]:
                raise ScheduleError(
                    f"loop {node.name!r} goes on after a first block: its outermost level must be of that size, {ends.size}"
                )


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
        raise ScheduleError(f"loop {name!r} carries state: its iterations cannot be programs of the grid; split it")
    if unit and tiled[-1:] != [1]:
        raise ScheduleError(f"loop {name!r} goes by single elements: its innermost level must have size 1")
