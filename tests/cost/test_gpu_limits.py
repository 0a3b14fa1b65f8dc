"""What a program of a GPU's grid is said to take, beside what Triton counts when it compiles the kernel."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from testkit.block import programs
from testkit.emit.harness import dims_of
from testkit.emit.triton_programs import TritonProgram, load
from testkit.schedules import fused
from weft.block.program import BlockProgram
from weft.cost import gpu, resources, unfit
from weft.emit.triton import GRANULARITY
from weft.errors import UnsupportedError
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.target import Target
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid, Reduction, TensorProgram, Use

pytest.importorskip("triton", reason="Triton is not installed: it is in the extras dev and gpu")

LINEAR, ATTENTION = "relu(x @ w + b) 512x1024x1024", "attention 4096x64"
NORM, SWIGLU = "LayerNorm + matmul 512x1024x1024", "RMSNorm + SwiGLU 512x512x1408"


class Case(NamedTuple):
    problem: str
    levels: str
    warps: int
    stages: int
    arch: int = 90
    program: str = "last"


def products(m: int, n: int, k: int, warps: int, stages: int, arch: int = 90, problem: str = LINEAR) -> Case:
    return Case(problem, f"m grid {m}, n grid {n}, k loop {k}", warps, stages, arch)


def attention(m: int, n: int, warps: int, stages: int, arch: int = 90) -> Case:
    return Case(ATTENTION, f"m grid {m}, l whole, n loop {n}, d whole", warps, stages, arch, "safe")


def swiglu(m: int, n: int, k: int, warps: int, stages: int, arch: int = 90) -> Case:
    return Case(SWIGLU, f"m grid {m}, n grid {n}, k loop {k}, d loop 64", warps, stages, arch, "1")


CASES = [
    products(64, 64, 64, 4, 2), products(64, 128, 64, 4, 3, 80), products(16, 64, 128, 4, 5), products(128, 128, 64, 4, 7),
    products(128, 64, 128, 8, 3, 80), products(64, 256, 64, 4, 1), products(128, 128, 16, 4, 1, 80),
    products(64, 128, 64, 4, 10), products(64, 64, 64, 4, 12, 80),
    attention(64, 64, 4, 3), attention(128, 64, 8, 2, 80), attention(32, 64, 4, 3), attention(64, 128, 4, 1),
    attention(64, 64, 4, 15), attention(64, 64, 4, 12, 80),
    products(64, 64, 128, 4, 3, problem=NORM), products(64, 64, 64, 8, 4, 80, NORM), products(16, 64, 64, 4, 4, problem=NORM),
    swiglu(64, 64, 64, 4, 3), swiglu(16, 64, 64, 4, 3, 80),
]  # fmt: skip


@pytest.fixture(scope="module")
def problems() -> dict[str, tuple[dict[str, BlockProgram], Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        gpu_first = import_module("gpu_first")
    return {name: (p.build(DType.bfloat16), (p, gpu_first.schedule)) for name, p in gpu_first.PROBLEMS.items()}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.problem[:9]}, {c.levels}, {c.warps}, {c.stages}, {c.arch}")
def test_shared_memory_is_what_triton_counts(
    case: Case, problems: dict[str, tuple[dict[str, BlockProgram], Any]], tmp_path: Path
) -> None:
    programs, (problem, schedule) = problems[case.problem]
    applied = apply(programs[case.program], schedule(programs[case.program], case.levels), GRANULARITY)
    counted = triton_counts(load(applied, dims_of(applied), tmp_path), case, problem.sizes)
    chip = gpu(Target("cuda", str(case.arch)))
    found = resources(applied, kernels(applied)[0], problem.sizes, chip, case.warps, case.stages)
    why = unfit(found, chip)
    assert found.shared_bytes == pytest.approx(counted, rel=0.2)
    if counted <= chip.thread_block_bytes:
        assert why is None
    else:
        assert why is not None
        assert "shared memory" in why


@pytest.mark.parametrize(("tile", "warps", "stages"), [(1024, 4, 1), (1024, 4, 3), (4096, 8, 3), (4096, 4, 5)])
def test_loops_without_products_copy_ahead_what_they_load(tile: int, warps: int, stages: int, tmp_path: Path) -> None:
    """A loop that is told to have several iterations in flight copies the blocks of all but one to shared memory."""
    m, n = programs.axes("m", "n")
    total = Reduction("y", (m,), DType.float32, Monoid.sum, Use("x", (m, n)), (n,))
    program = fused(TensorProgram((programs.tensor("x", m, n),), (total,), ("y",)))
    loops = {"m": LoopSchedule((Level(LevelPlace.grid, 2),)), "n": LoopSchedule((Level(LevelPlace.loop, tile),))}
    applied = apply(program, Schedule(tuple(loops.items()), warps=warps, stages=stages), GRANULARITY)
    sizes = {"M": 512, "N": 32768}
    printed = load(applied, dims_of(applied), tmp_path, stages=stages)
    for target in (Target("cuda", "90"), Target("hip", "gfx942")):  # AMD's keep them in registers
        (made,) = printed.compile_for(target.kind, target.arch, sizes, {"num_warps": warps, "num_stages": stages})
        found = resources(applied, kernels(applied)[0], sizes, gpu(target), warps, stages).shared_bytes
        # What threads of several warps exchange is not counted.
        assert found <= made.shared <= found + 64 * warps


def triton_counts(program: TritonProgram, case: Case, sizes: Mapping[str, int]) -> int:
    """Bytes of shared memory that a program needs: of one that was compiled, or of one that is refused for that."""
    try:
        (made,) = program.compile_for("cuda", case.arch, sizes, {"num_warps": case.warps, "num_stages": case.stages})
    except UnsupportedError as error:
        refused = re.search(r"needs (\d+) bytes of shared memory", str(error))
        if refused is None:
            raise
        return int(refused[1])
    return made.shared


def test_the_cases_reach_both_sides_of_the_limit(problems: dict[str, tuple[dict[str, BlockProgram], Any]]) -> None:
    fits: set[tuple[int, bool]] = set()
    for case in CASES:
        programs, (problem, schedule) = problems[case.problem]
        applied = apply(programs[case.program], schedule(programs[case.program], case.levels), GRANULARITY)
        chip = gpu(Target("cuda", str(case.arch)))
        fits.add(
            (
                case.arch,
                unfit(resources(applied, kernels(applied)[0], problem.sizes, chip, case.warps, case.stages), chip)
                is None,
            )
        )
    assert fits == {(80, True), (80, False), (90, True), (90, False)}
