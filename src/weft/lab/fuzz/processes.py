"""Processes that a campaign has its work done in: what ends one, or does not end, costs that one and no more."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

J = TypeVar("J")

Say = Callable[[object], None]
Work = Callable[[J, Say], object]
"""What is done with a job; what it says on its way is known even if it does not survive."""

# A process is replaced after so many jobs: what PyTorch keeps of each adds up.
_JOBS_TO_A_PROCESS = 200
_START = 120.0

# Processes are forked off one that has imported all this and runs nothing, so that each begins at once.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["weft.lab.fuzz.functions"])


@dataclass(frozen=True, slots=True)
class Ended:
    """A job without an answer; `stage` is "crash" where its process ended, "time" where it had to be ended."""

    stage: str
    what: str


@dataclass(frozen=True, slots=True)
class Answer(Generic[J]):
    """What was found of a job: what it said on its way, what it gave in the end, and how many seconds it took."""

    job: J
    said: object
    found: object
    seconds: float


def _serve(pipe: Connection, folder: str, work: Work[Any]) -> None:
    """Answers jobs, in a process of its own, one after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the campaign's own process ends this one
    os.environ["WEFT_CACHE_DIR"] = folder
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    from weft.run import compiler

    compiler.LEVEL = "-Og"  # a fifth of the time
    pipe.send(None)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send((True, work(job, lambda what: pipe.send((False, what)))))


class _Worker(Generic[J]):
    """A process, and the job that it is busy with; it begins when it is first needed."""

    def __init__(self, folder: str, work: Work[J]) -> None:
        self.pipe, self._other = _FORKS.Pipe()
        self.process = _FORKS.Process(target=_serve, args=(self._other, folder, work), daemon=True)
        self.job: J | None = None
        self.said: object = None
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

    def ask(self, job: J) -> None:
        """Sends a job; the answer comes through the pipe."""
        self.pipe.send(job)
        self.job, self.said, self.begun, self.served = job, None, time.monotonic(), self.served + 1

    def heard(self) -> tuple[bool, object]:
        """Receives what came through the pipe, and whether it is the answer; a process that has ended says so."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            return True, Ended("crash", f"the process ended with {_status(self.process.exitcode)}")

    def end(self) -> None:
        """Ends the process, whatever it does."""
        with suppress(OSError):
            self.pipe.close()
        if self.process.pid is not None:
            self.process.join(0.2)
            self.process.kill()
            self.process.join()


def _status(code: int | None) -> str:
    """Names the signal that ended a process, or its exit status."""
    with suppress(ValueError):
        return signal.Signals(-code).name if code is not None and code < 0 else f"status {code}"
    return f"signal {-(code or 0)}"


class Pool(Generic[J]):
    """Processes that do jobs, one each at a time.

    Args:
        jobs: how many.
        folder: their cache.
        seconds: in which each job must end, on a machine that has nothing else to do.
        work: what is done with a job, a function that can be pickled.
    """

    def __init__(self, jobs: int, folder: str, seconds: float, work: Work[J]) -> None:
        self.folder, self.seconds, self.work = folder, seconds, work
        self.workers = [_Worker(folder, work) for _ in range(jobs)]

    def answers(self, jobs: Iterator[J]) -> Iterator[Answer[J]]:
        """Yields an answer for each job, in the order in which they end."""
        more = True
        while more or any(w.job is not None for w in self.workers):
            for place, worker in enumerate(self.workers):
                if worker.job is None and more:
                    job = next(jobs, None)
                    more = job is not None
                    if job is not None:
                        self._ready(place).ask(job)
            yield from self._heard()

    def _ready(self, place: int) -> _Worker[J]:
        """Returns the process at this place, or one in its place where it has done enough."""
        if self.workers[place].served >= _JOBS_TO_A_PROCESS:
            self._replace(place)
        self.workers[place].start()
        return self.workers[place]

    def _heard(self) -> Iterator[Answer[J]]:
        """Yields answers that processes give within a second, and those of processes that take too long."""
        busy: dict[Any, int] = {w.pipe: i for i, w in enumerate(self.workers) if w.job is not None}
        heard = wait(list(busy), 1.0) if busy else []
        for pipe, place in busy.items():
            worker = self.workers[place]
            assert worker.job is not None
            took = time.monotonic() - worker.begun
            ended, what = worker.heard() if pipe in heard else (False, worker.said)
            if not ended:
                worker.said = what
                if took <= self.seconds * _crowded():
                    continue
                what = Ended("time", f"it has not ended after {took:.0f} s")
            answer = Answer(worker.job, worker.said, what, took)
            worker.job = None
            if isinstance(what, Ended):
                self._replace(place)
            yield answer

    def _replace(self, place: int) -> None:
        self.workers[place].end()
        self.workers[place] = _Worker(self.folder, self.work)

    def close(self) -> None:
        """Ends all processes."""
        for worker in self.workers:
            worker.end()


def _crowded() -> float:
    """Measures how much longer anything takes on this machine than alone: those that wait for a processor, for each
    that there is.
    """
    with suppress(OSError, AttributeError):  # AttributeError: not on every platform
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    return 1.0
