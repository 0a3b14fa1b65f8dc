"""Ranges: which blocks of its axis a map visits.

A range says here all that differs from range to range, its bounds among it; what runs, prices and prints loops asks for them. To
add one is to write its class, its line in a listing, what the checker demands of it, sizes that reach its edges
(`weft.verify.sizes`), and whatever makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

from weft.block.size import (
    Begin,
    Compound,
    Elements,
    Most,
    Op,
    Size,
    Valid,
    at_least,
    at_most,
    blocks_of,
    minus,
    plus,
    times,
    whole_blocks,
)
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
class Bounds:
    """Elements `start` to before `stop` of a loop's axis.

    Attributes:
        most: how many there can be, in sizes alone: good before any loop.
    """

    start: Size
    stop: Size
    most: Size


class _Range:
    """What is asked of a range, whichever it is; a new one says here how it differs from every block of a space."""

    __slots__ = ()
    part: Part

    @property
    def through(self) -> Axis | None:
        """The map around, over the same space, through whose current block it goes."""
        return None

    @property
    def beside(self) -> Axis | None:
        """The map around beside whose current block it lies: what is idle elsewhere is left out."""
        return None

    @property
    def follows(self) -> Axis | None:
        """The map over the first block, in the same graph, that it goes on after."""
        return None

    @property
    def segment(self) -> tuple[Axis, int] | None:
        """The map around that numbers the segments of which it is one, and how many there are."""
        return None

    @property
    def one_block(self) -> bool:
        """True where it has one block, whatever the sizes."""
        return False

    @property
    def aligned(self) -> bool:
        """True where each of its blocks begins at a multiple of the block's size."""
        return True

    @property
    def left(self) -> Part:
        """Which of the blocks between its bounds it has, where these do not say it all."""
        return self.part

    def blocks(self, space: Space, tile: int) -> tuple[Size, Size]:
        """Return where its first block of `tile` elements begins, and the element before which all blocks begin."""
        bounds = self.bounds(space, tile)
        whole = whole_blocks(minus(bounds.stop, bounds.start), tile)
        match self.left:
            case Part.full:
                return bounds.start, plus(bounds.start, whole)
            case Part.edge:
                return plus(bounds.start, whole), bounds.stop
            case Part.all | Part.before:
                return bounds.start, bounds.stop

    def bounds(self, space: Space, tile: int | None) -> Bounds:
        """Return the elements it goes over, of `space`, by blocks of `tile`; None: all at once."""
        del tile
        return Bounds(0, Elements(space), Elements(space))


@dataclass(frozen=True, slots=True)
class All(_Range):
    """Every block of the axis's space."""

    part: Part = Part.all


@dataclass(frozen=True, slots=True)
class Within(_Range):
    """The sub-blocks of the current block of `outer`, a map over the same space around this one (nested levels)."""

    outer: Axis = field(metadata=AXES)
    part: Part = Part.all

    @property
    def through(self) -> Axis:
        """Return whose block it goes through."""
        return self.outer

    @property
    def aligned(self) -> bool:
        """It begins where the block does."""
        return False

    def bounds(self, space: Space, tile: int | None) -> Bounds:
        """Return the elements of the current block of `outer`."""
        del space, tile
        return Bounds(Begin(self.outer), plus(Begin(self.outer), Valid(self.outer)), Most(self.outer))


@dataclass(frozen=True, slots=True)
class Segment(_Range):
    """The blocks of segment number `index` out of `count` equal runs of blocks; `index` is a map's axis around this one."""

    index: Axis = field(metadata=AXES)
    count: int
    part: Part = Part.all

    @property
    def segment(self) -> tuple[Axis, int]:
        """Return what numbers it, and how many there are."""
        return self.index, self.count

    def bounds(self, space: Space, tile: int | None) -> Bounds:
        """Return the elements of the segment: a whole number of blocks, but for the last."""
        size = Elements(space)
        blocks = 1 if tile is None or tile == space.fixed else blocks_of(size, tile)
        each = times(blocks_of(blocks, self.count), size if tile is None else tile)
        start = at_most(size, times(Begin(self.index), each))
        stop = at_most(size, times(plus(Begin(self.index), 1), each))
        return Bounds(start, stop, size if blocks == 1 else at_most(size, each))


