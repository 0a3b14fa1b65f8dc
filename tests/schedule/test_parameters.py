"""Sizes of blocks are parameters of what `apply` gives."""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from testkit.block import programs
from testkit.schedules import fused, random_schedule
from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.emit.triton import GRANULARITY, demand_legal
from weft.errors import ScheduleError, UnsupportedError
from weft.schedule import LevelPlace, Placing, Schedule, apply, kernels
from weft.schedule.apply import _Placed
from weft.tensor.axes import Space


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


def with_sizes(value: Any, size: int) -> Any:
    """Return a program whose spaces all have this size, whatever it is called with."""
    if isinstance(value, Space):
        return Space(value.name, size)
    if isinstance(value, tuple):
        return tuple(with_sizes(each, size) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(
        value, **{each.name: with_sizes(getattr(value, each.name), size) for each in fields(value) if each.init}
    )


@pytest.mark.parametrize("name", programs.ALL)
@pytest.mark.parametrize("size", [8, 12])
def test_what_was_placed_before_does_not_matter(name: str, size: int) -> None:
    """Where spaces have fixed sizes, blocks can be longer than they are, and a loop runs once or not by its block."""
    program, rng = fused(with_sizes(programs.ALL[name](), size)), random.Random(f"{name} {size}")
    placing, compared = Placing(program, GRANULARITY), 0
    verdicts: dict[object, bool] = {}
    for _ in range(20):
        small = random_schedule(program, rng, (1, 2, 4, 8, 16))
        for schedule in (small, larger(small, 2), larger(small, 3)):
            try:
                placed = placing.apply(schedule)
            except ScheduleError:
                continue
            compared += 1
            fresh = apply(program, schedule, GRANULARITY)
            assert placed == fresh
            once = frozenset(m.axis for m in maps(placed.graph) if m.runs_once)
            found = is_legal(placed)
            assert verdicts.setdefault((schedule.form, once), found) == found
    assert compared


def is_legal(placed: BlockProgram) -> bool:
    """Tell whether Triton kernels can be made of `placed`."""
    try:
        for part in kernels(placed):
            demand_legal(placed, part)
    except UnsupportedError:
        return False
    return True
