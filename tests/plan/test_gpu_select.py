"""Schedules for a GPU: the parts of loops, what is enumerated, what does not fit; what is taken where nothing can be timed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from testkit.block import handmade, paper, programs, scans
from testkit.schedules import fused
from weft.block.copies import canonical
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.cost import gpu, launches_of, least_registers
from weft.emit.triton import GRANULARITY
from weft.errors import CompilerError, ScheduleError, UnsupportedError
from weft.fuse.safety import make_safe
from weft.pipeline import fuse
from weft.plan.choose.select import looked_at_closely, select
from weft.plan.targets import toolchain
from weft.plan.targets.candidates import Candidate, Example, Selection
from weft.plan.targets.compiled import Considered
from weft.plan.targets.triton import select as select_ways
from weft.plan.targets.triton import tune
from weft.plan.targets.triton.choices import choices, launches
from weft.plan.targets.triton.rounds import compiled
from weft.plan.targets.triton.schedules import Blocks, LoopRole, parts, schedule
from weft.plan.targets.triton.select import GpuWays
from weft.plan.targets.triton.tune import tuned
from weft.run.cache import CacheFolder
from weft.run.gpu import Assembled, Job, assemble
from weft.schedule import LevelPlace, apply, kernels
from weft.schedule.apply import Placing
from weft.target import Target
from weft.tensor.dtypes import DType
from weft.tensor.program import Contraction, Elementwise, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg
from weft.tensor.scalar import apply as apply_scalar

H200 = Target("cuda", "90")


def sum_of_row() -> TensorProgram:
    """The sum of a vector."""
    (k,) = programs.axes("k")
    total = Reduction("s", (), DType.float32, Monoid.sum, Use("x", (k,)), (k,))
    return TensorProgram((programs.tensor("x", k),), (total,), ("s",))


def deviations() -> TensorProgram:
    """The sum of each row's deviations from its sum, squared."""
    m, k = programs.axes("m", "k")
    x, row = Use("x", (m, k)), Use("s", (m,))
    return TensorProgram((programs.tensor("x", m, k),), (
        Reduction("s", (m,), DType.float32, Monoid.sum, x, (k,)),
        Elementwise("d", (m, k), DType.float32, apply_scalar("sub", Arg(0), Arg(1)), (x, row)),
        Elementwise("q", (m, k), DType.float32, apply_scalar("mul", Arg(0), Arg(0)), (Use("d", (m, k)),)),
        Reduction("y", (m,), DType.float32, Monoid.sum, Use("q", (m, k)), (k,)),
    ), ("y",))  # fmt: skip


def scores_and_greatest() -> TensorProgram:
    """x @ w in bfloat16 operands, less the greatest of each row."""
    m, k, n = programs.axes("m", "k", "n")
    x, w = (programs.tensor(name, *axes, dtype=DType.bfloat16) for name, axes in (("x", (m, k)), ("w", (k, n))))
    scores, greatest = Use("s", (m, n)), Use("z", (m,))
    return TensorProgram((x, w), (
        Contraction("s", (m, n), DType.float32, Use("x", (m, k)), Use("w", (k, n)), (k,)),
        Reduction("z", (m,), DType.float32, Monoid.max, scores, (n,)),
        Elementwise("y", (m, n), DType.float32, apply_scalar("sub", Arg(0), Arg(1)), (scores, greatest)),
    ), ("y",))  # fmt: skip


def last(program: TensorProgram) -> BlockProgram:
    """Fuse `program` to the last snapshot, numerically safe."""
    return canonical(make_safe(fuse(lower(program)).snapshots[-1].program).program)


HOPELESS = {
    "rows that matmuls make": (scores_and_greatest, {"M": 4096, "N": 8192, "K": 1024}),
    "matmuls of matmuls": (lambda: programs.two_layers(DType.bfloat16), {"M": 2048, "K": 4096, "N": 14336, "P": 4096}),
}


