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
_SECONDS, _SECONDS_AGAIN, _MOST = 0.1, 0.05, 25
"""Rounds are made for so long; where an earlier trial's times are known; and so many at most."""
_LEAST, _LEAST_AGAIN = ((0.02, 3), (0.0, 5)), ((0.02, 2), (0.0, 3))
"""Rounds that there are at least, where a call takes longer than so many seconds; and again where earlier times are known."""
_SLOW, _VERY_SLOW = 0.05, 0.5
"""Seconds from which on nobody is to wait for a call again and again: first calls count, and there is one round more at most."""
_CLEARLY = 0.8
"""If weft's first call took less than this share of PyTorch's, a very slow call is not timed again."""
_OTHERS = 0.5
"""Cores that other processes may use for times of different minutes to be comparable."""
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
        spent: seconds of all calls that were made for it, first ones included on a CPU.
        failure: what the first candidate, weft's own kernels, failed with; None where it ran, or PyTorch did in its place.
    """

    timings: tuple[Timing, ...]
    load: float = 0.0
    spent: float = 0.0
    failure: Exception | None = None


@dataclass(eq=False)
class Contender:
    """One of the callables, and what is known of its calls.

    Attributes:
        run: the callable.
        spare: its arguments.
        known: seconds of PyTorch's call in an earlier trial, beside which few calls suffice; None where there was none.
        results: of its first call, as they were before others wrote where they lie; None once nobody needs them.
        first: seconds of its first call, which may do what later ones do not.
        load: how many cores other processes used during first calls.
        times: seconds of further calls.
        first_counts: the first call is among those that are summed up.
        refused, error: what kernels refused a call with, so that PyTorch ran in their place; what a call failed with.
    """

    run: Runner
    spare: Spare
    known: float | None = None
    results: Sequence[Any] | None = None
    first: float = 0.0
    load: float = 0.0
    times: list[float] = field(default_factory=list[float])
    first_counts: bool = False
    refused: list[type[Exception]] = field(default_factory=list[type[Exception]])
    error: Exception | None = None

    @property
    def out_of_memory(self) -> bool:
        """Tells whether memory did not suffice for a call."""
        return torch.OutOfMemoryError in self.refused or isinstance(self.error, torch.OutOfMemoryError)

    @property
    def is_going(self) -> bool:
        """Tells whether every call so far was its own."""
        return self.error is None and not self.refused

    @property
    def least(self) -> float:
        """Seconds of the quickest call."""
        return min((self.first, *self.times))

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

    def begin(self) -> None:
        """Makes the first call."""

        def timed() -> tuple[Any, float]:
            start = time.perf_counter()
            results = self.listened()
            return results, time.perf_counter() - start

        found = self.attempt(timed)
        if found is not None:
            self.results, self.first = self.spare.left(found[0]), found[1]

    def timing(self) -> Timing:
        """Sums up its calls: the least of a few slow ones, since the first of them may have done more; of others the median."""
        if not self.is_going:
            return Timing(math.inf)
        if self.first_counts:
            return Timing(self.least, (max((self.first, *self.times)) - self.least) / self.least)
        if not self.times:
            return Timing(math.inf)
        median = statistics.median(self.times)
        quartiles = statistics.quantiles(self.times, n=4) if len(self.times) > 1 else [median] * 3
        spread = max(quartiles[2] - median, median - quartiles[0]) / median if median > 0 else 0.0
        return Timing(median, spread)


def first_calls(runs: Sequence[Runner], given: Spare, known: float | None = None) -> list[Contender]:
    """Makes the first call of each of `runs`; `known`: seconds of PyTorch's call in an earlier trial.

    The state of PyTorch's random numbers is afterwards as it was.

    Raises:
        OutOfMemoryError: memory did not suffice for one of them, whether it says so itself or PyTorch ran in its place.
    """
    found = [Contender(run, given, known) for run in runs]
    device = gpu_of(given.arguments)
    with torch.no_grad(), _RANDOM.fork_rng(devices=[] if device is None else [device]):
        usage = _Usage()
        for each in found:
            each.begin()
        load = usage.of_others()
    for each in found:
        each.load = load
    _demand_memory(found)
    return found


def measure(candidates: Sequence[Contender], given: Spare) -> Timed:
    """Times calls of each of `candidates` alternately, in both orders.

    Before each call what a call writes into is as it was, and afterwards so is the state of PyTorch's random numbers; neither is
    timed. On a GPU what it does is timed, replayed from a CUDA graph; where that cannot be, calls until it has done them. No other
    process or thread of the user's times anything there meanwhile. A candidate that fails, or in whose place PyTorch ran, since
    kernels refused, takes for ever.

    Raises:
        OutOfMemoryError: memory did not suffice for a candidate, whether it says so itself or PyTorch ran in its place.
        Exception: what PyTorch itself fails with.
    """
    device = gpu_of(given.arguments)
    with torch.no_grad(), _RANDOM.fork_rng(devices=[] if device is None else [device]):
        _demand(candidates)
        going = [each for each in candidates if each.is_going]
        usage, calls = _Usage(), sum(len(each.times) for each in going)
        if device is None:
            _on_a_cpu(candidates, going)
        else:
            with alone_on(device):  # after the first calls, which may compile
                _in_turn(going, _on_a_gpu(going, device), _LEAST[-1][1])
        no_more = calls == sum(len(each.times) for each in going)
        load = max(each.load for each in candidates) if no_more else usage.of_others()
    _demand(candidates)
    # What a first call on a GPU took is mostly compiling.
    spent = sum((each.first if device is None else 0.0) + sum(each.times) for each in candidates)
    return Timed(tuple(each.timing() for each in candidates), load, spent, candidates[0].error)


def _on_a_cpu(candidates: Sequence[Contender], going: Sequence[Contender]) -> None:
    """Times those that are `going`: slow ones once or twice with their first call, others a few times without it.

    Where one joins slow ones that were timed before, on a machine that others keep busy, all are called once more: it was built
    meanwhile, and by now that machine is more or less busy than it was.
    """
    timed = [functools.partial(_seconds, each.call) for each in going]
    weft, eager = candidates[0], candidates[PYTORCH]
    before = bool(eager.times) or eager.first_counts  # beside fewer candidates: the one that joined them was called
    first = (weft.first + eager.first) / 2 if weft.known is None else weft.known
    slow = eager.first_counts if before else first >= _SLOW
    if slow and not before and weft.known is None:
        clear = first >= _VERY_SLOW and weft.is_going and weft.first < _CLEARLY * eager.first
        if not clear:
            _in_turn(going, timed, 1, 0.0)
            slow = (weft.least + eager.least) / 2 >= _SLOW  # else only its first call was slow
    if slow and before and max(each.load for each in candidates) > _OTHERS:
        _in_turn(going, timed, 1, 0.0)
    for each in candidates:
        each.first_counts = slow
    if not slow:
        least, seconds = (_LEAST, _SECONDS) if weft.known is None else (_LEAST_AGAIN, _SECONDS_AGAIN)
        _in_turn(going, timed, next(rounds for longer, rounds in least if eager.least >= longer), seconds)


def _demand_memory(found: Sequence[Contender]) -> None:
    if any(each.out_of_memory for each in found):
        raise torch.OutOfMemoryError("not enough GPU memory for a trial")


def _demand(found: Sequence[Contender]) -> None:
    """Raises where nothing can be said of the candidates."""
    _demand_memory(found)
    if (error := found[PYTORCH].error) is not None:
        raise error


def _in_turn(
    candidates: Sequence[Contender], timed: Sequence[Callable[[], float]], least: int, seconds: float = _SECONDS
) -> None:
    """Adds what each of `timed` gives to its candidate's times, to and fro, for so many `seconds` and `least` times, until
    one fails.
    """
    turns = list(zip(candidates, timed, strict=True))
    begin = time.perf_counter()
    rounds = 0
    while rounds < least or (rounds < _MOST and time.perf_counter() - begin < seconds):
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


def _on_a_gpu(candidates: Sequence[Contender], device: torch.device) -> list[Callable[[], float]]:
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
