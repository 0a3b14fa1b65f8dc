"""Edges of a block program: their types, and what an iteration of a map sees of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.block.roles import AXES
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import ExactNumbers


@dataclass(frozen=True, slots=True, eq=False)
class BlockType(ExactNumbers):
    """What an edge carries: a block, vector or scalar, or a list of those over some axes.

    Attributes:
        lists: axes it is a list over, outermost first; the edge is buffered exactly where this is not empty.
        dims: axes of one item: two make a block, one a vector, none a scalar.
        dtype: element type in memory; arithmetic is in `dtype.accumulator`.
        pad: what the elements of an item beyond its valid extent hold; None where nobody promised anything.
    """

    lists: tuple[Axis, ...]
    dims: tuple[Axis, ...]
    dtype: DType
    pad: float | None = None

    @property
    def buffered(self) -> bool:
        """True where the edge is stored as a list, in whichever memory the schedule says."""
        return bool(self.lists)

    def __str__(self) -> str:
        item = f"{self.dtype}[{', '.join(map(str, self.dims))}]"
        return f"{item} list({', '.join(map(str, self.lists))})" if self.lists else item


Typed: TypeAlias = (
    "tuple[tuple[BlockType, ...], frozenset[tuple[Axis, bool, bool, bool]], bool, Mapping[str, BlockType]]"
)
"""What `weft.block.check.infer` found: given the types of inputs, what was seen of the loops around, and whether a schedule was
applied, the type of each value."""


@dataclass(frozen=True, slots=True)
class Iterate:
    """The items of list axis `over`, one per iteration: inside, that axis is the map's own."""

    over: Axis = field(metadata=AXES)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """The whole value, in every iteration."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """The item number `iteration // group` of list axis `over` (query heads that share a key head): an affine access."""

    over: Axis = field(metadata=AXES)
    group: int
