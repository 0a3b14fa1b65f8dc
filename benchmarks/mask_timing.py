"""Masks, attention with them, and times of calls in turn, on a GPU or, where there is none, on the CPU."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.plan.targets import graphs

Run = Callable[[], Any]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
HEADS, WIDTH, ROUNDS = (12 if DEVICE == "cuda" else 4), 64, 15
_SAMPLE = 0.004
_SHORT, _TOGETHER = 50e-6, 10


def masks(n: int) -> dict[str, Tensor]:
    """Make the masks of n rows and n columns by name; True: the element counts."""
    i, j = torch.arange(n, device=DEVICE)[:, None], torch.arange(n, device=DEVICE)[None]
    width = int(math.sqrt(n))
    near = (i - j).abs() <= width
    everywhere = (i < width) | (j < width)
    return {
        "window": near,
        "dilated": ((i - j).abs() <= 2 * width) & ((i - j) % 2 == 0),
        "longformer": near | everywhere,
        "bigbird": near | everywhere | blocks(n, n, 0.1, 32),
        "random elements": torch.rand(n, n, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0)) < 0.5,
    }


def blocks(rows: int, columns: int, share: float, size: int = 64) -> Tensor:
    """Make a mask of random blocks of `size` by `size`, of which so many count."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    cells = torch.rand(-(-rows // size), -(-columns // size), device=DEVICE, generator=generator) < share
    return cells.repeat_interleave(size, 0).repeat_interleave(size, 1)[:rows, :columns].contiguous()


def operands(batch: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw queries, keys and values, [batch, HEADS, n, WIDTH]."""
    q, k, v = (torch.randn(batch, HEADS, n, WIDTH, device=DEVICE, dtype=DTYPE) for _ in range(3))
    return q, k, v


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Compute attention, written out."""
    scores = q @ k.transpose(-1, -2) / WIDTH**0.5
    return torch.softmax(scores.masked_fill(~mask, -math.inf), -1) @ v


@dataclass(frozen=True)
class Replay:
    """Call something so many `times`, in one CUDA graph; `between`: seconds a call of what is not its own."""

    run: Run
    times: int = 1
    between: float = 0.0

    def __call__(self) -> None:
        self.run()


def replayed(runs: dict[str, Run]) -> dict[str, Run]:
    """Capture each of `runs` in a CUDA graph, and return what replays them; on the CPU these themselves.

    Where one of them is short, all are called several times in a graph: to start a graph takes the host 4 to 6 us, which hides what
    takes less. Between the calls a kernel writes one element: weft's kernels may begin before what comes before them has ended, and
    begin no earlier than that kernel so. What it takes by itself is subtracted.
    """
    if DEVICE == "cpu":
        return runs
    for run in runs.values():
        graphs.called_aside(run, 2)
    once: dict[str, Run] = {name: Replay(graphs.replayed(run)) for name, run in runs.items()}
    if min(_least(run) for run in once.values()) > _SHORT:
        return once
    mark = torch.zeros(1, device=DEVICE)

    def several(run: Run) -> Run:
        def calls() -> None:
            for _ in range(_TOGETHER):
                run()
                mark.zero_()

        return graphs.replayed(calls)

    between = _least(several(lambda: None)) / _TOGETHER
    return {name: Replay(several(run), _TOGETHER, between) for name, run in runs.items()}


def _least(run: Run) -> float:
    run()
    return min(_seconds(run, 20) for _ in range(3))


def medians(runs: dict[str, Run]) -> dict[str, float]:
    """Time `runs` in turn; returned are median microseconds of a call."""
    counts: dict[str, int] = {}
    for name, run in runs.items():
        run()
        counts[name] = max(1, min(200, int(_SAMPLE / max(1e-6, _seconds(run, 1)))))
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS if DEVICE == "cuda" else 5):
        for name, run in runs.items():
            found[name].append(_of_a_call(run, _seconds(run, counts[name])) * 1e6)
    return {name: statistics.median(each) for name, each in found.items()}


def _of_a_call(run: Run, seconds: float) -> float:
    """Return what one call takes of the `seconds` that `run` takes."""
    return seconds / run.times - run.between if isinstance(run, Replay) else seconds


def _seconds(run: Run, times: int) -> float:
    if DEVICE == "cpu":
        begin = time.perf_counter()
        for _ in range(times):
            run()
        return (time.perf_counter() - begin) / times
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begun.record()
    for _ in range(times):
        run()
    ended.record()
    torch.cuda.synchronize()
    return begun.elapsed_time(ended) * 1e-3 / times
