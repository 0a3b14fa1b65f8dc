"""`apply`: a schedule made real, as an ordinary block program whose loops have places.

Everything after this reads only the program it gives: what two emitters would both have to decide is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.block.check import check
from weft.block.copies import canonical, loop_names
from weft.block.program import BlockProgram
from weft.block.transfers import with_transfers
from weft.block.walk import maps
from weft.errors import ScheduleError
from weft.schedule.accumulate import accumulate, prepare_operands
from weft.schedule.edges import peel
from weft.schedule.full_blocks import part_full
from weft.schedule.lanes import EXACT, Granularity, with_demands
from weft.schedule.place import demand_grid, hoist_grid, place_loops, retiled
from weft.schedule.schedule import Level, LevelPlace, Loops, LoopSchedule, Schedule, validate
from weft.schedule.split import Split, split
from weft.schedule.summaries import summarize
from weft.schedule.ties import tied


def apply(program: BlockProgram, schedule: Schedule, granularity: Granularity = EXACT) -> BlockProgram:
    """Apply `schedule` to `program`: split, placed, peeled, padded, staged and accumulating; checked.

    Args:
        program: a block program without places, with canonical names.
        schedule: levels for each of its loops, by name.
        granularity: what the target asks of blocks and iterations.

    Raises:
        ScheduleError: where the schedule does not fit the program.
    """
    return Placing(program, granularity).apply(schedule)


class Placing:
    """Applies schedules to one program; those that differ in nothing but sizes of blocks share all that sizes do not change.

    A size is a parameter of what `apply` gives: no part of it looks at one, but to see that levels fall, that loops that share a
    list go by the same blocks, and whether a block is a single element (`peel`) or covers a space of fixed size (`Map.runs_once`).
    """

    def __init__(self, program: BlockProgram, granularity: Granularity = EXACT) -> None:
        self.program, self.granularity = program, granularity
        self._loops = Loops.of(program)
        self._known: dict[tuple[Schedule, frozenset[tuple[str, int, bool]]], _Placed | ScheduleError] = {}

    def apply(self, schedule: Schedule) -> BlockProgram:
        """Return the program with `schedule` applied; raises as `weft.schedule.apply`."""
        validate(self._loops, schedule)
        form = schedule.form, self._extremes(schedule)
        known = self._known.get(form)
        if known is None:
            try:
                known = _Placed.of(self.program, schedule, self.granularity)
            except ScheduleError as error:
                known = error
            self._known[form] = known
        if isinstance(known, ScheduleError):
            raise ScheduleError(known.what, todo=known.todo)
        return known.at(schedule)

    def _extremes(self, schedule: Schedule) -> frozenset[tuple[str, int, bool]]:
        """Find the levels, by loop and number, whose block is a single element, or (True) covers a space of fixed size."""
        sizes = [(name, n, level.size) for name, loop in schedule.loops for n, level in enumerate(loop.levels)]
        sizes += [(name, -1, size) for name, size in schedule.merging]
        found = {(name, n, False) for name, n, size in sizes if size == 1}
        for name, n, size in sizes:
            fixed = self._loops.nodes[name].axis.space.fixed if name in self._loops.nodes else None
            found |= {(name, n, True)} if fixed is not None and size >= fixed else set()
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A program with places, at some sizes of blocks.

    Attributes:
        splits: what was split on the way, and the loops that go by the same blocks as others after each.
    """

    program: BlockProgram
    splits: tuple[tuple[Split, frozenset[str]], ...]

    @staticmethod
    def of(program: BlockProgram, schedule: Schedule, granularity: Granularity) -> _Placed:
        wanted = dict(schedule.loops)
        splits: list[tuple[Split, frozenset[str]]] = []
        for name, loop in schedule.loops:
            if loop.levels[0].place is LevelPlace.split:
                done = split(program, name, loop.levels[0].size, schedule.together)
                for around in done.by_blocks:
                    if sum(level.place is not LevelPlace.split for level in schedule.of(around).levels) > 1:
                        raise ScheduleError(f"loop {around!r} leaves parts for each of its blocks: it takes one level")
                together = frozenset(axis for pair in tied(done.program) for axis in pair)
                alike = frozenset(m.name for m in maps(done.program.graph) if m.axis in together)
                program, schedule = done.program, _extended(schedule, done, alike, wanted)
                splits.append((done, alike))
        make = loop_names(program)
        peeled = frozenset(name for name, loop in schedule.loops if loop.peel)
        graph = place_loops(program.graph, schedule, make)
        graph = hoist_grid(graph)
        demand_grid(graph)
        program = replace(program, graph=peel(graph, peeled, make))
        program = replace(program, graph=part_full(program.graph, schedule.apart, make))
        for name in sorted(schedule.beforehand):
            program = summarize(program, name, make)
        program = prepare_operands(program, schedule)
        program = canonical(replace(program, graph=accumulate(program.graph)))
        check(program)
        return _Placed(with_demands(with_transfers(program), granularity), tuple(splits))

    def at(self, schedule: Schedule) -> BlockProgram:
        """Return the program at the sizes of `schedule`, which has the form of the one that was applied."""
        wanted = dict(schedule.loops)
        for done, alike in self.splits:
            schedule = _extended(schedule, done, alike, wanted)
        return replace(self.program, graph=retiled(self.program.graph, schedule))


def _extended(schedule: Schedule, done: Split, alike: frozenset[str], wanted: Mapping[str, LoopSchedule]) -> Schedule:
    """Extend `schedule` by levels for the loops that a split made: those of the loop they are a copy of, or its own.

    Args:
        schedule: with levels for all loops of before.
        done: the split.
        alike: loops that go by the same blocks as others.
        wanted: levels before any split, which may have made those of merges finer.
    """
    known, finer = dict(schedule.loops), dict(schedule.merging)
    for name, source in done.levels_of:
        if source is not None:
            levels = wanted.get(source, known.get(source, known.get(name)))
            known[name] = levels or LoopSchedule((Level(LevelPlace.loop, 1),))
            if source in finer and source in known and source not in alike:
                known[source] = _finer(known[source], finer[source])
        elif name.endswith(".merge"):
            known[name] = LoopSchedule((Level(LevelPlace.loop, done.together),))
        else:
            known[name] = LoopSchedule((Level(LevelPlace.grid, 1),))
    return replace(schedule, loops=tuple(known.items()))


def _finer(loop: LoopSchedule, size: int) -> LoopSchedule:
    """Return `loop` with blocks of at most `size` elements on the grid."""
    return replace(
        loop,
        levels=tuple(
            replace(level, size=min(level.size, size)) if level.place is LevelPlace.grid else level
            for level in loop.levels
        ),
    )
