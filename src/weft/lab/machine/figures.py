"""What the measurements of a CPU and of a GPU share: rates with their spread, steps under a time budget, and the chip they make."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.console import Console
from rich.progress import track

from weft.cost.chip import Chip
from weft.cost.chip_file import Origin, chip_json
from weft.cost.chips import CHIPS

REPEATS = 15
FEWEST = 3
"""Repeats that a figure is the median of: so many, and at least so many where the budget ends before."""

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


Step = Callable[[float], "Rate | None"]
"""Measures one figure in about so many seconds; None where it cannot be measured here."""


def measured(steps: Mapping[str, Step], seconds: float) -> dict[str, Rate]:
    """Measure all `steps`, by the figure's path in the file, within about `seconds` in all; shows progress on a terminal."""
    progress, found = Console(stderr=True), dict[str, Rate]()
    shown = track(list(steps), "measuring", console=progress, transient=True, disable=not progress.is_terminal)
    for path in shown:
        rate = steps[path](seconds / len(steps))
        if rate is not None:
            found[path] = rate
    return found


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
