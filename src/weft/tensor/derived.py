"""Sizes that follow from others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.tensor.axes import Space


@dataclass(frozen=True, slots=True)
class Derived:
    """The size of `space` follows from that of `source`: what `[start:stop:step]` leaves of it, `times` over; and `plus` elements
    and all those of the `others` more.
    """

    space: Space
    source: Space
    start: int | None = None
    stop: int | None = None
    step: int = 1
    times: int = 1
    plus: int = 0
    others: tuple[Space, ...] = ()

    @property
    def sources(self) -> tuple[Space, ...]:
        """The spaces that the size follows from."""
        return (self.source, *self.others)

    def size(self, source: int, *others: int) -> int:
        """Returns the number of elements, where `source`, and the `others`, have that many."""
        part = len(range(*slice(self.start, self.stop, self.step).indices(source)))
        return self.times * part + self.plus + sum(others)

    def size_in(self, sizes: Mapping[str, int]) -> int:
        """Returns the number of elements, given the `sizes` of spaces by name."""
        return self.size(*(space.size(sizes) for space in self.sources))

    @property
    def backwards(self) -> Derived | None:
        """The rule from `space` to `source`, where it has a number of elements for each of the source's, and some more."""
        whole = (self.start, self.stop, self.step, self.others) == (None, None, 1, ()) and self.plus >= 0
        return Derived(self.source, self.space, start=self.plus or None, step=self.times) if whole else None
