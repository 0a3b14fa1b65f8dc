"""States of long loops in levels: what a few iterations add up is merged into what so many before them came to, and that again.

Level 0 is what iterations update. A function in the kernel moves what a level holds to a higher one, when the prelude says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from weft.block.program import Map, State
from weft.emit.cpp import places
from weft.emit.cpp.body import Body
from weft.emit.cpp.frame import Frame
from weft.emit.cpp.scalar import element
from weft.emit.cpp.values import ItemMemory
from weft.emit.text import factor, times

Merge: TypeAlias = Callable[[Sequence[ItemMemory], Sequence[ItemMemory]], None]
"""Prints what merges the components in the second memories into those in the first, which came before them."""


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of one loop's state, as they are printed.

    Attributes:
        count: iterations that add to level 0 before it is moved.
        done: the variable that counts the iterations.
        move: the function that moves a level.
    """

    count: int
    done: str
    move: str

    @property
    def is_new(self) -> str:
        """Return the expression that is true where level 0 has seen nothing since it was moved."""
        return f"{self.done} % {self.count} == 0"


def begun(frame: Frame, node: Map) -> Levels | None:
    """Declare the count of the iterations of `node`; None where all of them add to one level."""
    if not node.chain:
        return None
    found = Levels(node.chain, frame.names.make(f"{node.axis.name}_done"), frame.names.make(f"{node.axis.name}_move"))
    frame.out.line(f"i64 {found.done} = 0;")
    return found


def declare(body: Body, levels: Levels, memories: Sequence[ItemMemory], merge: Merge) -> None:
    """Print the function that moves levels of a state, whose components `memories` are level 0 of; `body`: what the loop is in."""
    frame = body.frame
    reserved = [_reserved(body, memory) for memory in memories]
    shared = [
        f"&{name}"
        for memory, above in zip(memories, reserved, strict=True)
        if memory.variable
        for name in (memory.base, above)
    ]
    captured = ", ".join(["=", *shared])
    head = f"const auto {levels.move} = [{captured}](int from, int to, bool add) __attribute__((noinline))"
    with frame.out.block(head, "};"):
        newer, older = (
            [_at(body, memory, above, which) for memory, above in zip(memories, reserved, strict=True)]
            for which in ("from", "to")
        )
        with frame.out.block("if (add)"):
            merge(older, newer)
        with frame.out.block("else"):
            for to, value in zip(older, newer, strict=True):
                if to.variable:
                    frame.out.line(f"{to.base} = {value.base};")
                else:
                    size = f"{_size(body, to)} * sizeof({element(to.dtype)})"
                    frame.out.line(f"__builtin_memcpy({to.base}, {value.base}, {size});")


def step(body: Body, state: State, levels: Levels, carried: Mapping[str, tuple[ItemMemory, str]]) -> None:
    """Print what comes after an iteration: where level 0 has its terms, it is moved, and begins anew."""
    frame = body.frame
    frame.out.line(f"{levels.done} += 1;")
    with frame.out.block(f"if ({levels.is_new})"):
        frame.out.line(f"weft::move_levels<{levels.count}>({levels.done}, {levels.move});")
        for component in state.components:
            memory, has_value = carried[component.name]
            if has_value == "true":
                places.fill(frame, body.scope, memory, component.init)


def end(frame: Frame, levels: Levels) -> None:
    """Print what merges all levels, in level 0."""
    frame.out.line(f"weft::merge_levels<{levels.count}>({levels.done}, {levels.move});")


def _reserved(body: Body, memory: ItemMemory) -> str:
    """Reserve memory for the levels above `memory`."""
    frame = body.frame
    if memory.variable:
        name = frame.names.make(f"{memory.base}_levels")
        frame.out.line(f"{element(memory.dtype)} {name}[weft::kLevels];")
        return name
    return frame.scratch(f"{memory.base}_levels", element(memory.dtype), f"weft::kLevels * {_size(body, memory)}")


def _size(body: Body, memory: ItemMemory) -> str:
    return factor(times(*(body.scope[a].most for a in memory.dims)))


def _at(body: Body, memory: ItemMemory, above: str, which: str) -> ItemMemory:
    """Print where the level `which` of `memory` lies."""
    frame, ctype = body.frame, element(memory.dtype)
    base = frame.names.make(f"{memory.base}_{which}")
    if memory.variable:
        frame.out.line(f"{ctype}& {base} = {which} ? {above}[{which} - 1] : {memory.base};")
    else:
        level = f"{above} + ({which} - 1) * {_size(body, memory)}"
        frame.out.line(f"{ctype}* const {base} = {which} ? {level} : {memory.base};")
    return replace(memory, base=base)
