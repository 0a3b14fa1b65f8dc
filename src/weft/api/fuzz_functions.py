"""Campaigns of random functions through `weft.optimize` and `weft.compile`, in processes of their own.

A function that ends its process, or does not end, is a finding like others: it costs one process.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from rich.table import Table

from weft.verify.random_functions import RandomFunction, random_function, smaller

SECONDS = 60.0
# A process is replaced after so many functions: what PyTorch keeps of each adds up.
_FUNCTIONS_TO_A_PROCESS = 200
_START = 120.0
# How long a failing function is made smaller.
_MOST_STEPS, _SHRINKING = 150, 240.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A function that weft gets wrong.

    Attributes:
        stage, what: as in `weft.api.function_trial.Finding`.
        function: as drawn.
        minimal: the smallest found that fails at the same stage.
    """

    stage: str
    what: str
    function: RandomFunction
    minimal: RandomFunction

    def __str__(self) -> str:
        return f"seed {self.function.seed}, {self.stage}: {self.what}\n\n{reproducer(self.minimal)}"


@dataclass
class Tally:
    """What a campaign saw: functions, their operations, kernels, judged calls; by entry and stage; failures."""

    functions: int = 0
    operations: int = 0
    kernels: int = 0
    judged: int = 0
    slowest: float = 0.0
    entries: Counter[str] = field(default_factory=Counter[str])
    stages: Counter[str] = field(default_factory=Counter[str])
    failures: list[Failure] = field(default_factory=list[Failure])

    def table(self) -> Table:
        """All of it, for printing."""
        table = Table("", "count", title="random functions")
        for what in ("functions", "operations", "kernels", "judged"):
            table.add_row(what, str(getattr(self, what)))
        table.add_row("seconds of the slowest", f"{self.slowest:.1f}")
        for name, counter in (("through", self.entries), ("failures", self.stages)):
            for what, count in sorted(counter.items()):
                table.add_row(f"{name}: {what}", str(count))
        table.add_row("failures", str(len(self.failures)))
        return table


