"""Ranges: which blocks of its axis a map visits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from weft.tensor.axes import Axis, Space

AXES = MappingProxyType({"role": "axes"})
"""Marks fields that are axes (`weft.block.program`)."""


class Part(Enum):
    """Which iterations of a range: every one, those with a whole block, or the one with less than a block, if any.

    Of a band: those with a whole block that lies in it for every element of the outer block; the blocks before and after these.
    """

    all = "all"
    before = "before"
    full = "full"
    edge = "edge"


@dataclass(frozen=True, slots=True)
class All:
    """Every block of the axis's space."""

    part: Part = Part.all


@dataclass(frozen=True, slots=True)
class Within:
    """The sub-blocks of the current block of `outer`, a map over the same space around this one (nested levels)."""

    outer: Axis = field(metadata=AXES)
    part: Part = Part.all


@dataclass(frozen=True, slots=True)
class Segment:
    """The blocks of segment number `index` out of `count` equal runs of blocks; `index` is a map's axis around this one."""

    index: Axis = field(metadata=AXES)
    count: int
    part: Part = Part.all


@dataclass(frozen=True, slots=True)
class Diagonal:
    """A distance between two elements that is the same everywhere: `constant`, and so many times the size of each space."""

    constant: int = 0
    sizes: tuple[tuple[Space, int], ...] = ()

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return the number, given sizes by space name."""
        return self.constant + sum(times * space.size(sizes) for space, times in self.sizes)


@dataclass(frozen=True, slots=True)
class Band:
    """The elements j with `low` <= j - i <= `high` for an i of the current block of `outer` (causal loops, windows).

    Attributes:
        outer: a map's axis around this one; the two may run over different spaces.
        low, high: the diagonals between which the band lies, both in it; None where it has no end on that side.
    """

    outer: Axis = field(metadata=AXES)
    low: Diagonal | None = None
    high: Diagonal | None = None
    part: Part = Part.all

    def limits(self, base: int, valid: int, size: int, tile: int, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return the elements at which this part of the band begins and ends.

        Args:
            base, valid: the current block of `outer`: its first element, and how many there are.
            size: elements of the axis that runs over the band; `tile`: of a block of it.
            sizes: elements of each space, by name.
        """
        start = 0 if self.low is None else min(size, max(0, base + self.low.at(sizes)))
        stop = size if self.high is None else max(start, min(size, base + valid + self.high.at(sizes)))
        if self.part is Part.all:
            return start, stop
        # What lies in the band for every element of the outer block, if anything, and whole blocks of it.
        begin = start if self.low is None else min(stop, max(start, base + valid - 1 + self.low.at(sizes)))
        end = stop if self.high is None else max(begin, min(stop, base + self.high.at(sizes) + 1))
        middle = begin + (end - begin) // tile * tile
        return {Part.before: (start, begin), Part.full: (begin, middle)}.get(self.part, (middle, stop))


@dataclass(frozen=True, slots=True)
class First:
    """The first block of the axis, the one at element 0: a map over it has one iteration (none where the space is empty)."""

    part: Part = Part.all


@dataclass(frozen=True, slots=True)
class Rest:
    """Every block but the first, which the map over `after`, with range `First` and the same blocks, has done before."""

    after: Axis = field(metadata=AXES)
    part: Part = Part.all


Range: TypeAlias = All | Within | Segment | Band | First | Rest

EVERY_BLOCK = All()
