"""Never slower than PyTorch: what `weft.compile` made is tried against it, and the choice is remembered."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import weft
from weft.api.backend import compile_graph
from weft.options import current
from weft.plan import trial

NOW = [0.0]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own; and a clock that only `slowed` moves, so that a busy machine decides nothing."""
    monkeypatch.setattr(trial, "time", SimpleNamespace(perf_counter=lambda: NOW[0]))
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WEFT_MEASURE", "auto")


def slowed(call, seconds: float, calls: list[str], name: str):
    """`call`, which takes so long and is noted."""

    def slow(*arguments):
        calls.append(name)
        NOW[0] += 0.001 + seconds
        return call(*arguments)

    return slow


def tried(
    monkeypatch,
    *,
    weft_takes: float,
    eager_takes: float,
    calls: list[str],
    fn=lambda x: (torch.exp(x) + 1,),
    dynamic=False,
):
    """A trial of `fn` whose two sides take the given times."""
    found: list[trial.Trial] = []

    def compiled(gm, example):
        plan = compile_graph(gm, example)
        object.__setattr__(plan, "run", slowed(plan.run, weft_takes, calls, "weft"))
        made = trial.faster(plan, slowed(gm.forward, eager_takes, calls, "eager"), current(), trial.changing_sizes(gm))
        assert isinstance(made, trial.Trial)
        found.append(made)
        return made

    torch._dynamo.reset()
    torch.compile(fn, backend=compiled, dynamic=dynamic)(torch.randn(64))
    return found[0]


@pytest.mark.parametrize(("weft_takes", "eager_takes", "winner"), [(0.02, 0.0, "eager"), (0.0, 0.02, "weft")])
def test_the_faster_runs_and_a_second_process_measures_nothing(cache, monkeypatch, weft_takes, eager_takes, winner):
    calls: list[str] = []
    made = tried(monkeypatch, weft_takes=weft_takes, eager_takes=eager_takes, calls=calls)
    assert calls.count("weft") >= 4
    assert calls.count("eager") >= 4
    calls.clear()
    made(torch.randn(64))
    assert calls == [winner]
    calls.clear()
    # As another process: a new trial of the same graph, whose sides now take the opposite times.
    tried(monkeypatch, weft_takes=eager_takes, eager_takes=weft_takes, calls=calls)
    assert calls == [winner]


def test_each_size_class_is_tried_for_itself(cache, monkeypatch):
    calls: list[str] = []
    made = tried(monkeypatch, weft_takes=0.0, eager_takes=0.01, calls=calls, dynamic=True)
    calls.clear()
    made(64, torch.randn(64))
    made(65, torch.randn(65))
    assert calls == ["weft", "weft"], "one class"
    made(640, torch.randn(640))
    assert calls.count("eager") >= 4


def test_where_no_size_changes_none_is_read(cache, monkeypatch):
    calls: list[str] = []
    made = tried(monkeypatch, weft_takes=0.0, eager_takes=0.01, calls=calls)
    assert made.changing == ()
    assert list(made.chosen) == [()]


def test_slower_graphs_are_counted_and_still_right(cache):
    def tiny(x):
        return torch.exp(x) + 1

    torch._dynamo.reset()
    before = weft.stats().slower
    x = torch.randn(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "measure", lambda *_: trial.Measured(1.0, 0.5))
        assert torch.equal(weft.compile(tiny)(x), tiny(x))
    assert weft.stats().slower == before + 1


def test_never_means_never(cache, monkeypatch):
    monkeypatch.setenv("WEFT_MEASURE", "never")
    torch._dynamo.reset()
    before = weft.stats().slower
    monkeypatch.setattr(trial, "measure", lambda *_: trial.Measured(1.0, 0.5))
    weft.compile(lambda x: torch.exp(x) + 2)(torch.randn(2))
    assert weft.stats().slower == before


def test_a_graph_with_calls_into_pytorch_is_tried(cache, monkeypatch):
    calls: list[str] = []

    def sums(x):
        return (torch.exp(torch.cumsum(x, 0)) + 1,)

    made = tried(monkeypatch, weft_takes=0.02, eager_takes=0.0, calls=calls, fn=sums)
    assert made.plan.fallbacks
    assert list(made.chosen.values()) == [made.eager]


def test_a_graph_that_draws_random_numbers_runs_once(cache):
    """Else each trial would draw others, and change what the next call draws."""
    found = []

    def noisy(x):
        return (torch.exp(x) + torch.rand_like(x),)

    def compiled(gm, example):
        plan = compile_graph(gm, example)
        found.append((plan, trial.faster(plan, gm.forward, current(), trial.changing_sizes(gm))))
        return plan.run

    torch._dynamo.reset()
    torch.compile(noisy, backend=compiled, dynamic=False)(torch.randn(64))
    ((plan, runs),) = found
    assert plan.kernels
    assert runs == plan.run