@pytest.mark.parametrize(("make", "sizes"), HOPELESS.values(), ids=HOPELESS)
def test_a_program_whose_smallest_blocks_are_far_too_large_is_placed_once_at_most(make, sizes, monkeypatch) -> None:
    placed: list[object] = []
    wanted = Placing.apply
    monkeypatch.setattr(Placing, "apply", lambda self, wished: placed.append(wished) or wanted(self, wished))
    ways, example = toolchain(H200).ways, Example(sizes, {}, 1, H200)
    with pytest.raises(UnsupportedError, match=r"shared memory|registers"):
        ways(last(make()), example).few()
    assert len(placed) <= 1
    # None of the others would have fitted.
    monkeypatch.setattr(select_ways, "_HOPELESS", inf)
    with pytest.raises(UnsupportedError):
        ways(last(make()), example).few()
    assert len(placed) > 2


def test_where_a_loops_state_alone_is_far_too_large_nothing_is_placed(monkeypatch) -> None:
    """The sums of a block of rows, with all of their columns: no thread block has so many registers."""
    make, sizes = HOPELESS["matmuls of matmuls"]
    monkeypatch.setattr(Placing, "apply", lambda *_: pytest.fail("it is known before"))
    with pytest.raises(UnsupportedError, match=r"at least \d+ registers"):
        toolchain(H200).ways(last(make()), Example(sizes, {}, 1, H200)).few()


@pytest.mark.parametrize("size", [100, 512, 2048])
def test_registers_of_a_loops_state_are_no_more_than_those_that_the_placed_program_takes(size: int) -> None:
    chip, near = gpu(H200), 0
    several = paper.attention(), paper.layernorm(), scores_and_greatest()
    for made in (*several, programs.linear_relu(DType.bfloat16), programs.two_layers(DType.bfloat16)):
        program, sizes = last(made), {space.name: size for space in made.spaces()}
        known = parts(program, sizes, {})
        for blocks in list(choices(known, program, sizes, chip))[::3]:
            wanted = schedule(program, known, blocks, sizes)
            with suppress(ScheduleError):
                found = launches_of(apply(program, wanted, GRANULARITY), sizes)
                most = max(launch.resources(chip, wanted.warps, 1).registers for launch in found)
                least = least_registers(program, wanted, sizes, chip, wanted.warps)
                assert least <= most
                near += 1.9 * least > most > 100
    assert near >= 5, "else it says little"


def test_a_program_with_any_hope_is_looked_at_as_before() -> None:
    for make, sizes in (
        (scores_and_greatest, {"M": 64, "N": 1024, "K": 64}),
        (paper.attention, dict.fromkeys("MNDL", 128)),
    ):
        program, example = last(make()), Example(sizes, {}, 1, H200)
        assert len(toolchain(H200).ways(program, example).few()) >= 1


def test_parts_of_a_product() -> None:
    program = fused(programs.linear_relu(DType.bfloat16))
    known = parts(program, {"M": 512, "N": 1024, "K": 1024}, {})
    assert dict(known.of) == {"m": LoopRole.rows, "n": LoopRole.columns, "k": LoopRole.depth}
    assert known.matmuls
    assert known.dtype is DType.bfloat16
    assert known.split == {"k"}


def test_parts_of_attention_keep_what_is_multiplied_again_whole() -> None:
    program = last(paper.attention())
    sizes = {"M": 4096, "N": 4096, "D": 64, "L": 64}
    known = parts(program, sizes, {})
    assert {name: known.of[name] for name in ("m", "n", "d", "l")} == {
        "m": LoopRole.rows, "n": LoopRole.depth, "d": LoopRole.whole, "l": LoopRole.whole,
    }  # fmt: skip
    long = parts(program, {**sizes, "D": 4096}, {})
    assert long.of["d"] is LoopRole.depth


def test_segments_are_for_grids_that_leave_the_machine_idle() -> None:
    program = fused(programs.linear_relu(DType.bfloat16))
    few, many = {"M": 16, "N": 64, "K": 8192}, {"M": 8192, "N": 8192, "K": 8192}
    for sizes, split in ((few, True), (many, False)):
        made = list(choices(parts(program, sizes, {}), program, sizes, gpu(H200)))
        assert any(b.segments > 1 for b in made) is split
        assert len(set(made)) == len(made)


