"""What one-hot reductions are predicted to do, and the blocks that they get on a CPU."""

from __future__ import annotations

import pytest

from testkit.block.one_hots import ALL, chosen, rows_added
from testkit.schedules import fused
from weft.block.walk import maps
from weft.cost import Machine, MemoryLevel, estimate, total
from weft.plan.targets.choose import choose
from weft.schedule import apply
from weft.tensor.dtypes import DType
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Arg
from weft.tensor.scalar import apply as apply_

MACHINE = Machine(1, 1e11, {DType.float32: 1e11}, (MemoryLevel("memory", float("inf"), 1e11, 1e-8),))


def predicted(program: TensorProgram, threads: int = 1, **sizes: int) -> tuple[float, int]:
    """Return seconds and operations."""
    made = fused(program)
    cost = total(estimate(apply(made, choose(made, sizes, {}, threads)), sizes, MACHINE))
    return cost.predicted_seconds, cost.flops


def test_work_grows_with_rows_and_with_what_is_reduced_not_with_their_product() -> None:
    (small, few), (large, many) = (predicted(chosen(), V=n, M=n) for n in (1 << 12, 1 << 15))
    assert many <= 10 * few
    assert large < 12 * small


def test_what_compares_otherwise_is_predicted_to_go_over_pairs() -> None:
    pairs = chosen(condition=apply_("le", Arg(0), Arg(1)))
    assert predicted(pairs, V=4096, M=4096)[0] > 20 * predicted(chosen(), V=4096, M=4096)[0]


@pytest.mark.parametrize("threads", [1, 4])
def test_each_thread_has_a_block_of_rows(threads: int) -> None:
    for program, rows in ((chosen(), 1 << 16), (rows_added(), 1 << 10)):
        made = fused(program)
        schedule = choose(made, {"V": rows, "M": 1 << 14, "D": 16}, {}, threads)
        (found,) = [schedule.of(m.name).levels[-1].size for m in maps(made.graph) if m.axis.space.name == "V"]
        assert found == rows // threads


def test_states_of_rows_stay_in_the_cache() -> None:
    made, sizes = fused(rows_added()), {"V": 1 << 14, "M": 1 << 14, "D": 1 << 10}
    schedule = choose(made, sizes, {}, 1)
    found = {m.axis.space.name: schedule.of(m.name).levels[-1].size for m in maps(made.graph)}
    assert found["V"] * found["D"] <= 1 << 18
    assert found["M"] >= 1 << 12


@pytest.mark.parametrize("name", ALL)
def test_every_program_has_a_schedule(name: str) -> None:
    made = fused(ALL[name]())
    for size in (1, 2, 300):
        sizes = {s.name: size for s in ALL[name]().spaces()}
        assert estimate(apply(made, choose(made, sizes, {}, 2)), sizes, MACHINE)
