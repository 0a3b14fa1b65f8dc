"""What all campaigns of `weft fuzz` have in common: a seed after the other, a tally, a limit of time, a file to go on from."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from rich.table import Table

from weft.lab.fuzz.record import Outcome, Record

PYTORCH = "PyTorch"
"""The stage of what is no finding: PyTorch by itself, without weft, ends its process or does not end."""
_MOST_SEEDS = 12


@dataclass
class Tally:
    """What a campaign saw.

    Attributes:
        title: of its table.
        seeds: how many were tried.
        counts: the sum of all counts.
        slowest: the most seconds that one took.
        failures: what is wrong.
        pytorch: what PyTorch itself does not survive.
        stopped: why it ended before its last seed; None where it did not.
        interrupted: whether it was by Ctrl-C.
    """

    title: str
    seeds: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    slowest: float = 0.0
    failures: list[Outcome] = field(default_factory=list[Outcome])
    pytorch: list[Outcome] = field(default_factory=list[Outcome])
    stopped: str | None = None
    interrupted: bool = False

    def add(self, outcome: Outcome) -> None:
        """Add what became of one seed."""
        self.seeds += 1
        self.counts.update(outcome.counts)
        self.slowest = max(self.slowest, outcome.seconds)
        if outcome.stage is not None:
            (self.pytorch if outcome.stage == PYTORCH else self.failures).append(outcome)

    def table(self) -> Table:
        """Make a table of all of it, for printing: plain counts first, then those of a kind, the most frequent first."""
        table = Table("", "count", title=self.title)
        table.add_row("seeds", str(self.seeds))
        for name, count in sorted(self.counts.items(), key=lambda entry: _place(*entry)):
            table.add_row(name, str(count))
        table.add_row("seconds of the slowest", f"{self.slowest:.1f}")
        if self.pytorch:
            table.add_row("PyTorch itself crashes or hangs", _seeds(self.pytorch))
        for stage in sorted({str(f.stage) for f in self.failures}):
            table.add_row(f"failures: {stage}", _seeds([f for f in self.failures if f.stage == stage]))
        table.add_row("failures", str(len(self.failures)))
        if self.stopped is not None:
            table.add_row("ended early", self.stopped)
        return table


def _place(name: str, count: int) -> tuple[str, int, str]:
    kind, colon, _ = name.partition(": ")
    return (kind, -count, name) if colon else ("", 0, name)


def _seeds(outcomes: list[Outcome]) -> str:
    """Say how many, and which."""
    shown = [str(o.seed) for o in outcomes[:_MOST_SEEDS]]
    return f"{len(outcomes)} (seed {', '.join(shown)}{', ...' if len(outcomes) > len(shown) else ''})"


@dataclass(frozen=True, slots=True)
class Course:
    """How a campaign goes.

    Attributes:
        minutes: after so many no new seed begins; None for no limit.
        record: where outcomes are kept; its seeds are not tried again.
        show: called with each failure when it is found.
    """

    minutes: float | None = None
    record: Record | None = None
    show: Callable[[Outcome], None] | None = None


def run(
    title: str,
    seeds: Iterable[int],
    outcomes: Callable[[Iterator[int]], Generator[Outcome]],
    course: Course | None = None,
    *,
    enough: Callable[[Tally], bool] = lambda _: False,
) -> Tally:
    """Try the seeds, and tally what becomes of them. An interrupt (Ctrl-C) ends it as the limit of time does.

    Args:
        title: of the table.
        seeds: those of the campaign, in order.
        outcomes: tries the seeds of an iterator, in any order, and gives each outcome when it is known. Interrupted, it may give
            one more.
        course: its limit of time, and where its results go.
        enough: tells from what was found that no new seed is to begin.
    """
    course = course or Course()
    tally, done = Tally(title), set[int]()
    for outcome in course.record.outcomes if course.record is not None else ():
        tally.add(outcome)
        done.add(outcome.seed)
    deadline = None if course.minutes is None else time.monotonic() + 60 * course.minutes

    def left() -> Iterator[int]:
        for seed in seeds:
            if enough(tally):
                return
            if seed in done:
                continue
            if deadline is not None and time.monotonic() >= deadline:
                tally.stopped = f"after {course.minutes:g} minutes"
                return
            yield seed

    with closing(outcomes(left())) as found:
        try:
            for outcome in found:
                if course.record is not None:
                    course.record.add(outcome)
                tally.add(outcome)
                if outcome.stage is not None and course.show is not None:
                    course.show(outcome)
        except KeyboardInterrupt:
            tally.stopped, tally.interrupted = "interrupted", True
    return tally