def test_what_is_whole_is_one_program_however_long_it_is() -> None:
    program, sizes = last(paper.attention()), {"M": 8, "N": 4096, "D": 128, "L": 128}
    made = choices(parts(program, sizes, {}), program, sizes, gpu(H200))
    assert max(b.segments for b in made) >= gpu(H200).multiprocessors


def test_a_split_has_finer_merges_and_says_so() -> None:
    program = fused(programs.linear_relu(DType.bfloat16))
    sizes = {"M": 16, "N": 64, "K": 8192}
    wanted = schedule(program, parts(program, sizes, {}), Blocks(16, 64, 64, segments=8), sizes)
    assert wanted.of("k").levels[0].place is LevelPlace.split
    assert dict(wanted.merging) == {"m": 4}
    assert "merging by m 4" in str(wanted)
    assert wanted.together == 1, "sums are loaded together anyway"
    assert [part.merges for part in kernels(apply(program, wanted))] == [False, True]


def test_few_rows_of_a_state_that_moves_are_merged_at_once_by_few_warps() -> None:
    program = last(paper.attention())
    few, many = {"M": 16, "N": 8192, "D": 128, "L": 128}, {"M": 4096, "N": 8192, "D": 128, "L": 128}
    known = parts(program, few, {})
    wanted = schedule(program, known, Blocks(16, 128, 64, segments=32), few)
    assert (wanted.together, wanted.merging_warps, dict(wanted.merging)) == (32, 1, {"m": 1})
    assert [wanted.warps_of(merges=part.merges) for part in kernels(apply(program, wanted))] == [4, 1]
    longer = schedule(program, known, Blocks(16, 128, 64, segments=256), few)
    assert longer.together == 64, "registers hold no more"
    crowded = schedule(program, known, Blocks(16, 128, 64, segments=8), many)
    assert (crowded.together, crowded.merging_warps, dict(crowded.merging)) == (1, 0, {"m": 2})


@pytest.mark.parametrize(
    ("made", "sizes"),
    [
        (scans.row(), {"N": 4_194_304}),
        (scans.scan(), {"M": 7, "N": 1_000_003}),
        (scans.scan(over=scans.M), {"M": 65536, "N": 64}),
        (scans.scan(over=scans.M), {"M": 16384, "N": 1024}),
        (scans.log_sums_of_a_row(), {"N": 4_194_304}),
    ],
    ids=["one row", "seven rows", "columns", "many columns", "log sums"],
)
def test_a_scan_takes_two_launches_which_are_predicted_to_take_less_than_three(
    made: TensorProgram, sizes: dict[str, int]
) -> None:
    ways = GpuWays(scans.fused(made, doubles=False), sizes, {}, toolchain(H200))
    best = ways.few()[0]
    assert [part.merges for part in kernels(best.applied)] == [False, False], "neither is small"
    assert best.schedule.together > 1
    three = ways.given(replace(best.schedule, together=1))
    assert [part.merges for part in kernels(three.applied)] == [False, True, False]
    assert best.cost.predicted_seconds < 0.95 * three.cost.predicted_seconds


def test_a_scan_whose_whole_is_wanted_too_is_merged_one_by_one_by_few_rows() -> None:
    """A launch between the two passes leaves it: it has the blocks of such launches."""
    n = scans.N
    scanned = scans.row().nodes
    total = Reduction("t", (), DType.float32, Monoid.max, Use("x", (n,)), (n,))
    tensors = TensorProgram((programs.tensor("x", n),), (*scanned, total), ("z", "t"))
    program, sizes = scans.fused(tensors, doubles=False), {"N": 4_194_304}
    wanted = schedule(program, parts(program, sizes, {}), Blocks(lanes=1024, segments=64), sizes)
    assert wanted.together == 1
    assert [part.merges for part in kernels(apply(program, wanted))] == [False, True, False]


