"""Where the blocks lie that a list in local memory can hold."""

from __future__ import annotations

from collections.abc import Mapping

from weft.block.program import Map
from weft.block.size import begins_of
from weft.emit.cpp.frame import Frame
from weft.emit.ranges import Bounds, Scope, bounds
from weft.tensor.axes import Axis


def widest(frame: Frame, axis: Axis, inner: Mapping[Axis, Map], scope: Scope) -> Bounds:
    """Bound the blocks of `axis` that a list over it can hold: `inner` has the loops that are not entered yet.

    The list starts at `start` and has room for `most` elements.
    """
    node = inner[axis]
    limits = node.range.bounds(axis.space, node.tile)
    outer = node.range.through
    if outer is not None and outer in inner:
        return widest(frame, outer, inner, scope)
    in_parts = node.range.one_block or node.range.follows is not None
    if in_parts or not begins_of(limits.start).isdisjoint(inner) or not begins_of(limits.stop).isdisjoint(inner):
        return Bounds("0", frame.size(axis.space), frame.size(axis.space))
    return bounds(frame, node, scope)
