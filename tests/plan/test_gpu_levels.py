"""What benchmarks/gpu_levels.py compares: each level and form is there, is a program of its own, is proven, and exchanges values as
it says."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from testkit.processes.running import ran
from testkit.walk import share
from weft.block.listing import listing
from weft.cost import corrected, traffic

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LEVELS = {(level, form) for level in ("thread", "warp", "block") for form in ("in turn", "apart")}


@pytest.fixture(scope="module", autouse=True)
def benchmarks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield


@pytest.fixture(scope="module")
def programs(benchmarks: Any) -> dict[str, Any]:
    ways = import_module("gpu_levels_ways")
    return {name: ways.fused(name) for name in ("statistics", "greatest", "summed")}


@pytest.fixture(scope="module")
def small(programs: dict[str, Any]) -> list[Any]:
    ways = import_module("gpu_levels_ways")
    return list(ways.ways(next(c for c in ways.SMALL if c.function == "statistics"), programs))


def applied(way: Any) -> Any:
    return way.steps[0].candidate.applied


def test_each_level_and_form_is_there_and_is_a_program_of_its_own(small: list[Any]) -> None:
    assert {(w.level, w.form) for w in small} == LEVELS | {("row", "whole"), ("", "unfused")}
    listings: dict[str, tuple[str, str, int]] = {}
    for way in (w for w in small if w.form != "unfused"):
        kind = (way.level, way.form, way.outputs)
        assert listings.setdefault(listing(applied(way)), kind) == kind
    assert len({w.name for w in small}) == len(small)
    assert {w.launches for w in small if w.form == "apart"} == {2}
    assert {w.launches for w in small if w.form in ("in turn", "whole")} == {1}
    assert {len(w.steps) for w in small if w.form == "unfused"} == {2}


def test_corrections_are_those_that_the_program_counts(small: list[Any]) -> None:
    checked = 0
    for way in (w for w in small if w.level in ("warp", "block")):
        (step,) = way.steps
        rows = way.cell.sizes[0]
        blocks = -(-rows // step.candidate.schedule.of("m").levels[0].size)
        found = corrected(step.candidate.applied, traffic(step.candidate.applied, step.example.sizes))
        if way.form == "in turn":
            assert found == way.corrections * blocks
            checked += 1
    assert checked >= 4
    assert all(w.corrections.evaluated == 0 for w in small if w.form == "whole")


def test_a_share_is_proven(small: list[Any]) -> None:
    levels = import_module("gpu_levels")
    distinct = {key: step for w in small for key, step in zip(w.proofs, w.steps, strict=True)}
    for step in share(tuple(distinct.values()), 3, 8):
        assert levels.proven(step).equal


def test_one_wrong_merge_is_refuted(small: list[Any]) -> None:
    """A way's proof is of what was written: the sum of another function's program is none."""
    levels = import_module("gpu_levels")
    apart = next(w for w in small if (w.level, w.form) == ("block", "apart"))
    unfused = next(w for w in small if w.form == "unfused")
    assert levels.proven(apart.steps[0]).equal
    replaced = type(apart.steps[0])(**{**vars(apart.steps[0]), "candidate": unfused.steps[0].candidate})
    assert not levels.proven(replaced).equal


def test_who_exchanges_values_is_read_off_the_assembly() -> None:
    levels, exchange = import_module("gpu_levels"), import_module("gpu_levels_ways").Exchange
    assert levels.exchange("ld.global.v4.b32 {%r1}, [%rd1];", 128) is exchange.thread
    assert levels.exchange("shfl.sync.bfly.b32 %r1, %r2, 16, 31, -1;", 128) is exchange.warp
    assert levels.exchange("shfl.sync.bfly.b32 %r1, %r2, 16, 31, -1;\nbar.sync 0;", 128) is exchange.block
    assert levels.exchange("bar.sync 0;", 32) is exchange.warp


def test_kernels_exchange_values_where_their_level_says(programs: dict[str, Any]) -> None:
    ways, levels = import_module("gpu_levels_ways"), import_module("gpu_levels")
    cell = next(c for c in ways.CELLS if c.function == "statistics")
    found = list(ways.ways(cell, programs))
    for level in (ways.Exchange.thread, ways.Exchange.block):
        way = next(w for w in found if w.exchange is level and w.form == "apart")
        assert way.unfit is None
        assert levels.compiled(way) is level


def test_it_runs_in_the_interpreter_and_keeps_what_it_has(tmp_path: Path) -> None:
    file, script = tmp_path / "levels.json", str(BENCHMARKS / "gpu_levels.py")
    environment = {
        **os.environ, "TRITON_INTERPRET": "1", "WEFT_JUDGE": "off", "WEFT_CACHE_DIR": str(tmp_path / "cache"),
    }  # fmt: skip
    done = ran([script, str(file), "--small", "--workers", "0", "--only", "attention"], environment)
    held = json.loads(file.read_text())
    (cell,) = held["cells"]
    forms = [(p["form"], p["outputs"], p["schedule"][0].split("warps")[0]) for p in cell["points"]]
    assert len(set(forms)) == len(forms)
    assert {form[:2] for form in forms} == {("in turn", 1), ("whole", 1), ("whole", 2)}
    assert all(p["right"] and p["predicted_us"] > 0 for p in cell["points"])
    assert "0 wrong, 0 left out" in done.stdout
    cell["points"][0]["right"] = False
    levels = import_module("gpu_levels")
    assert "1 wrong" in "\n".join(levels.table(held))


def test_plots_are_the_same_bytes_for_the_same_measurements(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = import_module("gpu_levels_plot")

    def point(level: str, form: str, outputs: int, us: float) -> dict[str, Any]:
        return {
            "level": level, "form": form, "outputs": outputs, "us": us, "predicted_us": 2 * us, "waves": 3.0 * outputs,
            "right": True,
        }  # fmt: skip

    kinds = [("", "unfused", 1), ("row", "whole", 1), ("block", "apart", 2), ("thread", "in turn", 1)]
    rows = [
        {"function": "softmax", "sizes": [128, n], "eager_us": 1.0, "points": [point(*k, n / 2) for k in kinds]}
        for n in (1024, 2048)
    ]
    waves = [point("block", form, n, 40.0 / n) for form in ("in turn", "whole") for n in (1, 2, 4)]
    held = {
        "cells": [*rows, {"function": "attention", "sizes": [8, 12, 512, 512, 64], "eager_us": 1.0, "points": waves}]
    }
    texts: list[list[bytes]] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        plot.draw(held, tmp_path / name)
        texts.append([(tmp_path / name / f"gpu-{n}.svg").read_bytes() for n in ("levels", "waves")])
    assert texts[0] == texts[1]
    assert b"thread, in turn" in texts[0][0]
    assert b"non-incremental" in texts[0][1]
