"""Tensor programs in which a comparison of indices decides what is added up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce

from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid, TensorProgram
from weft.tensor.scalar import Arg, Lit, Scalar, apply

F32 = DType.float32
# Argument 0 is the row, argument 1 the column, argument 2 the element.
ROW, COLUMN, ELEMENT = Arg(0), Arg(1), Arg(2)


def minus(a: Scalar, b: Scalar) -> Scalar:
    return apply("sub", a, b)


CONDITIONS: Mapping[str, tuple[Scalar, tuple[int | None, int | None]]] = {
    "column <= row": (apply("le", COLUMN, ROW), (None, 0)),
    "row >= column": (apply("ge", ROW, COLUMN), (None, 0)),
    "column < row": (apply("lt", COLUMN, ROW), (None, -1)),
    "not column > row": (apply("logical_not", apply("gt", COLUMN, ROW)), (None, 0)),
    "column <= row + 3": (apply("le", COLUMN, apply("add", ROW, Lit(3))), (None, 3)),
    "column - row >= -2": (apply("ge", minus(COLUMN, ROW), Lit(-2)), (-2, None)),
    "a window": (apply("logical_and", apply("le", COLUMN, ROW), apply("lt", minus(ROW, COLUMN), Lit(4))), (-3, 0)),
    "a distance": (apply("le", apply("abs", minus(ROW, COLUMN)), Lit(2)), (-2, 2)),
    "either of two": (
        apply("logical_or", apply("le", COLUMN, ROW), apply("le", apply("abs", minus(ROW, COLUMN)), Lit(2))),
        (None, 2),
    ),
    "twice": (
        apply("logical_and", apply("le", COLUMN, ROW), apply("le", COLUMN, apply("sub", ROW, Lit(1)))),
        (None, -1),
    ),
}
"""By name: the condition under which an element counts, and between which diagonals it holds (column minus row)."""


def _both(*conditions: Scalar) -> Scalar:
    return reduce(lambda a, b: apply("logical_and", a, b), conditions)


def _either(*conditions: Scalar) -> Scalar:
    return reduce(lambda a, b: apply("logical_or", a, b), conditions)


def _in_blocks(of: Scalar, size: int) -> Scalar:
    return apply("floor_divide", of, Lit(size))


_APART = minus(ROW, COLUMN)
_NEAR = apply("lt", apply("abs", _APART), Lit(3))
_EVERY_THIRD = minus(_APART, apply("mul", _in_blocks(_APART, 3), Lit(3)))
_CAUSAL = apply("le", COLUMN, ROW)

SPANS: Mapping[str, tuple[Scalar, list[tuple[tuple[str, ...], tuple[str, ...]]]]] = {
    "the first columns": (apply("lt", COLUMN, Lit(3)), [((), ("2",))]),
    "a window and the first columns": (
        _either(_NEAR, apply("lt", COLUMN, Lit(2))),
        [((), ("1",)), (("i-2",), ("i+2",))],
    ),
    "a window and the first columns, not above the diagonal": (
        _both(_CAUSAL, _either(apply("lt", _APART, Lit(3)), apply("lt", COLUMN, Lit(2)))),
        [((), ("i", "1")), (("i-2",), ("i",))],
    ),
    "a window and an island": (
        _either(_NEAR, _both(apply("ge", COLUMN, Lit(5)), apply("lt", COLUMN, Lit(8)))),
        [(("5",), ("7",)), (("i-2",), ("i+2",))],
    ),
    "far from the diagonal": (
        _both(apply("ge", _APART, Lit(9)), apply("lt", _APART, Lit(12))),
        [(("i-11",), ("i-9",))],
    ),
    "outside a window": (apply("logical_not", _NEAR), [((), ("i-3",)), (("i+3",), ())]),
    "blocks on the diagonal": (
        apply("eq", _in_blocks(ROW, 4), _in_blocks(COLUMN, 4)),
        [(("4*(i)//4",), ("4*(i)//4+3",))],
    ),
    "blocks near the diagonal": (
        _both(
            apply("le", minus(_in_blocks(ROW, 2), _in_blocks(COLUMN, 2)), Lit(1)),
            apply("ge", _in_blocks(ROW, 2), _in_blocks(COLUMN, 2)),
        ),
        [(("2*(i)//2-2",), ("2*(i)//2+1",))],
    ),
    "every third in a window": (
        _both(apply("eq", _EVERY_THIRD, Lit(0)), apply("lt", _APART, Lit(7)), _CAUSAL),
        [(("i-6",), ("i",))],
    ),
    "blocks of distances": (apply("eq", _in_blocks(_APART, 4), Lit(1)), [(("i-7",), ("i-4",))]),
    "below another diagonal": (apply("ge", ROW, apply("mul", COLUMN, Lit(2))), [((), ("(i)//2",))]),
    "above another diagonal": (apply("lt", ROW, apply("mul", COLUMN, Lit(2))), [(("(i+2)//2",), ())]),
    "before a diagonal across": (apply("lt", apply("add", ROW, COLUMN), Lit(9)), [((), ("-i+8",))]),
    "nothing": (_both(apply("lt", COLUMN, Lit(2)), apply("gt", COLUMN, Lit(4))), []),
    "every third": (apply("eq", _EVERY_THIRD, Lit(0)), []),
}
"""By name: the condition under which an element counts, and the least and the greatest elements of the spans where it may hold, by
the row i; no spans where it is not known to be idle anywhere, or everywhere.
"""


def chosen(condition: Scalar, otherwise: float) -> Scalar:
    return apply("where", condition, ELEMENT, Lit(otherwise))


def over_indices(b: Builder, x: Ref, expr: Scalar) -> Ref:
    """`expr` of row number, column number and element of x."""
    rows = b.unsqueeze(b.iota(x.dims[-2] or 1), 1)
    return b.elementwise(expr, (rows, b.iota(x.dims[-1] or 1), x), F32)


def row_sums(condition: Scalar, otherwise: float = 0.0) -> TensorProgram:
    """The sum of the elements of each row for which the condition holds."""
    b = Builder()
    x = b.input("x", (5, 7), F32)
    return b.finish([b.reduce(Monoid.sum, over_indices(b, x, chosen(condition, otherwise)), (1,))])


def row_maxima(condition: Scalar, otherwise: float = -math.inf) -> TensorProgram:
    """The greatest of the elements of each row for which the condition holds, and of `otherwise`."""
    b = Builder()
    x = b.input("x", (5, 7), F32)
    return b.finish([b.reduce(Monoid.max, over_indices(b, x, chosen(condition, otherwise)), (1,))])


def column_sums(condition: Scalar) -> TensorProgram:
    """The sum of the elements of each column for which the condition holds, of a matrix that is given by its columns."""
    b = Builder()
    x = b.input("x", (7, 5), F32)
    columns = b.unsqueeze(b.iota(x.dims[-2] or 1), 1)
    kept = b.elementwise(chosen(condition, 0.0), (b.iota(x.dims[-1] or 1), columns, x), F32)
    return b.finish([b.reduce(Monoid.sum, kept, (1,))])


def weighted(condition: Scalar) -> TensorProgram:
    """exp(q k^T), where the condition holds, times v."""
    b = Builder()
    q, k, v = b.input("q", (5, 3), F32), b.input("k", (7, 3), F32), b.input("v", (7, 4), F32)
    scores = over_indices(b, b.matmul(q, b.transpose(k, 0, 1)), chosen(condition, -math.inf))
    return b.finish([b.matmul(b.elementwise(apply("exp", Arg(0)), (scores,), F32), v)])
