"""How calls are captured, with a stand-in for torch.cuda."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.plan.measure import graphed
from weft.plan.targets import graphs


class Recorded:
    """Says what was asked of it, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.unused = 0

    def memory_allocated(self) -> int:
        return 100

    def memory_reserved(self) -> int:
        return 100 + self.unused

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, _: int) -> Any:
        return SimpleNamespace(total_memory=1600)

    def _begin(self, *, capture_error_mode: str) -> None:
        self.asked.append(capture_error_mode)

    def empty_cache(self) -> None:
        self.asked.append("emptied")

    def synchronize(self) -> None:
        """Waits for nothing."""

    def current_stream(self) -> Any:
        return SimpleNamespace(wait_stream=lambda _: self.asked.append("waits"))

    def Stream(self) -> Any:
        return self.current_stream()

    def stream(self, _: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(
            replay=lambda: self.asked.append("replay"),
            capture_begin=self._begin,
            capture_end=lambda: self.asked.append("captured"),
        )


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    found = Recorded()
    monkeypatch.setattr(graphs, "_CUDA", found)
    monkeypatch.setattr(graphs, "_streams", {})
    return found


def test_other_threads_may_use_the_gpu_while_a_candidate_is_captured(cuda: Recorded) -> None:
    """In PyTorch's own mode an allocation of another thread's would fail, and end the capture."""
    replay = graphs.replayed(lambda: cuda.asked.append("call") or "results")
    assert cuda.asked == ["waits", "call", "waits", "thread_local", "call", "captured"]
    cuda.asked.clear()
    assert replay() == "results"
    assert cuda.asked == ["replay"]


@pytest.mark.parametrize(("unused", "emptied"), [(0, []), (100, []), (101, ["emptied"])])
def test_memory_that_nobody_uses_is_given_back_where_it_is_much(
    unused: int, emptied: list[str], cuda: Recorded
) -> None:
    """Else each candidate that is timed, and each case that is judged after one, would ask the driver for memory anew."""
    cuda.unused = unused
    graphs.captured(lambda: cuda.asked.append("call"))
    assert cuda.asked == [*emptied, "thread_local", "call", "captured"]


@pytest.mark.parametrize("failures", [1, 2])
def test_a_capture_that_memory_is_lacking_for_is_made_again_with_what_is_given_back(
    failures: int, cuda: Recorded
) -> None:
    left = [torch.OutOfMemoryError("no room")] * failures

    def call() -> str:
        cuda.asked.append("call")
        if left:
            raise left.pop()
        return "results"

    once = ["thread_local", "call", "captured"]
    if failures > 1:
        with pytest.raises(torch.OutOfMemoryError):
            graphs.captured(call)
    else:
        assert graphs.captured(call)[1] == "results"
    assert cuda.asked == [*once, "emptied", *once]


def test_calls_that_are_replayed_for_good_are_captured_likewise(
    cuda: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    replay, results = graphed._capture(lambda x: [x, cuda.asked.append("call")], ["x"], torch.device("cuda"))
    assert (results, cuda.asked) == (["x", None], ["thread_local", "call", "captured"])
    replay()
    assert cuda.asked[-1] == "replay"


def test_each_replay_begins_in_the_same_state_which_is_not_captured(cuda: Recorded) -> None:
    def restore() -> None:
        cuda.asked.append("restored")

    graphs.replayed(lambda: cuda.asked.append("call"), restore)
    assert cuda.asked == ["waits", "restored", "call", "waits", "thread_local", "call", "captured"]


def test_what_is_timed_begins_after_the_state_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            did.append("event")

        def synchronize(self) -> None: ...

        def elapsed_time(self, other: Event) -> float:
            return 2.0

    monkeypatch.setattr(graphs, "_CUDA", SimpleNamespace(Event=Event))
    monkeypatch.setattr(graphs, "_AHEAD", 0)
    filler: Any = SimpleNamespace(zero_=lambda: did.append("filled"))
    times = graphs.replay_times(lambda: did.append("call"), filler, 2, lambda: did.append("restored"))
    assert times == [0.002, 0.002]
    assert did == ["restored", "filled", "event", "call", "event"] * 2