def test_no_block_is_longer_than_its_segment() -> None:
    program, sizes = last(paper.attention()), {"M": 16, "N": 4096, "D": 64, "L": 64}
    wanted = schedule(program, parts(program, sizes, {}), Blocks(16, 64, 128, segments=64), sizes)
    assert [(v.place, v.size) for v in wanted.of("n").levels] == [(LevelPlace.split, 64), (LevelPlace.loop, 64)]
    sums, row = last(sum_of_row()), {"K": 8192}
    for segments, size in ((8, 1024), (64, 128)):
        wanted = schedule(sums, parts(sums, row, {}), Blocks(segments=segments), row)
        assert wanted.of("k").levels[-1].size == size


def test_the_depth_of_a_product_is_cut_though_a_loop_over_whole_columns_holds_it() -> None:
    program, sizes = last(scores_and_greatest()), {"M": 2048, "K": 8192, "N": 64}
    known = parts(program, sizes, {})
    (depth,) = known.split
    assert known.of[depth] is LoopRole.depth
    applied = apply(program, schedule(program, known, Blocks(64, 64, 64, segments=4), sizes))
    first, second = kernels(applied)
    assert (first.merges, second.merges) == (False, True)
    assert any(b.segments > 1 for b in choices(known, program, sizes, gpu(H200)))


def test_a_long_chain_of_corrected_sums_goes_by_loops_in_loops() -> None:
    """Each addition rounds: of hundreds of blocks one after the other the sum has lost several units in the last place."""
    program, sizes = (
        canonical(handmade.rows(handmade.SOFTMAX, handmade.softmax_state(), "end")),
        {"M": 4096, "K": 393216},
    )
    known = parts(program, sizes, {})
    wanted = schedule(program, known, Blocks(few=8, lanes=1024), sizes)
    assert [(v.place, v.size) for v in wanted.of("k").levels] == [(LevelPlace.loop, 65536), (LevelPlace.loop, 1024)]
    apply(program, wanted)
    cut = schedule(program, known, Blocks(lanes=1024, segments=2), sizes)
    assert [(v.place, v.size) for v in cut.of("k").levels] == [
        (LevelPlace.split, 2), (LevelPlace.loop, 65536), (LevelPlace.loop, 1024),
    ]  # fmt: skip
    apply(program, cut)
    short = {"M": 4096, "K": 65536}
    assert len(schedule(program, known, Blocks(few=8, lanes=1024), short).of("k").levels) == 1
    sums = last(sum_of_row())
    alone = schedule(sums, parts(sums, {"K": 393216}, {}), Blocks(lanes=1024), {"K": 393216})
    assert len(alone.of("k").levels) == 1, "each thread adds up its own"


def test_of_loops_that_read_one_another_s_results_the_first_is_cut() -> None:
    """A second one would stand beside the merge of the first, where nothing is on the grid."""
    program, sizes = fused(deviations()), {"M": 2, "K": 100_000}
    known = parts(program, sizes, {})
    assert len(known.split) == 1
    segmented = [b for b in choices(known, program, sizes, gpu(H200)) if b.segments > 1]
    assert segmented
    for blocks in segmented[:4]:
        assert len(kernels(apply(program, schedule(program, known, blocks, sizes)))) == 2


def test_schedules_that_are_the_same_are_looked_at_once() -> None:
    sums, row = last(sum_of_row()), {"K": 8192}
    found = GpuWays(sums, row, {}, toolchain(H200)).many()
    assert len({way.schedule for way in found}) == len(found)


def test_every_launch_has_warps_and_stages_once() -> None:
    program = fused(programs.linear_relu(DType.bfloat16))
    known = parts(program, {"M": 512, "N": 1024, "K": 1024}, {})
    found = list(launches(known, Blocks(128, 128)))
    assert len(set(found)) == len(found)
    assert {b.warps for b in found} == {4, 8}


