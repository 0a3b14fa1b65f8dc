"""What is read from NVIDIA's profiler, by a table of its."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

_PRINTED = """==PROF== Disconnected
"ID","Kernel Name","gpu__time_duration.sum","gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed","launch__grid_size",\
"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio","smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",\
"device__name"
"","","us","%","","inst","inst",""
"0","first(int)","1,012.50","56.1","4,096","3.4","0.5","H200"
"1","second","2.5","7","1","","9.25","H200"
""".replace("\\\n", "")


def test_kernels_are_read_with_their_units_and_what_they_waited_for_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    gpu_profile: Any = import_module("gpu_profile")
    first, second = gpu_profile._kernels(_PRINTED)
    assert (first["kernel"], first["us"], second["us"]) == ("first(int)", 1012.5, 2.5)
    assert first["launch__grid_size"] == 4096.0
    assert "device__name" not in first
    assert gpu_profile._waits(first) == "long scoreboard 3.4, barrier 0.5"
    assert gpu_profile._waits(second) == "barrier 9.2"
    assert len(gpu_profile.shown({"row": [first, second]}).rows) == 2