def campaign(
    count: int,
    seed: int = 0,
    *,
    jobs: int = 1,
    seconds: float = SECONDS,
    shrink: bool = True,
    draw: Callable[[int], RandomFunction] = random_function,
    show: Callable[[Failure], None] | None = None,
) -> Tally:
    """Try `count` random functions.

    Args:
        count: how many; the i-th has the seed `seed + i`, so that one can be looked at alone.
        seed: of the first.
        jobs: processes at once.
        seconds: in which each must end, on a machine that has nothing else to do.
        shrink: whether failing functions are made smaller.
        draw: gives the function with a seed.
        show: called with each failure when it is found.
    """
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as folder:
        pool = _Pool(jobs, folder, seconds)
        try:
            for function, answer in pool.answers(draw(own) for own in range(seed, seed + count)):
                _count(tally, function, answer)
                if answer.stage is None:
                    continue
                minimal = _minimised(function, answer.stage, folder, seconds) if shrink else function
                tally.failures.append(Failure(answer.stage, answer.what, function, minimal))
                if show is not None:
                    show(tally.failures[-1])
        finally:
            pool.close()
    return tally


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a process says of a function; `stage` is None where nothing is wrong."""

    stage: str | None
    what: str = ""
    ran: bool = True
    kernels: int = 0
    judged: int = 0
    seconds: float = 0.0


def _count(tally: Tally, function: RandomFunction, answer: _Answer) -> None:
    tally.functions += 1
    tally.operations += len(function.statements)
    tally.kernels += answer.kernels
    tally.judged += answer.judged
    tally.slowest = max(tally.slowest, answer.seconds)
    tally.entries[function.entry] += 1
    if answer.stage is not None:
        tally.stages[answer.stage] += 1


# Processes.


def _serve(pipe: Connection, folder: str) -> None:
    """What a process does: an answer for each function."""
    os.environ["WEFT_CACHE_DIR"] = folder
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    from weft.api.function_trial import tried
    from weft.run import compiler

    compiler.LEVEL = "-O1"  # a third of the time
    pipe.send(None)
    while True:
        try:
            function = pipe.recv()
        except EOFError:
            return
        found = tried(function)
        finding = found.finding
        stage, what = (None, "") if finding is None else (finding.stage, finding.what)
        pipe.send(_Answer(stage, what, found.ran, found.kernels, found.judged))


class _Worker:
    """A process, and the function that it is busy with; it begins when it is first needed."""

    def __init__(self, folder: str) -> None:
        self.pipe, self._other = multiprocessing.get_context("spawn").Pipe()
        self.process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(self._other, folder), daemon=True
        )
        self.function: RandomFunction | None = None
        self.begun, self.served = 0.0, 0

    def start(self) -> None:
        """Waits until the process works."""
        if self.process.pid is not None:
            return
        self.process.start()
        self._other.close()
        if not self.pipe.poll(_START):
            raise TimeoutError(f"a process has not begun to work after {_START:.0f} s")
        self.pipe.recv()

    def ask(self, function: RandomFunction) -> None:
        """Send a function; the answer comes through the pipe."""
        self.pipe.send(function)
        self.function, self.begun, self.served = function, time.monotonic(), self.served + 1

    def answer(self) -> _Answer:
        """What came through the pipe; a process that has ended says so."""
        try:
            found: _Answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            return _Answer("crash", f"the process ended with {self.process.exitcode}")
        return replace(found, seconds=time.monotonic() - self.begun)

    def end(self) -> None:
        """Ends the process, whatever it does."""
        with suppress(OSError):
            self.pipe.close()
        if self.process.pid is not None:
            self.process.join(0.2)
            self.process.kill()
            self.process.join()


class _Pool:
    """Processes that answer for functions, one each at a time."""

    def __init__(self, jobs: int, folder: str, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.workers = [_Worker(folder) for _ in range(jobs)]

    def answers(self, functions: Iterator[RandomFunction]) -> Iterator[tuple[RandomFunction, _Answer]]:
        """Each function with what was found, in the order in which they end."""
        waiting = iter(functions)
        more = True
        while more or any(w.function is not None for w in self.workers):
            for place, worker in enumerate(self.workers):
                if worker.function is None and more:
                    function = next(waiting, None)
                    more = function is not None
                    if function is not None:
                        self._ready(place).ask(function)
            yield from self._heard()

    def _ready(self, place: int) -> _Worker:
        """The process at this place, or one in its place where it has done enough."""
        if self.workers[place].served >= _FUNCTIONS_TO_A_PROCESS:
            self._replace(place)
        self.workers[place].start()
        return self.workers[place]

    def _heard(self) -> Iterator[tuple[RandomFunction, _Answer]]:
        """What processes have to say within a second, and those that take too long."""
        busy: dict[Any, int] = {w.pipe: i for i, w in enumerate(self.workers) if w.function is not None}
        heard = wait(list(busy), 1.0) if busy else []
        for pipe, place in busy.items():
            worker = self.workers[place]
            function = worker.function
            assert function is not None
            if pipe in heard:
                answer = worker.answer()
                worker.function = None
                if answer.stage == "crash":
                    self._replace(place)
                yield function, answer
            elif time.monotonic() - worker.begun > self.seconds * _crowded():
                self._replace(place)
                took = time.monotonic() - worker.begun
                yield function, _Answer("time", f"it has not ended after {took:.0f} s", seconds=took)

    def _replace(self, place: int) -> None:
        self.workers[place].end()
        self.workers[place] = _Worker(self.folder)

    def close(self) -> None:
        """Ends all processes."""
        for worker in self.workers:
            worker.end()


def _crowded() -> float:
    """How much longer anything takes on this machine than alone: who waits for a processor, for each that there is."""
    with suppress(OSError, AttributeError):  # AttributeError: not on every platform
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    return 1.0


def _minimised(function: RandomFunction, stage: str, folder: str, seconds: float) -> RandomFunction:
    """The smallest function found that fails at the same stage."""
    pool, deadline, steps = _Pool(1, folder, seconds), time.monotonic() + _SHRINKING, 0
    try:
        going = True
        while going:
            going = False
            for candidate in smaller(function):
                steps += 1
                if steps > _MOST_STEPS or time.monotonic() > deadline:
                    return function
                ((_, answer),) = pool.answers(iter((candidate,)))
                if answer.stage == stage:
                    function, going = candidate, True
                    break
    finally:
        pool.close()
    return function


# What is printed.


def reproducer(function: RandomFunction) -> str:
    """Text of a file that runs the function eagerly and through weft, and prints what each gives."""
    calls = f"({', '.join(map(repr, map(dict, function.calls)))},)"
    lines = [
        "import torch",
        "import weft",
        "from torch.nn import functional as F",
        "from weft.verify.random_functions import Argument, RandomFunction, namespace",
        "",
        'T = namespace()["T"]',
        f"torch.set_num_threads({function.threads})",
        "",
        function.source(),
        "arguments = (",
        *(f"    {argument!r}," for argument in function.arguments),
        ")",
        f"made = RandomFunction({function.seed}, arguments, (), (), {calls}, {function.threads}, {function.entry!r})",
        'with weft.options(measure="never"):',
        *(
            ["    fast = weft.compile(f)"]
            if function.entry == "compile"
            else ["    fast = weft.optimize(f, made.tensors(0))"]
        ),
        f"    for call in range({len(function.calls)}):",
        "        eager, mine = made.tensors(call), made.tensors(call)",
        '        print("eager", f(*eager), eager)',
        '        print("weft", fast(*mine), mine)',
    ]
    return "\n".join(lines)
