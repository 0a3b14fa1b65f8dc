"""Timing in CUDA graphs: what is captured, and what is emptied before each replay."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from weft.lab.gpu import clock as gpu_clock
from weft.plan.targets import graphs


class Recorded:
    """Stands in for torch.cuda: says what was asked of it, in order; an event holds how many replays were before it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def note(self, what):
        self.asked.append(what)

    @contextmanager
    def block(self, what):
        self.note(f"{what} begins")
        yield
        self.note(f"{what} ends")

    def current_stream(self):
        return SimpleNamespace(wait_stream=lambda _: self.note("the stream waits"))

    def Stream(self):
        return SimpleNamespace(wait_stream=lambda _: self.note("the side waits"))

    def stream(self, _):
        return self.block("side")

    def CUDAGraph(self):
        def begin(*, capture_error_mode):
            assert capture_error_mode == "thread_local", "other threads may use the GPU meanwhile"
            self.note("capture begins")

        return SimpleNamespace(
            replay=lambda: self.note("replay"), capture_begin=begin, capture_end=lambda: self.note("capture ends")
        )

    def current_device(self):
        return 0

    def memory_reserved(self):
        return 0

    def memory_allocated(self):
        return 0

    def get_device_properties(self, _):
        return SimpleNamespace(total_memory=1 << 30)

    def Event(self, *, enable_timing):
        assert enable_timing
        return SimpleNamespace(record=lambda: self.note("event"), elapsed_time=lambda _: 5.0)

    def synchronize(self):
        self.note("wait")

    def empty_cache(self):
        self.note("clear")


def test_a_graph_is_captured_after_calls_on_the_side_and_replayed_with_the_cache_emptied(monkeypatch):
    device = Recorded()
    monkeypatch.setattr(gpu_clock, "_CUDA", device)
    monkeypatch.setattr(graphs, "_CUDA", device)
    monkeypatch.setattr(graphs, "_streams", {})
    monkeypatch.setattr(gpu_clock, "_FLUSHED", 64)
    clock = gpu_clock.CudaClock("cpu")
    flushed: Any = SimpleNamespace(zero_=lambda: device.note("flush"))
    clock.flushed = flushed

    def call(x):
        device.note("call")
        return x

    replay = clock.ready(call, ("out",))
    assert device.asked == [
        *("the side waits", "side begins", "call", "call", "call", "side ends", "the stream waits", "wait"),
        *("wait", "side begins", "capture begins", "call", "capture ends", "side ends"),
    ]
    assert replay.out == "out"
    device.asked.clear()
    assert clock.one(replay)() == 5e-3
    assert device.asked == ["flush", "event", "replay", "event"]


# One row.
