"""Replays of captured calls, with a stand-in for CUDA graphs: it does the same again, at the same places."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import weft
from weft.plan.execute.runner import Runner
from weft.plan.measure import graphed as graphs_of_calls
from weft.plan.measure.graphed import Cuda, Graphed

CPU = torch.device("cpu")


class Stream:
    def __init__(self) -> None:
        self.waited: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


class Graphs:
    """What was captured, and how often it was replayed."""

    def __init__(self) -> None:
        self.captures = self.replays = 0
        self.is_capturing = False
        self.stream = Stream()

    def capture(self, run: Runner, arguments: Sequence[Any], device: torch.device) -> tuple[Callable[[], None], Any]:
        self.captures += 1
        results = run(*arguments)
        places = [a.data_ptr() for a in arguments if isinstance(a, torch.Tensor)]

        def replay() -> None:
            self.replays += 1
            assert [a.data_ptr() for a in arguments if isinstance(a, torch.Tensor)] == places
            for result, new in zip(results, run(*arguments), strict=True):
                if isinstance(result, torch.Tensor):
                    result.copy_(new)

        return replay, results

    def cuda(self) -> Cuda:
        return Cuda(lambda: self.is_capturing, lambda device: self.stream, self.capture)


def graphed(run: Runner, changing: tuple[int, ...] = ()) -> tuple[Graphed, Graphs]:
    graphs = Graphs()
    return Graphed(run, changing, CPU, graphs.cuda()), graphs


def double(x: torch.Tensor, w: torch.Tensor) -> Sequence[Any]:
    return [x * 2 + w, None]


def test_the_second_call_is_captured_and_what_was_handed_out_stays() -> None:
    call, graphs = graphed(double)
    w = torch.randn(4)
    given = [torch.randn(4) for _ in range(5)]
    found = [call(x, w)[0] for x in given]
    assert (graphs.captures, graphs.replays) == (1, 4)
    for x, y in zip(given, found, strict=True):
        torch.testing.assert_close(y, x * 2 + w, rtol=0, atol=0)


def test_what_stays_where_it_is_is_read_there_and_what_begins_to_move_is_copied_from_then_on() -> None:
    call, graphs = graphed(double)
    x, w = torch.randn(4), torch.randn(4)
    for number in range(3):
        x.fill_(number)
        w.fill_(number + 1)
        torch.testing.assert_close(call(x, w)[0], x * 2 + w)
    assert graphs.captures == 1
    for _ in range(3):
        w = torch.randn(4)
        torch.testing.assert_close(call(x, w)[0], x * 2 + w)
    assert graphs.captures == 2
    x = torch.randn(4)
    torch.testing.assert_close(call(x, w)[0], x * 2 + w)
    assert graphs.captures == 3
    (one,) = call._classes.values()
    assert set(one.copied) == {0, 1}


def test_other_sizes_strides_and_numbers_are_other_graphs() -> None:
    def run(x: torch.Tensor, n: int) -> Sequence[Any]:
        return [x * n]

    call, graphs = graphed(run, (0,))
    square = torch.randn(4, 4)
    for x, n in [(torch.randn(3, 4), 2), (square, 2), (square.T, 2), (square, 3)]:
        for _ in range(3):
            torch.testing.assert_close(call(x, n)[0], x * n)
    assert graphs.captures == 4


@pytest.mark.parametrize(
    "run",
    [
        lambda x, w: [x[1:], w * x],
        lambda x, w: [(y := x * w), y.view(2, 2)],
        lambda x, w: [x * w, x.shape[0]],
    ],
    ids=["a view of an argument", "a view of another result", "a number"],
)
def test_what_a_copy_would_not_be_is_not_replayed(run: Runner) -> None:
    call, graphs = graphed(run)
    for _ in range(4):
        x, w = torch.randn(4), torch.randn(4)
        for found, wanted in zip(call(x, w), run(x, w), strict=True):
            torch.testing.assert_close(found, wanted)
    assert graphs.captures == 1
    assert graphs.replays == 0


def test_an_argument_that_is_handed_out_is_the_callers() -> None:
    call, graphs = graphed(lambda x, w: [w, x * w])
    for _ in range(4):
        x, w = torch.randn(4), torch.randn(4)
        assert call(x, w)[0] is w
    assert graphs.replays == 3


def test_what_cannot_be_captured_runs_as_always() -> None:
    call, graphs = graphed(double)

    def failing(*_: Any) -> Any:
        graphs.captures += 1
        raise RuntimeError("operation not permitted when stream is capturing")

    call.cuda = Cuda(lambda: False, lambda device: graphs.stream, failing)
    x = torch.randn(4)
    for _ in range(4):
        torch.testing.assert_close(call(x, x)[0], x * 3)
    assert graphs.captures == 1


def test_classes_that_are_seen_once_take_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of many lengths, then tokens of one."""
    monkeypatch.setattr(graphs_of_calls, "_MOST_CLASSES", 2)
    call, graphs = graphed(double, (0,))
    for length in range(1, 40):
        call(torch.randn(length), torch.randn(1))
    assert graphs.captures == 0
    for length, captures in ((50, 1), (60, 2), (70, 2), (50, 2)):
        for _ in range(3):
            x, w = torch.randn(length), torch.randn(1)
            torch.testing.assert_close(call(x, w)[0], x * 2 + w)
        assert graphs.captures == captures
    assert len(call._classes) == 2


