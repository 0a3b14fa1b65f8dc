"""What the measurements of a CPU and of a GPU share: rates with their spread, steps under a time budget, and the chip they make."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.console import Console
from rich.progress import Progress

from weft.cost.chip import Chip
from weft.cost.chip_file import Origin, chip_json
from weft.cost.chips import CHIPS
from weft.lab.measure import orders

REPEATS = 15
FEWEST = 3
"""Repeats that a figure is the median of: so many, and at least so many where the budget ends before."""
_PREPARED = 5  # repeats that preparing one takes as long as

_SOLD_AS = {
    "A100 SXM": r"A100-SXM4-80GB",
    "H100 SXM": r"H100 80GB HBM3",
    "H100 PCIe": r"H100 PCIe",
    "H200 SXM": r"H200$",
    "B200": r"B200$",
    "RTX 4090": r"RTX 4090$",
    "MI300X": r"MI300X$",
    "Xeon Platinum 8480+": r"Platinum 8480\+",
}
"""How systems name the published chips; a variant of a chip (8480C, RTX 4090 D) is another chip."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Bytes or operations a second: the median of repeats, the width of their middle half as a part of it, and what was timed."""

    median: float
    spread: float
    by: str

    @staticmethod
    def of(work: float, seconds: Sequence[float], by: str) -> Rate:
        """Make the rate of repeats that took `seconds`, at least two, for `work` each."""
        rates = [work / each for each in seconds]
        low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
        return Rate(median, (high - low) / median, by)


@dataclass(frozen=True, slots=True)
class Repeat:
    """What is timed for one figure: `run` does `work` and returns the seconds that it took; `by`: what it is, for readers."""

    work: float
    by: str
    run: Callable[[], float]


Step = Callable[[float], "Repeat | None"]
"""Prepares the repeats of one figure, a run of which takes about so many seconds; None where it cannot be measured here."""


def measured(steps: Mapping[str, Step], seconds: float) -> dict[str, Rate]:
    """Measure all `steps`, by the figure's path in the file, within about `seconds` in all; shows progress on a terminal.

    Figures take turns, so that what else the machine does meets all of them alike: over `orders`, each has each place and
    follows each other one equally often. No round begins that would end too late, once there were `FEWEST`.
    """
    begin, console = time.perf_counter(), Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring", total=len(steps) + REPEATS)
        repeats: dict[str, Repeat] = {}
        for path, step in steps.items():
            repeat = step(seconds / len(steps) / (REPEATS + _PREPARED))
            progress.advance(task)
            if repeat is not None:
                repeats[path] = repeat
        paths, turns, longest = list(repeats), orders(len(repeats)), 0.0
        taken: dict[str, list[float]] = {path: [] for path in paths}
        for number in range(REPEATS):
            start = time.perf_counter()
            if number >= FEWEST and start - begin + longest > seconds:
                break
            for place in turns[number % len(turns)]:
                taken[paths[place]].append(repeats[paths[place]].run())
            longest = max(longest, time.perf_counter() - start)
            progress.advance(task)
    return {path: Rate.of(repeat.work, taken[path], repeat.by) for path, repeat in repeats.items()}


@dataclass(frozen=True, slots=True)
class MeasuredChip:
    """A chip that was measured.

    Attributes:
        chip: with the medians of `rates`.
        rates: by the path of the figure.
        origins, others: of figures that were not measured, by their path, and of all others.
        machine: what it is, for readers.
    """

    chip: Chip
    rates: Mapping[str, Rate]
    origins: Mapping[str, Origin]
    others: Origin
    machine: str
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def to_json(self) -> dict[str, object]:
        """Write it as `weft.cost.read_chip` reads it."""
        rates = {path: Origin("measured", rate.by, rate.spread) for path, rate in self.rates.items()}
        return chip_json(self.chip, {**self.origins, **rates}, self.others, date=self.date, machine=self.machine)


def published_as(name: str) -> Chip | None:
    """Find the published chip that the system calls `name`."""
    return next((CHIPS[chip] for chip, pattern in _SOLD_AS.items() if re.search(pattern, name)), None)
