"""Whether an iteration of a guarded loop has anything to do."""

from __future__ import annotations

from weft.block.guard import Guard
from weft.emit.cpp.body import Body
from weft.emit.cpp.places import spelled_at
from weft.emit.cpp.scalar import number
from weft.emit.kinds import kind_of


def idle(body: Body, guard: Guard) -> str:
    """Print what finds out whether all elements of a value of `body` are idle, and return the condition that they are.

    It is read where it lies, and put in memory first where it is computed.
    """
    item = body.in_memory({guard.value: None})[guard.value]
    frame, kind = body.frame, kind_of(item.dtype)
    value = number(guard.idle, kind)
    if item.variable or not item.dims:
        return f"weft::all_are({value}, &{spelled_at(item, {})}, 0, 0, 1, 1)"
    *around, last = item.dims
    row = around.pop() if around else None
    found = frame.names.make(f"{guard.value}_idle")
    frame.out.line(f"bool {found} = true;")
    index = {axis: frame.names.make("i") for axis in around}
    for axis, name in index.items():
        frame.out.line(f"for (i64 {name} = 0; {found} && {name} < {body.scope[axis].valid}; ++{name})")
        frame.out.depth += 1
    at = spelled_at(item, index | {axis: "0" for axis in (row, last) if axis is not None})
    strides = ("0" if row is None else item.strides[row], item.strides[last])
    counts = ("1" if row is None else body.scope[row].valid, body.scope[last].valid)
    frame.out.line(f"{found} = weft::all_are({value}, &{at}, {', '.join((*strides, *counts))});")
    frame.out.depth -= len(index)
    return found
