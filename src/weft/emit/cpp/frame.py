"""What all of one kernel's printing shares: identifiers, lines, sizes, scratch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.emit.calls import row_major
from weft.emit.cpp.scalar import element
from weft.emit.cpp.text import Writer, at_least, at_most, blocks_of, whole_blocks
from weft.emit.cpp.values import Buffer
from weft.emit.ranges import Scope
from weft.emit.text import Names, plus, times
from weft.errors import Location
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType


@dataclass(frozen=True, slots=True)
class Allocation:
    """A scratch array of one thread: `count` elements of C++ type `ctype`."""

    name: str
    ctype: str
    count: str


@dataclass
class Frame:
    """One kernel being printed."""

    names: Names
    sizes: Mapping[str, str]
    out: Writer = field(default_factory=lambda: Writer(1))
    allocations: list[Allocation] = field(default_factory=list[Allocation])
    has_matmuls: bool = False
    has_rankings: bool = False

    def size(self, space: Space) -> str:
        """Return the number of elements of `space`."""
        return str(space.fixed) if space.fixed is not None else self.sizes[space.name]

    def at_most(self, left: str, right: str) -> str:
        """Return the smaller of two sizes."""
        return at_most(left, right)

    def at_least(self, left: str, right: str) -> str:
        """Return the larger of two sizes."""
        return at_least(left, right)

    def blocks_of(self, size: str, tile: str) -> str:
        """Count the blocks of `tile` elements that `size` elements make."""
        return blocks_of(size, tile)

    def whole_blocks(self, size: str, tile: str) -> str:
        """Count the elements of `size` that lie in whole blocks of `tile`."""
        return whole_blocks(size, tile)

    def scratch(self, wish: str, ctype: str, count: str) -> str:
        """Name a pointer to a scratch array of this thread."""
        name = self.names.make(wish)
        self.allocations.append(Allocation(name, ctype, count))
        return name

    def array(self, wish: str, dtype: DType, dims: Sequence[Axis], scope: Scope) -> Buffer:
        """Reserve scratch for an item, dense, with room for the largest blocks."""
        extents = [scope[a].most for a in dims]
        base = self.scratch(wish, element(dtype), times(*extents))
        return Buffer(base, dtype, row_major(dims, extents), tuple(dims), {}, owned=True)

    def location(self, locations: Sequence[Location | None]) -> None:
        """Print a comment that says which of the user's lines the next lines compute."""
        for each in dict.fromkeys(str(place) for place in locations if place is not None):
            self.out.comment(each)


def localised(frame: Frame, memory: Buffer, dims: tuple[Axis, ...], scope: Scope) -> Buffer:
    """Return the part of the list `memory` that belongs to the current blocks of the loops around, as an item or a list.

    The axes of `memory` that `scope` knows are set to their current block; prints the pointer.
    """
    here = [a for a in memory.strides if a in scope]
    offset = plus(*(offset_of(memory, a, scope[a].base) for a in here))
    kept = {a: s for a, s in memory.strides.items() if a in dims or a not in scope}
    origin = {a: o for a, o in memory.origin.items() if a not in scope}
    return Buffer(pointer(frame, memory, offset), memory.dtype, kept, dims, origin)


def offset_of(memory: Buffer, axis: Axis, first: str) -> str:
    """Count the elements between the start of `memory` and element `first` of `axis`."""
    begin = memory.origin.get(axis, "0")
    if begin == first:
        return "0"
    return times(first if begin == "0" else f"{first} - {begin}", memory.strides[axis])


def pointer(frame: Frame, memory: Buffer, offset: str, *, writable: bool = True) -> str:
    """Return a pointer to `memory` moved by `offset` elements, and print its declaration."""
    if offset == "0":
        return memory.base
    name = frame.names.make(re.sub(r"_\d+$", "", memory.base))
    const = "" if writable else "const "
    frame.out.line(f"{const}{element(memory.dtype)}* const {name} = {memory.base} + {offset};")
    return name
