"""Operators that make integers: the numbers of elements, and indices of a dimension."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.block.roles import AXES, MAKES, READS
from weft.errors import Location
from weft.tensor.axes import Axis, Space


@dataclass(frozen=True, slots=True)
class Index:
    """The element numbers along the current block of `axis`, a vector of int64; of a `unit` map the one number, a scalar."""

    name: str = field(metadata=MAKES)
    axis: Axis = field(metadata=AXES)
    unit: bool = False

    @property
    def dims(self) -> tuple[Axis, ...]:
        """The axes of the item."""
        return () if self.unit else (self.axis,)


@dataclass(frozen=True, slots=True)
class Bounded:
    """The integers of the item `arg` as indices of `space`: one that is none stands for the nearest, and the kernel notes it."""

    name: str = field(metadata=MAKES)
    arg: str = field(metadata=READS)
    space: Space
    dims: tuple[Axis, ...] = field(metadata=AXES)
    location: Location | None = None
