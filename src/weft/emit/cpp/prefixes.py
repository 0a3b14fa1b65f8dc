"""Prefixes: of numbers, calls of `scan.h` for rows that lie side by side; of other states, a loop along each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from weft.block.program import Prefix
from weft.emit.cpp import nests, places
from weft.emit.cpp.body import Accumulator, Body
from weft.emit.cpp.rankings import at_row, in_rows, stride
from weft.emit.cpp.scalar import CTYPE, Text, coerced, element, expression, loaded, stored
from weft.emit.cpp.values import ItemMemory
from weft.emit.kinds import Kind, kind_of
from weft.emit.text import stripped
from weft.tensor.axes import Axis
from weft.tensor.program import Monoid


def prefix(body: Body, node: Prefix, accumulators: Mapping[str, Accumulator]) -> None:
    """Print a prefix: its elements go where they will lie in the end, if that is known."""
    del accumulators
    frame, scope = body.frame, body.scope
    there = body.in_memory(dict.fromkeys((*node.args, *node.accs)))
    args, accs = [there[name] for name in node.args], [there[name] for name in node.accs]
    made, totals = list[ItemMemory](), list[ItemMemory]()
    for place, (acc, dtype) in enumerate(zip(accs, node.dtypes, strict=True)):
        name, total = node.names[place], node.totals[place]
        home = body.homes.get(name)
        if home is None or home.dtype is not dtype:
            home = frame.array(name, dtype, nests.in_loops(scope, node.dims), scope)
        made.append(home)
        totals.append(places.fresh(frame, total, acc.dtype, node.rows, scope))
    frame.location([node.location])
    monoid = node.merge.monoid
    if monoid is None:
        _merged(body, node, args, accs, made, totals)
    else:
        _combined(body, node, monoid, (args[0], accs[0], made[0], totals[0]))
    body.values |= dict(zip((*node.names, *node.totals), (*made, *totals), strict=True))


PRINTERS: Mapping[type, Callable[[Body, Any, Mapping[str, Accumulator]], None]] = {Prefix: prefix}
"""What prints the operators of this module."""


def _combined(
    body: Body, node: Prefix, monoid: Monoid, memories: tuple[ItemMemory, ItemMemory, ItemMemory, ItemMemory]
) -> None:
    """Print the call that combines numbers: those read, what came before, the results, and the wholes."""
    arg, acc, home, total = memories
    frame, scope = body.frame, body.scope
    frame.headers.add("scan.h")
    side = _beside(arg, node.rows)
    names = {a: frame.names.make("row") for a in node.rows if a != side}
    parts = [
        text
        for memory, along in ((home, True), (arg, True), (total, False), (acc, False))
        for text in (at_row(memory, names), *([stride(memory, node.over)] if along else []), stride(memory, side))
    ]
    call = f"weft::prefix<weft::Up{monoid.name.capitalize()}, {element(acc.dtype)}>"
    counts = [scope[node.over].valid, "1" if side is None else scope[side].valid]
    in_rows(
        frame.out, [(name, scope[a].valid) for a, name in names.items()], f"{call}({', '.join((*parts, *counts))});"
    )


def _beside(arg: ItemMemory, rows: tuple[Axis, ...]) -> Axis | None:
    """Choose the axis whose elements are gone over together: one along which they are known to lie side by side, or the last."""
    dense = (a for a in rows if arg.strides.get(a) == "1")
    return next(dense, rows[-1] if rows else None)


def _merged(
    body: Body,
    node: Prefix,
    args: list[ItemMemory],
    accs: list[ItemMemory],
    made: list[ItemMemory],
    totals: list[ItemMemory],
) -> None:
    """Print loops over rows, and in them one along each that merges one element after the other."""
    frame, scope, out = body.frame, body.scope, body.frame.out
    index = {a: frame.names.make("row") for a in node.rows} | {node.over: frame.names.make("at")}
    kinds: list[Kind] = [kind_of(acc.dtype) for acc in accs]
    state = [frame.names.make("state") for _ in kinds]
    with ExitStack() as loops:
        for axis in node.rows:
            head = f"for (i64 {index[axis]} = 0; {index[axis]} < {scope[axis].valid}; ++{index[axis]})"
            loops.enter_context(out.block(head))
        for name, kind, acc in zip(state, kinds, accs, strict=True):
            before = coerced(loaded(places.spelled_at(acc, index), acc.dtype), kind)
            out.line(f"{CTYPE[kind]} {name} = {stripped(before)};")
        at = index[node.over]
        with out.block(f"for (i64 {at} = 0; {at} < {scope[node.over].valid}; ++{at})"):
            own, wholes = list[str](), list[str]()
            for kind, arg in zip(kinds, args, strict=True):
                own.append(frame.names.make("own"))
                read = coerced(loaded(places.spelled_at(arg, index), arg.dtype), kind)
                out.line(f"const {CTYPE[kind]} {own[-1]} = {stripped(read)};")
            texts = [Text(name, kind) for name, kind in zip((*state, *own), (*kinds, *kinds), strict=True)]
            for kind, part in zip(kinds, node.merge.parts, strict=True):
                wholes.append(frame.names.make("whole"))
                out.line(f"const {CTYPE[kind]} {wholes[-1]} = {stripped(coerced(expression(part, texts), kind))};")
            for name, whole, kind, home in zip(state, wholes, kinds, made, strict=True):
                out.line(f"{name} = {whole};")
                out.line(stored(places.spelled_at(home, index), home.dtype, Text(whole, kind)))
        for name, kind, total in zip(state, kinds, totals, strict=True):
            out.line(stored(places.spelled_at(total, index), total.dtype, Text(name, kind)))
