"""Times on a GPU: each candidate a CUDA graph, replayed in turn with the others, the second-level cache emptied before each.

What is measured around, and how it is judged, is `weft.lab.gpu.row`; a clock that reads the wall's time does the same on a CPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from weft.lab.measure import PeerTiming, orders
from weft.lab.workloads.gpu import scaled_mm
from weft.plan.targets.graphs import awake, called_aside, captured

_LEAST, _WARM = 10, 3
_FLUSHED = 256 << 20  # bytes: more than any second-level cache
_CUDA: Any = torch.cuda


@dataclass(slots=True)
class Replay:
    """A call that can be repeated: what to run, and the result that the last run left."""

    run: Callable[[], None]
    out: Any = None


class Clock:
    """Runs calls and says how long they took: here on a CPU, by the time on the wall.

    Attributes:
        device: on which operands live.
    """

    device: str = "cpu"

    def ready(self, call: Callable[..., Any], inputs: Sequence[Any]) -> Replay:
        """Make `call` on `inputs` ready to be repeated: here itself."""

        def run() -> None:
            replay.out = call(*inputs)

        replay = Replay(run)
        run()
        return replay

    def one(self, replay: Replay) -> Callable[[], float]:
        """Run it once; the seconds that it took can be asked for after `wait`."""
        start = time.perf_counter()
        replay.run()
        taken = time.perf_counter() - start
        return lambda: taken

    def wait(self) -> None:
        """Wait until all that was run is done. Raises RuntimeError where the device is beyond use."""

    def clear(self) -> None:
        """Give memory back that nothing uses: here there is none."""

    def wake(self) -> None:
        """Bring the device to the clock rates that it works at: a CPU needs no such work."""


@dataclass(eq=False)
class CudaClock(Clock):
    """Calls captured in CUDA graphs, by events around each replay."""

    device: str = "cuda"
    flushed: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.flushed = torch.empty(_FLUSHED // 4, dtype=torch.int32, device=self.device)

    def ready(self, call: Callable[..., Any], inputs: Sequence[Any]) -> Replay:
        """Capture `call` in a CUDA graph, after a few calls on a stream of its own.

        Raises:
            RuntimeError: it cannot be captured.
        """
        run = partial(call, *inputs)
        called_aside(run, _WARM)
        self.wait()
        return Replay(*captured(run))

    def one(self, replay: Replay) -> Callable[[], float]:
        """Replay the graph once, with nothing of its operands in the cache."""
        begin, end = _CUDA.Event(enable_timing=True), _CUDA.Event(enable_timing=True)
        self.flushed.zero_()
        begin.record()
        replay.run()
        end.record()
        return lambda: begin.elapsed_time(end) / 1e3

    def wait(self) -> None:
        """Wait for all streams."""
        _CUDA.synchronize()

    def clear(self) -> None:
        """Give memory back to the device, so that graphs can have it."""
        _CUDA.empty_cache()

    def wake(self) -> None:
        """Wake the device by work."""
        awake(self.flushed)


def alternate(replays: Mapping[str, Replay], clock: Clock, rounds: int, seconds: float) -> dict[str, PeerTiming]:
    """Time `replays` in turn; over `orders`, each has each place, and follows each other one, equally often.

    Args:
        replays: by name.
        clock: what they were made ready by.
        rounds: of each.
        seconds: fewer rounds, at least ten, where all would take longer than this.
    """
    names = list(replays)
    turns = orders(len(names))
    clock.wake()
    first = _rounds(replays, names, turns, clock, _WARM)
    a_round = sum(min(taken) for taken in first.values())
    count = max(int(min(rounds, seconds / max(a_round, 1e-9))), min(rounds, _LEAST))
    taken = _rounds(replays, names, turns, clock, count)
    return {name: PeerTiming(statistics.median(ts) * 1e3, min(ts) * 1e3, len(ts)) for name, ts in taken.items()}


def _rounds(
    replays: Mapping[str, Replay], names: Sequence[str], turns: Sequence[Sequence[int]], clock: Clock, count: int
) -> dict[str, list[float]]:
    begun: dict[str, list[Callable[[], float]]] = {name: [] for name in names}
    for number in range(count):
        for place in turns[number % len(turns)]:
            begun[names[place]].append(clock.one(replays[names[place]]))
    clock.wait()
    return {name: [read() for read in each] for name, each in begun.items()}


@dataclass(frozen=True, slots=True)
class Rates:
    """What the device reaches in this run.

    Attributes:
        copy: bytes per second, read and written, of a copy.
        matrix: floating-point operations per second of a large matmul, by the operands' element type.
    """

    copy: float
    matrix: Mapping[str, float]

    def floor(self, moved: float, flops: float, matrix: str) -> float:
        """Bound the seconds for so many bytes and matmul operations from below; types without a rate go at bfloat16's."""
        return max(moved / self.copy, flops / self.matrix.get(matrix, self.matrix["bfloat16"]))


def rates(clock: Clock, *, small: bool) -> Rates:
    """Measure them; `small`: at sizes at which it is quickly seen to work."""
    count, length = (1 << 20, 64) if small else (1 << 30, 8192)
    x = torch.randn(count, dtype=torch.float32, device=clock.device)
    y = torch.empty_like(x)
    # A kernel that reads and writes: what a graph makes of `copy_` is slower.
    taken = {"copy": _seconds(clock, partial(torch.neg, out=y), (x,))}
    del x, y
    a, b = (torch.randn(length, length, dtype=torch.bfloat16, device=clock.device) for _ in range(2))
    taken["bfloat16"] = _seconds(clock, torch.matmul, (a, b))
    scale = torch.ones(1, device=clock.device)

    def narrow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return scaled_mm(a, b.T, scale, scale, out_dtype=torch.bfloat16, use_fast_accum=True)

    try:
        eighth = (a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn))
        taken["float8_e4m3fn"] = _seconds(clock, narrow, eighth)
    except RuntimeError:  # no units for it
        clock.wait()
    clock.clear()
    return Rates(8.0 * count / taken.pop("copy"), {name: 2.0 * length**3 / each for name, each in taken.items()})


def _seconds(clock: Clock, call: Callable[..., Any], inputs: Sequence[Any]) -> float:
    with torch.no_grad():
        return alternate({"": clock.ready(call, inputs)}, clock, _LEAST, 1.0)[""].median_ms / 1e3
