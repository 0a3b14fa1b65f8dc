"""Campaigns of random functions through `weft.optimize` and `weft.compile`, in processes of their own.

A function that ends its process, or does not end, is a finding like others. It is drawn there too, since it is run eagerly while it
is drawn, and PyTorch itself does not survive every function (SIGFPE in causal attention over no heads, on torch 2.11).
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from weft.lab.fuzz.campaign import PYTORCH, Course, Tally, run
from weft.lab.fuzz.processes import Answer, Ended, Pool, Say
from weft.lab.fuzz.random_functions import REFUSALS, RandomFunction, random_function, smaller
from weft.lab.fuzz.record import Outcome
from weft.lab.fuzz.trial import tried

SECONDS = 60.0
# How long a failing function is made smaller.
_MOST_STEPS, _SHRINKING = 150, 240.0

Draw = Callable[[int], RandomFunction]


@dataclass(frozen=True, slots=True)
class _Job:
    """What a process is to do.

    Attributes:
        seed: of the function.
        function: the function itself; None where it is to be drawn.
        alone: whether PyTorch runs it alone, without weft.
    """

    seed: int
    function: RandomFunction | None = None
    alone: bool = False


def campaign(
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    seconds: float = SECONDS,
    shrink: bool = True,
    draw: Draw = random_function,
    course: Course | None = None,
) -> Tally:
    """Tries the functions with these seeds.

    Args:
        seeds: of the functions; each can be looked at alone.
        jobs: processes at once.
        seconds: in which each must end, on a machine that has nothing else to do.
        shrink: whether failing functions are made smaller.
        draw: gives the function with a seed; it must be possible to pickle it.
        course: limit of time, and where results go.
    """
    with tempfile.TemporaryDirectory(prefix="weft-fuzz-") as folder:
        processes = _Processes(folder, seconds, partial(_done, draw=draw))
        return run("random functions", seeds, partial(processes.outcomes, jobs=jobs, shrink=shrink), course)


def _done(job: _Job, say: Say, *, draw: Draw) -> Outcome:
    """Does a job, and says the function as soon as it is known."""
    function = draw(job.seed) if job.function is None else job.function
    say(function)
    if job.alone:
        _run_by_pytorch(function)
        return Outcome(job.seed)
    found = tried(function)
    stage, what = (None, "") if found.finding is None else (found.finding.stage, found.finding.what)
    counts = {
        "operations": len(function.statements),
        "kernels": found.kernels,
        "judged": found.judged,
        f"through: {function.entry}": 1,
    }
    return Outcome(job.seed, stage, what, counts=counts, minimal=function)


def _run_by_pytorch(function: RandomFunction) -> None:
    """Calls `function` as it says without weft, and in fp64, as its trial does: whether PyTorch survives that is the question."""
    torch.set_num_threads(function.threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(len(function.calls)):
            for wide in (False, True):
                with suppress(*REFUSALS):
                    function.made(wide=wide)(*function.tensors(call, wide=wide))


class _Processes:
    """What is done with seeds, in processes."""

    def __init__(self, folder: str, seconds: float, work: Callable[[_Job, Say], object]) -> None:
        self._folder, self._seconds, self._work = folder, seconds, work
        self._alone = self._pool(1)  # in this process PyTorch is alone at all times

    def outcomes(self, seeds: Iterator[int], *, jobs: int, shrink: bool) -> Generator[Outcome]:
        """Yields the outcome of each seed, in the order in which they end."""
        pool = self._pool(jobs)
        try:
            for answer in pool.answers(_Job(seed) for seed in seeds):
                outcome = self._outcome(answer)
                if outcome.stage is None or outcome.stage == PYTORCH or outcome.minimal is None:
                    yield outcome
                    continue
                try:
                    minimal = self._minimised(outcome) if shrink else outcome.minimal
                except KeyboardInterrupt:
                    yield _written(outcome, outcome.minimal, answer.seconds)
                    raise
                yield _written(outcome, minimal, answer.seconds)
        finally:
            pool.close()
            self._alone.close()

    def _pool(self, jobs: int) -> Pool[_Job]:
        return Pool(jobs, self._folder, self._seconds, self._work)

    def _outcome(self, answer: Answer[_Job]) -> Outcome:
        """Returns the outcome that an answer tells of; of a process that ended, also whether PyTorch alone would have ended it."""
        function = cast("RandomFunction | None", answer.said)
        if not isinstance(answer.found, Ended):
            found = cast("Outcome", answer.found)
            return Outcome(found.seed, found.stage, found.what, "", found.counts, answer.seconds, function)
        ended, text = answer.found, "" if function is None else reproducer(function)
        (of_pytorch,) = self._alone.answers(iter((_Job(answer.job.seed, function, alone=True),)))
        by_itself = of_pytorch.found
        if isinstance(by_itself, Ended):
            what = f"{by_itself.what}{', while the function is drawn' if function is None else ''}"
            return Outcome(answer.job.seed, PYTORCH, what, text, {}, answer.seconds)
        return Outcome(answer.job.seed, ended.stage, ended.what, text, {}, answer.seconds, function)

    def _minimised(self, outcome: Outcome) -> RandomFunction:
        """Finds the smallest function that fails at the same stage."""
        function: RandomFunction = outcome.minimal
        pool, deadline, steps = self._pool(1), time.monotonic() + _SHRINKING, 0
        try:
            going = True
            while going:
                going = False
                for candidate in smaller(function):
                    steps += 1
                    if steps > _MOST_STEPS or time.monotonic() > deadline:
                        return function
                    (answer,) = pool.answers(iter((_Job(outcome.seed, candidate),)))
                    if cast("Outcome | Ended", answer.found).stage == outcome.stage and not self._pytorchs(answer):
                        function, going = candidate, True
                        break
        finally:
            pool.close()
        return function

    def _pytorchs(self, answer: Answer[_Job]) -> bool:
        return isinstance(answer.found, Ended) and self._outcome(answer).stage == PYTORCH


def _written(outcome: Outcome, minimal: RandomFunction, seconds: float) -> Outcome:
    """Returns the outcome with a file that shows it."""
    text = reproducer(minimal)
    return Outcome(outcome.seed, outcome.stage, outcome.what, text, outcome.counts, seconds, minimal)


# What is printed.


def reproducer(function: RandomFunction) -> str:
    """Writes a file that runs the function eagerly and through weft, and prints what each gives."""
    calls = f"({', '.join(map(repr, map(dict, function.calls)))},)"
    lines = [
        "import torch",
        "import weft",
        "from torch.nn import functional as F",
        "from weft.lab.fuzz.random_functions import RandomArgument, RandomFunction, namespace",
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
