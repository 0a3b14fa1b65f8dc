"""A few faults planted in printed kernels; `emit.planted` is the campaign, and says how."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from testkit.emit import planted
from testkit.emit.planted import CPP, SHARE, TRITON, Fault, faults
from testkit.processes.running import ran

TEXT = """#include "prelude.h"
extern "C" void weft_m_0(const int64_t* words) {
  float* const a = (float*)words[1];
  float* const b = (float*)words[2];
  for (i64 k = 0; k < K; k += 64) {
    s[j] = s[j] * t7;
  }
}
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    """By program and kind. In a process of its own, which forks: this one may have threads."""
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    environment = {name: value for name, value in environment.items() if name not in ("WEFT_DEFECTS", "WEFT_JUDGE")}
    done = ran(["-W", "ignore", "-m", planted.__name__, "--share"], environment, timeout=900)
    found = json.loads(done.stdout.splitlines()[-1])
    return {(each["program"], each["kind"]): each for each in found}


@pytest.mark.parametrize(("program", "kind"), [each[:2] for each in SHARE])
def test_a_planted_fault_is_stopped_before_it_serves(
    program: str, kind: str, outcomes: dict[tuple[str, str], Any]
) -> None:
    outcome = outcomes[program, kind]
    assert outcome["changes"] is not None  # it would have been wrong
    assert outcome["user"]["wrong"] is None, outcome
    assert outcome["stopped"], outcome["user"]["warned"]
    said = (*outcome["user"]["warned"], *outcome["user"]["refused"])
    assert any("is wrong on hard inputs" in each for each in said)


def test_a_fault_is_one_changed_line_and_swapped_outputs_are_two() -> None:
    found = list(faults("program", TEXT, CPP))
    assert {f.kind for f in found} >= {"lost rescale", "off-by-one bound", "last block left out", "swapped outputs"}
    for fault in found:
        changed = planted.planted(fault, TEXT)
        different = sum(a != b for a, b in zip(TEXT.splitlines(), changed.splitlines(), strict=True))
        assert different == 1 + (fault.kind == "swapped outputs"), fault


def test_a_fault_of_another_text_is_not_planted() -> None:
    fault = Fault("program", "lost rescale", 5, "    s[j] = s[j] * t8;", "    s[j] = s[j];")
    assert planted.planted(fault, TEXT) == TEXT


@pytest.mark.parametrize("rules", [CPP, TRITON])
def test_no_two_rules_are_alike(rules: tuple[planted.Rule, ...]) -> None:
    assert len({(r.pattern, r.instead) for r in rules}) == len(rules)
