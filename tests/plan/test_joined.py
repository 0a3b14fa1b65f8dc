"""A candidate that joins others which were timed before: built meanwhile, as the plan with the library's matmuls is."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from weft.plan.measure import clock
from weft.plan.measure.measured import Measured
from weft.plan.measure.spare import spare


def joined(monkeypatch, busy: float, slower: float) -> tuple[Measured, list[str]]:
    """Return what is found where others use `busy` cores, and the calls; all were `slower` until the third was built."""
    now = [0.0]
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0]))
    monkeypatch.setattr(clock, "_busy_seconds", lambda: (1 + busy) * now[0])
    calls, held_up = [], [slower]

    def run(name, seconds):
        def made(*arguments):
            calls.append(name)
            now[0] += held_up[0] * seconds
            return ()

        return made

    given = spare((torch.ones(3),), ())
    candidates = clock.first_calls((run("weft", 0.06), run("eager", 0.061)), given)
    clock.measure(candidates, given)
    held_up[0] = 1.0
    candidates += clock.first_calls((run("library", 0.07),), given)
    return Measured(*clock.measure(candidates, given).timings), calls


def test_what_joins_slow_calls_on_a_busy_machine_is_compared_with_calls_of_the_same_minute(monkeypatch):
    found, calls = joined(monkeypatch, busy=8.0, slower=10.0)
    assert found.chosen == "weft", "not the library, which was called when the machine was less busy"
    assert calls == ["weft", "eager", "eager", "weft", "library", "library", "eager", "weft"]
    found, calls = joined(monkeypatch, busy=0.0, slower=1.0)
    assert found.chosen == "weft"
    assert calls == ["weft", "eager", "eager", "weft", "library"]
