"""Measuring programs beside one another: time, in alternating rounds; error, against fp64; and where it was measured."""

from __future__ import annotations

import gc
import math
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from weft import __version__
from weft.run.compiler import find_compiler
from weft.verify.judge import Draws, Judgement, judge, reference

_LEAST = 10


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """What one candidate took.

    Attributes:
        median_ms, best_ms: over all rounds, in milliseconds.
        rounds: timed calls.
    """

    median_ms: float
    best_ms: float
    rounds: int


def compare(
    candidates: Mapping[str, Callable[..., Any]],
    make_inputs: Callable[[int], Sequence[Any]],
    rounds: int = 20,
    pool: int = 4,
    seconds: float = math.inf,
) -> dict[str, PeerTiming]:
    """Time `candidates` on the same inputs, in one run.

    Every round takes other inputs of the pool, and each candidate in turn calls them twice, of which the second is timed: what a
    candidate finds in the caches is its own doing. The place in a round, and what the call before left in caches and allocator,
    change a time by up to a fifth: over `orders`, each candidate has each place, and follows each other one, equally often. The
    first round of the pool only warms up (and compiles, where a candidate is lazy).

    Args:
        candidates: callables with the same arguments, by name.
        make_inputs: the inputs with this number, on every call other random ones.
        rounds: timed calls of each candidate.
        pool: how many different inputs there are.
        seconds: after so many no further round begins, once there were ten.
    """
    inputs = [tuple(make_inputs(number)) for number in range(pool)]
    names = list(candidates)
    taken: dict[str, list[float]] = {name: [] for name in names}
    turns = orders(len(names))
    collecting = gc.isenabled()
    with torch.no_grad():
        for given in inputs:
            for call in candidates.values():
                call(*given)
        gc.disable()
        try:
            begin = time.perf_counter()
            for number in range(rounds):
                if number >= _LEAST and time.perf_counter() - begin > seconds:
                    break
                given = inputs[number % pool]
                for place in turns[(number + number // pool) % len(turns)]:  # not always the same inputs in one order
                    taken[names[place]].append(_seconds(candidates[names[place]], given))
        finally:
            if collecting:
                gc.enable()
    return {name: PeerTiming(statistics.median(ts) * 1e3, min(ts) * 1e3, len(ts)) for name, ts in taken.items()}


def orders(count: int) -> tuple[tuple[int, ...], ...]:
    """Find orders of 0 .. count - 1 in which each has each place, and follows each other one, equally often (Williams, 1949)."""
    low, high = 0, count
    first = [0]
    while len(first) < count:
        low, high = (low + 1, high) if len(first) % 2 else (low, high - 1)
        first.append(low if len(first) % 2 else high)
    rows = [tuple((n + shift) % count for n in first) for shift in range(count)]
    return tuple(rows if count % 2 == 0 else [*rows, *(row[::-1] for row in rows)])


def _seconds(call: Callable[..., Any], inputs: Sequence[Any]) -> float:
    call(*inputs)
    start = time.perf_counter()
    call(*inputs)
    return time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Standard:
    """What results are judged by: a function's own in eager PyTorch and in fp64, on several random inputs together.

    Attributes:
        inputs: of the function.
        eager, exact: its results; `gaps`: for each, what `weft.judge` must know of near-ties.
    """

    inputs: tuple[Sequence[Any], ...]
    eager: Draws[Any]
    exact: Draws[Any]
    gaps: Draws[Any] | None

    @staticmethod
    def of(
        fn: Callable[..., Any],
        make_inputs: Callable[[int], Sequence[Any]],
        draws: int = 4,
        gaps: Callable[..., Any] | None = None,
    ) -> Standard:
        """Make the standard that `fn` sets.

        Args:
            fn: takes what `make_inputs` gives.
            make_inputs: the inputs with this number.
            draws: how many.
            gaps: gives, for some inputs, the `gaps` of `weft.judge`.
        """
        given = tuple(make_inputs(number) for number in range(draws))
        with torch.no_grad():
            eager = Draws([fn(*inputs) for inputs in given])
            exact = Draws([reference(fn, inputs) for inputs in given])
            near = None if gaps is None else Draws([gaps(*inputs) for inputs in given])
        return Standard(given, eager, exact, near)

    def judge(self, call: Callable[..., Any]) -> Judgement:
        """Judge `call` under the error rule."""
        with torch.no_grad():
            out = Draws([call(*inputs) for inputs in self.inputs])
        return judge(out, self.eager, self.exact, gaps=self.gaps)


def settle() -> None:
    """Run PyTorch's first multi-threaded exponential of the process, which may be imprecise (a race in its start-up)."""
    torch.exp(torch.zeros(1 << 20))


def processor() -> str:
    """Name the processor as the system does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def commit() -> str | None:
    """Name the commit of the checkout that this file lies in, marked where it was changed; None where it is installed elsewhere."""
    root = Path(__file__).resolve().parents[3]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    describe = ["describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    return first_line([git, "--no-optional-locks", "-C", str(root), *describe])


def first_line(command: Sequence[str]) -> str | None:
    """Return the first line that `command` writes; None where it fails."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBy:
    """When something was measured, and of which versions; `commit` is weft's own if known."""

    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    python: str = field(default_factory=platform.python_version)
    torch: str = torch.__version__
    weft: str = __version__
    commit: str | None = field(default_factory=commit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(MadeBy):
    """Where and when something was measured; `load` is the system's load of the minute before."""

    processor: str
    processors: int
    threads: int
    vectors: str
    load: float
    compiler: str


def setting() -> Environment:
    """Describe this machine, now.

    Raises:
        CompilerError: there is no C++ compiler.
    """
    return Environment(
        processor=processor(),
        processors=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        vectors=torch.backends.cpu.get_cpu_capability(),
        load=round(os.getloadavg()[0], 2),
        compiler=first_line([*find_compiler().command, "--version"]) or "unknown",
    )
