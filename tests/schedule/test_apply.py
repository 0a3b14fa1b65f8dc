"""`apply`: every schedule computes the same, and what does not fit is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

from testkit.block import programs
from testkit.fuse.exponentials import means_of_the_whole
from testkit.schedules import fused, random_schedule
from weft.block.check import check
from weft.block.copies import canonical
from weft.block.interpret import interpret
from weft.block.lower import lower
from weft.block.places import Place
from weft.block.program import Map
from weft.block.ranges import Part, Segment, Within
from weft.block.walk import maps
from weft.errors import ScheduleError
from weft.fuse.safety import make_safe
from weft.pipeline import fuse
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain

GRID, LOOP, WHOLE, SPLIT = LevelPlace.grid, LevelPlace.loop, LevelPlace.whole, LevelPlace.split


def schedule(**loops: LoopSchedule) -> Schedule:
    return Schedule(tuple(loops.items()))


def levels(*of: tuple[LevelPlace, int], peel: bool = False) -> LoopSchedule:
    return LoopSchedule(tuple(Level(place, size) for place, size in of), peel)


@pytest.mark.parametrize("name", programs.ALL)
@pytest.mark.parametrize("seed", range(20))
def test_any_schedule_computes_the_same(name, seed):
    rng = random.Random(f"{name} {seed}")
    program = programs.ALL[name]()
    block = fused(program)
    domain = Fp64Domain()
    for _ in range(30):
        try:
            applied = apply(block, random_schedule(block, rng))
            break
        except ScheduleError:
            continue
    else:
        pytest.fail("no random schedule fits")
    check(applied)
    sizes = program.sizes({s.name: rng.randint(1, 9) for s in program.spaces()})
    numbers = np.random.default_rng(seed)
    inputs = {n.name: domain.random([a.space.size(sizes) for a in n.axes], n.dtype, numbers) for n in program.inputs}
    wanted = evaluate(program, inputs, domain)
    found, _ = interpret(applied, inputs, sizes, domain)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)


def test_a_split_is_two_kernels_and_a_merge():
    block = fused(programs.linear_relu())
    applied = apply(block, schedule(m=levels((GRID, 4)), n=levels((GRID, 4)), k=levels((SPLIT, 3), (LOOP, 2))))
    first, second = kernels(applied)
    assert first.writes == second.reads[-1:] or set(first.writes) <= set(second.reads)
    ranges = [m.range for m in maps(applied.graph)]
    assert [r.count for r in ranges if isinstance(r, Segment)] == [3]


def test_peeling_makes_a_full_and_an_edge_loop():
    block = fused(programs.linear_relu())
    applied = apply(block, schedule(m=levels((GRID, 4)), n=levels((GRID, 4)), k=levels((LOOP, 2), peel=True)))
    assert [m.range.part for m in maps(applied.graph)] == [Part.all, Part.all, Part.full, Part.edge]


def test_levels_nest_and_the_grid_moves_outwards():
    block = fused(programs.linear_relu())
    applied = apply(block, schedule(m=levels((GRID, 8), (LOOP, 2)), n=levels((GRID, 4)), k=levels((WHOLE, 0))))
    found = [(m.place, m.tile, type(m.range).__name__) for m in maps(applied.graph)]
    assert found == [
        (Place.grid, 8, "All"), (Place.grid, 4, "All"), (Place.loop, 2, "Within"), (Place.whole, None, "All"),
    ]  # fmt: skip
    assert isinstance(next(m.range for m in maps(applied.graph) if m.tile == 2), Within)


def test_products_accumulate_in_place():
    block = fused(programs.linear_relu())
    applied = apply(block, schedule(m=levels((GRID, 4)), n=levels((GRID, 4)), k=levels((LOOP, 2))))
    loop = next(m for m in maps(applied.graph) if m.state is not None)
    assert isinstance(loop, Map)
    assert loop.state is not None
    assert [type(n).__name__ for n in loop.state.update.nodes] == ["Dot"]


GOOD = {"m": levels((GRID, 4)), "n": levels((GRID, 4)), "k": levels((LOOP, 2))}
REFUSED = {
    "unknown loop": {**GOOD, "z": levels((LOOP, 2))},
    "missing loop": {"m": levels((GRID, 4)), "n": levels((GRID, 4))},
    "no level": {**GOOD, "k": levels()},
    "sizes that grow": {**GOOD, "m": levels((GRID, 4), (LOOP, 8))},
    "size zero": {**GOOD, "k": levels((LOOP, 0))},
    "state on the grid": {**GOOD, "k": levels((GRID, 2))},
    "split of a parallel loop": {**GOOD, "m": levels((SPLIT, 2), (GRID, 4))},
    "split without a level": {**GOOD, "k": levels((SPLIT, 2))},
    "whole and more": {**GOOD, "k": levels((LOOP, 4), (WHOLE, 0))},
    "peeling the whole": {**GOOD, "k": levels((WHOLE, 0), peel=True)},
    "peeling a parallel loop": {**GOOD, "m": levels((LOOP, 4), peel=True)},
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_schedule_that_does_not_fit_is_refused(case):
    with pytest.raises(ScheduleError):
        apply(fused(programs.linear_relu()), schedule(**REFUSED[case]))


def test_a_grid_loop_with_other_work_beside_it_is_refused():
    block = fused(programs.row_sum_of_squares())
    names = [m.name for m in maps(block.graph)]
    loops = {n: levels((LOOP, 2)) for n in names}
    apply(block, schedule(**loops))
    with pytest.raises(ScheduleError, match="split"):
        apply(
            block,
            schedule(**{**loops, names[1]: levels((SPLIT, 2), (LOOP, 2)), names[2]: levels((SPLIT, 2), (LOOP, 2))}),
        )


def test_a_sum_around_a_split_that_would_leave_parts_of_two_sizes_is_refused():
    """Blocks of 3, each in blocks of 2 and 1, are more than there are in blocks of 2: their parts had no places of their own."""
    block = canonical(make_safe(fuse(lower(means_of_the_whole())).snapshots[0].program).program)
    assert apply(block, schedule(m=levels((LOOP, 2)), n=levels((SPLIT, 2), (LOOP, 2))))
    with pytest.raises(ScheduleError, match="one level"):
        apply(block, schedule(m=levels((LOOP, 3), (LOOP, 2)), n=levels((SPLIT, 2), (LOOP, 2))))
