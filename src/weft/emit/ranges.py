"""The iterations of a loop, as expressions of whichever language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from weft.block.program import Map, Place
from weft.block.ranges import Part
from weft.block.size import Begin, Compound, Elements, Most, Op, Size, Valid
from weft.block.subscripts import Digit
from weft.emit.text import factor, minus, plus, times
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
class BlockText:
    """The current block of a loop, as text: its first element, how many are valid, and the most there can be.

    `base` and `valid` are expressions of the loop's body, `most` one of sizes and numbers alone, good before the loops.
    """

    base: str
    valid: str
    most: str


Scope: TypeAlias = Mapping[Axis, BlockText]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Elements `start` to before `stop` of a loop's axis; `most`: how many there can be, in sizes and numbers alone."""

    start: str
    stop: str
    most: str


def bounds(language: Language, node: Map, scope: Scope) -> Bounds:
    """Spell the range that `node` runs over, given the blocks of the loops around it."""
    found = node.range.bounds(node.axis.space, None if node.place is Place.whole else node.tile)
    return Bounds(*(_spelled(language, size, scope) for size in (found.start, found.stop, found.most)))


def _spelled(language: Language, size: Size, scope: Scope) -> str:
    match size:
        case int():
            return str(size)
        case Elements(space):
            return language.size(space)
        case Begin(axis):
            return scope[axis].base
        case Valid(axis):
            return scope[axis].valid
        case Most(axis):
            return scope[axis].most
        case Compound(op, args):
            texts = [_spelled(language, each, scope) for each in args]
            return _WORDS[op](*texts) if op in _WORDS else getattr(language, op.name)(*texts)


_WORDS: Mapping[Op, Callable[..., str]] = {Op.plus: plus, Op.minus: minus, Op.times: times}


def digit_of(number: str, digit: Digit, divided: str) -> str:
    """Spell the digit of the element `number`; `divided` stands between a number and what it is divided by, without a rest."""
    if number == "0":
        return number
    text = number if digit.div == 1 else f"{factor(number)} {divided} {digit.div}"
    return text if digit.mod is None else f"{factor(text)} % {digit.mod}"


def tile(node: Map, most: str) -> str:
    """Return the most elements that one iteration can have."""
    return str(node.tile) if node.tile is not None and node.place is not Place.whole else most


def part_of(node: Map) -> Part:
    """Tell which of the iterations between its bounds run; a loop over the whole has but one."""
    return Part.all if node.place is Place.whole else node.range.left


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
    beside = node.range.beside
    band = "" if beside is None else f", in a band beside {beside}"
    return f"{node.name} over {node.axis.space.name}: {size}{band}{part[node.range.part]}"
