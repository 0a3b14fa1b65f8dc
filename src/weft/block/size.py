"""Sizes: how many elements, as expressions of run-time sizes and of the current blocks of loops.

They are made once, by a loop's range (`weft.block.ranges`). Whoever runs or prices a program computes them (`value`), whoever
prints it spells them in its language (`weft.emit.ranges`), so that all have the same bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.tensor.axes import Axis, Space


@dataclass(frozen=True, slots=True)
class Elements:
    """The number of elements of a space."""

    space: Space


@dataclass(frozen=True, slots=True)
class Begin:
    """The first element of the current block of the loop over `axis`; of a unit loop, the number of the iteration."""

    axis: Axis


@dataclass(frozen=True, slots=True)
class Valid:
    """The number of elements that the current block of the loop over `axis` has."""

    axis: Axis


@dataclass(frozen=True, slots=True)
class Most:
    """The most elements that any block of the loop over `axis` has."""

    axis: Axis


class Op(Enum):
    """Arithmetic on sizes."""

    plus = "plus"
    minus = "minus"
    times = "times"
    at_most = "at most"
    at_least = "at least"
    blocks_of = "blocks of"
    """How many blocks of the second size the first one makes, a shorter last one included."""
    whole_blocks = "whole blocks of"
    """The elements of the first size that lie in whole blocks of the second."""


@dataclass(frozen=True, slots=True)
class Compound:
    """`op` of sizes; `plus` and `times` take any number of them, the others two."""

    op: Op
    args: tuple[Size, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Hash once: bounds are made of bounds, and whoever compares them looks up all parts of both."""
        object.__setattr__(self, "_hash", hash((self.op.value, self.args)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it is made of: another process has other hashes."""
        return Compound, (self.op, self.args)


Size: TypeAlias = int | Elements | Begin | Valid | Most | Compound


def plus(*terms: Size) -> Size:
    """Return the sum."""
    return Compound(Op.plus, terms)


def minus(left: Size, right: Size) -> Size:
    """Return the difference."""
    return Compound(Op.minus, (left, right))


def times(*factors: Size) -> Size:
    """Return the product."""
    return Compound(Op.times, factors)


def at_most(left: Size, right: Size) -> Size:
    """Return the smaller of two sizes."""
    return Compound(Op.at_most, (left, right))


def at_least(left: Size, right: Size) -> Size:
    """Return the larger of two sizes."""
    return Compound(Op.at_least, (left, right))


def blocks_of(size: Size, tile: Size) -> Size:
    """Return how many blocks of `tile` elements `size` elements make."""
    return Compound(Op.blocks_of, (size, tile))


def whole_blocks(size: Size, tile: Size) -> Size:
    """Return the elements of `size` that lie in whole blocks of `tile`."""
    return Compound(Op.whole_blocks, (size, tile))


N_co = TypeVar("N_co", covariant=True)


class Block(Protocol[N_co]):
    """The current block of a loop, in numbers; of several blocks side by side, where each begins."""

    @property
    def base(self) -> N_co:
        """Return the first element."""
        ...

    @property
    def valid(self) -> int:
        """Return how many elements it has."""
        ...


@dataclass(frozen=True, slots=True)
class SingleElements:
    """The blocks of a loop that goes by single elements, side by side: where each begins."""

    base: NDArray[np.int64]
    valid: int = 1


class CurrentBlocks(Protocol[N_co]):
    """The current blocks of loops."""

    def __getitem__(self, axis: Axis, /) -> Block[N_co]:
        """Return that of the loop over `axis`."""
        ...


def value(size: Size, sizes: Mapping[str, int], blocks: CurrentBlocks[N_co]) -> int | N_co:
    """Compute `size`; an array where it depends on where blocks begin that are side by side.

    Args:
        size: of anything but the most elements of a block.
        sizes: elements of each space, by name.
        blocks: of the loops around.
    """
    match size:
        case int():
            return size
        case Elements(space):
            return space.size(sizes)
        case Begin(axis):
            return blocks[axis].base
        case Valid(axis):
            return blocks[axis].valid
        case Compound(op, args):
            return _computed(op, [value(each, sizes, blocks) for each in args])
        case Most(axis):
            raise ValueError(f"the most elements of a block of {axis} are known to whoever prints it alone")


def _computed(op: Op, args: list[Any]) -> Any:
    if op is Op.plus:
        return sum(args)
    if op is Op.times:
        product = 1
        for each in args:
            product *= each
        return product
    left, right = args
    plain = isinstance(left, int) and isinstance(right, int)
    match op:
        case Op.minus:
            return left - right
        case Op.at_most:
            return min(left, right) if plain else np.minimum(left, right)
        case Op.at_least:
            return max(left, right) if plain else np.maximum(left, right)
        case Op.blocks_of:
            return -(-left // right)
        case _:
            return left // right * right


def begins_of(size: Size) -> frozenset[Axis]:
    """Return the axes on whose current blocks `size` depends by where these begin."""
    match size:
        case Begin(axis):
            return frozenset((axis,))
        case Compound(_, args):
            return frozenset[Axis]().union(*map(begins_of, args))
        case _:
            return frozenset()


def axes_of(size: Size) -> frozenset[Axis]:
    """Return the axes of the loops on whose current blocks `size` depends."""
    match size:
        case Begin(axis) | Valid(axis):
            return frozenset((axis,))
        case Compound(_, args):
            return frozenset[Axis]().union(*map(axes_of, args))
        case _:
            return frozenset()


def spaces_of(size: Size) -> tuple[Space, ...]:
    """Return the spaces whose numbers of elements `size` is made of."""
    match size:
        case Elements(space):
            return (space,)
        case Compound(_, args):
            return tuple(space for each in args for space in spaces_of(each))
        case _:
            return ()
