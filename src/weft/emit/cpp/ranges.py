"""The iterations of a loop, as C++ expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from weft.block.program import All, Below, First, Map, Part, Place, Rest, Segment, Within
from weft.emit.cpp.frame import Frame
from weft.emit.cpp.text import at_most, blocks_of, plus, times
from weft.emit.cpp.values import Scope
from weft.tensor.axes import Axis


@dataclass(frozen=True, slots=True)
class Bounds:
    """Elements `start` to before `stop` of a loop's axis; `most`: how many there can be, in sizes and numbers alone."""

    start: str
    stop: str
    most: str


def bounds(frame: Frame, node: Map, scope: Scope) -> Bounds:
    """What `node` runs over, given the blocks of the loops around it (the interpreter's `steps`)."""
    size = frame.size(node.axis.space)
    match node.range:
        case All():
            return Bounds("0", size, size)
        case Within(outer):
            step = scope[outer]
            return Bounds(step.base, plus(step.base, step.valid), step.most)
        case Below(outer):
            step = scope[outer]
            return Bounds("0", at_most(size, plus(step.base, step.valid)), size)
        case First():
            stop = size if node.place is Place.whole else at_most(size, str(node.tile))
            return Bounds("0", stop, stop)
        case Rest():
            return Bounds(size if node.place is Place.whole else str(node.tile), size, size)
        case Segment(index, count):
            each = _segment(node, size, count)
            number = scope[index].base
            start, stop = at_most(size, times(number, each)), at_most(size, times(plus(number, "1"), each))
            return Bounds(start, stop, at_most(size, each))
        case _:
            assert_never(node.range)


def widest(frame: Frame, axis: Axis, inner: Mapping[Axis, Map], scope: Scope) -> Bounds:
    """Where the blocks of `axis` lie that a list over it can hold: `inner` has the loops that are not entered yet.

    The list starts at `start` and has room for `most` elements.
    """
    node = inner[axis]
    match node.range:
        case Within(outer) if outer in inner:
            return widest(frame, outer, inner, scope)
        case Segment(index, _) if index in inner:
            return Bounds("0", frame.size(axis.space), frame.size(axis.space))
        case First() | Rest():  # parts of one list
            return Bounds("0", frame.size(axis.space), frame.size(axis.space))
        case Below(outer) if outer in inner:
            return Bounds("0", frame.size(axis.space), frame.size(axis.space))
        case _:
            return bounds(frame, node, scope)


def tile(node: Map, most: str) -> str:
    """The most elements that one iteration can have."""
    return str(node.tile) if node.tile is not None and node.place is not Place.whole else most


def part_of(node: Map) -> Part:
    """Which of the iterations run; a loop over the whole has but one."""
    return Part.all if node.place is Place.whole else node.range.part


def _segment(node: Map, size: str, count: int) -> str:
    """The elements of one segment: a whole number of blocks."""
    block = size if node.place is Place.whole or node.tile is None else str(node.tile)
    blocks = "1" if block == size else blocks_of(size, block)
    return times(blocks_of(blocks, str(count)), block)
