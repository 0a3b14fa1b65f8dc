"""How calls are captured, with a stand-in for torch.cuda."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.plan import graphed, graphs


class Recorded:
    """Says what was asked of it, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def current_stream(self) -> Any:
        return SimpleNamespace(wait_stream=lambda _: self.asked.append("waits"))

    def Stream(self) -> Any:
        return self.current_stream()

    def stream(self, _: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=lambda: self.asked.append("replay"))

    @contextlib.contextmanager
    def graph(self, _: Any, capture_error_mode: str = "global") -> Generator[None]:
        self.asked.append(capture_error_mode)
        yield
        self.asked.append("captured")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    found = Recorded()
    monkeypatch.setattr(graphs, "_CUDA", found)
    return found


def test_other_threads_may_use_the_gpu_while_a_candidate_is_captured(cuda: Recorded) -> None:
    """In PyTorch's own mode an allocation of another thread's would fail, and end the capture."""
    replay = graphs.replayed(lambda: cuda.asked.append("call") or "results")
    assert cuda.asked == ["waits", "call", "waits", "thread_local", "call", "captured"]
    cuda.asked.clear()
    assert replay() == "results"
    assert cuda.asked == ["replay"]


def test_calls_that_are_replayed_for_good_are_captured_likewise(
    cuda: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    replay, results = graphed._capture(lambda x: [x, cuda.asked.append("call")], ["x"], torch.device("cuda"))
    assert (results, cuda.asked) == (["x", None], ["thread_local", "call", "captured"])
    replay()
    assert cuda.asked[-1] == "replay"
