"""What all of one kernel's printing shares: identifiers, lines, sizes, scratch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.block.subscripts import Subscript
from weft.emit.calls import row_major
from weft.emit.cpp.scalar import element
from weft.emit.cpp.text import Writer, at_least, at_most, blocks_of, whole_blocks
from weft.emit.cpp.values import ItemMemory, ListMemory
from weft.emit.ranges import Scope, digit_of
from weft.emit.text import Names, minus, plus, times
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

    def array(self, wish: str, dtype: DType, dims: Sequence[Axis], scope: Scope) -> ItemMemory:
        """Reserve scratch for an item, dense, with room for the largest blocks."""
        extents = [scope[a].most for a in dims]
        base = self.scratch(wish, element(dtype), times(*extents))
        return ItemMemory(base, dtype, row_major(dims, extents), tuple(dims), owned=True)

    def location(self, locations: Sequence[Location | None]) -> None:
        """Print a comment that says which of the user's lines the next lines compute."""
        for each in dict.fromkeys(str(place) for place in locations if place is not None):
            self.out.comment(each)


def part(
    frame: Frame,
    memory: ListMemory,
    at: Sequence[Subscript],
    dims: tuple[Axis, ...],
    scope: Scope,
    *,
    writable: bool = False,
) -> ItemMemory:
    """Return the item with axes `dims` that lies in `memory` at `at`; prints the pointer to it."""
    blocks, constant, strides = dict[Axis, list[str]](), list[str](), dict[Axis, str]()
    for subscript, stride, origin in zip(at, memory.strides, memory.origins, strict=True):
        plain = subscript.plain
        if plain is not None and origin != "0":
            blocks.setdefault(plain, []).append(times(minus(scope[plain].base, origin), stride))
        else:
            constant.append(times(minus(str(subscript.offset), origin), stride))
            for factor, digit in subscript.terms:
                first = digit_of(scope[digit.axis].base, digit, "/")
                blocks.setdefault(digit.axis, []).append(times(first, str(factor), stride))
        strides |= {d.axis: times(str(factor), stride) for factor, d in subscript.terms if d.axis in dims}
    # By loops from the outermost, so that a compiler finds what each loop adds to what is known before it.
    offset = plus(*constant, *(text for axis in scope for text in blocks.get(axis, ())))
    base = memory.base
    if offset != "0":
        base = frame.names.make(re.sub(r"_\d+$", "", memory.base))
        const = "" if writable else "const "
        frame.out.line(f"{const}{element(memory.dtype)}* const {base} = {memory.base} + {offset};")
    return ItemMemory(base, memory.dtype, strides, dims)