def test_classes_that_are_not_captured_are_forgotten_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_of_calls, "_MOST_SEEN", 3)
    call, graphs = graphed(double, (0,))
    w = torch.randn(1)
    for length in (4, 4, 5, 6, 7, 8, 5, 8):
        call(torch.randn(length), w)
    assert graphs.captures == 2  # of 4 and of 8: 5 was forgotten before it came again
    assert [key[0][0][0] for key in call._classes] == [4, 8]
    assert [key[0][0][0] for key in call._seen] == [7, 5]


def no_room(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("where", ["copies", "capture", "results"])
def test_without_memory_a_call_runs_as_always_and_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    call, graphs = graphed((lambda x, w: [x[1:], w * x]) if where == "results" else double)
    if where == "copies":
        monkeypatch.setattr(torch, "empty_strided", no_room)
    if where == "capture":
        call.cuda = Cuda(lambda: False, lambda device: graphs.stream, no_room)
    for _ in range(4):
        x, w = torch.randn(4), torch.randn(4)
        for found, wanted in zip(call(x, w), call.run(x, w), strict=True):
            assert found is wanted is None or torch.equal(found, wanted)
    (one,) = call._seen.values()
    assert one.refused
    assert (one.copied, one.places, one.results, one.replay) == ({}, [], [], None)
    assert graphs.replays == 0
    assert not call._classes


def test_what_can_no_longer_be_captured_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    call, graphs = graphed(double)
    x, w = torch.randn(4), torch.randn(4)
    for _ in range(2):
        call(x, w)
    assert (graphs.captures, len(call._classes)) == (1, 1)
    monkeypatch.setattr(torch, "empty_strided", no_room)
    x = torch.randn(4)  # begins to move
    for _ in range(2):
        torch.testing.assert_close(call(x, w)[0], x * 2 + w)
    assert (graphs.captures, len(call._classes), len(call._seen)) == (1, 0, 1)


def test_within_a_capture_of_the_users_nothing_is_replayed() -> None:
    call, graphs = graphed(double)
    x = torch.randn(4)
    graphs.is_capturing = True
    for _ in range(3):
        call(x, x)
    assert graphs.captures == 0


def test_elements_that_share_a_place_are_not_copied_there() -> None:
    call, graphs = graphed(double)
    w = torch.randn(4)
    for _ in range(3):
        x = torch.randn(1).expand(4)
        torch.testing.assert_close(call(x, w)[0], x * 2 + w)
    assert graphs.replays == 0


def test_a_call_on_another_stream_waits_for_the_last_one() -> None:
    call, graphs = graphed(double)
    x = torch.randn(4)
    for _ in range(3):
        call(x, x)
    first = graphs.stream
    assert not first.waited
    graphs.stream = Stream()
    call(x, x)
    assert graphs.stream.waited == [first]


def test_threads_have_their_own_results() -> None:
    call, _ = graphed(double)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            x, w = torch.full((64,), float(number)), torch.full((64,), 1.0)
            wrong.extend([number] * (not torch.equal(call(x, w)[0], x * 2 + w)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("how", ["compile", "torch.compile", "optimize", "variable"])
def test_the_mode_asks_for_it(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    asked: list[int] = []

    def noted(plan: Any, run: Runner, arguments: Sequence[Any], changing: Any) -> Runner:
        asked.append(len(plan.kernels))
        return run

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) * 3

    x = torch.randn(8)
    monkeypatch.setattr("weft.plan.in_graphs", noted)
    with torch.no_grad():
        weft.compile(fn)(x)
        assert not asked
        torch.compiler.reset()
        match how:
            case "compile":
                weft.compile(fn, mode="reduce-overhead")(x)
            case "torch.compile":
                torch.compile(fn, backend="weft", mode="reduce-overhead")(x)
            case "optimize":
                weft.optimize(fn, (x,), mode="reduce-overhead")(x)
            case _:
                monkeypatch.setenv("WEFT_MODE", "reduce-overhead")
                weft.compile(fn)(x)
    assert asked == [1]
