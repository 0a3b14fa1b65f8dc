"""Spans: the elements of a loop between two ends that follow the blocks of loops around it, and their blocks.

In: conditions on the loop's index, as a union of conjunctions. Out: runs of blocks, as sizes, that hold each element that some
conjunction allows once, and may hold others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

from weft.block.linear import Linear
from weft.block.order import larger, smaller
from weft.block.roles import AXES
from weft.block.size import Elements, Size, minus, plus, whole_blocks
from weft.tensor.axes import Axis, Space

OWN = Axis("own", Space("own"))
"""Stands in conditions for the loop whose elements they are on."""


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks that begin at `first`, and by whole blocks after it, before `last`; they end at `stop` at most."""

    first: Size
    last: Size
    stop: Size


@dataclass(frozen=True)
class Span:
    """The elements for which all of some conditions hold, of which each is one end.

    Attributes:
        holds: what is at least 0 there, of the index of `OWN` and of the indices of maps around.
        decided: False where blocks that lie in it have the same to do as others, so that they run with these.
    """

    holds: tuple[Linear, ...] = field(metadata=AXES)
    decided: bool = True

    @cached_property
    def ends(self) -> tuple[tuple[Linear, ...], tuple[Linear, ...]]:
        """List what the least element is at least, and what the greatest is at most."""
        found = [end for end in (each.end(OWN) for each in self.holds) if end is not None]
        return tuple(e for low, e in found if low), tuple(e for low, e in found if not low)

    @property
    def beside(self) -> frozenset[Axis]:
        """The maps around whose indices say where it lies."""
        return frozenset[Axis]().union(*(each.axes for each in self.holds)) - {OWN}

    def hull(self, space: Space) -> tuple[Size, Size]:
        """Bound what lies in it for any elements of the current blocks: its first element, and the one after its last."""
        size, (lows, highs) = Elements(space), self.ends
        start = smaller(size, reduce(larger, (low.extreme(greatest=False) for low in lows), 0))
        stop = reduce(smaller, (high.more(1).extreme(greatest=True) for high in highs), size)
        return start, larger(start, stop)

    def inside(self, space: Space) -> tuple[Size, Size]:
        """Bound what lies in it for all elements of the current blocks, within its hull."""
        (start, stop), (lows, highs) = self.hull(space), self.ends
        first = smaller(stop, reduce(larger, (low.extreme(greatest=True) for low in lows), start))
        last = reduce(smaller, (high.more(1).extreme(greatest=False) for high in highs), stop)
        return first, larger(first, last)


Pieces = Sequence[tuple[Size, Size]]
"""Elements from one to before another, in ascending order, none in two; some may be empty."""


def disjoint(spans: Iterable[tuple[Size, Size]], space: Space) -> Pieces:
    """Part `spans`, which may overlap and lie in any order, into pieces that hold the same elements."""
    pieces: Pieces = ()
    for start, stop in spans:
        gaps = [*_gaps(pieces, space)]
        found: list[tuple[Size, Size]] = []
        for place, gap in enumerate(gaps):
            found += [*pieces[place - 1 : place], *_nonempty([_within(start, stop, gap)])]
        pieces = tuple(found)
    return pieces


def between(pieces: Pieces, left: Pieces, space: Space) -> Pieces:
    """Take `left` from `pieces`: what lies in its gaps."""
    cut = [_within(start, stop, gap) for gap in _gaps(left, space) for start, stop in pieces]
    return _nonempty(cut)


def whole(piece: tuple[Size, Size], tile: int) -> tuple[Size, Size]:
    """Cut a piece down to its whole blocks."""
    start, stop = piece
    return start, plus(start, whole_blocks(minus(stop, start), tile))


def _gaps(pieces: Pieces, space: Space) -> Iterable[tuple[Size, Size]]:
    begins: list[Size] = [0, *(stop for _, stop in pieces)]
    return zip(begins, [*(start for start, _ in pieces), Elements(space)], strict=True)


def _within(start: Size, stop: Size, gap: tuple[Size, Size]) -> tuple[Size, Size]:
    low, high = gap
    return larger(low, smaller(high, start)), larger(low, smaller(high, stop))


def _nonempty(pieces: Iterable[tuple[Size, Size]]) -> Pieces:
    return tuple((start, stop) for start, stop in pieces if start != stop)
