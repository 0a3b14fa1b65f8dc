"""Tensor programs in which a mask that is a tensor decides what is added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid, TensorProgram
from weft.tensor.scalar import Arg, Lit, Scalar, apply

F32 = DType.float32
KEPT = apply("where", Arg(0), Arg(1), Lit(0.0))
FINITE = apply("where", Arg(0), Arg(1), Lit(-math.inf))


def _scores(b: Builder) -> tuple[Ref, Ref]:
    q, k, v = b.input("q", (5, 3), F32), b.input("k", (7, 3), F32), b.input("v", (7, 4), F32)
    return b.elementwise(apply("mul", Arg(0), Lit(0.125)), (b.matmul(q, b.transpose(k, 0, 1)),), F32), v


def _weighted(b: Builder, masked: Ref, v: Ref) -> TensorProgram:
    weights = b.elementwise(apply("exp", Arg(0)), (masked,), F32)
    return b.finish([b.matmul(weights, v)])


def sums(kept: Scalar = KEPT, dtype: DType = DType.bool) -> TensorProgram:
    """The sum of the elements of each row that a mask keeps."""
    b = Builder()
    x, mask = b.input("x", (5, 7), F32), b.input("mask", (5, 7), dtype)
    return b.finish([b.reduce(Monoid.sum, b.elementwise(kept, (mask, x), F32), (1,))])


def maxima() -> TensorProgram:
    """The greatest of the elements of each row that a mask keeps."""
    b = Builder()
    x, mask = b.input("x", (5, 7), F32), b.input("mask", (5, 7), DType.bool)
    return b.finish([b.reduce(Monoid.max, b.elementwise(FINITE, (mask, x), F32), (1,))])


def weighted() -> TensorProgram:
    """exp(q k^T), where a mask keeps it, times v."""
    b = Builder()
    scores, v = _scores(b)
    return _weighted(b, b.elementwise(FINITE, (b.input("mask", (5, 7), DType.bool), scores), F32), v)


def weighted_without() -> TensorProgram:
    """Weigh as above, with a mask that says what is left out."""
    b = Builder()
    scores, v = _scores(b)
    left_out = apply("where", Arg(0), Lit(-math.inf), Arg(1))
    return _weighted(b, b.elementwise(left_out, (b.input("mask", (5, 7), DType.bool), scores), F32), v)


def biased() -> TensorProgram:
    """exp(q k^T + bias) times v."""
    b = Builder()
    scores, v = _scores(b)
    return _weighted(b, b.elementwise(apply("add", Arg(0), Arg(1)), (scores, b.input("bias", (5, 7), F32)), F32), v)


def for_each_column() -> TensorProgram:
    """exp(q k^T), where a mask of columns keeps it, times v."""
    b = Builder()
    scores, v = _scores(b)
    return _weighted(b, b.elementwise(FINITE, (b.input("mask", (7,), DType.bool), scores), F32), v)


def documents() -> TensorProgram:
    """exp(q k^T), where a row and a column are of one document, times v."""
    b = Builder()
    scores, v = _scores(b)
    of_row, of_column = b.input("of_row", (5,), DType.int64), b.input("of_column", (7,), DType.int64)
    same = apply("where", apply("eq", Arg(0), Arg(1)), Arg(2), Lit(-math.inf))
    return _weighted(b, b.elementwise(same, (b.unsqueeze(of_row, 1), of_column, scores), F32), v)


def groups() -> TensorProgram:
    """Rows in groups, of which integers say the first row and the one after the last, each times the matrix of its group."""
    b = Builder()
    x, w = b.input("x", (5, 3), F32), b.input("w", (7, 3, 4), F32)
    first, end = (b.unsqueeze(b.input(name, (7,), DType.int64), 1) for name in ("first", "end"))
    within = apply("logical_and", apply("ge", Arg(0), Arg(1)), apply("lt", Arg(0), Arg(2)))
    mask = b.elementwise(within, (b.iota(5), first, end), DType.bool)
    kept = b.elementwise(KEPT, (b.unsqueeze(mask, 2), b.matmul(x, w)), F32)
    return b.finish([b.reduce(Monoid.sum, kept, (0,))])


MASKED: Mapping[str, tuple[Callable[[], TensorProgram], bool | float]] = {
    "sums": (sums, False),
    "maxima": (maxima, False),
    "weighted": (weighted, False),
    "weighted without": (weighted_without, True),
    "biased": (biased, -math.inf),
    "for each column": (for_each_column, False),
    "documents": (documents, False),
}
"""By name: the program, and what all of a block of the mask is where there is nothing to do."""
