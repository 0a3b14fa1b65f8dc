"""What the rows of `weft bench --device cuda` are to reach: at most so many times the best peer's time, by group of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from weft.lab.workloads.gpu import ROWS


@dataclass(frozen=True, slots=True)
class Goal:
    """Of a group of rows: the largest ratio to the best peer that one row, and that their geometric mean, may have."""

    each: float = math.inf
    mean: float = math.inf

    def __str__(self) -> str:
        said = [f"{self.each:g} each"] if self.each < math.inf else []
        return ", ".join([*said, f"mean {self.mean:g}"] if self.mean < math.inf else said)


GOALS = {
    "attention": Goal(1.20),
    "decode": Goal(1.03),
    "speculation and prompt": Goal(1.10, 0.9),
    "small layers": Goal(mean=0.75),
    "SwiGLU": Goal(0.97),
    "large layers": Goal(1.03),
    "MLA": Goal(mean=1.0),
    "MoE": Goal(mean=0.45),
    "Quant+GEMM": Goal(mean=0.9),
    "variance": Goal(mean=0.85),
    "inertia": Goal(mean=0.30),
}
ALL = Goal(mean=0.8)
"""For all rows of all groups together."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How a group stands.

    Attributes:
        group: its name.
        goal: what it is to reach.
        ratios: weft's time over the best peer's, of the rows that were measured and are right.
        lacking: rows that were not measured, where weft failed, or whose result is wrong.
    """

    group: str
    goal: Goal
    ratios: Mapping[str, float]
    lacking: tuple[str, ...]

    @property
    def mean(self) -> float:
        """Geometric; NaN where there is no row."""
        return math.exp(sum(map(math.log, self.ratios.values())) / len(self.ratios)) if self.ratios else math.nan

    @property
    def worst(self) -> tuple[str, float]:
        """The row with the largest ratio."""
        return max(self.ratios.items(), key=lambda each: each[1], default=("", math.nan))

    @property
    def above(self) -> tuple[str, ...]:
        """Rows that miss what each row is to reach."""
        return tuple(name for name, ratio in self.ratios.items() if ratio > self.goal.each)

    @property
    def met(self) -> bool:
        """Every row is there and right, and none misses the goal; nor does their mean."""
        return bool(self.ratios) and not self.lacking and not self.above and self.mean <= self.goal.mean


def reached(ratios: Mapping[str, float]) -> tuple[Reached, ...]:
    """Measure every group, then all rows of groups together; `ratios` of the rows that were measured and are right, by name."""
    members = {group: [row.name for row in ROWS if row.group == group] for group in GOALS}
    everything = [name for names in members.values() for name in names]
    return tuple(
        Reached(group, goal, {n: ratios[n] for n in names if n in ratios}, tuple(n for n in names if n not in ratios))
        for group, goal, names in [*((g, GOALS[g], members[g]) for g in GOALS), ("all", ALL, everything)]
    )


def table(ratios: Mapping[str, float]) -> Table:
    """Show how every group stands, for a terminal."""
    shown = Table("group", "goal", title="weft / best peer, by group")
    for head in ("rows", "geometric mean", "most", "met"):
        shown.add_column(head, justify="right")
    shown.add_column("rows above, and rows that lack")
    for each in reached(ratios):
        name, most = each.worst
        count = f"{len(each.ratios)} of {len(each.ratios) + len(each.lacking)}"
        above = [f"{n} {each.ratios[n]:.2f}" for n in each.above]
        lacking = [f"without {_listed(each.lacking)}"] if each.lacking else []
        met = Text("yes", "green") if each.met else Text("no", "bold red")
        shown.add_row(
            each.group, str(each.goal), count, _figure(each.mean), f"{_figure(most)} {name}".strip(), met,
            "; ".join([", ".join(above), *lacking] if above else lacking),
        )  # fmt: skip
    return shown


def _listed(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _figure(number: float) -> str:
    return "-" if math.isnan(number) else f"{number:.2f}"
