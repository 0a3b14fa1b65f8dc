"""The benchmark's functions as kernels for a GPU: run in Triton's interpreter at small sizes, compiled for every target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import weft
from walk import share
from weft.api.workloads_gpu import ROWS, small
from weft.cost import gpu
from weft.errors import TargetError
from weft.target import Target

NAMES = tuple(row.name for row in ROWS if row.group)
# A ranking, a product of 8 bits, heads that share keys.
ALWAYS = ("R8", "Q8", "GQA-inc-b1")
TARGETS = ("cuda:80", "cuda:90", "cuda:100", "hip:gfx942")


def test_rows_are_right_in_the_interpreter(tmp_path: Path) -> None:
    names = [*ALWAYS, *(n for n in share(NAMES, 30, 7) if n not in ALWAYS)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "WEFT_CACHE_DIR": str(tmp_path / "cache")}
    script = [sys.executable, str(Path(__file__).with_name("gpu_rows.py")), *names]
    done = subprocess.run(script, check=False, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == names
    for name, row in found.items():
        assert row["kernels"] >= 1, name
        assert row["right"], name
        assert row["left"] == [], name


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
        assert kernel.assembled().shared <= gpu(Target.parse(target)).program_bytes
        assert kernel.verdict.equal
    with pytest.raises(TargetError, match=target):
        program(*inputs)


def test_a_kernel_of_the_cpu_has_no_binary_to_show() -> None:
    program = weft.optimize(torch.relu, (torch.randn(8, 16),), target="cpu")
    assert [(k.binary, k.assembly, str(k.target)) for k in program.kernels] == [(None, None, "cpu")]
