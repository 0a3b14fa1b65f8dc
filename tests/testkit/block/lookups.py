"""Tensor programs that read where integers say: rows of a table, elements of rows, several indices, rows that are multiplied."""

from __future__ import annotations

from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Lookup,
    Monoid,
    Reduction,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Arg, Lit, apply

M, N, V, D, U, B = (Axis(n, Space(n.upper())) for n in "mnvdub")
F32, I64 = DType.float32, DType.int64
ADD, SUB = (apply(op, Arg(0), Arg(1)) for op in ("add", "sub"))


def table(dtype: DType = F32) -> TensorProgram:
    """Rows of w, others added, less the sum of each."""
    inputs = (Input("w", (V, D), dtype), Input("i", (M,), I64), Input("x", (M, D), dtype))
    nodes = (
        Lookup("r", (M, D), dtype, "w", (Use("i", (M,)), D)),
        Elementwise("y", (M, D), dtype.accumulator, ADD, (Use("r", (M, D)), Use("x", (M, D)))),
        Reduction("s", (M,), dtype.accumulator, Monoid.sum, Use("y", (M, D)), (D,)),
        Elementwise("o", (M, D), dtype.accumulator, SUB, (Use("y", (M, D)), Use("s", (M,)))),
    )
    return TensorProgram(inputs, nodes, ("o",))


def elements(dtype: DType = F32) -> TensorProgram:
    """Look up in each row of w the elements that the row of i names, those from the end among them."""
    inputs = (Input("w", (M, V), dtype), Input("i", (M, N), I64))
    wrapped = apply("where", apply("lt", Arg(0), Lit(0)), apply("add", Arg(0), Arg(1)), Arg(0))
    nodes = (
        Extent("e", (), I64, V.space),
        Elementwise("j", (M, N), I64, wrapped, (Use("i", (M, N)), Use("e", ()))),
        Lookup("r", (M, N), dtype, "w", (M, Use("j", (M, N)))),
    )
    return TensorProgram(inputs, nodes, ("r",))


def several(dtype: DType = F32) -> TensorProgram:
    """Elements of w by two indices, one of them for rows alone, a dimension between them."""
    inputs = (Input("w", (V, D, U), dtype), Input("i", (M,), I64), Input("j", (M, N), DType.int32))
    lookup = Lookup("r", (M, N, D), dtype, "w", (Use("i", (M,)), D, Use("j", (M, N))))
    return TensorProgram(inputs, (lookup,), ("r",))


def multiplied(dtype: DType = F32) -> TensorProgram:
    """Rows of w, times u."""
    inputs = (Input("w", (V, D), dtype), Input("i", (M,), I64), Input("u", (D, N), dtype))
    nodes = (
        Lookup("r", (M, D), dtype, "w", (Use("i", (M,)), D)),
        Contraction("o", (M, N), dtype.accumulator, Use("r", (M, D)), Use("u", (D, N)), (D,)),
    )
    return TensorProgram(inputs, nodes, ("o",))


def experts(dtype: DType = F32) -> TensorProgram:
    """Each row of x times the matrix of w that the row's index names."""
    inputs = (Input("w", (V, D, N), dtype), Input("i", (M,), I64), Input("x", (M, D), dtype))
    nodes = (
        Lookup("r", (M, D, N), dtype, "w", (Use("i", (M,)), D, N)),
        Contraction("o", (M, N), dtype.accumulator, Use("x", (M, D)), Use("r", (M, D, N)), (D,)),
    )
    return TensorProgram(inputs, nodes, ("o",))


def pages(dtype: DType = F32) -> TensorProgram:
    """Rows of x times those of a matrix each that two indices name, one of which says none now and then."""
    inputs = (Input("w", (V, D, M, N), dtype), Input("i", (U,), I64), Input("x", (U, B, D), dtype))
    shifted = Elementwise("j", (U,), I64, apply("sub", Arg(0), Lit(1)), (Use("i", (U,)),))
    nodes = (
        shifted,
        Lookup("r", (U, D, N), dtype, "w", (Use("j", (U,)), D, Use("i", (U,)), N), masked=True),
        Contraction("o", (U, B, N), dtype.accumulator, Use("x", (U, B, D)), Use("r", (U, D, N)), (D,)),
    )
    return TensorProgram(inputs, nodes, ("o",))


def stored(dtype: DType = F32) -> TensorProgram:
    """Adds each row of x to the row of w that the index in i names: a sum of comparisons, and no element is looked up."""
    inputs = (Input("w", (V, D), dtype), Input("i", (M,), I64), Input("x", (M, D), dtype))
    each = apply("where", apply("eq", Arg(0), Arg(1)), Arg(2), Lit(0.0))
    uses = (Use("n", (V,)), Use("r", (M,)), Use("x", (M, D)))
    nodes = (
        Iota("n", (V,), I64),
        Lookup("r", (M,), I64, "n", (Use("i", (M,)),)),
        Elementwise("y", (V, D, M), dtype.accumulator, each, uses),
        Reduction("s", (V, D), dtype.accumulator, Monoid.sum, Use("y", (V, D, M)), (M,)),
        Elementwise("o", (V, D), dtype.accumulator, ADD, (Use("w", (V, D)), Use("s", (V, D)))),
    )
    return TensorProgram(inputs, nodes, ("o",))


ALL = {
    "table": table,
    "elements": elements,
    "several": several,
    "multiplied": multiplied,
    "experts": experts,
    "pages": pages,
    "stored": stored,
}
