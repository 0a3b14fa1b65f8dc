"""Counts of the cost model are the interpreter's: a share of the campaign over the benchmark list."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from testkit.cost import counts
from testkit.cost.counts import differences, programs, trials
from weft.cost import traffic

ROWS = ("attention, causal by mask", "RMSNorm + SwiGLU", "softmax", "top-k")


@pytest.mark.parametrize("row", ROWS)
def test_counts_of_the_benchmark_list(row: str) -> None:
    compared = 0
    for name, fused in programs("cpu", [row]):
        for applied, sizes in trials(fused, 4, random.Random(name)):
            assert differences(applied, sizes) == []
            compared += 1
    assert compared >= 4


def test_a_wrong_count_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show what the campaign says of a model that forgets one load."""
    _, fused = next(programs("cpu", ["softmax"]))
    applied, sizes = next(trials(fused, 1, random.Random(0)))

    def forgetful(*args: object) -> object:
        found = traffic(*args)  # pyright: ignore[reportArgumentType] - as the campaign calls it
        return replace(found, loaded=dict(list(found.loaded.items())[1:]))

    monkeypatch.setattr(counts, "traffic", forgetful)
    assert [each.partition(":")[0] for each in differences(applied, sizes)] == ["loaded"]
