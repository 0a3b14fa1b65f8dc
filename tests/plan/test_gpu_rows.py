"""The benchmark's functions as kernels for a GPU: run in Triton's interpreter at small sizes, compiled for every target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import weft
from testkit.plan.gpu_rows import small
from testkit.plan.gpu_targets import TARGETS, Compiled, cases, compiled
from testkit.plan.interpreted import interpreted
from testkit.walk import WALK_ALL, share
from weft.cost import gpu
from weft.errors import TargetError
from weft.lab.workloads.gpu import ROWS
from weft.run.gpu import Assembled
from weft.target import Target

NAMES = tuple(row.name for row in ROWS if row.group)
# A ranking, a product of 8 bits, heads that share keys.
ALWAYS = ("R8", "Q8", "GQA-inc-b1")
# At full size; python -m testkit.plan.gpu_targets prints them all as a table.
FULL = [(row, target) for row in cases() for target in TARGETS] if WALK_ALL else [("RMSLinear-b1", "cuda:80")]


def test_rows_are_right_in_the_interpreter(tmp_path: Path) -> None:
    names = [*ALWAYS, *(n for n in share(NAMES, 60, 7) if n not in ALWAYS)]
    found = interpreted("gpu_rows", *names, cache=tmp_path / "cache")
    assert list(found) == names
    for name, row in found.items():
        assert row["kernels"] >= 1, name
        assert row["right"], name
        assert row["left"] == [], name


def test_rows_shorter_than_a_block_of_a_product_are_right_in_the_interpreter(tmp_path: Path) -> None:
    """Such a row has more lanes than elements, all over the kernel: what is behind its end is masked."""
    found = interpreted("gpu_narrow", "1" if WALK_ALL else "4", cache=tmp_path / "cache")
    assert len(found) == (15 if WALK_ALL else 4)
    assert [name for name, right in found.items() if not right] == []


def test_constant_rows_are_0_in_the_interpreter(tmp_path: Path) -> None:
    found = interpreted("gpu_moments", "1" if WALK_ALL else "3", cache=tmp_path / "cache")
    assert len(found) == (8 if WALK_ALL else 3)
    assert [name for name, right in found.items() if not right] == []


@pytest.mark.parametrize("target", TARGETS)
def test_a_program_is_compiled_for_a_gpu_that_is_not_here(target: str) -> None:
    row = next(row for row in ROWS if row.name == "LN-mm-small")
    fn, inputs = small(row)
    program = weft.optimize(fn, inputs, target=target)
    assert program.kernels
    assert program.fallbacks == ()
    for kernel in program.kernels:
        assert str(kernel.target) == target
        assert "@triton.jit" in kernel.source
        assert kernel.binary
        assert kernel.assembly
        assert kernel.assembled is not None
        found = kernel.assembled()
        assert isinstance(found, Assembled)
        assert found.shared <= gpu(Target.parse(target)).thread_block_bytes
        assert kernel.verdict.equal
    with pytest.raises(TargetError, match=target):
        program(*inputs)


@pytest.mark.parametrize(("row", "target"), FULL)
def test_rows_at_full_size_are_compiled_within_the_targets_limits(row: str, target: str) -> None:
    found = compiled(row, cases()[row], target)
    assert found.ok, str(found)
    assert found.kernels or "no e4m3" in str(found)
    assert found.registers is None or 0 < found.registers <= 512


def test_what_counts_as_compiled() -> None:
    fits = Compiled("Q1", "cuda:80", kernels=1, shared=10, most_shared=20)
    left = (
        "aten.exp: cuda:80 has no float8_e4m3fn: it came later",
        "aten.mul: cuda:80 has no float8_e4m3fn: it came later",
    )
    assert fits.ok
    assert Compiled("Q1", "cuda:80", left=left).ok
    for wrong in (
        replace(fits, shared=21),
        replace(fits, left=("aten.cat: not in the table",)),
        replace(fits, failed="an error"),
        replace(fits, kernels=0),
        Compiled("Q1", "cuda:90", left=left),
        Compiled("Q1", "cuda:80", left=(*left, "aten.cat: not in the table")),
    ):
        assert not wrong.ok, wrong
    assert "aten.exp, aten.mul: no room" in str(
        Compiled("Q1", "cuda:90", left=("aten.exp: no room", "aten.mul: no room"))
    )


def test_a_kernel_of_the_cpu_has_no_binary_to_show() -> None:
    program = weft.optimize(torch.relu, (torch.randn(8, 16),), target="cpu")
    assert [(k.binary, k.assembly, str(k.target)) for k in program.kernels] == [(None, None, "cpu")]


def test_a_number_between_regions_has_no_innermost_dimension(tmp_path: Path) -> None:
    """Cross-entropy divides by a count that another kernel has left: a tensor without dimensions."""

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x, y)

    inputs = torch.randn(32, 64), torch.randint(0, 64, (32,))
    program = weft.optimize(loss, inputs, target="cuda:90", effort="none", defects="raise", cache_dir=str(tmp_path))
    assert not any("weft failed" in str(each) for each in program.fallbacks)
    assert program.kernels
