"""What benchmarks/masks.py says of a mask: with a program of its own, and with one that serves all masks of a size."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("masks")


def test_each_mask_has_a_program_of_its_own_beside_one_for_all(masks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    optimize = masks.weft.optimize

    def counted(*args: Any, **options: Any) -> Any:
        made.append(optimize(*args, **options))
        return made[-1]

    monkeypatch.setattr(masks.weft, "optimize", counted)
    monkeypatch.setattr(masks, "medians", lambda runs: {name: float(place + 1) for place, name in enumerate(runs)})
    monkeypatch.setattr(masks, "SIZES", ((1, 24),))
    rows = list(masks.patterns(small=True))
    assert not any("failed" in row for row in rows), rows
    assert len(made) == len(rows) == 5
    assert all(row["errors"]["weft"] < 1e-4 and row["errors"]["one for all"] < 1e-4 for row in rows)
    *_, last = masks.table(rows).splitlines()
    assert last == "geometric mean of the patterns: weft 0.33, one for all 0.67"


def test_a_call_among_several_in_a_graph_is_timed_without_what_is_between(
    masks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing = import_module("mask_timing")
    monkeypatch.setattr(timing, "_seconds", lambda run, times: 50e-6)
    found = timing.medians({"alone": lambda: None, "several": timing.Replay(lambda: None, 10, 1e-6)})
    assert found == {"alone": pytest.approx(50.0), "several": pytest.approx(4.0)}
