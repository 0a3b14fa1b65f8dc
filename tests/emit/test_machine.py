"""Placed programs in float32, by the interpreter and as printed kernels; `testkit.emit.machine` is the campaign."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testkit.emit.machine import TARGETS, findings
from testkit.mutants.operators import mutants
from testkit.mutants.subjects import random_subjects
from testkit.processes.running import ran
from testkit.walk import share


@pytest.mark.parametrize("seed", share([2, 3, 4, 5, 7, 12, 13, 14], 4, 1))
def test_interpreter_and_kernels_keep_the_error_rule_on_hard_inputs(seed: int, tmp_path: Path) -> None:
    (subject,) = random_subjects(range(seed, seed + 1))
    found = dict(findings(subject, tmp_path))
    assert tuple(found) == TARGETS
    assert [said for said in found.values() if said is not None] == []


def test_a_wrong_program_is_found_on_every_target(tmp_path: Path) -> None:
    (subject,) = random_subjects(range(3, 4))
    wrong = next(m for m in mutants(subject.applied) if m.operator == "dropped mask" and "op='where'" in m.change)
    found = dict(findings(subject, tmp_path, applied=wrong.program))
    assert tuple(found) == TARGETS
    assert None not in found.values()


def test_so_do_kernels_in_tritons_interpreter() -> None:
    command = ["-W", "ignore", "-m", "testkit.emit.machine", "--random", "2", "--seed", "2", "--targets", "triton"]
    done = ran(command, os.environ | {"TRITON_INTERPRET": "1"})
    assert "triton: right" in done.stdout
