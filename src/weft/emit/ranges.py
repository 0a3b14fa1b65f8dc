"""The iterations of a loop, as expressions of whichever language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, assert_never

from weft.block.program import Map, Place
from weft.block.ranges import All, Band, Diagonal, First, Part, Rest, Segment, Within
from weft.emit.text import minus, plus, times
from weft.tensor.axes import Axis, Space


class Language(Protocol):
    """How the language of a kernel spells what ranges need."""

    def size(self, space: Space) -> str:
        """Return the number of elements of `space`."""
        ...

    def at_most(self, left: str, right: str) -> str:
        """Return the smaller of two sizes."""
        ...

    def at_least(self, left: str, right: str) -> str:
        """Return the larger of two sizes."""
        ...

    def blocks_of(self, size: str, tile: str) -> str:
        """Count the blocks of `tile` elements that `size` elements make."""
        ...

    def whole_blocks(self, size: str, tile: str) -> str:
        """Count the elements of `size` that lie in whole blocks of `tile`."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """The current block of a loop, as text: its first element, how many are valid, and the most there can be.

    `base` and `valid` are expressions of the loop's body, `most` one of sizes and numbers alone, good before the loops.
    """

    base: str
    valid: str
    most: str


Scope: TypeAlias = Mapping[Axis, Step]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Elements `start` to before `stop` of a loop's axis; `most`: how many there can be, in sizes and numbers alone."""

    start: str
    stop: str
    most: str


def bounds(language: Language, node: Map, scope: Scope) -> Bounds:
    """Return the range that `node` runs over, given the blocks of the loops around it (the interpreter's `steps`)."""
    size = language.size(node.axis.space)
    match node.range:
        case All():
            return Bounds("0", size, size)
        case Within(outer):
            step = scope[outer]
            return Bounds(step.base, plus(step.base, step.valid), step.most)
        case Band(outer):
            return _band(language, node, node.range, scope[outer])
        case First():
            stop = size if node.place is Place.whole else language.at_most(size, str(node.tile))
            return Bounds("0", stop, stop)
        case Rest():
            return Bounds(size if node.place is Place.whole else str(node.tile), size, size)
        case Segment(index, count):
            each = _segment(language, node, size, count)
            number = scope[index].base
            start, stop = (
                language.at_most(size, times(number, each)),
                language.at_most(size, times(plus(number, "1"), each)),
            )
            return Bounds(start, stop, language.at_most(size, each))
        case _:
            assert_never(node.range)


def tile(node: Map, most: str) -> str:
    """Return the most elements that one iteration can have."""
    return str(node.tile) if node.tile is not None and node.place is not Place.whole else most


def part_of(node: Map) -> Part:
    """Tell which of the iterations between its bounds run; a loop over the whole has but one."""
    within_bounds = node.place is Place.whole or (isinstance(node.range, Band) and node.range.part is not Part.full)
    return Part.all if within_bounds else node.range.part


def describe(node: Map) -> str:
    """Say in words what a loop runs over."""
    size = (
        "all of it at once"
        if node.place is Place.whole
        else f"blocks of {node.tile}"
        if node.tile != 1
        else "one by one"
    )
    part = {
        Part.all: "",
        Part.before: ", those before the full ones",
        Part.full: ", the full ones",
        Part.edge: ", what the full ones left",
    }
    band = f", in a band beside {node.range.outer}" if isinstance(node.range, Band) else ""
    return f"{node.name} over {node.axis.space.name}: {size}{band}{part[node.range.part]}"


def _band(language: Language, node: Map, band: Band, outer: Step) -> Bounds:
    """Return the part of a band that `node` runs over, beside one block of the loop around (`Band.limits`)."""
    size, low, high = language.size(node.axis.space), band.low, band.high

    def beside(text: str, diagonal: Diagonal, more: int = 0) -> str:
        sizes = [f"{times_} * {language.size(space)}" for space, times_ in diagonal.sizes]
        constant = diagonal.constant + more
        return plus(text, *sizes, *([str(constant)] if constant else []))

    start = stop = begin = end = ""
    start = "0" if low is None else language.at_most(size, language.at_least("0", beside(outer.base, low)))
    stop = size
    if high is not None:
        stop = language.at_most(size, beside(plus(outer.base, outer.valid), high))
        if low is not None or high.constant < 0 or high.sizes:
            stop = language.at_least(start, stop)
    begin = start
    if low is not None:
        last = language.at_least(start, beside(plus(outer.base, outer.valid), low, -1))
        begin = language.at_most(stop, last)
    end = stop if high is None else language.at_most(stop, beside(outer.base, high, 1))
    if begin != "0" or (high is not None and (high.constant < -1 or high.sizes)):
        end = language.at_least(begin, end)
    match band.part:
        case Part.all:
            return Bounds(start, stop, size)
        case Part.before:
            return Bounds(start, begin, size)
        case Part.full:
            return Bounds(begin, end, size)
        case Part.edge:
            whole = language.whole_blocks(minus(end, begin), str(node.tile))
            return Bounds(whole if begin == "0" else plus(begin, whole), stop, size)
        case _:
            assert_never(band.part)


def _segment(language: Language, node: Map, size: str, count: int) -> str:
    """Count the elements of one segment: a whole number of blocks."""
    block = size if node.place is Place.whole or node.tile is None else str(node.tile)
    blocks = "1" if block == size else language.blocks_of(size, block)
    return times(language.blocks_of(blocks, str(count)), block)
