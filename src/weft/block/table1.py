"""Blockbuster's Table 1: the functional operators, one row each, and which of them a node is.

Only `Pointwise`, `Dot` and `Collapse` exist as nodes; that a product is a row_scale follows from
its expression and from the axes of its operands. An item's first axis is its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from weft.block.program import (
    BlockNode,
    BlockType,
    Collapse,
    Dot,
    Extent,
    Fill,
    Index,
    Join,
    Literal,
    Map,
    Pointwise,
    Rank,
    Stage,
)
from weft.block.walk import operands
from weft.tensor.axes import Axis
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, operations

Dims = Mapping[str, tuple[Axis, ...]]


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of Table 1.

    Attributes:
        name: as the listings write it; the operands come in the order that `numpy` takes.
        description: what it does, in a few words.
        constraint: a Python expression over the operands and the result `r`.
        numpy: the definition on arrays.
    """

    name: str
    description: str
    constraint: str
    numpy: Callable[..., Any]


_Array: TypeAlias = NDArray[np.float64]


def _one(name: str, description: str, constraint: str, definition: Callable[[_Array], Any]) -> Operator:
    return Operator(name, description, constraint, definition)


def _two(name: str, description: str, constraint: str, definition: Callable[[_Array, _Array], _Array]) -> Operator:
    return Operator(name, description, constraint, definition)


_VECTOR = "a.ndim==2 and c.ndim==1 and a.shape[{0}]==c.size and a.shape==r.shape"
_BY_ROW, _BY_COLUMN = _VECTOR.format(0), _VECTOR.format(1)
# The paper has a.shape[1]==r.size and axis=0 here, which sums columns; its description and its
# listings sum each row.
_OF_ROWS = "a.ndim==2 and r.ndim==1 and a.shape[0]==r.size"
_OF_COLUMNS = "a.ndim==2 and r.ndim==1 and a.shape[1]==r.size"
_OF_VECTOR = "a.ndim==1 and r.ndim==0"
_SAME = "a.shape==b.shape and a.shape==r.shape"
_INNER = "a.ndim==2 and b.ndim==2 and a.shape[1]==b.shape[1] and (a.shape[0],b.shape[0])==r.shape"
_PRODUCT = "a.ndim==1 and b.ndim==1 and (a.size,b.size)==r.shape"


def _reductions(name: str, function: Callable[..., Any]) -> tuple[Operator, Operator, Operator]:
    return (
        _one(f"row_{name}", f"{name} of each row of a block", _OF_ROWS, lambda a: function(a, axis=1)),
        _one(
            f"col_{name}",
            f"{name} of each column of a block",
            _OF_COLUMNS,
            lambda a: function(a, axis=0),
        ),
        _one(name, f"{name} of a vector", _OF_VECTOR, function),
    )


_ROWS = (
    _two("add", "block addition", _SAME, lambda a, b: a + b),
    _two("mul", "block elementwise multiplication", _SAME, lambda a, b: a * b),
    _two(
        "row_shift",
        "add a value to each row of a block",
        _BY_ROW,
        lambda a, c: a + c[:, np.newaxis],
    ),
    _two(
        "row_scale",
        "multiply each row of a block by its value",
        _BY_ROW,
        lambda a, c: a * c[:, np.newaxis],
    ),
    _two(
        "col_shift",
        "add a value to each column of a block",
        _BY_COLUMN,
        lambda a, c: a + c[np.newaxis, :],
    ),
    _two(
        "col_scale",
        "multiply each column of a block by its value",
        _BY_COLUMN,
        lambda a, c: a * c[np.newaxis, :],
    ),
    _two("dot", "multiply a block with the transpose of another block", _INNER, lambda a, b: a @ b.T),
    _two("outer", "outer product of two vectors", _PRODUCT, np.outer),
    *_reductions("sum", np.sum),
    *_reductions("prod", np.prod),
    *_reductions("max", np.max),
    *_reductions("min", np.min),
)

TABLE1: Mapping[str, Operator] = {row.name: row for row in _ROWS}
"""Every row by name: the paper's seven, weft's for columns and vectors, and the other monoids.

A general expression, the paper's "elementwise operation", has no row: it is its own definition.
"""


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


def name_of(node: Pointwise | Collapse | Dot, types: Mapping[str, BlockType]) -> str | None:
    """Return Table 1's name of `node`, given the types of its operands; None for a general expression.

    It is derived from the expression and the axes, so commuted operands have the same name.
    """
    found = operator(node, {name: types[name].dims for name in operands(node)})
    return None if found is None else found.name


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


def flops(node: BlockNode, extents: Mapping[Axis, int], types: Mapping[str, BlockType]) -> int:
    """Count the arithmetic operations of one application of `node`; a multiplication with addition is two.

    Args:
        node: any operator but a map, whose operations are its body's, once an iteration.
        extents: elements of each axis in a block.
        types: of `node`'s operands; only a `Collapse` is asked for them.
    """

    def size(axes: tuple[Axis, ...]) -> int:
        return int(np.prod([extents[a] for a in axes], dtype=np.int64))

    match node:
        case Pointwise():
            return operations(node.expr) * size(node.dims)
        case Dot():
            return 2 * size((*node.dims, node.over))
        case Collapse():
            return size(types[node.arg].dims)
        case Rank():
            return size(types[node.arg].dims)
        case Index() | Literal() | Extent() | Fill() | Stage() | Join():
            return 0
        case Map():
            raise TypeError("the operations of a map are those of its body, once for each iteration")
        case _:
            assert_never(node)
