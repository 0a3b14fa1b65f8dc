"""The order of a ranking."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Order:
    """In what order a ranking has elements: by value, and equal ones (0 and -0 among them) by their number.

    Attributes:
        largest: the greatest first, else the least.
        nan_first: NaN before all numbers, else after them.
    """

    largest: bool
    nan_first: bool

    @property
    def worst(self) -> float:
        """The number that comes after all others."""
        return float("-inf") if self.largest else float("inf")

    def __str__(self) -> str:
        return ("largest" if self.largest else "smallest") + ("" if self.nan_first else ", NaN last")


NOTHING = 2**63 - 1
"""The number of an element that is not there: it comes after all others. A ranking longer than its axis ends in these."""
