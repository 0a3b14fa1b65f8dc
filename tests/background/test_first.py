"""Functions whose first call waits for kernels alone: they are timed in the background, and what is faster takes over."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import weft
from weft.api.background import graphs, serving
from weft.api.background.messages import GraphRequest, Reply, RequestFailure
from weft.api.background.requests import QUEUE, Pending
from weft.cost.machine import Processor
from weft.plan import Measured, Trial
from weft.plan.measure import trial
from weft.plan.measure.clock import Contender, Timing
from weft.plan.measure.measured import Choice
from weft.plan.measure.trial import Winner
from weft.run.cache import CacheFolder

SECONDS = 300.0


pytestmark = pytest.mark.as_shipped  # as the other process compiles


@pytest.fixture(autouse=True)
def _as_there(tmp_path, monkeypatch, this_processor):
    """A cache of its own, and schedules for this machine, as in the other process."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Processor, "here", this_processor)


def scaled(q, k):
    return torch.softmax(q @ k.mT / 8, -1)


def operands(rows: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, rows, 16), torch.randn(2, 20, 16)


def counted(before, *names: str) -> tuple[int, ...]:
    """Return what was counted since."""
    now = weft.stats()
    return tuple(getattr(now, name) - getattr(before, name) for name in names)


@pytest.fixture
def times_nothing(monkeypatch):
    """Timing in this process is a failure."""

    def refuse(*_: Any):
        raise AssertionError("timed in a call")

    monkeypatch.setattr(trial, "measure", refuse)


@pytest.fixture
def requests(monkeypatch) -> list[Pending]:
    """List what is asked for, which nobody answers."""
    found: list[Pending] = []
    monkeypatch.setattr(QUEUE, "put", found.append)
    return found


def answered(pending: Pending, choice: Choice | None, **more: Any) -> None:
    pending.install(Reply(choice, tried=True, **more))


def test_a_first_call_runs_kernels_and_times_nothing(times_nothing) -> None:
    q, k = operands()
    compiled, before = weft.compile(scaled, compile="first", measure="auto"), weft.stats()
    torch.testing.assert_close(compiled(q, k), scaled(q, k))
    assert counted(before, "kernels", "asked", "untimed", "meanwhile") == (1, 1, 1, 0)
    assert weft.ready(compiled, SECONDS)
    torch.testing.assert_close(compiled(q, k), scaled(q, k))
    assert counted(before, "kernels", "asked", "served", "failed", "untimed") == (1, 1, 1, 0, 1)
    assert counted(before, "fallbacks", "meanwhile") == (0, 0)
    entries = [e for e in CacheFolder().entries() if "trial" in e.parts]
    assert len(entries) == 1  # the other process measured, on the same kernels
    assert Measured.read(entries[0].meta) is not None


def test_kernels_that_both_processes_made_are_not_sent_again(monkeypatch) -> None:
    replies: list[Reply] = []
    installing = serving.DeferredGraph._install

    def noting(self: Any, answer: Reply, sizes: Any) -> bool:
        replies.append(answer)
        return installing(self, answer, sizes)

    monkeypatch.setattr(serving.DeferredGraph, "_install", noting)
    q, k = operands()
    compiled = weft.compile(scaled, compile="first", measure="auto")
    compiled(q, k)
    assert weft.ready(compiled, SECONDS)
    assert [(answer.failure, "weft" in answer.plans) for answer in replies] == [(None, False)]


@pytest.mark.parametrize("choice", ["weft", None])
def test_what_was_measured_to_be_faster_takes_over(requests, times_nothing, choice) -> None:
    q, k = operands()
    compiled, before = weft.compile(scaled, compile="first", measure="auto"), weft.stats()
    first, eager = compiled(q, k), scaled(q, k)
    assert len(requests) == 1
    request = requests[0].request()
    assert isinstance(request, GraphRequest)
    assert len(request.kernels) == 1
    assert request.graph
    answered(requests[0], choice)
    later = compiled(q, k)
    assert torch.equal(later, eager if choice is None else first)  # PyTorch's bits, or those of the first call
    assert not torch.equal(first, eager)
    assert counted(before, "untimed", "meanwhile") == (1, 0)


