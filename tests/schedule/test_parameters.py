"""Sizes of blocks are parameters of what `apply` gives."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from testkit.block import programs
from testkit.schedules import fused, random_schedule
from weft.emit.triton import GRANULARITY
from weft.errors import ScheduleError
from weft.schedule import LevelPlace, Placing, Schedule
from weft.schedule.apply import _Placed


def larger(schedule: Schedule, times: int) -> Schedule:
    """Make blocks so many times as large, but for those of single elements."""

    def grown(size: int, place: LevelPlace) -> int:
        return size if place is LevelPlace.split or size < 2 else size * times

    loops = tuple(
        (name, replace(loop, levels=tuple(replace(v, size=grown(v.size, v.place)) for v in loop.levels)))
        for name, loop in schedule.loops
    )
    return replace(schedule, loops=loops)


@pytest.mark.parametrize("name", programs.ALL)
@pytest.mark.parametrize("seed", range(6))
def test_apply_at_other_sizes_is_apply_with_these_sizes_put_in(name, seed):
    program, rng = fused(programs.ALL[name]()), random.Random(f"{name} {seed}")
    placing = Placing(program, GRANULARITY)
    for _ in range(30):
        small = random_schedule(program, rng)
        try:
            first = placing.apply(small)
            break
        except ScheduleError:
            continue
    else:
        pytest.fail("no random schedule fits")
    forms = len(placing._known)
    for times in (2, 5):
        large = larger(small, times)
        assert placing.apply(large) == _Placed.of(program, large, GRANULARITY).program  # made at these sizes
    assert placing.apply(small) == first == _Placed.of(program, small, GRANULARITY).program
    assert len(placing._known) == forms  # all sizes have one form
