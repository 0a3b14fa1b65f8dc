"""Triton kernels whose loops are guarded: what they compute in the interpreter, and that they compile for other GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testkit.emit import triton_guards
from testkit.emit.harness import dims_of
from testkit.emit.triton_programs import load

CASES = triton_guards.cases()


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """By case, its error in units of rounding."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        triton_guards.__name__,
        str(tmp_path_factory.mktemp("interpreted")),
    ]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_what_the_program_says(name: str, interpreted: dict[str, float]) -> None:
    # Exponentials of products are off by what rounding the products explains, with a loop over all elements as well.
    assert interpreted[name] <= (1.0 if name.startswith(("sums", "maxima")) else 4.0)


@pytest.mark.parametrize("name", ["weighted", "weighted, beforehand", "biased, beforehand", "documents"])
def test_a_kernel_compiles(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    for made in load(case.program, dims_of(case.program), tmp_path).compile_for("cuda", 90, case.sizes):
        assert made.assembly
