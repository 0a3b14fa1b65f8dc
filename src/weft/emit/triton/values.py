"""What a name of the program stands for while its kernel is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from weft.emit.kinds import Kind, kind_of
from weft.emit.triton.scalar import COMPUTED, cast
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType


@dataclass(frozen=True, slots=True)
class Lanes:
    """The elements of the current block of an axis, as tensors.

    Attributes:
        count: how many there are, a power of two: a number, or the name of a constant of the launch.
        index: name of the vector of their numbers within the block.
        valid: name of the mask of those that the block has; None where it has them all.
        whole: the program takes the block to be whole (`Part.full`), whether or not there are more lanes.
    """

    count: str
    index: str
    valid: str | None
    whole: bool


@dataclass(frozen=True, slots=True)
class Tile:
    """An item in registers, or a list that is there whole: then it has all axes of the list, as an item has its own.

    Attributes:
        text: its name.
        dims: its axes, in the order of the tensor's dimensions; a tensor has all lanes of each.
        held: type of the elements as they are now: as in memory, or as computed.
        dtype: the item's own element type: what a matmul reads it as.
        pad: what the lanes beyond the valid ones hold; None where it is not known.
    """

    text: str
    dims: tuple[Axis, ...]
    held: DType
    dtype: DType
    pad: float | None = None

    @property
    def kind(self) -> Kind:
        """The kind that the tile is computed as."""
        return kind_of(self.held)

    @property
    def computed(self) -> str:
        """The tensor as it is computed with."""
        wanted = COMPUTED[self.kind]
        return self.text if self.held is wanted else cast(self.text, wanted)


@dataclass(frozen=True, slots=True)
class GlobalBuffer:
    """An item or a list of items in global memory.

    Attributes:
        base: pointer to its first element.
        strides: elements from one index to the next, for each axis that is left.
        dims: the item's axes, those to be iterated still by their list axes.
        offset: elements from `base` to where the current blocks of the axes that are set begin.
        item: no list is left to iterate.
    """

    base: str
    dtype: DType
    strides: Mapping[Axis, str]
    dims: tuple[Axis, ...]
    offset: tuple[str, ...]
    item: bool


@dataclass(frozen=True, slots=True)
class Local:
    """A list that this kernel itself makes, block by block: it has no place in registers."""

    name: str


Value: TypeAlias = Tile | GlobalBuffer | Local
