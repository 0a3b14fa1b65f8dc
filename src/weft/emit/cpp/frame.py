"""What all of one kernel's printing shares: identifiers, lines, sizes, scratch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from weft.block.subscripts import Subscript
from weft.emit.calls import row_major
from weft.emit.cpp.scalar import element
from weft.emit.cpp.text import SPELLING, Writer
from weft.emit.cpp.values import ItemMemory, ListMemory
from weft.emit.frame import KernelFrame
from weft.emit.ranges import Scope, digit_of
from weft.emit.text import Spelling, minus, plus, times
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType


@dataclass(frozen=True, slots=True)
class Allocation:
    """A scratch array of one thread: `count` elements of C++ type `ctype`."""

    name: str
    ctype: str
    count: str


@dataclass
class Frame(KernelFrame[Writer]):
    """One kernel being printed.

    Attributes:
        allocations: the scratch of one thread.
        headers: what it includes besides the prelude.
        looked_up: the lengths of dimensions in which indices say where to read.
        given: the variables that the kernel's arguments are in.
    """

    spelling: ClassVar[Spelling] = SPELLING
    allocations: list[Allocation] = field(default_factory=list[Allocation])
    has_matmuls: bool = False
    headers: set[str] = field(default_factory=set[str])
    looked_up: dict[str, None] = field(default_factory=dict[str, None])
    given: list[str] = field(default_factory=list[str])

    def hold(self, text: str, wish: str) -> str:
        """Declare a new name for the size `text`, and return it."""
        name = self.names.make(wish)
        self.out.line(f"const i64 {name} = {text};")
        return name

    def leave(self, condition: str) -> None:
        """Go on with the next program where `condition` holds."""
        self.out.line(f"if ({condition}) continue;")

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


def part(
    frame: Frame,
    memory: ListMemory,
    at: Sequence[Subscript],
    dims: tuple[Axis, ...],
    scope: Scope,
    *,
    writable: bool = False,
) -> ItemMemory:
    """Return the item with axes `dims` that lies in `memory` at `at`; prints the pointer to it. What indices say counts as 0."""
    blocks, constant, strides = dict[Axis, list[str]](), list[str](), dict[Axis, str]()
    for subscript, stride, origin in zip(at, memory.strides, memory.origins, strict=True):
        if subscript.index is not None:
            continue
        plain = subscript.plain
        if plain is not None and origin != "0":
            blocks.setdefault(plain, []).append(times(minus(scope[plain].base, origin), stride))
        else:
            constant.append(times(minus(str(subscript.offset), origin), stride))
            for factor, digit in subscript.terms:
                first = digit_of(scope[digit.axis].base, digit, SPELLING)
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