def test_sizes_of_another_magnitude_run_at_once_and_are_timed_there(requests, times_nothing) -> None:
    compiled, before = weft.compile(scaled, compile="first", measure="auto"), weft.stats()
    for rows in (24, 25):
        compiled(*operands(rows))
    answered(requests[-1], "weft", conditions=())
    q, k = operands(400)
    torch.testing.assert_close(compiled(q, k), scaled(q, k))
    assert len(requests) == 3
    answered(requests[-1], None)
    assert torch.equal(compiled(q, k), scaled(q, k))
    q, k = operands(25)
    torch.testing.assert_close(compiled(q, k), scaled(q, k))
    assert (len(requests), counted(before, "untimed")) == (3, (2,))


def test_where_nobody_can_time_it_a_call_does(requests, monkeypatch) -> None:
    timed: list[int] = []

    def measured(self: Trial, *_: Any) -> tuple[Measured, Sequence[Contender]]:
        timed.append(len(self.plan.kernels))
        return Measured(Timing(2.0, 0.0), Timing(1.0, 0.0)), ()

    monkeypatch.setattr(Trial, "measured", measured)
    q, k = operands()
    compiled = weft.compile(scaled, compile="first", measure="auto")
    compiled(q, k)
    assert not timed
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is lost but the time
        answered(requests[0], None, failure=RequestFailure("the process that compiles ended"))
        assert torch.equal(compiled(q, k), scaled(q, k))
    assert timed == [1]


def test_a_graph_that_cannot_be_sent_is_timed_at_the_call(requests, monkeypatch) -> None:
    def refuse(_: Any) -> bytes:
        raise TypeError("no")

    timed: list[Trial] = []
    monkeypatch.setattr(graphs, "packed_graph", refuse)
    monkeypatch.setattr(Trial, "choose", lambda self, _: timed.append(self) or Winner(self.plan.run))
    compiled = weft.compile(scaled, compile="first", measure="auto")
    compiled(*operands())
    assert (len(timed), requests) == (1, [])


def test_what_is_on_no_trial_asks_for_nothing(requests) -> None:
    q, k = operands()
    torch.testing.assert_close(weft.compile(scaled, compile="first", measure="never")(q, k), scaled(q, k))
    compiled = weft.compile(lambda q, k: torch.bernoulli(scaled(q, k)), compile="first", measure="auto")
    assert compiled(q, k).shape == (2, 24, 20)
    assert not requests


def test_times_that_are_known_are_not_asked_for(requests, monkeypatch) -> None:
    known = Measured(Timing(2.0, 0.0), Timing(1.0, 0.0))
    monkeypatch.setattr(Trial, "measured", lambda *_: (known, ()))
    q, k = operands()
    weft.compile(scaled, compile="blocking", measure="auto")(q, k)
    before = weft.stats()
    assert torch.equal(weft.compile(scaled, compile="first", measure="auto")(q, k), scaled(q, k))
    assert not requests
    assert counted(before, "slower", "compiles") == (1, 0)


def test_what_is_lost_is_said_once() -> None:
    def partly(q, k):
        return torch.linalg.det(q @ q.mT) + scaled(q, k).sum()

    q, k = operands()
    compiled = weft.compile(partly, compile="first", measure="auto")

    def calls() -> None:
        torch.testing.assert_close(compiled(q, k), partly(q, k), rtol=1e-4, atol=1e-4)
        assert weft.ready(compiled, SECONDS)
        compiled(q, k)

    before = weft.stats()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        calls()
    told = [str(each.message) for each in said]
    assert len(told) == len(set(told))
    assert counted(before, "fallbacks", "failed") == (1, 0)


def test_torch_compile_takes_the_option(requests) -> None:
    q, k = operands()
    options: Any = {"compile": "first", "measure": "auto"}
    compiled = torch.compile(scaled, backend="weft", options=options)
    torch.testing.assert_close(compiled(q, k), scaled(q, k))
    assert len(requests) == 1
