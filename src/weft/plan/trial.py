"""A compiled graph against PyTorch, on its first arguments of each size class: whichever is faster runs from then on."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.options import Options
from weft.plan.executable import Plan
from weft.plan.runner import Runner
from weft.plan.writes import spare
from weft.run import stats
from weft.run.cache import CacheFolder
from weft.run.forked import threads_are_gone
from weft.run.key import cache_key, environment_parts

# weft's kernels run unless PyTorch is faster by more than timings of one function differ from one another.
_MARGIN = 1.1
_SECONDS, _LEAST, _MOST = 0.05, 3, 15


@dataclass(frozen=True, slots=True)
class Measured:
    """Median seconds of a call, of both."""

    weft: float
    eager: float

    @property
    def keeps_weft(self) -> bool:
        """Whether weft's kernels run."""
        return self.weft <= _MARGIN * self.eager

    def __str__(self) -> str:
        chosen = "weft" if self.keeps_weft else "PyTorch"
        return f"{chosen} runs: weft {self.weft * 1e3:.4g} ms, PyTorch {self.eager * 1e3:.4g} ms"


@dataclass(eq=False)
class Trial:
    """The callable that stands for a graph.

    The sizes' magnitudes make the class; where no size changes from call to call, there is one. What was measured is kept in the
    cache beside the kernels: another process of this machine measures nothing, and makes the same choice.
    """

    plan: Plan
    eager: Runner
    options: Options
    environment: Mapping[str, str]
    changing: tuple[int, ...]
    """Which arguments are tensors whose sizes change from call to call."""
    chosen: dict[tuple[int, ...], Runner] = field(default_factory=dict[tuple[int, ...], Runner])

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """The graph's results."""
        sizes = tuple([arguments[i].numel().bit_length() for i in self.changing])
        run = self.chosen.get(sizes)
        if run is None:
            size_class = tuple(a.numel().bit_length() for a in arguments if isinstance(a, torch.Tensor))
            run = self.chosen[sizes] = self.choose(size_class, arguments)
        return run(*arguments)

    def choose(self, size_class: tuple[int, ...], arguments: Sequence[Any]) -> Runner:
        """The faster of the two at `arguments`, measured now or before."""
        if threads_are_gone():
            return self.plan.run  # PyTorch's side of the trial might wait for ever
        folder = CacheFolder(self.options.cache_dir)
        parts = self.parts(size_class)
        key = cache_key(parts)
        entry = folder.lookup(key, counted=False)
        known = None if entry is None else _read(entry.meta)
        measured = known or measure(self.plan.run, self.eager, spare(self.plan.captured, arguments))
        if known is None:
            with suppress(OSError):  # no room anywhere: measured again in the next process
                folder.store(key, {}, {"weft": measured.weft, "eager": measured.eager}, parts=parts)
        if self.options.log != "none":
            sys.stderr.write(f"weft: {', '.join(k.name for k in self.plan.kernels)}: {measured}\n")
        if measured.keeps_weft:
            return self.plan.run
        stats.count("slower")
        return self.eager

    def parts(self, size_class: tuple[int, ...]) -> dict[str, str]:
        """All that the choice depends on."""
        return {
            **self.environment,
            "trial": "weft against PyTorch",
            "kernels": " ".join(k.key for k in self.plan.kernels),
            "calls": " ".join(str(c.target) for c in self.plan.captured.calls.values()),
            "size class": str(size_class),
            "pytorch threads": str(torch.get_num_threads()),
        }


def faster(plan: Plan, eager: Runner, options: Options, changing: tuple[int, ...]) -> Runner:
    """What runs in place of a graph: `plan`, on trial against `eager` where that can be tried.

    A graph that draws random numbers is not tried, since each run draws others; nor is one that calls operations of other
    libraries, which may do more than return a result. What a graph writes into is copied for the trial.
    """
    calls = plan.captured.calls.values()
    repeatable = all(not c.random and c.target.namespace == "aten" for c in calls)
    if options.measure == "never" or not plan.kernels or not repeatable:
        return plan.run
    return Trial(plan, eager, options, environment_parts(), changing)


def changing_sizes(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """Which arguments of a graph of Dynamo's are tensors whose sizes may be others at the next call."""
    examples = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = [(i, e) for i, e in enumerate(examples) if isinstance(e, torch.Tensor)]
    return tuple(i for i, e in tensors if any(isinstance(size, torch.SymInt) for size in e.shape))


def measure(weft: Callable[..., Any], eager: Callable[..., Any], arguments: Sequence[Any]) -> Measured:
    """Both timed in turn on the same arguments, after a first call of each."""
    times: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        for call in (weft, eager):
            call(*arguments)
        begin = time.perf_counter()
        while len(times[0]) < _LEAST or (len(times[0]) < _MOST and time.perf_counter() - begin < _SECONDS):
            for call, found in zip((weft, eager), times, strict=True):
                start = time.perf_counter()
                call(*arguments)
                found.append(time.perf_counter() - start)
    return Measured(*(statistics.median(found) for found in times))


def _read(meta: Mapping[str, object]) -> Measured | None:
    weft, eager = meta.get("weft"), meta.get("eager")
    return Measured(weft, eager) if isinstance(weft, float) and isinstance(eager, float) else None
