"""What a name of the program stands for while its kernel is printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weft.block.subscripts import Subscript
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
        bytes: of bools that were loaded, the name of the bytes that they lie in.
    """

    text: str
    dims: tuple[Axis, ...]
    held: DType
    dtype: DType
    pad: float | None = None
    bytes: str | None = None

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
class Global:
    """Global memory: a list of items, or the one element of a scalar.

    Attributes:
        base: pointer to its first element.
        strides: elements from one index to the next, for each axis of the list.
    """

    base: str
    dtype: DType
    strides: tuple[str, ...]


@dataclass(slots=True)
class MadeList:
    """A list that the kernel being printed makes itself.

    Attributes:
        place: where other kernels read it, if they do.
        at, item: where an item was stored last, and the item: the whole list, if a loop of the kernel reads it (`demand_legal`).
    """

    place: Global | None
    at: tuple[Subscript, ...] | None = None
    item: Tile | None = None


Value: TypeAlias = Tile | Global | MadeList
