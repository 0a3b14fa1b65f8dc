"""Ranges: which blocks of its axis a map visits.

A range says here all that differs from range to range, its bounds among it; what runs, prices and prints loops asks for them. To
add one is to write its class, its line in a listing, what the checker demands of it, sizes that reach its edges
(`weft.verify.sizes`), and whatever makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, reduce
from typing import TypeAlias

from weft.block.order import larger, smaller
from weft.block.roles import AXES
from weft.block.size import (
    Begin,
    Elements,
    Most,
    Size,
    Valid,
    at_most,
    blocks_of,
    minus,
    plus,
    times,
    whole_blocks,
)
from weft.block.spans import Run, Span, between, disjoint, whole
from weft.tensor.axes import Axis, Space


class Part(Enum):
    """Which iterations of a range: every one, those with a whole block, or the one with less than a block, if any.

    Of spans: those with a whole block that lies in one for every element of the blocks around; what these leave.
    """

    all = "all"
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
    def beside(self) -> frozenset[Axis]:
        """The maps around beside whose current blocks it lies: what is idle elsewhere is left out."""
        return frozenset()

    @property
    def narrowed(self) -> bool:
        """True where elements of the space are left out since they have nothing to do; blocks of others may need no masks."""
        return False

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
        """True where each of its blocks begins at a multiple of the block's size, and ends a block later or with the space."""
        return True

    def runs(self, space: Space, tile: int | None) -> tuple[Run, ...]:
        """Return its blocks of `tile` elements (None: all at once), as one run or several, in ascending order."""
        return (_in_one(self, space, tile),)

    def bounds(self, space: Space, tile: int | None) -> Bounds:
        """Return the elements it goes over, of `space`, by blocks of `tile`; None: all at once."""
        del tile
        return Bounds(0, Elements(space), Elements(space))


@lru_cache(maxsize=1 << 10)
def _in_one(of: _Range, space: Space, tile: int | None) -> Run:
    bounds = of.bounds(space, tile)
    if tile is None:
        return Run(bounds.start, bounds.stop, bounds.stop)
    edge = plus(bounds.start, whole_blocks(minus(bounds.stop, bounds.start), tile))
    match of.part:
        case Part.full:
            return Run(bounds.start, edge, bounds.stop)
        case Part.edge:
            return Run(edge, bounds.stop, bounds.stop)
        case Part.all:
            return Run(bounds.start, bounds.stop, bounds.stop)


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
class Spans(_Range):
    """The elements that lie in one of several spans (causal loops, windows, blocks on the diagonal, and unions of these).

    What lies in several of them is gone over once. Spans may lie beside blocks of maps over any space.
    """

    spans: tuple[Span, ...] = field(metadata=AXES)
    part: Part = Part.all

    @property
    def beside(self) -> frozenset[Axis]:
        """Return beside whose blocks the spans lie."""
        return frozenset[Axis]().union(*(span.beside for span in self.spans))

    @property
    def narrowed(self) -> bool:
        """It is what this range is for."""
        return True

    @property
    def aligned(self) -> bool:
        """It begins beside the block."""
        return False

    def bounds(self, space: Space, tile: int | None) -> Bounds:
        """Return the elements from the first of the spans to the last."""
        del tile
        hulls = [span.hull(space) for span in self.spans]
        start, stop = reduce(smaller, (h[0] for h in hulls)), reduce(larger, (h[1] for h in hulls))
        return Bounds(start, stop, Elements(space))

    def runs(self, space: Space, tile: int | None) -> tuple[Run, ...]:
        """Return the runs of blocks of this part: of whole blocks that lie in a span for every element of the blocks around, or
        of what these leave.
        """
        return _runs(self, space, tile)


@lru_cache(maxsize=1 << 10)
def _runs(of: Spans, space: Space, tile: int | None) -> tuple[Run, ...]:
    if tile is None:
        bounds = of.bounds(space, tile)
        return (Run(bounds.start, bounds.stop, bounds.stop),)
    found = disjoint((span.hull(space) for span in of.spans), space)
    if of.part is not Part.all:
        inside = [whole(piece, tile) for piece in disjoint((s.inside(space) for s in of.spans if s.decided), space)]
        found = inside if of.part is Part.full else between(found, inside, space)
    return tuple(Run(start, stop, stop) for start, stop in found) or (Run(0, 0, 0),)


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
    def narrowed(self) -> bool:
        """True where elements of the space are left out since they have nothing to do; blocks of others may need no masks."""
        return False

    @property
    def follows(self) -> Axis:
        """Return what it goes on after."""
        return self.after

    def bounds(self, space: Space, tile: int | None) -> Bounds:
        """Return the elements behind the first block."""
        return Bounds(Elements(space) if tile is None else tile, Elements(space), Elements(space))


@dataclass(frozen=True, slots=True)
class Before(_Range):
    """What comes before the current block of `outer`, a map over the same space around this one; nothing before the first one."""

    outer: Axis = field(metadata=AXES)
    part: Part = Part.all

    @property
    def beside(self) -> frozenset[Axis]:
        """It ends where that block begins."""
        return frozenset((self.outer,))

    @property
    def aligned(self) -> bool:
        """It ends beside the block, wherever that is."""
        return False

    def bounds(self, space: Space, tile: int | None) -> Bounds:
        """Return the elements before the block."""
        del tile
        return Bounds(0, Begin(self.outer), Elements(space))


Range: TypeAlias = All | Within | Segment | Spans | First | Remainder | Before

EVERY_BLOCK = All()
