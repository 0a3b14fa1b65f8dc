"""Blockbuster's Table 1: the functional operators, one row each, with their definitions on arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray


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
