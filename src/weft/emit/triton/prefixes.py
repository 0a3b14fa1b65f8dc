"""Prefixes: a scan of the block, whose elements go on from what came before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.block.program import Prefix
from weft.emit.kinds import Kind, kind_of
from weft.emit.triton.body import Body
from weft.emit.triton.frame import spread
from weft.emit.triton.merges import merger
from weft.emit.triton.prelude import combiner
from weft.emit.triton.scalar import COMPUTED, Text, cast, coerced
from weft.emit.triton.text import call
from weft.emit.triton.values import Tile
from weft.tensor.axes import Axis


def prefix(body: Body, node: Prefix) -> None:
    """Print the results of `node`: the states of elements merged, and what they come to."""
    frame, accs = body.frame, [body.item(name) for name in node.accs]
    given = zip(node.names, node.args, node.merge.begin, strict=True)
    tiles = [body.combinable(name, body.item(arg), node.over, begin) for name, arg, begin in given]
    frame.location([node.location])
    dims = tiles[0].dims
    kinds: list[Kind] = [kind_of(acc.dtype) for acc in accs]
    rest, where = tuple(a for a in dims if a != node.over), str(dims.index(node.over))
    own = [
        frame.hold(body.aligned(coerced(Text(t.computed, t.kind), kind), t.dims, dims), name)
        for t, kind, name in zip(tiles, kinds, node.names, strict=True)
    ]
    monoid = node.merge.monoid
    if monoid is not None:
        scanned = frame.hold(call("tl.associative_scan", own[0], where, combiner(monoid)), node.name)
        whole = frame.hold(call("tl.reduce", own[0], where, combiner(monoid)), node.totals[0])
        before = body.aligned(accs[0].computed, accs[0].dims, dims)
        made = [frame.hold(call(combiner(monoid), before, scanned), node.name)]
        totals = [call(combiner(monoid), body.aligned(accs[0].computed, accs[0].dims, rest), whole)]
    else:
        merge, states = merger(frame, node.merge, kinds), f"({', '.join(own)})"
        scanned = frame.hold_all(call("tl.associative_scan", states, where, merge), node.names)
        before = [call("tl.broadcast_to", body.aligned(acc.computed, acc.dims, dims), body.shape(dims)) for acc in accs]
        made = frame.hold_all(call(merge, *before, *scanned), node.names)
        totals = [_last(body, name, kind, dims, node.over) for name, kind in zip(made, kinds, strict=True)]
    for place, (acc, kind) in enumerate(zip(accs, kinds, strict=True)):
        held = COMPUTED[kind]
        body.values[node.names[place]] = Tile(made[place], dims, held, node.dtypes[place])
        total = frame.hold(totals[place], node.totals[place])
        body.values[node.totals[place]] = Tile(total, rest, held, acc.dtype)


PRINTERS: Mapping[type, Callable[[Body, Any], None]] = {Prefix: prefix}
"""What prints the operators of this module."""


def _last(body: Body, name: str, kind: Kind, dims: tuple[Axis, ...], over: Axis) -> str:
    """Spell the last elements along `over` of a tensor: a reduction would merge elements in another order than that of the row."""
    lanes = body.frame.lanes[over]
    there = spread(f"({lanes.index} == {lanes.count} - 1)", dims, (over,))
    chosen = call("tl.where", there, name, "False" if kind == "bool" else cast("0", COMPUTED[kind]))
    total = call("tl.sum", chosen, f"axis={dims.index(over)}")
    return f"({total} != 0)" if kind == "bool" else total
