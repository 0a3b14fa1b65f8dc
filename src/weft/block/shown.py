"""What a name of the program stands for while its listing is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from weft.block.program import Map
from weft.tensor.axes import Axis


@dataclass(eq=False)
class ShownBuffer:
    """A list in memory. An intermediate has no name until it is first printed."""

    slots: tuple[Axis, ...]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ShownList:
    """A value that is a list over `lists`: `buffer`, with the slots in `bound` fixed."""

    buffer: ShownBuffer
    bound: Mapping[Axis, str]
    lists: tuple[Axis, ...]
    dims: tuple[Axis, ...]


@dataclass(eq=False)
class ShownItem:
    """A value that is an item: `text` once it is named, `source` where it has to be loaded."""

    dims: tuple[Axis, ...]
    text: str | None = None
    source: ShownList | None = None


ShownValue: TypeAlias = ShownList | ShownItem


@dataclass(eq=False)
class ShownGraph:
    """One graph being printed: its values so far, and the buffers that each value is stored to."""

    around: tuple[Map, ...]
    values: dict[str, ShownValue] = field(default_factory=dict[str, ShownValue])
    stores: dict[str, list[ShownBuffer]] = field(default_factory=dict[str, list[ShownBuffer]])

    def item(self, name: str) -> ShownItem:
        """Returns the value as an item. A list is malformed here, and seen as if it were loaded whole."""
        value = self.values[name]
        return value if isinstance(value, ShownItem) else ShownItem(value.dims, source=value)
