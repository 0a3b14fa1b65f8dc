"""Prefixes: a scan of the block, whose elements go on from what came before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.block.program import Prefix
from weft.emit.kinds import kind_of
from weft.emit.triton.body import Body
from weft.emit.triton.prelude import combiner
from weft.emit.triton.scalar import COMPUTED, Text, coerced
from weft.emit.triton.text import call
from weft.emit.triton.values import Tile


def prefix(body: Body, node: Prefix) -> None:
    """Print the two results of `node`: the elements combined, and what they come to."""
    frame, acc = body.frame, body.item(node.acc)
    tile = body.combinable(node.name, body.item(node.arg), node.over, node.monoid.identity)
    frame.location([node.location])
    kind, where = kind_of(acc.dtype), str(tile.dims.index(node.over))
    own = frame.hold(coerced(Text(tile.computed, tile.kind), kind), node.name)
    scanned = frame.hold(call("tl.associative_scan", own, where, combiner(node.monoid)), node.name)
    whole = frame.hold(call("tl.reduce", own, where, combiner(node.monoid)), node.total)
    rest = tuple(a for a in tile.dims if a != node.over)
    before = body.aligned(acc.computed, acc.dims, tile.dims)
    made = frame.hold(call(combiner(node.monoid), before, scanned), node.name)
    total = call(combiner(node.monoid), body.aligned(acc.computed, acc.dims, rest), whole)
    held = COMPUTED[kind]
    body.values[node.name] = Tile(made, tile.dims, held, node.dtype)
    body.values[node.total] = Tile(frame.hold(total, node.total), rest, held, acc.dtype)


PRINTERS: Mapping[type, Callable[[Body, Any], None]] = {Prefix: prefix}
"""What prints the operators of this module."""
