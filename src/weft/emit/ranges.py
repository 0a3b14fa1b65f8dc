"""The iterations of a loop, as expressions of whichever language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, assert_never

from weft.block.program import All, Below, First, Map, Part, Place, Rest, Segment, Within
from weft.emit.text import plus, times
from weft.tensor.axes import Axis, Space


class Language(Protocol):
    """How the language of a kernel spells what ranges need."""

    def size(self, space: Space) -> str:
        """The number of elements of `space`."""
        ...

    def at_most(self, left: str, right: str) -> str:
        """The smaller of two sizes."""
        ...

    def blocks_of(self, size: str, tile: str) -> str:
        """How many blocks of `tile` elements `size` elements make."""
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
    """What `node` runs over, given the blocks of the loops around it (the interpreter's `steps`)."""
    size = language.size(node.axis.space)
    match node.range:
        case All():
            return Bounds("0", size, size)
        case Within(outer):
            step = scope[outer]
            return Bounds(step.base, plus(step.base, step.valid), step.most)
        case Below(outer):
            step = scope[outer]
            return Bounds("0", language.at_most(size, plus(step.base, step.valid)), size)
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
    """The most elements that one iteration can have."""
    return str(node.tile) if node.tile is not None and node.place is not Place.whole else most


def part_of(node: Map) -> Part:
    """Which of the iterations run; a loop over the whole has but one."""
    return Part.all if node.place is Place.whole else node.range.part


def describe(node: Map) -> str:
    """What a loop runs over, in words."""
    size = (
        "all of it at once"
        if node.place is Place.whole
        else f"blocks of {node.tile}"
        if node.tile != 1
        else "one by one"
    )
    part = {Part.all: "", Part.full: ", the full ones", Part.edge: ", what the full ones left"}[part_of(node)]
    return f"{node.name} over {node.axis.space.name}: {size}{part}"


def _segment(language: Language, node: Map, size: str, count: int) -> str:
    """The elements of one segment: a whole number of blocks."""
    block = size if node.place is Place.whole or node.tile is None else str(node.tile)
    blocks = "1" if block == size else language.blocks_of(size, block)
    return times(language.blocks_of(blocks, str(count)), block)
