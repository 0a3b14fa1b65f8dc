"""Blockbuster's Table 1: which of the functional operators a node is.

Only `Pointwise`, `Dot` and `Collapse` exist as nodes; that a product is a row_scale follows from
its expression and from the axes of its operands. An item's first axis is its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from weft.block.program import (
    Collapse,
    Dot,
    Pointwise,
)
from weft.tensor.axes import Axis
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg

Dims = Mapping[str, tuple[Axis, ...]]


@dataclass(frozen=True, slots=True)
class RowUse:
    """A node as an application of a row; `operands` are in the order of the row's definition."""

    name: str
    operands: tuple[str, ...]


def operator(node: Pointwise | Collapse | Dot, dims: Dims) -> RowUse | None:
    """Return the row that `node` applies, given its operands' axes; None for a general expression."""
    match node:
        case Pointwise(_, Apply("add" | "mul" as op, (Arg(i), Arg(j))), args, result):
            return _binary(op, args[i], args[j], result, dims)
        case Pointwise():
            return None
        case Dot():
            return RowUse("dot", (node.left, node.right))
        case Collapse():
            return RowUse(_collapse(node.monoid, node.over, dims[node.arg]), (node.arg,))
        case _:
            assert_never(node)


def _binary(op: str, first: str, second: str, result: tuple[Axis, ...], dims: Dims) -> RowUse | None:
    """Name the sum or product of two items, by which of the result's axes each has."""
    for a, b in ((first, second), (second, first)):
        match dims[a], dims[b]:
            case left, right if result and set(left) == set(right) == set(result):
                return RowUse(op, (a, b))
            case left, (one,) if len(result) == 2 and set(left) == set(result):
                along = "row" if one == result[0] else "col"
                return RowUse(f"{along}_{'shift' if op == 'add' else 'scale'}", (a, b))
            case (row,), (column,) if op == "mul" and (row, column) == result:
                return RowUse("outer", (a, b))
            case _:
                pass
    return None


def _collapse(monoid: Monoid, over: Axis, dims: tuple[Axis, ...]) -> str:
    match dims:
        case (_, last) if over == last:
            return f"row_{monoid.name}"
        case (first, _) if over == first:
            return f"col_{monoid.name}"
        case _:
            return monoid.name
