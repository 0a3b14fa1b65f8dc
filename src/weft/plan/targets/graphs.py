"""CUDA graphs: a call's work on the GPU without what it costs the host to start it."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")

_CUDA: Any = torch.cuda  # not fully known to type checkers
# The share of a GPU's memory that PyTorch may hold and nobody use before it is given back for the sake of a capture.
_UNUSED = 1 / 16
# Seconds of work. After five seconds without, an H200 was seen to take 12 us for what takes 3.
_WAKING = 0.1
# Times that memory is written before calls that are timed: half a millisecond on an H200.
_AHEAD = 16
# Timed calls of one of many; what is so much slower than the best after the first few has no more.
_LEAST, _MOST, _SECONDS, _HOPELESS = 3, 15, 0.02, 1.3
# Seconds without work after which a GPU's cycles are taken to be low; and when each was last seen to work, whoever timed it. On an
# H200 calls of 5.6 and 175 us took as long right after 0.2 to 4 seconds without work as after none.
_IDLE = 2.0
_idle_since: dict[torch.device, float] = {}
# The stream that calls are captured on, by the number of the GPU: PyTorch keeps memory for its matmuls for each stream.
_streams: dict[int, Any] = {}


def captured(run: Callable[[], T]) -> tuple[Callable[[], None], T]:
    """Captures what `run` has the current GPU do: returned are what does it again, and the results that it writes to each time.

    Whoever holds the first, holds the graph, whose memory the results are in. Other threads may use the GPU meanwhile: what they
    do there neither fails nor ends the capture.

    PyTorch's own `torch.cuda.graph` gives back all memory first that nobody uses, so that whatever runs between two captures has to
    ask the driver for it anew. Here that is done where it is much, or where memory is lacking: within a capture none can be given
    back.

    Raises:
        RuntimeError: `run` does what cannot be captured: it waits for the GPU, say.
    """
    unused = _CUDA.memory_reserved() - _CUDA.memory_allocated()
    if unused > _UNUSED * _CUDA.get_device_properties(_CUDA.current_device()).total_memory:
        _CUDA.empty_cache()
    with suppress(torch.OutOfMemoryError):
        return _captured(run)
    _CUDA.empty_cache()  # now that the error is gone, whose frames hold what was made
    return _captured(run)


def _captured(run: Callable[[], T]) -> tuple[Callable[[], None], T]:
    """Captures `run` on the stream for that, once the GPU has done what it was given."""
    graph, device = _CUDA.CUDAGraph(), _CUDA.current_device()
    stream = _streams[device] if device in _streams else _streams.setdefault(device, _CUDA.Stream())
    _CUDA.synchronize()
    with _CUDA.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            results = run()
        finally:
            graph.capture_end()
    return graph.replay, results


def _nothing() -> None:
    """Does nothing: there is no state to restore."""


def called_aside(run: Callable[[], Any], times: int = 1, restore: Callable[[], None] = _nothing) -> None:
    """Calls `run` so many times on a stream of its own, as PyTorch wants it before what is captured; `restore` before each."""
    side = _CUDA.Stream()
    side.wait_stream(_CUDA.current_stream())
    with _CUDA.stream(side):
        for _ in range(times):
            restore()
            run()
    _CUDA.current_stream().wait_stream(side)


def replayed(run: Callable[[], T], restore: Callable[[], None] = _nothing) -> Callable[[], T]:
    """Captures what `run` has the current GPU do, so that each call does it again; `run` itself was called before.

    `restore` makes the state that `run` is to be called in; it is no part of what is captured.

    Raises:
        RuntimeError: as `captured`.
    """
    called_aside(run, restore=restore)
    return functools.partial(_replay, *captured(run))


def _replay(replay: Callable[[], None], results: T) -> T:
    replay()
    return results


def capturing() -> bool:
    """Tells whether the current stream is being captured: nothing may wait for the GPU then, and nothing can be timed."""
    return bool(_CUDA.is_available() and _CUDA.is_current_stream_capturing())


def cache_filler(device: torch.device) -> torch.Tensor:
    """Makes a tensor that, once it is written to, leaves nothing else in the second-level cache of `device`."""
    found: Any = vars(torch.cuda)["get_device_properties"](device)
    return torch.empty(2 * max(int(found.L2_cache_size), 1 << 24), dtype=torch.int8, device=device)


def awake(filler: torch.Tensor) -> None:
    """Writes to `filler` until its GPU, which may have idled while kernels were compiled, has the clocks that it works with."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < _WAKING:
        for _ in range(20):
            filler.zero_()
        _CUDA.synchronize(filler.device)


def replay_times(
    run: Callable[[], Any], filler: torch.Tensor, times: int, restore: Callable[[], None] = _nothing
) -> list[float]:
    """Times so many calls of `run`, in seconds; the host waits for the last one only.

    Before each, and not timed, `restore` makes the state that it is to be called in, and `filler` is written to.

    What it takes to start a call is hidden behind what still runs: some work that is given first, the writing, and the calls before
    it. The first is for hosts that are busy with other things, such as compiling: a start that comes late would be counted.
    """
    for _ in range(_AHEAD):
        filler.zero_()
    events: list[tuple[Any, Any]] = []
    for _ in range(times):
        restore()
        filler.zero_()
        start, end = _CUDA.Event(enable_timing=True), _CUDA.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        events.append((start, end))
    events[-1][1].synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in events]


@dataclass(eq=False)
class GraphTimer:
    """Times many calls on one GPU, one after the other; nothing of what a call reads is in the second-level cache.

    Attributes:
        filler: of the GPU (`cache_filler`).
    """

    filler: torch.Tensor

    def median(self, run: Callable[[], Any], best: float = math.inf) -> float:
        """Takes the median seconds of up to 15 calls of `run`, as a CUDA graph; of three where they take far longer than `best`.

        Raises:
            RuntimeError: as `captured`.
        """
        run = replayed(run)  # what starting several kernels costs the host would hide what they cost
        run()
        if time.perf_counter() - _idle_since.get(self.filler.device, -math.inf) > _IDLE:
            awake(self.filler)
        taken = replay_times(run, self.filler, _LEAST)
        begin = time.perf_counter()
        while min(taken) <= _HOPELESS * best and len(taken) < _MOST and time.perf_counter() - begin < _SECONDS:
            taken += replay_times(run, self.filler, _LEAST)
        _idle_since[self.filler.device] = time.perf_counter()
        return statistics.median(taken)