def test_a_row_times_a_matrix_goes_by_strips_of_several_shapes_in_many_segments() -> None:
    program, sizes = fused(row_times_matrix()), {"K": 4096, "N": 4096}
    known = parts(program, sizes, {})
    assert not known.matmuls
    made = list(choices(known, program, sizes, gpu(H200)))
    assert {(b.columns, b.depth) for b in made} >= {(64, 128), (64, 256), (128, 64), (32, 128)}
    # Four programs a multiprocessor, or more.
    assert max(-(-4096 // b.columns) * b.segments for b in made) >= 4 * gpu(H200).multiprocessors
    assert [b.stages for b in launches(known, made[0])][:2] == [3, 1], "they wait for memory: first with a pipeline"


def row_times_matrix() -> TensorProgram:
    k, n = programs.axes("k", "n")
    x, w = programs.tensor("x", k), programs.tensor("w", k, n)
    return TensorProgram((x, w), (programs.matmul("y", Use("x", (k,)), Use("w", (k, n)), k),), ("y",))


def row_sums() -> TensorProgram:
    m, n = programs.axes("m", "n")
    return TensorProgram(
        (programs.tensor("x", m, n),),
        (Reduction("y", (m,), DType.float32, Monoid.sum, Use("x", (m, n)), (n,)),),
        ("y",),
    )


def test_what_has_no_pipeline_is_not_tried_with_several_depths() -> None:
    """One block is all of a row; by blocks of a row, there is a loop that can have iterations under way."""
    found = GpuWays(fused(row_sums()), {"M": 512, "N": 4096}, {}, toolchain(H200)).many()
    whole = [w.schedule.stages for w in found if w.schedule.of("n").levels[-1].place is LevelPlace.whole]
    loops = [w.schedule.stages for w in found if w.schedule.of("n").levels[-1].place is LevelPlace.loop]
    assert set(whole) == {1}
    assert set(loops) > {1}


def test_ways_are_ranked_and_fit() -> None:
    program = fused(programs.linear_relu(DType.bfloat16))
    ways = GpuWays(program, {"M": 512, "N": 1024, "K": 1024}, {}, toolchain(H200))
    probed, closely = ways.few(), ways.many()
    times = [w.cost.predicted_seconds for w in closely]
    assert times == sorted(times)
    assert len(closely) > len(probed)
    assert times[0] <= probed[0].cost.predicted_seconds


def test_rows_that_would_spill_are_taken_in_smaller_blocks() -> None:
    """A sum that is both a result and what its row is scaled by: 4 rows of 4096 in 2 warps are 256 elements a thread."""

    def scaled(h: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = h + y.float()
        return x, (w * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))).to(torch.bfloat16)

    h, y, w = torch.zeros(2048, 4096), torch.zeros(2048, 4096).bfloat16(), torch.zeros(4096).bfloat16()
    program = weft.optimize(scaled, (h, y, w), target="cuda:90", judge="off")
    assert not program.fallbacks
    sizes = {"M": 2048, "K": 4096}
    for kernel in program.kernels:
        placed, chosen = kernel.block_program, kernel.schedule
        for launch in launches_of(placed, sizes):
            assert launch.resources(gpu(H200), chosen.warps, chosen.stages).spilled == 0


def test_no_way_where_nothing_fits() -> None:
    program = last(paper.attention())  # heads so wide that one row's sums are more than all registers
    with pytest.raises(UnsupportedError, match=r"registers|shared memory|block of"):
        GpuWays(program, {"M": 64, "N": 4096, "D": 16384, "L": 16384}, {}, toolchain(H200)).few()


def right(_: Candidate) -> None:
    """Says of every candidate that it may run."""


def test_selection_for_a_gpu_has_more_to_time_and_without_one_the_first_is_taken() -> None:
    program = programs.linear_relu(DType.bfloat16)
    example = Example({"M": 64, "N": 64, "K": 64}, {}, 1, H200)
    selection = looked_at_closely(select(program, example))
    assert selection.others
    times = [c.cost.predicted_seconds for c in (selection.chosen, *selection.others)]
    assert times == sorted(times)
    taken = tuned(selection, None, right)
    assert taken.chosen is selection.chosen
    assert taken.others == ()


def test_a_candidate_that_cannot_be_compiled_loses_to_the_next() -> None:
    program = programs.linear_relu(DType.bfloat16)
    selection = looked_at_closely(select(program, Example({"M": 64, "N": 64, "K": 64}, {}, 1, H200)))
    impossible = replace(selection.chosen, schedule=replace(selection.chosen.schedule, warps=3))
    taken = tuned(replace(selection, chosen=impossible), None, right)
    assert selection.others
    assert taken.chosen is selection.others[0]
    assert len(taken.considered) == len(selection.considered) + 1
    assert taken.considered[-1].seconds is None


def test_what_was_tuned_is_kept_with_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def fastest(self: tune.Tuning) -> Any:
        tried = (self.selection.chosen, *(self.selection.others or ()))
        timed.append(len(tried))
        return [tried[2]], [Considered("one", 1e-3, ""), Considered("other", None, "too slow")], True

    monkeypatch.setattr(tune.Tuning, "ended", fastest)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    program = programs.linear_relu(DType.bfloat16)
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    selection = looked_at_closely(select(program, Example({"M": 64, "N": 64, "K": 64}, {}, 1, H200)))
    first = tuned(selection, torch.device("cuda"), right)
    assert first.chosen.schedule != selection.chosen.schedule

    def anew() -> Selection:
        pytest.fail("nothing is enumerated again")

    kept = replace(selection, others=None)
    second = tuned(kept, torch.device("cuda"), right, anew)
    assert selection.others
    assert timed == [1 + len(selection.others)]
    assert (second.chosen.applied, second.chosen.schedule) == (first.chosen.applied, first.chosen.schedule)
    assert second.considered == first.considered
    larger = replace(kept, example=replace(kept.example, sizes={"M": 50, "N": 64, "K": 64}))  # of the same class
    assert tuned(larger, torch.device("cuda"), right, anew).chosen.cost.flops < second.chosen.cost.flops
    other = replace(kept, example=replace(kept.example, sizes={"M": 640, "N": 64, "K": 64}))
    assert tuned(other, torch.device("cuda"), right, lambda: selection).chosen is first.chosen
    assert len(timed) == 2


def test_candidates_are_compiled_with_the_options_in_force(tmp_path: Path) -> None:
    program = programs.linear_relu(DType.bfloat16)
    selection = looked_at_closely(select(program, Example({"M": 64, "N": 64, "K": 64}, {}, 1, H200)))
    impossible = replace(selection.chosen, schedule=replace(selection.chosen.schedule, warps=3))
    with weft.options(cache_dir=str(tmp_path)):
        found = compiled(program, (impossible, selection.chosen), selection.example)
    assert [isinstance(each, CompilerError) for each in found] == [True, False]
    assert len(list(CacheFolder(tmp_path).entries())) == 1  # a binary: texts of what is to be timed only are not kept


def test_kernels_that_triton_refuses_cost_their_region_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(job: Job, seconds: float) -> Assembled:
        if "tl.exp" in job.text:
            raise CompilerError(f"kernel {job.name}: Triton refused it", kernel=job.name)
        return assemble(job, seconds)

    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(torch.sort(x @ w, -1).values @ v), torch.exp(x) * 2

    monkeypatch.setattr("weft.run.gpu.build.assemble", refusing)
    program = weft.optimize(function, [torch.randn(16, 16) for _ in range(3)], target="cuda:90")
    assert program.kernels
    assert all("tl.exp" not in k.source for k in program.kernels)
    reasons = {f.operation: f.reason for f in program.fallbacks}
    assert "Triton refused it" in reasons["aten.exp"]
    assert "aten.relu" not in reasons


def test_a_vector_along_both_axes_of_a_mask_is_made_before_it(tmp_path):
    """In one kernel with the mask it would lie whole in each thread block, and there is no room for that."""

    def masked(q, k, ids, positions):
        own = ids[:, positions]
        seen = own[:, None, :] <= own[:, :, None]
        return torch.softmax(q @ k.mT + torch.where(seen, 0.0, -1e38), -1)

    ids, positions = torch.randint(0, 9, (2, 1024)), torch.arange(1024)
    inputs = (torch.randn(2, 1024, 64), torch.randn(2, 1024, 64), ids, positions)
    with torch.no_grad():
        program = weft.optimize(masked, inputs, target="cuda:90", effort="none", cache_dir=str(tmp_path))
    assert program.fallbacks == ()
    assert len(program.kernels) > 1
