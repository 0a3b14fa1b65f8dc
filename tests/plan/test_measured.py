"""What a trial found is believed where it is clear; else the next process tries again."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch

import weft
from weft.plan.measure import clock, trial
from weft.plan.measure.clock import Timed, Timing
from weft.plan.measure.measured import Measured
from weft.plan.measure.spare import Spare, spare
from weft.run.cache import CacheFolder


def test_clear_times_leave_no_doubt():
    found = Measured(Timing(1.0, 0.1), Timing(2.0, 0.1))
    assert found.doubts == ()
    assert not found.is_to_be_repeated
    assert str(found) == "weft runs: weft 1000 ms ± 10%, PyTorch 2000 ms ± 10%"


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (Measured(Timing(1.0, 0.02), Timing(1.0, 0.02)), "too close"),
        (Measured(Timing(1.0, 0.01), Timing(2.0, 0.01), Timing(0.98, 0.03)), "too close"),
        (Measured(Timing(1.0, 0.01), Timing(9.0, 0.5)), "vary"),
        (Measured(Timing(1.0, 0.01), Timing(9.0, 0.01), load=1.0, cores=os.cpu_count() or 1), "busy"),
    ],
)
def test_close_noisy_and_busy_trials_are_in_doubt(found, says):
    assert any(says in doubt for doubt in found.doubts)
    assert found.is_to_be_repeated
    assert says in str(found)
    assert "the next process measures again" in str(found)


def test_a_machine_that_is_busy_elsewhere_is_not():
    assert Measured(Timing(1.0), Timing(9.0), load=0.2, cores=os.cpu_count() or 1).doubts == ()
    assert Measured(Timing(1.0), Timing(9.0), load=64.0).doubts == (), "on a GPU"


def test_the_least_times_count_and_the_last_conditions():
    busy = Measured(Timing(59.7, 0.1), Timing(10.75, 0.1), load=3.0, cores=64)
    quiet = Measured(Timing(8.0, 0.01), Timing(11.0, 0.02), load=0.1, cores=1)
    assert busy.chosen == "PyTorch"
    both = busy.again(quiet)
    assert (both.weft, both.eager, both.library) == (quiet.weft, busy.eager, None)
    assert (both.chosen, both.trials, both.load) == ("weft", 2, 0.1)
    assert not both.is_to_be_repeated
    for _ in range(4):
        busy = busy.again(busy)
    assert busy.doubts
    assert not busy.is_to_be_repeated, "for ever is too often"


def test_a_trial_that_took_enough_calls_is_not_repeated():
    close = Timing(1.0, 0.02), Timing(1.0, 0.02)
    assert Measured(*close, spent=2.0).is_to_be_repeated
    assert not Measured(*close, spent=3.0).is_to_be_repeated
    assert not Measured(*close, spent=1.5).again(Measured(*close, spent=1.5)).is_to_be_repeated
    quick = Timing(1e-3, 0.02), Timing(1e-3, 0.02)
    assert Measured(*quick, spent=0.4).is_to_be_repeated
    assert not Measured(*quick, spent=0.5).is_to_be_repeated


@pytest.mark.parametrize("library", [None, Timing(1.25, 0.125)])
def test_it_is_written_and_read(library):
    found = Measured(Timing(1.0, 0.5), Timing(2.0, 0.25), library, load=1.5, cores=2, trials=3, spent=0.75)
    assert Measured.read(found.written()) == found


@pytest.mark.parametrize("gone", ["weft", "eager", "spread", "load", "cores", "trials", "spent"])
def test_what_lacks_a_part_is_no_measurement(gone):
    written = Measured(Timing(1.0), Timing(2.0)).written()
    assert Measured.read({name: value for name, value in written.items() if name != gone}) is None
    assert Measured.read({**written, gone: "fast"}) is None


def test_spread_and_load_are_measured(monkeypatch):
    """The middle half of five calls lies between 1.5 and 2.5 units, and others use 1.5 cores; the first call is none of them."""
    now, taken = [0.0], iter([n / 64 for n in (2.0, 2.0, 1.0, 3.0, 2.0, 2.0)])

    class Clock:
        @staticmethod
        def perf_counter():
            return now[0]

        @staticmethod
        def process_time():
            return now[0] / 2

    def call():
        now[0] += next(taken)
        return ()

    monkeypatch.setattr(clock, "time", Clock)
    monkeypatch.setattr(clock, "_busy_seconds", lambda: 2 * now[0])
    monkeypatch.setattr(clock, "_SECONDS", 0.0)
    given = Spare(())
    found = clock.measure(clock.first_calls([call, lambda: ()], given), given)
    assert found.timings[0] == Timing(2.0 / 64, 0.25)
    assert found.load == 1.5


def test_this_machine_says_how_busy_it_is():
    usage = clock._Usage()
    assert usage.of_others() >= 0.0
    assert (clock._busy_seconds() is None) == (not Path("/proc/stat").exists())


def as_another_process(fn, x, takes, monkeypatch) -> tuple[int, str]:
    """Counts the trials that a process made whose candidates take so long; returned with what it keeps."""
    made: list[int] = []

    def measure(candidates, given):
        made.append(1)
        return Timed(takes, 0.0)

    torch.compiler.reset()
    monkeypatch.setattr(trial, "measure", measure)
    with torch.no_grad():
        fast = weft.compile(fn)
        for _ in range(3):
            torch.testing.assert_close(fast(x), fn(x))
    [entry] = [e for e in CacheFolder().entries() if "trial" in e.parts]
    found = Measured.read(entry.meta)
    assert found is not None
    return len(made), found.chosen


def test_explain_shows_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_MEASURE", "auto")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))

    def fn(x):
        return torch.exp(x) * 6.5

    x = torch.randn(8)
    assert "measured under weft.compile" not in dict(weft.optimize(fn, (x,)).explain().sections)
    as_another_process(fn, x, (Timing(2e-3, 0.05), Timing(1e-3, 0.4)), monkeypatch)
    found = dict(weft.optimize(fn, (x,)).explain().sections)["measured under weft.compile"]
    assert "PyTorch runs: weft 2 ms ± 5%, PyTorch 1 ms ± 40% (the times vary" in found
    assert "other processes used 0.0 cores; trials: 1" in found


def test_a_measurement_in_doubt_is_made_again_by_other_processes_until_it_is_clear(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_MEASURE", "auto")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    x, noisy, quiet = torch.randn(8), (Timing(59.7, 0.8), Timing(10.75, 0.1)), (Timing(8.0, 0.02), Timing(11.0, 0.02))

    def fn(x):
        return torch.exp(x) * 5.5

    assert as_another_process(fn, x, noisy, monkeypatch) == (1, "PyTorch")
    assert as_another_process(fn, x, noisy, monkeypatch) == (1, "PyTorch")
    assert as_another_process(fn, x, quiet, monkeypatch) == (1, "weft")
    assert as_another_process(fn, x, noisy, monkeypatch) == (0, "weft")


def test_nobody_else_measures_on_the_gpu_during_a_trial(monkeypatch):
    """But first calls, which may compile, keep no one waiting."""
    device, did, times = torch.device("cuda", 1), [], {"weft": 1.0, "eager": 2.0}

    @contextmanager
    def alone_on(where):
        did.append(f"alone on {where}")
        yield True
        did.append("no longer")

    def on_a_gpu(candidates, where):
        did.append("captured")
        return [lambda each=each: times[each.listened()[0]] for each in candidates]

    monkeypatch.setattr(clock, "gpu_of", lambda arguments: device)
    monkeypatch.setattr(clock, "alone_on", alone_on)
    monkeypatch.setattr(clock, "_on_a_gpu", on_a_gpu)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    given = spare((), ())
    runs = [lambda name=name: did.append("called") or [name] for name in times]
    found = clock.measure(clock.first_calls(runs, given), given)
    assert found.timings == (Timing(1.0), Timing(2.0))
    first = ["called", "called", "alone on cuda:1", "captured"]
    assert (did[:4], did[-1]) == (first, "no longer")