@dataclass(frozen=True, slots=True)
class Diagonal:
    """A distance between two elements that is the same everywhere: `constant`, and so many times the size of each space."""

    constant: int = 0
    sizes: tuple[tuple[Space, int], ...] = ()

    def beside(self, element: Size, more: int = 0) -> Size:
        """Return the element so far, and `more`, from `element`."""
        sizes = tuple(Compound(Op.times, (count, Elements(space))) for space, count in self.sizes)
        constant = self.constant + more
        return plus(element, *sizes, *((constant,) if constant else ()))


@dataclass(frozen=True, slots=True)
class Band(_Range):
    """The elements j with `low` <= j - i <= `high` for an i of the current block of `outer` (causal loops, windows).

    Attributes:
        outer: a map's axis around this one; the two may run over different spaces.
        low, high: the diagonals between which the band lies, both in it; None where it has no end on that side.
    """

    outer: Axis = field(metadata=AXES)
    low: Diagonal | None = None
    high: Diagonal | None = None
    part: Part = Part.all

    @property
    def beside(self) -> Axis:
        """Return beside whose block it lies."""
        return self.outer

    @property
    def left(self) -> Part:
        """All that lie in the bounds, or the whole ones."""
        return Part.full if self.part is Part.full else Part.all

    @property
    def aligned(self) -> bool:
        """It begins beside the block."""
        return False

    def bounds(self, space: Space, tile: int | None) -> Bounds:
        """Return the elements of this part of the band.

        What lies in the band for every element of the outer block, if anything, is what the full part goes over, in whole blocks.
        """
        size, low, high = Elements(space), self.low, self.high
        base, end = Begin(self.outer), plus(Begin(self.outer), Valid(self.outer))
        start: Size = 0 if low is None else at_most(size, at_least(0, low.beside(base)))
        stop: Size = size
        if high is not None:
            stop = at_most(size, high.beside(end))
            if low is not None or high.constant < 0 or high.sizes:
                stop = at_least(start, stop)
        first = start if low is None else at_most(stop, at_least(start, low.beside(end, -1)))
        last = stop if high is None else at_most(stop, high.beside(base, 1))
        if low is not None or (high is not None and (high.constant < -1 or high.sizes)):
            last = at_least(first, last)
        match self.part:
            case Part.all:
                return Bounds(start, stop, size)
            case Part.before:
                return Bounds(start, first, size)
            case Part.full:
                return Bounds(first, last, size)
            case Part.edge:
                whole = whole_blocks(minus(last, first), size if tile is None else tile)
                return Bounds(plus(first, whole), stop, size)


@dataclass(frozen=True, slots=True)
class First(_Range):
    """The first block of the axis, the one at element 0: a map over it has one iteration (none where the space is empty)."""

    part: Part = Part.all

    @property
    def one_block(self) -> bool:
        """It is one."""
        return True

    def bounds(self, space: Space, tile: int | None) -> Bounds:
        """Return the elements of the first block."""
        stop = Elements(space) if tile is None else at_most(Elements(space), tile)
        return Bounds(0, stop, stop)


@dataclass(frozen=True, slots=True)
class Remainder(_Range):
    """Every block but the first, which the map over `after`, with range `First` and the same blocks, has done before."""

    after: Axis = field(metadata=AXES)
    part: Part = Part.all

    @property
    def follows(self) -> Axis:
        """Return what it goes on after."""
        return self.after

    def bounds(self, space: Space, tile: int | None) -> Bounds:
        """Return the elements behind the first block."""
        return Bounds(Elements(space) if tile is None else tile, Elements(space), Elements(space))


Range: TypeAlias = All | Within | Segment | Band | First | Remainder

EVERY_BLOCK = All()
