"""The model of GPU programs, beside what an H200 took, and on kernels whose figures can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from testkit.block import paper
from testkit.block.programs import axes, linear_relu
from testkit.emit import special
from testkit.schedules import fused
from weft.block.copies import canonical
from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.cost import Launch, estimate_gpu, gpu, launches_of, resources, unfit
from weft.cost.gpu_cycles import cycles_of
from weft.cost.gpu_limits import is_staged, resources_of
from weft.emit.triton import GRANULARITY
from weft.errors import TargetError
from weft.fuse.safety import make_safe
from weft.plan.targets import toolchain
from weft.plan.targets.triton.select import GpuWays
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.target import CPU, Target
from weft.tensor import optable
from weft.tensor.dtypes import DType
from weft.tensor.program import Elementwise, Input, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit
from weft.tensor.scalar import apply as scalar

H200 = Target("cuda", "90")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = {"M": 512, "K": 1024, "N": 1024}


def linear(m: int, n: int, k: int, dtype: DType = DType.bfloat16) -> BlockProgram:
    program = fused(linear_relu(dtype))
    places = {"m": (LevelPlace.grid, m), "n": (LevelPlace.grid, n), "k": (LevelPlace.loop, k)}
    levels = ((loop.name, LoopSchedule((Level(*places[loop.name[0]]),))) for loop in maps(program.graph))
    return apply(program, Schedule(tuple(levels)), GRANULARITY)


def seconds(
    program: BlockProgram, sizes: Mapping[str, int] = SIZES, target: Target = H200, warps: int = 4, stages: int = 3
) -> float:
    (cost,) = estimate_gpu(program, sizes, target, Schedule((), warps=warps, stages=stages))
    return cost.predicted_seconds


def test_what_is_put_first_is_at_most_a_quarter_slower_than_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    gpu_model = import_module("gpu_model")
    rows = gpu_model.rows(gpu_model.candidates())
    half = [row for row in rows if row.dtype == "bfloat16"]
    assert [sum(len(row.pairs) for row in some) for some in (rows, half)] == [46, 28]
    assert max(row.off for row in rows) <= 1.25
    assert gpu_model.kendall(gpu_model.agreed(half)) >= 0.6
    assert all(0.5 < pair.predicted / pair.measured < 2.0 for row in rows for pair in row.pairs)


@pytest.mark.parametrize("rows", [32, 64])
def test_warps_that_share_rows_of_what_a_matmul_made_wait_for_each_other(rows: int) -> None:
    """The maximum of a row of scores is that of the parts that warps have of it."""
    program = fused(special.softmax(DType.bfloat16))
    places = {
        m.name: Level(LevelPlace.grid, rows) if m.name == "m" else Level(LevelPlace.whole) for m in maps(program.graph)
    }
    levels = tuple((name, LoopSchedule((level,))) for name, level in places.items())
    (launch,) = launches_of(apply(program, Schedule(levels), GRANULARITY), {"M": 512, "K": 64, "N": 64})
    found = [launch.breakdown(gpu(H200), warps, 1).cycles.waiting for warps in (1, rows // 16, rows // 8)]
    assert found[0] == found[1] < found[2]


def test_a_launch_takes_what_can_be_worked_out_by_hand() -> None:
    applied = linear(64, 128, 64)
    found = resources(applied, kernels(applied)[0], SIZES, gpu(H200), warps=4, stages=3)
    assert (found.thread_blocks, found.threads) == (8 * 8, 128)
    assert found.shared_bytes == 3 * (64 * 64 + 64 * 128) * 2
    assert 64 < found.registers < 160
    assert (found.spilled, found.waves, found.resident) == (0, 1, 3)
    assert found.last_wave == pytest.approx(64 / (3 * 132))
    assert unfit(found, gpu(H200)) is None


def test_what_does_not_fit_is_told_before_it_is_compiled() -> None:
    applied = linear(128, 256, 128)
    found = resources(applied, kernels(applied)[0], SIZES, gpu(H200), warps=8, stages=4)
    assert "shared memory" in str(unfit(found, gpu(H200)))
    assert unfit(replace(found, shared_bytes=gpu(H200).thread_block_bytes), gpu(H200)) is None
    assert "registers" in str(unfit(replace(found, shared_bytes=0, registers=1000), gpu(H200)))
    assert "elements" in str(unfit(replace(found, shared_bytes=0, largest_block=1 << 21), gpu(H200)))


def test_products_on_vector_units_are_not_unrolled_without_end() -> None:
    applied = linear(128, 128, 128, DType.float32)
    few, many = (resources(applied, kernels(applied)[0], SIZES, gpu(H200), warps, 1) for warps in (4, 8))
    assert (few.unrolled, many.unrolled) == (128**3 // 128, 128**3 // 256)
    assert "in a row" in str(unfit(few, gpu(H200)))
    assert unfit(many, gpu(H200)) is None
    half = linear(128, 128, 128)
    assert resources(half, kernels(half)[0], SIZES, gpu(H200), 4, 1).unrolled == 0


def test_wide_accumulators_of_few_threads_are_seen_to_spill() -> None:
    applied = linear(256, 256, 32)
    few, many = (resources(applied, kernels(applied)[0], SIZES, gpu(H200), warps, 2) for warps in (4, 16))
    assert few.spilled > 200
    assert many.spilled == 0


def test_registers_that_live_across_a_loop_are_spilled_around_it() -> None:
    applied = linear(64, 64, 64)
    (launch,) = launches_of(applied, SIZES)
    (loop,) = launch.work.body.inner
    assert (loop.held, loop.across) == (4 * 64 * 64, 0)
    beside = replace_in(launch, held=loop.held + 900_000, across=900_000)
    inside = replace_in(launch, held=loop.held + 900_000, across=0)
    chip = gpu(H200)
    once, each = (some.breakdown(chip, 4, 1) for some in (beside, inside))
    assert once.found.spilled == each.found.spilled > 1000
    assert each.bounds.waves > 3 * once.bounds.waves


def test_blocks_without_a_matmul_that_do_not_fit_lie_in_memory_whole_even_where_there_is_no_loop() -> None:
    applied = linear(64, 64, 64)
    (launch,) = launches_of(applied, SIZES)

    def held(elements: int) -> Launch:
        body = replace(launch.work.body, inner=[], held=4 * elements)
        return Launch(replace(launch.work, body=body, held=4 * elements), launch.counted, launch.merges)

    chip = gpu(H200)
    fits, spills = (held(each * 2 * 32).breakdown(chip, 2, 1) for each in (200, 270))
    assert fits.found.spilled == 0
    assert spills.found.spilled > 200  # of 270: not what is above the 255 that a thread may have
    assert spills.bounds.waves > 2 * fits.bounds.waves


def replace_in(launch: Launch, held: int, across: int) -> Launch:
    """`launch` whose one loop has blocks in registers as given, and whose thread block has as many."""
    (loop,) = launch.work.body.inner
    body = replace(launch.work.body, inner=[replace(loop, held=held, across=across)])
    return replace(launch, work=replace(launch.work, body=body, held=held))


def test_divisors_that_are_numbers_cost_a_multiplication_and_in_exponents_nothing() -> None:
    scaled = scalar("div", scalar("sub", Arg(0), Arg(1)), Lit(11.3))
    m, n = axes("m", "n")
    both, args = frozenset({m, n}), [(m, n), (m,)]
    assert cycles_of(scalar("decay", scaled), args) == [(both, 1.0), (both, optable.row("decay").gpu)]
    assert cycles_of(scaled, args) == [(both, 1.0), (both, 2.0)]


def test_few_programs_take_as_long_as_many() -> None:
    applied = linear(64, 64, 64)
    one, some = seconds(applied, {**SIZES, "M": 64}), seconds(applied)
    assert one == pytest.approx(some, rel=0.25)  # what is read but once comes from memory
    assert seconds(applied, {**SIZES, "M": 64 * 132}) > 4 * some


def test_programs_on_one_multiprocessor_share_its_units() -> None:
    applied = linear(64, 64, 32, DType.float32)
    sizes = {"M": 64 * gpu(H200).multiprocessors, "K": 1024, "N": 64}
    held = resources(applied, kernels(applied)[0], sizes, gpu(H200), stages=3).resident
    one, all_ = (seconds(applied, {**sizes, "M": sizes["M"] * n}) - gpu(H200).launch_seconds for n in (1, held))
    assert held > 2
    assert all_ > 0.75 * held * one


def test_stages_hide_latency_and_launches_cost() -> None:
    applied = linear(64, 64, 64)
    assert seconds(applied, stages=1) > 1.5 * seconds(applied, stages=3)
    assert seconds(applied, {"M": 1, "K": 1, "N": 1}) > gpu(H200).launch_seconds


def test_large_products_come_near_the_machines_rate() -> None:
    sizes = dict.fromkeys("MKN", 8192)
    rate = 2 * 8192**3 / seconds(linear(128, 256, 64), sizes, warps=8, stages=4)
    assert 0.7 * gpu(H200).flops[DType.bfloat16] < rate < 1.1 * gpu(H200).flops[DType.bfloat16]
    plain = 2 * 8192**3 / seconds(linear(64, 64, 32, DType.float32), sizes)
    assert plain < gpu(H200).vector_flops


def test_memory_bounds_what_reads_much() -> None:
    sizes = {"M": 16, "K": 8192, "N": 8192}
    (cost,) = estimate_gpu(linear(16, 64, 128), sizes, H200, Schedule((), warps=4, stages=4))
    assert cost.predicted_seconds > cost.unique_bytes / gpu(H200).dram
    assert cost.floor_seconds == pytest.approx(cost.unique_bytes / gpu(H200).dram)


def test_what_is_stored_with_few_neighbours_moves_whole_sectors() -> None:
    """The result is transposed: of a block one element wide, each element is 2 bytes of a sector of 32, and a store of its own."""
    x = Input("x", tuple(axes("m", "k")), DType.bfloat16)
    m, k = x.axes
    turned = Elementwise("y", (k, m), DType.bfloat16, scalar("mul", Arg(0), Lit(2.0)), (Use("x", (m, k)),))
    program = fused(TensorProgram((x,), (turned,), ("y",)))
    sizes = {"M": 4096, "K": 4096}

    def taken(rows: int, columns: int) -> float:
        blocks = {"M": rows, "K": columns}
        levels = (
            (loop.name, LoopSchedule((Level(LevelPlace.grid, blocks[loop.axis.space.name]),)))
            for loop in maps(program.graph)
        )
        applied = apply(program, Schedule(tuple(levels)), GRANULARITY)
        return seconds(applied, sizes, stages=1)

    sectors = 4096 * 4096 * 32 / gpu(H200).cache
    assert taken(1, 1024) > sectors > 2 * taken(32, 64)


def test_an_operation_on_rows_is_done_once_for_each_row() -> None:
    m, n = axes("m", "n")
    product = scalar("mul", Arg(0), scalar("exp", Arg(1)))
    assert cycles_of(product, [(m, n), (m,)]) == [(frozenset({m}), optable.row("exp").gpu), (frozenset({m, n}), 1.0)]
    assert cycles_of(scalar("mul", Arg(0), scalar("pow", Arg(1), Lit(-0.5))), [(m,), ()]) == [(frozenset({m}), 1.0)]


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942"])
def test_every_target_has_figures(target: str) -> None:
    assert 3e-6 < seconds(linear(64, 64, 64), target=Target.parse(target), stages=2) < 60e-6


def test_a_cpu_is_no_gpu() -> None:
    with pytest.raises(TargetError):
        estimate_gpu(linear(64, 64, 64), SIZES, CPU, Schedule(()))


@pytest.mark.parametrize("arch", ["80", "90", "100"])
def test_stages_do_not_matter_to_launches_without_loops_for_a_pipeline(arch: str) -> None:
    """Compare what such launches take and cost, worked out once, with what they do for each number of stages."""
    target, seen = Target("cuda", arch), set[bool]()
    for program in (linear_relu(DType.bfloat16), paper.attention(), paper.layernorm(), paper.rmsnorm()):
        safe, sizes = canonical(make_safe(fused(program)).program), {space.name: 64 for space in program.spaces()}
        for launch in (
            each
            for way in GpuWays(safe, sizes, {}, toolchain(target)).few()
            for each in launches_of(way.applied, sizes)
        ):
            staged = is_staged(launch.work.body)
            seen.add(staged)
            for warps in (1, 4, 8):
                needs = {resources_of(launch.work, gpu(target), warps, stages) for stages in (1, 2, 3, 5, 8)}
                for_each = Launch(launch.work, launch.counted, launch.merges, _stages=[True])
                costs = {for_each.cost(gpu(target), warps, stages) for stages in (1, 2, 3, 5, 8)}
                assert {launch.cost(gpu(target), warps, stages) for stages in (1, 2, 3, 5, 8)} == costs
                assert staged or len(needs) == len(costs) == 1
    assert seen == {True, False}
