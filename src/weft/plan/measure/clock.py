"""Timing several callables that compute the same, in turn, each call from the same state."""

from __future__ import annotations

import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from weft.plan.execute.instead import heard
from weft.plan.execute.runner import Runner
from weft.plan.measure.spare import Spare
from weft.plan.targets.graphs import awake, cache_filler, replay_times, replayed
from weft.plan.targets.home import gpu_of
from weft.run.gpu.alone import alone_on

_RANDOM: Any = torch.random  # not fully known to type checkers
_SECONDS, _MOST = 0.1, 25
_LEAST = ((0.5, 1), (0.05, 2), (0.0, 5))
"""Rounds that there are at least, where a call takes longer than so many seconds: nobody waits for a slow one again and again."""
PYTORCH = 1
"""Which of the candidates is the graph in PyTorch."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What calls of one candidate took.

    Attributes:
        seconds: their median; infinite for a candidate that refused or failed.
        spread: how far the middle half of them lies from it, as a share of it.
    """

    seconds: float
    spread: float = 0.0

    def __str__(self) -> str:
        return f"{self.seconds * 1e3:.4g} ms ± {self.spread:.0%}"


@dataclass(frozen=True, slots=True)
class Timed:
    """One measurement.

    Attributes:
        timings: of the candidates, in their order.
        load: how many cores other processes used meanwhile, on average.
        failure: what the first candidate, weft's own kernels, failed with; None where it ran, or PyTorch did in its place.
    """

    timings: tuple[Timing, ...]
    load: float = 0.0
    failure: Exception | None = None


@dataclass(eq=False)
class _Candidate:
    run: Runner
    spare: Spare
    times: list[float] = field(default_factory=list[float])
    refused: list[type[Exception]] = field(default_factory=list[type[Exception]])
    error: Exception | None = None

    @property
    def out_of_memory(self) -> bool:
        return torch.OutOfMemoryError in self.refused or isinstance(self.error, torch.OutOfMemoryError)

    @property
    def is_going(self) -> bool:
        return self.error is None and not self.refused

    def call(self) -> Any:
        """Makes a call, as timed on a CPU."""
        return self.run(*self.spare.arguments)

    def listened(self) -> Any:
        """Makes a call, and notes where kernels refuse, so that PyTorch runs in their place."""
        with heard() as found:
            try:
                return self.call()
            finally:
                self.refused += found

    def attempt(self, work: Callable[[], Any]) -> Any:
        """Does `work` from the state that the user's arguments are in; keeps an error."""
        try:
            self.spare.restore()
            return work()
        except Exception as error:  # noqa: BLE001 - whatever it is, this candidate is out, and the user's call goes on
            self.error = error
        return None

    def timing(self) -> Timing:
        """Sums up all its calls."""
        if not self.is_going or not self.times:
            return Timing(math.inf)
        median = statistics.median(self.times)
        quartiles = statistics.quantiles(self.times, n=4) if len(self.times) > 1 else [median] * 3
        spread = max(quartiles[2] - median, median - quartiles[0]) / median if median > 0 else 0.0
        return Timing(median, spread)


def measure(candidates: Sequence[Runner], given: Spare) -> Timed:
    """Times calls of each of `candidates` alternately, in both orders, after a first call of each.

    Before each call what a call writes into is as it was, and afterwards so is the state of PyTorch's random numbers; neither is
    timed. On a GPU what it does is timed, replayed from a CUDA graph; where that cannot be, calls until it has done them. No other
    process or thread of the user's times anything there meanwhile. A candidate that fails, or in whose place PyTorch ran, since
    kernels refused, takes for ever.

    Raises:
        OutOfMemoryError: memory did not suffice for a candidate, whether it says so itself or PyTorch ran in its place.
        Exception: what PyTorch itself fails with.
    """
    found = [_Candidate(run, given) for run in candidates]
    device = gpu_of(given.arguments)
    with torch.no_grad(), _RANDOM.fork_rng(devices=[] if device is None else [device]):
        began = time.perf_counter()
        for each in found:
            each.attempt(each.listened)
        least = next(rounds for longer, rounds in _LEAST if time.perf_counter() - began >= longer * len(found))
        _demand(found)
        going = [each for each in found if each.is_going]
        usage = _Usage()
        if device is None:
            _in_turn(going, [functools.partial(_seconds, each.call) for each in going], least)
        else:
            with alone_on(device):  # after the first calls, which may compile
                _in_turn(going, _on_a_gpu(going, device), _LEAST[-1][1])
        load = usage.of_others()
    _demand(found)
    return Timed(tuple(each.timing() for each in found), load, found[0].error)


def _demand(found: Sequence[_Candidate]) -> None:
    """Raises where nothing can be said of the candidates."""
    if any(each.out_of_memory for each in found):
        raise torch.OutOfMemoryError("not enough GPU memory for a trial")
    if (error := found[PYTORCH].error) is not None:
        raise error


def _in_turn(candidates: Sequence[_Candidate], timed: Sequence[Callable[[], float]], least: int) -> None:
    """Adds what each of `timed` gives to its candidate's times, to and fro, `least` times or more, until one fails."""
    turns = list(zip(candidates, timed, strict=True))
    begin = time.perf_counter()
    rounds = 0
    while rounds < least or (rounds < _MOST and time.perf_counter() - begin < _SECONDS):
        rounds += 1
        turns.reverse()
        for candidate, one in turns:
            taken = candidate.attempt(one)
            if taken is not None:
                candidate.times.append(taken)
        turns = [turn for turn in turns if turn[0].error is None]


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _on_a_gpu(candidates: Sequence[_Candidate], device: torch.device) -> list[Callable[[], float]]:
    """Returns for each candidate what times it on `device`: all of them replayed from graphs, or where one cannot be, none."""
    calls: list[Callable[[], Any]] = [each.listened for each in candidates]
    with torch.cuda.device(device):
        times = 2  # the host starts the second replay while the first runs
        try:
            replays = [replayed(call, each.spare.restore) for each, call in zip(candidates, calls, strict=True)]
        except RuntimeError:  # it waits for the GPU, or draws random numbers
            torch.cuda.synchronize(device)
            replays, times = calls, 1
    flush = cache_filler(device)
    awake(flush)

    def one(replay: Callable[[], Any], restore: Callable[[], None]) -> float:
        with torch.cuda.device(device):
            return replay_times(replay, flush, times, restore)[-1]

    pairs = zip(replays, candidates, strict=True)
    return [functools.partial(one, replay, each.spare.restore) for replay, each in pairs]


class _Usage:
    """How busy others keep the machine from now on."""

    def __init__(self) -> None:
        self.began, self.own, self.all = time.perf_counter(), time.process_time(), _busy_seconds()

    def of_others(self) -> float:
        """Counts cores that other processes used since, on average; where the system does not say, the load of the last minute."""
        now, seconds = _busy_seconds(), time.perf_counter() - self.began
        if self.all is None or now is None or seconds <= 0:
            return os.getloadavg()[0]
        return max(0.0, (now - self.all - (time.process_time() - self.own)) / seconds)


def _busy_seconds() -> float | None:
    """Reads the seconds that all cores together have worked since the machine started, other machines on them included;
    None: unknown.
    """
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
        user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, line.split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")
