"""Functions that are compiled in the background: right at every call, never compiled in this process, and soon served by weft."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx, nn

import weft
from testkit.processes.running import ran
from weft.api import backend
from weft.api.background import server, serving
from weft.api.background.ambience import Ambience
from weft.api.background.graphs import TensorForm
from weft.api.background.messages import GraphRequest, Reply, RequestFailure
from weft.api.background.requests import QUEUE, Pending
from weft.api.background.serving import DeferredGraph
from weft.errors import CompilerError, LeftToPyTorchWarning, Location, UnsupportedError

SECONDS = 300.0


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """A cache of its own, and no compiling in this process."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))

    def refuse(*_args, **_more):
        raise AssertionError("compiled in this process")

    monkeypatch.setattr(backend, "compile_graph", refuse)


def background(function, **options):
    return weft.compile(function, compile="background", measure="never", **options)


def counted(before):
    """Counts what was asked for, served, failed and run meanwhile since."""
    now = weft.stats()
    return {name: getattr(now, name) - getattr(before, name) for name in ("asked", "served", "failed", "meanwhile")}


def test_pytorch_runs_until_kernels_are_there() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)).eval()
    x, before = torch.randn(5, 8), weft.stats()
    with torch.no_grad():
        compiled = background(model)
        wanted = model(x)
        assert torch.equal(compiled(x), wanted)  # the same bits: it is PyTorch
        assert counted(before) == {"asked": 1, "served": 0, "failed": 0, "meanwhile": 1}
        assert weft.ready(compiled, SECONDS)
        torch.testing.assert_close(compiled(x), wanted)
    assert counted(before) == {"asked": 1, "served": 1, "failed": 0, "meanwhile": 1}
    assert weft.stats().kernels > before.kernels
    assert weft.stats().in_progress == 0


class Unlike:
    """A condition of a plan: no argument has so many rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def value(self, arguments: Sequence[Any]) -> bool:
        return all(each.shape[0] != self.rows for each in arguments if isinstance(each, torch.Tensor))


def test_calls_that_a_plan_may_not_take_run_in_pytorch(monkeypatch) -> None:
    installing = DeferredGraph._install

    def conditioned(self: Any, answer: Reply, sizes: Any) -> bool:
        return installing(self, replace(answer, conditions=(Unlike(7),)), sizes)

    monkeypatch.setattr(DeferredGraph, "_install", conditioned)

    def function(x):
        return (torch.exp(x) * x).sum(-1)

    compiled = background(function, dynamic=True)
    for rows in (5, 6):
        compiled(torch.randn(rows, 1000))
    assert weft.ready(compiled, SECONDS)
    bits = {}
    for rows in (7, 8):
        x = torch.randn(rows, 1000)
        found = compiled(x)
        torch.testing.assert_close(found, function(x))
        bits[rows] = torch.equal(found, function(x))
    assert bits == {7: True, 8: False}


def test_torch_compile_takes_the_option() -> None:
    x, before = torch.randn(4, 6), weft.stats()
    options: dict[str, str | int | bool | Callable[..., Any]] = {"compile": "background", "measure": "never"}
    compiled = torch.compile(lambda x: torch.softmax(x * 2, -1), backend="weft", options=options)
    first = compiled(x)
    assert weft.ready(compiled, SECONDS)
    torch.testing.assert_close(compiled(x), first)
    assert counted(before) == {"asked": 1, "served": 1, "failed": 0, "meanwhile": 1}


def test_writes_and_aliases_are_eagers_before_and_after() -> None:
    def step(cache, x):
        cache[1:3] = torch.relu(x) * 2
        return cache.sum(0), cache

    def check(compiled):
        own, its, x = torch.ones(4, 6), torch.ones(4, 6), torch.randn(2, 6)
        (total, same), (wanted, _) = compiled(own, x), step(its, x)
        assert same is own
        torch.testing.assert_close(own, its)
        torch.testing.assert_close(total, wanted)

    compiled, before = background(step), weft.stats()
    check(compiled)
    assert weft.ready(compiled, SECONDS)
    check(compiled)
    assert counted(before)["served"] == 1


def test_random_lengths_and_batches_run_at_once_and_right() -> None:
    def attention(q, k, v):
        return torch.softmax(q @ k.mT / 4, -1) @ v

    compiled, rng, before = background(attention), random.Random(0), weft.stats()
    for number in range(200):
        batch, length = rng.randint(1, 8), rng.randint(1, 96)
        q, k, v = (torch.randn(batch, length, 16) for _ in range(3))
        torch.testing.assert_close(compiled(q, k, v), attention(q, k, v))
        if number in (1, 60):
            assert weft.ready(compiled, SECONDS)
    assert weft.ready(compiled, SECONDS)
    found = counted(before)
    assert found["failed"] == 0
    assert found["served"] == found["asked"] <= 6
    assert found["meanwhile"] < 100


def test_sizes_of_another_magnitude_are_timed_in_the_background() -> None:
    compiled, before = weft.compile(lambda x: torch.softmax(x, -1), compile="background", measure="auto"), weft.stats()
    for rows in (5, 6):
        compiled(torch.randn(rows, 7))
        assert weft.ready(compiled, SECONDS)
    asked = counted(before)["asked"]
    x = torch.randn(400, 7)
    torch.testing.assert_close(compiled(x), torch.softmax(x, -1))
    assert counted(before)["asked"] == asked + 1
    assert weft.ready(compiled, SECONDS)
    compiled(x)
    compiled(x[:399])
    assert counted(before)["asked"] == counted(before)["served"] == asked + 1


def test_an_operation_that_only_this_process_knows_stays_with_pytorch() -> None:
    @torch.library.custom_op("weft_tests::twice_here", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    x, before = torch.randn(3, 4), weft.stats()
    compiled = background(lambda x: torch.softmax(twice(x), -1))
    wanted = torch.softmax(x * 2, -1)

    def calls() -> None:
        torch.testing.assert_close(compiled(x), wanted)
        assert weft.ready(compiled, SECONDS)
        torch.testing.assert_close(compiled(x), wanted)

    with pytest.warns(LeftToPyTorchWarning, match="compiling in the background failed") as said:
        calls()
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(x), wanted)
    assert counted(before)["failed"] == counted(before)["asked"] == 1


NOWHERE = Location("<string>", 1)
"""Where an error is that the other process raises, which was started with `python -c`, if it is about no line of the user's."""
FAILURES = [
    (
        ValueError("no such thing"),
        r"ValueError: no such thing",
        "test_serving.py",
        "nothing: PyTorch runs it, and the next",
    ),
    (
        UnsupportedError("too much", where=NOWHERE),
        "UnsupportedError: too much",
        "test_serving.py",
        "nothing: PyTorch runs it, and",
    ),
    (
        UnsupportedError("it", where=Location("a.py", 7, "y = x")),
        "UnsupportedError: it",
        "a.py:7: y = x",
        "nothing: PyTorch runs it,",
    ),
    (
        CompilerError("no", command="g++", output="a", where=NOWHERE),
        r"no\n  command: g\+\+\n  \| a",
        "test_serving.py",
        "install a C",
    ),
]


