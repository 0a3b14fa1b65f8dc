"""A compiled graph against PyTorch, on its first arguments of each size class: whichever is faster runs from then on.

There is one more candidate where weft's kernels do not win clearly: the same graph with those products left to PyTorch's library
that are predicted to gain by it where the library is at its best (`weft.plan.library`), and weft's kernels for what comes between.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

from weft.errors import WeftError
from weft.options import Options
from weft.options import options as in_force
from weft.plan.executable import Plan, plan
from weft.plan.graphs import awake, cache_filler, capturing, replay_times, replayed
from weft.plan.home import gpu_of
from weft.plan.instead import REFUSALS, heard
from weft.plan.runner import Runner
from weft.plan.writes import spare
from weft.run import stats
from weft.run.cache import CacheFolder
from weft.run.forked import threads_are_gone
from weft.run.gpu.alone import alone_on
from weft.run.gpu.build import gpu_parts
from weft.run.key import cache_key, environment_parts

# weft's kernels run unless PyTorch is faster by more than timings of one function differ from one another.
_MARGIN = 1.03
# The library's products are tried where weft takes more than this share of PyTorch's time, and taken where they save this much.
# On a GPU PyTorch's time is mostly what lies between its products.
_CLEARLY, _CLEARLY_ON_A_GPU, _GAIN = 0.95, 0.25, 0.02
_SECONDS, _LEAST, _MOST = 0.1, 5, 25


@dataclass(frozen=True, slots=True)
class Measured:
    """Median seconds of a call: weft's kernels, PyTorch, and where it was tried, weft's with the library's products.

    Infinite for what refused, so that PyTorch ran in its place.
    """

    weft: float
    eager: float
    library: float | None = None

    @property
    def chosen(self) -> Literal["weft", "library", "PyTorch"]:
        """What runs."""
        library = math.inf if self.library is None else self.library
        if min(self.weft, library) > _MARGIN * self.eager:
            return "PyTorch"
        return "library" if library < (1 - _GAIN) * self.weft else "weft"

    @property
    def whole(self) -> bool:
        """Whether no candidate refused."""
        return math.inf not in (self.weft, self.library)

    def __str__(self) -> str:
        times = {"weft": self.weft, "weft with library products": self.library, "PyTorch": self.eager}
        chosen = "weft with library products" if self.chosen == "library" else self.chosen
        return f"{chosen} runs: " + ", ".join(f"{n} {t * 1e3:.4g} ms" for n, t in times.items() if t is not None)


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
    library: Plan | None = None

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """The graph's results."""
        sizes = tuple([arguments[i].numel().bit_length() for i in self.changing])
        run = self.chosen.get(sizes)
        if run is None and capturing():
            return self.plan.run(*arguments)
        if run is None:
            size_class = tuple(a.numel().bit_length() for a in arguments if isinstance(a, torch.Tensor))
            run = self.chosen[sizes] = self.choose(size_class, arguments)
        return run(*arguments)

    def choose(self, size_class: tuple[int, ...], arguments: Sequence[Any]) -> Runner:
        """The faster of the two at `arguments`, measured now or before."""
        if threads_are_gone():
            return self.plan.run  # PyTorch's side of the trial might wait for ever
        folder = CacheFolder(self.options.cache_dir)
        parts = self.parts(size_class, gpu_of(arguments))
        key = cache_key(parts)
        entry = folder.lookup(key, counted=False)
        known = None if entry is None else _read(entry.meta)
        measured = known or self.measured_in_memory(arguments)
        if measured is None:
            return self.plan.run
        if known is None and measured.whole:  # else what was refused may go in the next process
            with suppress(OSError):  # no room anywhere: measured again in the next process
                times = {"weft": measured.weft, "eager": measured.eager, "library": measured.library}
                folder.store(key, {}, times, parts=parts)
        if self.options.log != "none":
            sys.stderr.write(f"weft: {', '.join(k.name for k in self.plan.kernels)}: {measured}\n")
        match measured.chosen:
            case "weft":
                return self.plan.run
            case "PyTorch":
                stats.count("slower")
                return self.eager
            case "library":
                stats.count("library")
                made = self.with_library(arguments)
                return self.plan.run if made is None else made.run

    def measured_in_memory(self, arguments: Sequence[Any]) -> Measured | None:
        """The candidates, timed; None where the GPU's memory does not suffice for that: what is timed is held beside the user's.

        Nor does it where PyTorch ran in place of a candidate for want of memory.
        """
        with suppress(torch.OutOfMemoryError):
            return self.measured(spare(self.plan.captured, arguments))
        torch.cuda.empty_cache()
        return None

    def measured(self, arguments: Sequence[Any]) -> Measured:
        """The candidates, timed."""
        first = measure((self.plan.run, self.eager), arguments)
        found = Measured(*first)
        # So much faster that a library's products change nothing.
        clearly = _CLEARLY if gpu_of(arguments) is None else _CLEARLY_ON_A_GPU
        made = None if found.weft <= clearly * found.eager else self.with_library(arguments)
        if made is None:
            return found
        weft, eager, library = measure((self.plan.run, self.eager, made.run), arguments)
        return Measured(weft, eager, library)

    def with_library(self, arguments: Sequence[Any]) -> Plan | None:
        """The plan in which the library runs products, made once; None where it cannot be, or none is worth it."""
        if self.library is None and self.plan.with_library is not None:
            try:
                with in_force(**asdict(self.options)):
                    captured = self.plan.with_library()
                    if captured is None:
                        return None
                    self.library = plan(captured, arguments, self.eager, self.options)
            except WeftError:  # what there is runs
                return None
        return self.library

    def parts(self, size_class: tuple[int, ...], device: torch.device | None) -> dict[str, str]:
        """All that the choice depends on; `device`: the GPU that runs, if one does."""
        gpu = {} if device is None else {"gpu": torch.cuda.get_device_name(device)}
        return {
            **self.environment,
            **gpu,
            "trial": "weft against PyTorch",
            "kernels": " ".join(k.key for k in self.plan.kernels),
            "calls": " ".join(str(c.target) for c in self.plan.captured.calls.values()),
            "size class": str(size_class),
            "pytorch threads": str(torch.get_num_threads()),
        }


