"""Scans in C++ and Triton: every schedule, each monoid, both directions, lengths around a window, values that hurt."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from testkit.block.rankings import rows
from testkit.block.scans import M, N, between, fused, log_sums, log_sums_of_a_row, recurrence, row, scan, twice
from testkit.emit import triton_scans
from testkit.emit.comparing import laid_out, scheduled
from testkit.emit.harness import compiled, dims_of, torch_type
from testkit.emit.triton_cases import levels
from testkit.emit.triton_programs import load
from testkit.processes.running import ran
from weft.block.interpret import interpret
from weft.schedule import LevelPlace, Schedule, apply
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Monoid

TARGETS = {"sm_80": ("cuda", 80), "sm_90": ("cuda", 90), "gfx942": ("hip", "gfx942")}
# Below, at and beyond a vector's lanes, a window of 16 or 64, and the 512 elements that are converted at once.
LENGTHS = (1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 64, 65, 300, 511, 513, 1100)
DTYPES = (DType.float32, DType.float64, DType.bfloat16, DType.float16, DType.int64, DType.int32, DType.int8, DType.bool)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_schedule_gives_what_the_interpreter_gives(dtype: DType, tmp_path: Path) -> None:
    """Compares on small whole numbers, whose sums and products are exact in every type."""
    rng, domain = random.Random(str(dtype)), Fp64Domain()
    monoids = [Monoid.sum, Monoid.prod] if dtype is DType.bool else list(Monoid)
    programs = [scheduled(fused(scan(m, dtype, over)), rng) for m in monoids for over in (M, N) for _ in range(3)]
    for kernel in compiled(programs, tmp_path, quickly=True):
        sizes = {"M": rng.choice(LENGTHS[:8]), "N": rng.choice(LENGTHS)}
        numbers = np.random.default_rng(rng.randrange(1 << 30))
        x = numbers.choice([-1, 1, 1, 1] if dtype is not DType.bool else [False, True], (sizes["M"], sizes["N"]))
        given = laid_out(torch.from_numpy(x).to(torch_type(dtype)), rng)
        exact = given.double().numpy() if dtype.is_float else given.numpy()
        exact = exact if dtype.is_float or dtype is DType.bool else exact.astype(np.int64)
        (wanted,), _ = interpret(kernel.program, {"x": exact}, sizes, domain)
        (found,) = kernel({"x": given}, sizes, threads=rng.choice((1, 2)))
        np.testing.assert_array_equal(found.double().numpy(), wanted.astype(np.float64), err_msg=str(sizes))


@pytest.mark.parametrize("monoid", Monoid)
def test_infinities_and_nan_are_where_eager_has_them(monoid: Monoid, tmp_path: Path) -> None:
    rng = random.Random(str(monoid))
    eager = {
        Monoid.sum: lambda x, d: x.cumsum(d),
        Monoid.prod: lambda x, d: x.cumprod(d),
        Monoid.max: lambda x, d: x.cummax(d)[0],
        Monoid.min: lambda x, d: x.cummin(d)[0],
    }[monoid]
    programs = [scheduled(fused(scan(monoid, over=over)), rng) for over in (M, N)]
    for dim, kernel in enumerate(compiled(programs, tmp_path, quickly=True)):
        x = torch.from_numpy(rows(np.random.default_rng(3), 61)).float()
        x[0, :20] = torch.tensor(3e38)
        (found,) = kernel({"x": x}, {"M": x.shape[0], "N": x.shape[1]})
        torch.testing.assert_close(found, eager(x, dim), rtol=2e-7, atol=0, equal_nan=True)


def test_products_of_what_comes_after_do_not_leave_the_range_by_themselves(tmp_path: Path) -> None:
    """0 times a finite number is 0, though 16 such numbers come to more than fp64 has; so with infinity, and tiny ones; what has
    left the range of fp64 does not come back.
    """
    rows_ = (("m", levels((LevelPlace.grid, 1))), ("n", levels((LevelPlace.loop, 64))))
    (kernel,) = compiled([apply(fused(scan(Monoid.prod)), Schedule(rows_))], tmp_path, quickly=True)
    x = torch.ones(4, 80)
    x[0, 3], x[0, 16:32], x[1, 3], x[1, 16:32] = 0.0, 1e38, torch.inf, 1e-44
    x[2, 16:25], x[2, 25:40], x[3, 16:25], x[3, 25:40] = 1e38, 1e-38, 1e-38, 1e38
    (found,) = kernel({"x": x}, {"M": 4, "N": 80})
    assert torch.equal(found, x.cumprod(1))


def test_what_is_fused_with_a_scan_is_done_along_with_it(tmp_path: Path) -> None:
    rng, domain = random.Random(5), Fp64Domain()
    tensors = [between(), between(M), twice()]
    for kernel in compiled([scheduled(fused(t), rng) for t in tensors for _ in range(3)], tmp_path, quickly=True):
        sizes = {"M": rng.choice((1, 5, 9)), "N": rng.choice(LENGTHS)}
        shapes = {n: [a.space.size(sizes) for a in kind.lists] for n, kind in kernel.program.inputs}
        given = {n: torch.from_numpy(np.random.default_rng(7).integers(-3, 4, s)).float() for n, s in shapes.items()}
        wanted, _ = interpret(kernel.program, {n: t.double().numpy() for n, t in given.items()}, sizes, domain)
        for a, b in zip(wanted, kernel(given, sizes), strict=True):
            np.testing.assert_array_equal(b.numpy(), a)


SEGMENTS = ((1, 1), (2, 1), (7, 1), (64, 1), (1, 4), (7, 3), (7, 8), (64, 16))
"""Segments of a row, and how many of those before it each merges at once; 1: a loop over all of them has merged them."""


@pytest.mark.parametrize("monoid", Monoid)
def test_a_row_in_segments(monoid: Monoid, tmp_path: Path) -> None:
    """1, 2, 7 and 64 segments, more of them than there are blocks too; merged one by one, or by blocks for each segment."""
    domain, made = Fp64Domain(), []
    for dtype in (DType.float32, DType.int64) if monoid is not Monoid.prod else (DType.int64,):
        for parts, together in SEGMENTS:
            split = levels((LevelPlace.split, parts), (LevelPlace.loop, 20))
            made.append(apply(fused(row(monoid, dtype)), Schedule((("n", split),), together=together)))
    for kernel in compiled(made, tmp_path, quickly=True):
        for length in (1, 20, 33, 300):
            x = torch.from_numpy(np.random.default_rng(length).choice([-1, 1, 1], (length,)))
            x = x.to(torch_type(kernel.program.inputs[0][1].dtype))
            exact = x.double().numpy() if x.is_floating_point() else x.numpy()
            (wanted,), _ = interpret(kernel.program, {"x": exact}, {"N": length}, domain)
            (found,) = kernel({"x": x}, {"N": length}, threads=2)
            np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("length", [1, 100, 4099, 1_000_003])
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_sums_are_as_exact_as_eagers(mean: float, length: int, tmp_path: Path) -> None:
    (kernel,) = compiled([scheduled(fused(scan()), random.Random(2))], tmp_path, quickly=True)
    x = torch.randn(1, length, generator=torch.Generator().manual_seed(length)) + mean
    exact = x.double().cumsum(1)
    (found,) = kernel({"x": x}, {"M": 1, "N": length})
    assert (found - exact).abs().max() <= (x.cumsum(1) - exact).abs().max() * 1.01


@pytest.mark.parametrize("dtype", [DType.float32, DType.float64], ids=str)
def test_states_of_several_components_under_any_schedule(dtype: DType, tmp_path: Path) -> None:
    """Steps of a recurrence, whose order counts, in whole numbers to the last bit; logarithms within a few roundings."""
    rng, domain = random.Random(str(dtype)), Fp64Domain()
    tensors = [made(dtype, over) for made in (recurrence, log_sums) for over in (M, N)]
    programs = [scheduled(fused(t), rng) for t in tensors for _ in range(3)]
    for kernel in compiled(programs, tmp_path, quickly=True):
        sizes = {"M": rng.choice(LENGTHS[:8]), "N": rng.choice(LENGTHS)}
        numbers = np.random.default_rng(rng.randrange(1 << 30))
        given = {
            name: laid_out(
                torch.from_numpy(numbers.choice([-1, 1, 1, 0], (sizes["M"], sizes["N"]))).to(torch_type(dtype)), rng
            )
            for name, _ in kernel.program.inputs
        }
        wanted, _ = interpret(kernel.program, {n: t.double().numpy() for n, t in given.items()}, sizes, domain)
        for found, exact in zip(kernel(given, sizes, threads=rng.choice((1, 2))), wanted, strict=True):
            near = 2 * dtype.eps * max(1.0, np.abs(exact).max()) if len(given) == 1 else 0.0
            np.testing.assert_allclose(found.double().numpy(), exact, rtol=0, atol=near, err_msg=str(sizes))


def test_states_of_a_row_in_segments(tmp_path: Path) -> None:
    made = [
        apply(
            fused(log_sums_of_a_row()),
            Schedule((("n", levels((LevelPlace.split, parts), (LevelPlace.loop, 20))),), together=together),
        )
        for parts, together in SEGMENTS
    ]
    for kernel in compiled(made, tmp_path, quickly=True):
        for length in (1, 20, 33, 300):
            for scale, shift in ((1.0, 0.0), (1e4, 0.0), (1.0, 1e4)):
                x = torch.randn(length, generator=torch.Generator().manual_seed(length)) * scale + shift
                (found,) = kernel({"x": x}, {"N": length}, threads=2)
                exact = torch.logcumsumexp(x.double(), 0)
                assert (found - exact).abs().max() <= 2e-7 * exact.abs().max()


def test_triton_kernels_give_what_the_interpreter_gives(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: it is in the extras dev and gpu")
    command = ["-W", "ignore", "-m", triton_scans.__name__, str(tmp_path)]
    done = ran(command, os.environ | {"TRITON_INTERPRET": "1"})
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len(triton_scans.programs()) * len(triton_scans.SIZES) + 2 * len(Monoid) * len(
        triton_scans.SEGMENTS
    )
    assert not {name: what for name, what in found.items() if what}


@pytest.mark.parametrize("target", TARGETS)
def test_triton_kernels_compile_for_gpus_that_are_not_here(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: it is in the extras dev and gpu")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    every = (
        scan(),
        scan(over=M),
        scan(Monoid.max, DType.bfloat16),
        between(),
        log_sums(),
        log_sums(over=M),
        recurrence(),
    )
    for tensors in every:
        program = triton_scans.placed(fused(tensors, doubles=False), random.Random(1))
        assert load(program, dims_of(program), tmp_path).compile_for(*TARGETS[target], {"M": 64, "N": 128})
    for tensors in (row(), row(Monoid.max, DType.int64), log_sums_of_a_row(), scan(over=M)):
        program = triton_scans.in_segments(fused(tensors, doubles=False), 7, 4)
        assert len(load(program, dims_of(program), tmp_path).compile_for(*TARGETS[target], {"M": 64, "N": 128})) == 2


def test_threads_do_not_share_what_the_loop_carries_and_shows(tmp_path: Path) -> None:
    """Triton would reduce a component by threads apart, each of which would then read its own part of it."""
    columns = (("n", levels((LevelPlace.grid, 8))), ("m", levels((LevelPlace.loop, 8))))
    program = apply(fused(scan(over=M), doubles=False), Schedule(columns))
    ((_, source),) = load(program, dims_of(program), tmp_path).launches
    assert "weft_kept" in source.text