@pytest.mark.parametrize(("error", "what", "where", "todo"), FAILURES)
def test_a_failure_is_said_with_one_place_and_one_advice(
    monkeypatch, error: Exception, what: str, where: str, todo: str
) -> None:
    def fail(*_args: Any, **_more: Any) -> None:
        raise error

    put: list[Pending] = []
    monkeypatch.setattr(QUEUE, "put", put.append)
    monkeypatch.setattr(server, "compile_graph", fail)
    compiled, x = background(lambda x: torch.softmax(x, -1)), torch.randn(3, 4)
    compiled(x)
    assert not put[0].install(server.Server().answer(put[0].request()))
    with pytest.warns(LeftToPyTorchWarning, match=f"compiling in the background failed: .*{what}") as said:
        compiled(x)
    (text,) = (str(each.message) for each in said)
    first, place, advice = text.partition("\n  where: ")[0], *text.split("\n")[-2:]
    assert first + "\n" + place + "\n" + advice == text
    assert place.startswith("  where: ")
    assert where in place
    assert advice.startswith(f"  what to do: {todo}")


def test_ready_gives_up_after_its_timeout() -> None:
    compiled = background(lambda x: torch.softmax(x + 5, -1))
    compiled(torch.randn(3, 4))
    assert not weft.ready(compiled, 0.01)
    assert weft.ready(compiled, SECONDS)
    assert weft.ready(torch.relu, 0.0)


def test_what_asks_for_gradients_is_not_sent(monkeypatch) -> None:
    monkeypatch.undo()
    before = weft.stats()
    x = torch.randn(3, 4, requires_grad=True)
    compiled = background(lambda x: (x * 2).sum())
    with pytest.warns(LeftToPyTorchWarning):
        compiled(x).backward()
    assert counted(before)["asked"] == 0


def test_a_function_that_is_gone_is_not_compiled() -> None:
    before = weft.stats()
    held = [background(lambda x, n=n: torch.softmax(x * n, -1)) for n in range(2, 6)]
    while held:
        held.pop()(torch.randn(3, 4))
    torch.compiler.reset()
    assert weft.ready(torch.relu, SECONDS)
    assert counted(before)["failed"] >= 2
    assert QUEUE.pending() == []


