"""The iterations of loops, as expressions of whichever language: bounds, blocks, and the numbers that a program of the grid has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from weft.block.program import Map
from weft.block.ranges import EVERY_BLOCK, Part
from weft.block.size import Begin, Compound, Elements, Most, Op, Size, Valid
from weft.block.subscripts import Digit
from weft.emit.frame import KernelFrame
from weft.emit.text import Spelling, factor, is_word, minus, plus, times
from weft.tensor.axes import Axis


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


@dataclass(frozen=True, slots=True)
class RunText:
    """Blocks that begin at `first`, and by whole blocks after it, before `last`; they end at `stop` at most."""

    first: str
    last: str
    stop: str


@dataclass(frozen=True, slots=True)
class Iterations:
    """The iterations of a loop: runs of blocks, one after the other.

    `most` is the most elements that a block has, in sizes and numbers alone.
    """

    runs: tuple[RunText, ...]
    most: str

    @property
    def only(self) -> RunText:
        """The run of a loop that has one."""
        (run,) = self.runs
        return run


def bounds(frame: KernelFrame[Any], node: Map, scope: Scope) -> Bounds:
    """Spell the range that `node` runs over, given the blocks of the loops around it."""
    found = node.range.bounds(node.axis.space, node.tile)
    return Bounds(*(_spelled(frame, size, scope, {}) for size in (found.start, found.stop, found.most)))


def iterations(frame: KernelFrame[Any], node: Map, scope: Scope) -> Iterations:
    """Spell the iterations of `node`, given the blocks of the loops around it: what is more than a word has a name."""
    named = dict[Size, str]()

    def name(size: Size, what: str) -> str:
        text = _spelled(frame, size, scope, named)
        return named.setdefault(size, text if is_word(text) else frame.hold(text, f"{node.axis.name}_{what}"))

    runs = list[RunText]()
    most = _spelled(frame, node.most, scope, {})
    limits = node.range.bounds(node.axis.space, node.tile)
    for size, what in () if node.range.narrowed else ((limits.start, "begin"), (limits.stop, "end")):
        name(size, what)
    for run in node.range.runs(node.axis.space, node.tile):
        first = name(run.first, "begin") if node.range.narrowed else _spelled(frame, run.first, scope, named)
        stop = name(run.stop, "end")
        runs.append(RunText(first, name(run.last, "last"), stop))
    return Iterations(tuple(runs), most)


def block_at(frame: KernelFrame[Any], node: Map, most: str, stop: str, base: str, block: str) -> BlockText:
    """Describe the block of `node` that begins at `base`, `block` elements before the next one; elements end at `stop`."""
    if node.tile == 1 or node.full:
        return BlockText(base, most, most)
    valid = frame.spelling.at_most(block, minus(stop, base))
    return BlockText(base, frame.hold(valid, f"{base}_len"), most)


def grid_blocks(
    frame: KernelFrame[Any], chain: Sequence[Map], counts: Sequence[str], turned: Callable[[Map], bool]
) -> Iterator[tuple[Map, BlockText]]:
    """Print which block of each of the nested loops `chain` the program number `program` has; each is yielded once it is known.

    Args:
        counts: how many blocks each loop has.
        turned: tells whether a loop begins with its last block.
    """
    scope = dict[Axis, BlockText]()
    for level, node in enumerate(chain):
        later, found = times(*counts[level + 1 :]), bounds(frame, node, scope)
        rest = f"({later})" if "*" in later else later
        number = "program" if later == "1" else f"program {frame.spelling.divided} {rest}"
        number = number if level == 0 else f"{number} % {counts[level]}"
        if turned(node):
            number = f"({minus(minus(counts[level], '1'), number)})"
        scaled = number if node.tile == 1 else f"{number} * {node.tile}"
        base = frame.hold(scaled if found.start == "0" else plus(found.start, scaled), node.axis.name)
        if node.range != EVERY_BLOCK:
            frame.leave(f"{base} >= {found.stop}")
        valid = "1"
        if node.tile != 1:
            valid = frame.hold(frame.spelling.at_most(str(node.tile), minus(found.stop, base)), f"{base}_len")
        scope[node.axis] = BlockText(base, valid, _spelled(frame, node.most, scope, {}))
        yield node, scope[node.axis]


def _spelled(frame: KernelFrame[Any], size: Size, scope: Scope, named: Mapping[Size, str]) -> str:
    """Spell `size`, or give the name that it has."""
    if size in named:
        return named[size]
    match size:
        case int():
            return str(size)
        case Elements(space):
            return frame.size(space)
        case Begin(axis):
            return scope[axis].base
        case Valid(axis):
            return scope[axis].valid
        case Most(axis):
            return scope[axis].most
        case Compound(op, args):
            texts = [_spelled(frame, each, scope, named) for each in args]
            return _WORDS[op](*texts) if op in _WORDS else getattr(frame.spelling, op.name)(*texts)


_WORDS: Mapping[Op, Callable[..., str]] = {Op.plus: plus, Op.minus: minus, Op.times: times}


def digit_of(number: str, digit: Digit, spelling: Spelling) -> str:
    """Spell the digit of the element `number`."""
    if number == "0":
        return number
    text = number if digit.div == 1 else f"{factor(number)} {spelling.divided} {digit.div}"
    return text if digit.mod is None else f"{factor(text)} % {digit.mod}"


def describe(node: Map) -> str:
    """Say in words what a loop runs over."""
    size = "all of it at once" if node.tile is None else f"blocks of {node.tile}" if node.tile != 1 else "one by one"
    part = {
        Part.all: "",
        Part.full: ", the full ones",
        Part.edge: ", what the full ones left",
    }
    names = " and ".join(sorted(map(str, node.range.beside)))
    beside = "" if not names else f", beside {names}"
    return f"{node.name} over {node.axis.space.name}: {size}{beside}{part[node.range.part]}"
