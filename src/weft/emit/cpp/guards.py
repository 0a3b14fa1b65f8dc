"""Whether an iteration of a guarded loop has anything to do."""

from __future__ import annotations

from collections.abc import Sequence

from weft.block.guard import Guard
from weft.emit.cpp.body import Body
from weft.emit.cpp.places import spelled_at
from weft.emit.cpp.scalar import number
from weft.emit.cpp.values import ItemMemory
from weft.emit.kinds import kind_of


def done(body: Body, guard: Guard) -> str:
    """Print what finds out whether `guard` leaves an iteration out, and return the condition that it does not.

    What it asks is read where it lies, and put in memory first where it is computed.
    """
    item = body.in_memory({guard.value: None})[guard.value]
    found = list[str]()
    for each, alike in guard.left_out:
        name = _all_are(body, item, number(each, kind_of(item.dtype)), f"{guard.value}_is", found)
        found.append(f"!{name}" if alike else name)
    return " && ".join(found)


def _all_are(body: Body, item: ItemMemory, value: str, stem: str, before: Sequence[str]) -> str:
    """Print whether all elements of `item` are `value`, which is asked where the conditions `before` hold; named `stem`."""
    frame = body.frame
    found = frame.names.make(stem)
    unknown = "".join(f"{each} && " for each in before)
    if item.variable or not item.dims:
        asked = f"weft::all_are({value}, &{spelled_at(item, {})}, 0, 0, 1, 1)"
        frame.out.line(f"const bool {found} = {unknown}{asked};")
        return found
    *around, last = item.dims
    row = around.pop() if around else None
    index = {axis: frame.names.make("i") for axis in around}
    if index:
        frame.out.line(f"bool {found} = {unknown}true;")
    for axis, name in index.items():
        frame.out.line(f"for (i64 {name} = 0; {found} && {name} < {body.scope[axis].valid}; ++{name})")
        frame.out.depth += 1
    at = spelled_at(item, index | {axis: "0" for axis in (row, last) if axis is not None})
    strides = ("0" if row is None else item.strides[row], item.strides[last])
    counts = ("1" if row is None else body.scope[row].valid, body.scope[last].valid)
    asked = f"weft::all_are({value}, &{at}, {', '.join((*strides, *counts))})"
    frame.out.line(f"{found} = {asked};" if index else f"const bool {found} = {unknown}{asked};")
    frame.out.depth -= len(index)
    return found