def test_what_was_not_called_is_ready_while_others_are_compiled(monkeypatch) -> None:
    other = Pending(lambda: None, lambda _: True, lambda: True)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(QUEUE, "pending", lambda: [other])
    assert weft.ready(weft.compile(torch.relu), 0.0)
    assert weft.ready(weft.compile(nn.Linear(2, 2)), 0.0)
    assert not weft.ready(torch.relu, 0.0)


def test_a_call_that_pytorch_refuses_meanwhile_writes_once(monkeypatch) -> None:
    def step(cache, table, at):
        cache.add_(1)
        return torch.softmax(nn.functional.embedding(at, table), -1)

    def forever(pending: Pending) -> None:
        del pending

    monkeypatch.setattr(QUEUE, "put", forever)
    compiled, cache = background(step), torch.zeros(3)
    with torch.no_grad(), pytest.raises(IndexError):
        compiled(cache, torch.randn(4, 5), torch.tensor([1, 9]))
    torch.testing.assert_close(cache, torch.ones(3))


WARM = """
import torch, weft

def function(x):
    return torch.softmax(x * 3, -1)

x = torch.randn(6, 9)
for _ in range(2):
    compiled = weft.compile(function, compile="background", measure="never")
    torch.testing.assert_close(compiled(x), function(x))
    assert weft.ready(compiled, 300)
    print(weft.stats().asked, weft.stats().served, weft.stats().failed, weft.stats().meanwhile)
    torch.compiler.reset()
"""


def test_what_the_other_process_found_before_serves_at_once() -> None:
    # As users' kernels are built: the other process knows nothing of what tests change in this one.
    assert ran(["-c", WARM], as_shipped=True).stdout.splitlines() == ["1 1 0 1", "1 1 0 1"]


def deferred(monkeypatch: pytest.MonkeyPatch) -> tuple[DeferredGraph, list[Pending]]:
    """A graph on a GPU as far as its arguments say, and what it asks for."""
    put: list[Pending] = []
    monkeypatch.setattr(QUEUE, "put", put.append)
    gm = fx.symbolic_trace(lambda x: x * 2)
    form = TensorForm((4,), (1,), torch.float32, "cuda:0", 0, 0, (False, False))
    graph = DeferredGraph(gm, gm.forward, b"a graph", (form,), Ambience.here(), ())
    put.clear()
    return graph, put


def test_binaries_of_a_class_are_asked_for_once(monkeypatch) -> None:
    graph, put = deferred(monkeypatch)
    for length in (3, 5, 3):
        graph.ask_for_binaries((torch.ones(length),), "a kernel, odd sizes")
    assert len(put) == 1
    assert put[0].install(Reply("weft", built=False))
    graph.ask_for_binaries((torch.ones(3),), "a kernel, odd sizes")
    assert len(put) == 1, "they cannot be made"
    graph.ask_for_binaries((torch.ones(4),), "a kernel, even sizes")
    assert put[1].install(Reply("weft"))
    graph.ask_for_binaries((torch.ones(4),), "a kernel, even sizes")
    assert len(put) == 2, "calls find them in a moment"
    monkeypatch.setattr(serving.time, "monotonic", lambda: math.inf)
    graph.ask_for_binaries((torch.ones(4),), "a kernel, even sizes")
    assert len(put) == 3


def test_another_process_is_sent_the_graph_whose_binaries_lack(monkeypatch) -> None:
    graph, put = deferred(monkeypatch)
    graph.ask_for_binaries((torch.ones(3),), "a kernel, odd sizes")
    assert not put[0].install(Reply(failure=RequestFailure("the process that compiled this graph is gone")))
    anew = put[1].request()
    assert isinstance(anew, GraphRequest)
    assert (anew.graph, anew.number) == (b"a graph", graph.number)
    assert not put[1].install(Reply(failure=RequestFailure("again")))
    assert len(put) == 2


def test_a_cache_whose_halves_grow_alike_is_served() -> None:
    """Keys and values have a length each until they are multiplied; that both are equal PyTorch does not check, and weft must."""

    def step(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        keys, values = torch.cat([keys, new], 2), torch.cat([values, new + 1], 2)
        return nn.functional.scaled_dot_product_attention(q, keys, values)

    before = weft.stats()
    compiled: Any = torch.compile(step, backend="weft", options={"compile": "background", "measure": "never"})
    with torch.no_grad():
        for length in (5, 6, 7, 9):
            q, new, keys, values = (torch.randn(1, 2, n, 8) for n in (1, 1, length, length))
            torch.testing.assert_close(compiled(q, keys, values, new), step(q, keys, values, new))
            assert weft.ready(compiled, SECONDS)
    assert counted(before)["failed"] == 0
    assert counted(before)["served"] == 2