def faster(plan: Plan, eager: Runner, options: Options, changing: tuple[int, ...]) -> Runner:
    """What runs in place of a graph: `plan`, on trial against `eager` where that can be tried; `eager` where it has no kernel.

    A graph that draws random numbers is not tried, since each run draws others; nor is one that calls operations of other
    libraries, which may do more than return a result. What a graph writes into is copied for the trial.
    """
    if not plan.kernels:
        return eager
    if options.measure == "never" or not repeatable(plan):
        return plan.run
    return Trial(plan, eager, options, _environment(plan), changing)


def _environment(plan: Plan) -> dict[str, str]:
    """The parts of a trial's key that are the same for every graph; a GPU's kernels need no C++ compiler."""
    target = plan.kernels[0].target
    if not target.is_gpu:
        return environment_parts()
    return gpu_parts(target) | {"torch": torch.__version__}


def repeatable(plan: Plan) -> bool:
    """Whether another run of `plan` does the same again: it draws no random numbers, and calls no other libraries."""
    return all(not c.random and c.target.namespace in ("aten", "weft") for c in plan.captured.calls.values())


def changing_sizes(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """Which arguments of a graph of Dynamo's are tensors whose sizes may be others at the next call."""
    examples = [n.meta["example_value"] for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = [(i, e) for i, e in enumerate(examples) if isinstance(e, torch.Tensor)]
    return tuple(i for i, e in tensors if any(isinstance(size, torch.SymInt) for size in e.shape))


def measure(candidates: Sequence[Callable[..., Any]], arguments: Sequence[Any]) -> tuple[float, ...]:
    """Median seconds of a call of each, timed in turn, to and fro, on the same arguments, after a first call of each.

    On a GPU what it does is timed, replayed from a CUDA graph; where that cannot be, calls until it has done them. No other process
    or thread of the user's times anything there meanwhile. A candidate in whose place PyTorch ran, since kernels refused, takes for
    ever; one at least is PyTorch.

    Raises:
        OutOfMemoryError: memory did not suffice for a candidate, whether it says so itself or PyTorch ran in its place.
    """
    times: tuple[list[float], ...] = tuple([] for _ in candidates)
    refused = [list[type[Exception]]() for _ in candidates]
    calls = [functools.partial(call, *arguments) for call in candidates]
    listened = [functools.partial(_listened, call, found) for call, found in zip(calls, refused, strict=True)]
    device = gpu_of(arguments)
    with torch.no_grad():
        for call in listened:
            call()
        _demand_room(refused)
        going = [number for number, found in enumerate(refused) if not found]
        if device is None:
            _in_turn([functools.partial(_seconds, calls[number]) for number in going], [times[n] for n in going])
        else:
            with alone_on(device):  # after the first calls, which may compile
                _in_turn(_on_a_gpu([listened[number] for number in going], device), [times[n] for n in going])
    _demand_room(refused)
    return tuple(math.inf if r else statistics.median(found) for r, found in zip(refused, times, strict=True))


def _demand_room(refused: Sequence[Sequence[type[Exception]]]) -> None:
    if any(torch.OutOfMemoryError in found for found in refused):
        raise torch.OutOfMemoryError("the GPU's memory does not suffice for a trial")


def _listened(call: Callable[[], Any], refused: list[type[Exception]]) -> Any:
    """What `call` gives; `refused` is told where kernels refused: PyTorch ran then, or nothing that could be gone on with."""
    with heard() as found:
        try:
            return call()
        except REFUSALS as error:
            found.append(type(error))
        finally:
            refused += found
    return None


def _in_turn(timed: Sequence[Callable[[], float]], times: Sequence[list[float]]) -> None:
    """Adds what each of `timed` gives to its list, to and fro."""
    turns = list(zip(timed, times, strict=True))
    begin = time.perf_counter()
    while len(times[0]) < _LEAST or (len(times[0]) < _MOST and time.perf_counter() - begin < _SECONDS):
        turns.reverse()
        for one, found in turns:
            found.append(one())


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _on_a_gpu(calls: Sequence[Callable[[], Any]], device: torch.device) -> list[Callable[[], float]]:
    """For each call what times it on `device`: all of them replayed from graphs, or where one cannot be, none."""
    with torch.cuda.device(device):
        times = 2  # the host starts the second replay while the first runs
        try:
            replays = [replayed(call) for call in calls]
        except RuntimeError:  # it waits for the GPU, or draws random numbers
            torch.cuda.synchronize(device)
            replays, times = list(calls), 1
    flush = cache_filler(device)
    awake(flush)

    def one(replay: Callable[[], Any]) -> float:
        with torch.cuda.device(device):
            return replay_times(replay, flush, times)[-1]

    return [functools.partial(one, replay) for replay in replays]


def _read(meta: Mapping[str, object]) -> Measured | None:
    weft, eager, library = (meta.get(name) for name in ("weft", "eager", "library"))
    if not isinstance(weft, float) or not isinstance(eager, float):
        return None
    return Measured(weft, eager, library if isinstance(library, float) else None)
