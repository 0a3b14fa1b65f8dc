"""Prefixes, printed as calls of `scan.h`: one for the rows of an item that lie side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.block.program import Prefix
from weft.emit.cpp import nests, places
from weft.emit.cpp.body import Accumulator, Body
from weft.emit.cpp.rankings import at_row, in_rows, stride
from weft.emit.cpp.scalar import element
from weft.emit.cpp.values import ItemMemory
from weft.tensor.axes import Axis


def prefix(body: Body, node: Prefix, accumulators: Mapping[str, Accumulator]) -> None:
    """Print a prefix: its elements go where they will lie in the end, if that is known."""
    del accumulators
    frame, scope = body.frame, body.scope
    there = body.in_memory({node.arg: None, node.acc: None})
    arg, acc = there[node.arg], there[node.acc]
    home = body.homes.get(node.name)
    if home is None or home.dtype is not node.dtype:
        home = frame.array(node.name, node.dtype, nests.in_loops(scope, node.dims), scope)
    rows = tuple(a for a in node.dims if a != node.over)
    total = (
        frame.array(node.total, acc.dtype, rows, scope) if rows else places.variable(frame, node.total, acc.dtype, None)
    )
    frame.headers.add("scan.h")
    frame.location([node.location])
    side = _beside(arg, rows)
    names = {a: frame.names.make("row") for a in rows if a != side}
    parts = [
        text
        for memory, along in ((home, True), (arg, True), (total, False), (acc, False))
        for text in (at_row(memory, names), *([stride(memory, node.over)] if along else []), stride(memory, side))
    ]
    call = f"weft::prefix<weft::Up{node.monoid.name.capitalize()}, {element(acc.dtype)}>"
    counts = [scope[node.over].valid, "1" if side is None else scope[side].valid]
    in_rows(
        frame.out, [(name, scope[a].valid) for a, name in names.items()], f"{call}({', '.join((*parts, *counts))});"
    )
    body.values |= {node.name: home, node.total: total}


PRINTERS: Mapping[type, Callable[[Body, Any, Mapping[str, Accumulator]], None]] = {Prefix: prefix}
"""What prints the operators of this module."""


def _beside(arg: ItemMemory, rows: tuple[Axis, ...]) -> Axis | None:
    """Choose the axis whose elements are gone over together: one along which they are known to lie side by side, or the last."""
    dense = (a for a in rows if arg.strides.get(a) == "1")
    return next(dense, rows[-1] if rows else None)
