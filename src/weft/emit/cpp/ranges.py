"""Where the blocks lie that a list in local memory can hold."""

from __future__ import annotations

from collections.abc import Mapping

from weft.block.program import Map
from weft.block.ranges import Band, First, Rest, Segment, Within
from weft.emit.cpp.frame import Frame
from weft.emit.ranges import Bounds, Scope, bounds
from weft.tensor.axes import Axis


def widest(frame: Frame, axis: Axis, inner: Mapping[Axis, Map], scope: Scope) -> Bounds:
    """Bound the blocks of `axis` that a list over it can hold: `inner` has the loops that are not entered yet.

    The list starts at `start` and has room for `most` elements.
    """
    node = inner[axis]
    match node.range:
        case Within(outer) if outer in inner:
            return widest(frame, outer, inner, scope)
        case Segment(index, _) if index in inner:
            return Bounds("0", frame.size(axis.space), frame.size(axis.space))
        case First() | Rest():  # parts of one list
            return Bounds("0", frame.size(axis.space), frame.size(axis.space))
        case Band(outer) if outer in inner:
            return Bounds("0", frame.size(axis.space), frame.size(axis.space))
        case _:
            return bounds(frame, node, scope)
