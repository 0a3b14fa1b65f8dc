"""Step 26 of the paper's third example does work over again, and not with one block of N and K: counted."""

from __future__ import annotations

from itertools import product

import pytest

from testkit.block.paper import initial
from weft.block.copies import canonical
from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.cost.traffic import Traffic, traffic
from weft.pipeline import fuse
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply

FUSION = fuse(initial("rmsnorm"))
SIZES = {"M": 8, "D": 12, "K": 12, "N": 12}
PLAIN, EXTENDED = (canonical(s.program) for s in (FUSION.snapshots[0], FUSION.snapshots[-1]))


def done(program: BlockProgram, columns: int, hidden: int) -> Traffic:
    """Counts what `program` does with so many blocks of N and of K, two of M and three of D."""
    blocks = {"M": 2, "D": 3, "N": columns, "K": hidden}
    loops = tuple(
        (m.name, LoopSchedule((Level(LevelPlace.loop, SIZES[m.axis.space.name] // blocks[m.axis.space.name]),)))
        for m in maps(program.graph)
    )
    return traffic(apply(program, Schedule(loops)), SIZES)


def products(of: Traffic) -> int:
    return sum(of.matrix_flops.values())


def others(of: Traffic) -> int:
    return sum(of.flops.values()) - products(of)


def test_the_snapshots_are_those_of_steps_22_24_and_26():
    assert [s.steps for s in FUSION.snapshots] == [22, 24, 26]


@pytest.mark.parametrize(("columns", "hidden"), [*product((1, 2, 3), (1, 2, 4))])
def test_step_26_repeats_the_hidden_layer_for_each_block_of_columns(columns, hidden):
    once, again = done(PLAIN, columns, hidden), done(EXTENDED, columns, hidden)
    m, d, k, n = (SIZES[s] for s in "MDKN")
    hidden_layer, last = 2 * (2 * m * d * k), 2 * m * k * n
    assert products(once) == hidden_layer + last
    assert products(again) == columns * hidden_layer + last
    # The sum of squares, a square and an addition for each element of x, is done again for each block of K as well.
    assert (
        others(again) - columns * (others(once) - 2 * m * d) <= columns * hidden * 2 * m * d + columns * hidden * 8 * m
    )
    assert others(again) >= columns * hidden * 2 * m * d


def computed(counted):
    """Count the operators that compute something."""
    return sum(times for name, times in counted.times.items() if name in counted.flops)


def test_it_is_gone_at_one_block_of_columns_and_of_the_hidden_layer():
    once, again = done(PLAIN, 1, 1), done(EXTENDED, 1, 1)
    assert (products(again), others(again)) == (products(once), others(once))
    assert computed(again) == computed(once)
    assert sum(again.loaded.values()) < sum(once.loaded.values()), "and the hidden layer is no list any more"
