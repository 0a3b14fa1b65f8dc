"""Rows of a guarded iteration that need not be done: each row of the state is made of that row alone."""

from __future__ import annotations

from weft.block.program import BlockNode, Map
from weft.block.scope import Types
from weft.block.walk import every
from weft.tensor.axes import Axis


def rows_of(node: Map, types: Types) -> Axis | None:
    """Return the axis along which the guard of `node` decides row by row; None where there is none. `types`: of its body's values.

    Condition: what the guard asks has that axis alone, each component of the state has it, and nothing in an iteration reduces it.
    A row of the state then comes out as it went in where the mask is idle in that row, whatever it is in others.
    """
    if node.guard is None or node.state is None or len(types[node.guard.value].dims) != 1:
        return None
    (axis,) = types[node.guard.value].dims
    if axis == node.axis or any(axis not in c.dims for c in node.state.components):
        return None
    return None if any(_goes_over(n, axis) for n in every((*node.body.nodes, *node.state.update.nodes))) else axis


def _goes_over(node: BlockNode, axis: Axis) -> bool:
    """Tell whether `node` combines elements along `axis`."""
    return axis in (getattr(node, "over", None), getattr(node, "rank", None))
