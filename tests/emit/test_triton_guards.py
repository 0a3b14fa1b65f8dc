"""Triton kernels whose loops are guarded: what they compute in the interpreter, and that they compile for other GPUs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from testkit.emit import triton_guards
from testkit.emit.harness import dims_of
from testkit.emit.triton_programs import load
from testkit.processes.running import ran

CASES = triton_guards.cases()


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """By case, its error in units of rounding."""
    command = ["-W", "ignore", "-m", triton_guards.__name__, str(tmp_path_factory.mktemp("interpreted"))]
    done = ran(command, os.environ | {"TRITON_INTERPRET": "1"})
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", triton_guards.run_cases())
def test_a_kernel_computes_what_the_program_says(name: str, interpreted: dict[str, float]) -> None:
    # Exponentials of products are off by what rounding the products explains, with a loop over all elements as well.
    assert interpreted[name] <= (1.0 if name.startswith(("sums", "maxima", "groups")) else 4.0)


@pytest.mark.parametrize(
    "name", ["weighted", "weighted, beforehand", "biased, beforehand", "documents", "groups, beforehand"]
)
def test_a_kernel_compiles(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    for made in load(case.program, dims_of(case.program), tmp_path).compile_for("cuda", 90, case.sizes):
        assert made.assembly
