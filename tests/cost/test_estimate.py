"""Floors and predictions, on a machine made up so that every figure can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from weft.cost import Cost, Machine, MemoryLevel, Traffic, cost_of, total
from weft.cost.cpu_cycles import cycles_of
from weft.cost.cpu_work import BlockMove, BlockProduct
from weft.cost.machine import Processor
from weft.tensor.dtypes import DType

INF = float("inf")
TOY = Machine(
    cores=4,
    vector_flops=1e9,
    matrix_flops={DType.float32: 1e10, DType.bfloat16: 4e10},
    levels=(MemoryLevel("L1", 1e3, 1e12), MemoryLevel("L2", 1e5, 1e11), MemoryLevel("memory", INF, 1e10)),
    lanes=4,
    launch_seconds=0.0,
)
MATMUL = Traffic(
    loaded={"x": 4_000_000, "w": 40_000},
    stored={"out": 1_000_000},
    operations={("dot", (64, 64, 64)): 1000, ("x_item", (64, 64)): 1000},
    runs={"m": 8, "n": 32},
    starts={},
    flops={"dot": 10**9, "relu": 10**6},
    matrix_flops={DType.float32: 10**9},
    lists={"x": 1_000_000, "w": 40_000, "out": 1_000_000},
    shared=frozenset({"x", "w", "out"}),
    iterations=8,
)
CYCLE = 4 * 4 * 4 / 1e9
"""Seconds: four cores of two units of four lanes."""
LOOPS = 15 * 40 * CYCLE / 4
FREE = replace(MATMUL, flops={}, matrix_flops={}, runs={})


def test_a_floor_counts_every_element_once() -> None:
    cost = cost_of(MATMUL, TOY)
    assert (cost.bytes_read, cost.bytes_written) == (4_040_000, 1_000_000)
    assert cost.unique_bytes == 2_040_000
    assert cost.flops == 10**9 + 10**6
    assert cost.floor_seconds == pytest.approx(0.1 + 1e-3)
    assert cost.predicted_seconds == pytest.approx(LOOPS + (2_040_000 + 3_000_000) / 1e10)


def test_where_the_bytes_take_longer_they_are_the_floor() -> None:
    cost = cost_of(FREE, TOY)
    assert cost.floor_seconds == pytest.approx(2_040_000 / 1e10)
    again = 3_000_000 / 1e10  # x, a megabyte, comes from memory each time
    assert cost.predicted_seconds == pytest.approx(cost.floor_seconds + again)


def test_what_other_iterations_have_read_comes_from_the_level_that_holds_the_list() -> None:
    twice = replace(FREE, loaded={**FREE.loaded, "w": 80_000})
    more = cost_of(twice, TOY).predicted_seconds - cost_of(FREE, TOY).predicted_seconds
    assert more == pytest.approx(40_000 / 1e11)


@pytest.mark.parametrize(("grid", "rate"), [((("m", True),), 1e11), ((("m", False),), 1e10)])
def test_what_an_iteration_reads_again_comes_from_the_level_that_holds_its_part(grid, rate) -> None:
    """One iteration of eight reads an eighth of x four times: four of them have 10 kB at once; or each reads half of all of it."""
    work = {"x_item": BlockMove("x", 1, None, grid)}
    small = replace(FREE, lists={**FREE.lists, "x": 20_000}, loaded={"x": 80_000}, runs={"m": 8})
    large = replace(FREE, loaded={"x": 4_000_000}, runs={"m": 8})
    counted = small if rate == 1e11 else large
    once = counted.lists["x"]
    seconds = cost_of(counted, TOY, work).predicted_seconds - 15 * 8 * CYCLE / 4
    first = (once + 1_000_000) / 1e10
    assert seconds - first == pytest.approx(3 * once / rate)


def test_rows_far_apart_are_waited_for() -> None:
    machine = replace(TOY, levels=(*TOY.levels[:-1], replace(TOY.levels[-1], row_seconds=1e-6)))
    base = cost_of(FREE, TOY).predicted_seconds

    def waited(side: int | None, columns: int) -> float:
        work = {"x_item": BlockMove("x", side, "k", (("m", True),))}
        return cost_of(FREE, machine, work, {"k": columns}).predicted_seconds - base

    # A quarter of what is read of x is read for the first time; four cores wait at once.
    assert waited(1, 128) == pytest.approx(1000 * 64 * 1e-6 / 4, rel=0.01)
    assert waited(None, 128) == pytest.approx(64 * waited(1, 128), rel=0.01)
    assert waited(1, 64) == pytest.approx(waited(1, 128) / 64, rel=0.01), "they are one piece"


def test_a_kernel_that_visits_part_of_a_list_needs_no_more() -> None:
    assert cost_of(replace(MATMUL, loaded={"x": 10, "w": 40_000}), TOY).unique_bytes == 1_040_010


@pytest.mark.parametrize(("iterations", "idle"), [(1, 4), (4, 1), (5, 8 / 5), (8, 1), (400, 1)])
def test_threads_idle_in_the_last_round(iterations: int, idle: float) -> None:
    busy = cost_of(replace(MATMUL, iterations=4), TOY)
    cost = cost_of(replace(MATMUL, iterations=iterations), TOY)
    assert cost.predicted_seconds == pytest.approx(idle * busy.predicted_seconds)


def test_bf16_products_run_in_the_matrix_unit_and_unknown_types_by_vectors() -> None:
    fast = cost_of(replace(MATMUL, matrix_flops={DType.bfloat16: 10**9}), TOY)
    assert fast.floor_seconds == pytest.approx(0.025 + 1e-3)
    slow = cost_of(replace(MATMUL, matrix_flops={DType.float16: 10**9}), TOY)
    assert slow.floor_seconds == pytest.approx(1.0 + 1e-3)


def test_operators_local_lists_and_launches_are_not_free() -> None:
    base = cost_of(MATMUL, TOY)
    product = BlockProduct((0, 1, 2), DType.float32, panel=True, across=True, plain=False, turned=False, row=None)
    worked = cost_of(MATMUL, TOY, {"dot": product})
    cycles = cycles_of(product, (64, 64, 64), {}, TOY)
    assert worked.predicted_seconds - base.predicted_seconds == pytest.approx(1000 * cycles * CYCLE / 4)
    launched = cost_of(MATMUL, replace(TOY, launch_seconds=1e-3))
    assert launched.predicted_seconds - base.predicted_seconds == pytest.approx(1e-3)
    local = replace(FREE, loaded={**FREE.loaded, "t": 10**6}, stored={**FREE.stored, "t": 10**5})
    # 100 kB over 8 iterations, four of them at a time: 50 kB, which the second level holds;
    # four times as much it does not.
    more = cost_of(local, TOY).predicted_seconds - cost_of(FREE, TOY).predicted_seconds
    assert more == pytest.approx(1_100_000 / 1e11)
    large = replace(local, stored={**FREE.stored, "t": 4 * 10**5})
    more = cost_of(large, TOY).predicted_seconds - cost_of(FREE, TOY).predicted_seconds
    assert more == pytest.approx(1_400_000 / 1e10)
    assert cost_of(local, TOY).bytes_read == cost_of(FREE, TOY).bytes_read
    for cost in (worked, launched):
        assert cost.floor_seconds == base.floor_seconds


def test_kernels_add_up() -> None:
    one = Cost(1, 2, 3, 4, 5.0, 6.0)
    assert total([one, one]) == Cost(2, 4, 6, 8, 10.0, 12.0)
    assert total([]) == Cost(0, 0, 0, 0, 0.0, 0.0)
    assert "floor" in str(one)


def test_this_machine_is_described_the_same_each_time(this_processor) -> None:
    processor = this_processor()
    assert processor == this_processor()
    assert Machine.here().cores == torch.get_num_threads()
    here = Machine.of(processor, 2)
    assert 1e9 < here.vector_flops / here.cores < 1e12
    assert here.matrix_rate(DType.bfloat16) >= here.matrix_rate(DType.float32)
    sizes = [level.bytes for level in here.levels]
    assert sizes == sorted(sizes)
    assert sizes[-1] == INF
    rates = [level.bytes_per_second for level in here.levels]
    assert rates == sorted(rates, reverse=True)
    assert Machine.of(processor, 8).vector_flops == pytest.approx(4 * here.vector_flops)


def test_pairs_double_the_rate_of_vectors_and_tiles_are_faster_still() -> None:
    half = frozenset({DType.bfloat16})
    plain, pairs, tiles = (
        Machine.of(Processor(1e9, 64, tiled, (32 << 10, 1 << 20, 0), paired), 1)
        for tiled, paired in ((frozenset(), frozenset()), (frozenset(), half), (half, half))
    )
    assert pairs.matrix_rate(DType.bfloat16) == 2 * plain.matrix_rate(DType.bfloat16)
    assert tiles.matrix_rate(DType.bfloat16) > pairs.matrix_rate(DType.bfloat16)
    assert pairs.matrix_rate(DType.float32) == plain.matrix_rate(DType.float32)
