"""Tensor programs that read beside where elements are: joined, padded, rolled and reversed tensors."""

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
from weft.tensor.scalar import Arg, Lit, Scalar, apply

M, N, D, L = (Axis(n, Space(n.upper())) for n in "mndl")
F32, I64 = DType.float32, DType.int64
INDEX = (Iota("i", (L,), I64), Extent("e", (), I64, N.space))


def place(expr: Scalar, name: str = "j") -> Elementwise:
    """An index of l: `expr` of its number and of the length N."""
    return Elementwise(name, (L,), I64, expr, (Use("i", (L,)), Use("e", ())))


def window(name: str, source: str, index: str, dtype: DType, *, last: bool = True) -> Lookup:
    """The elements of `source`, of (M, N) or of (N, M), where `index` of l says, along N."""
    where = Use(index, (L,))
    axes, places = ((M, L), (M, where)) if last else ((L, M), (where, M))
    return Lookup(name, axes, dtype, source, places, masked=True)


def joined(dtype: DType = F32, *, last: bool = True) -> TensorProgram:
    """x, and behind it y, along the last dimension or the first, doubled."""
    second = Axis("d", D.space)
    shapes = ((M, N), (M, second)) if last else ((N, M), (second, M))
    own = (M, L) if last else (L, M)
    choice = apply("where", apply("lt", Arg(2), Arg(3)), Arg(0), Arg(1))
    args = (Use("a", own), Use("b", own), Use("i", (L,)), Use("e", ()))
    nodes = (
        *INDEX,
        place(apply("sub", Arg(0), Arg(1))),
        window("a", "x", "i", dtype, last=last),
        window("b", "y", "j", dtype, last=last),
        Elementwise("c", own, dtype.accumulator, choice, args),
        Elementwise("o", own, dtype.accumulator, apply("add", Arg(0), Arg(0)), (Use("c", own),)),
    )
    return TensorProgram((Input("x", shapes[0], dtype), Input("y", shapes[1], dtype)), nodes, ("o",))


def rows(dtype: DType = F32) -> TensorProgram:
    """Rows of x, and behind them those of y."""
    return joined(dtype, last=False)


def read_at(expr: Scalar, dtype: DType) -> TensorProgram:
    """Elements of x at `expr` of their number and of the length N, plus one."""
    more = apply("add", Arg(0), Lit(1.0))
    nodes = (
        *INDEX,
        place(expr),
        window("a", "x", "j", dtype),
        Elementwise("o", (M, L), dtype.accumulator, more, (Use("a", (M, L)),)),
    )
    return TensorProgram((Input("x", (M, N), dtype),), nodes, ("o",))


def padded(dtype: DType = F32) -> TensorProgram:
    """Three elements that are not there come first."""
    return read_at(apply("sub", Arg(0), Lit(3)), dtype)


def rolled(dtype: DType = F32) -> TensorProgram:
    """The last two come first."""
    moved = apply("sub", Arg(0), Lit(2))
    return read_at(apply("where", apply("lt", moved, Lit(0)), apply("add", moved, Arg(1)), moved), dtype)


def rolled_by_remainder(dtype: DType = F32) -> TensorProgram:
    """The last two come first, whatever the length is; along rows, which loops may go through one by one."""
    made, moved = rolled(dtype), apply("sub", Arg(0), Lit(2))
    whole = apply("mul", apply("floor_divide", moved, Arg(1)), Arg(1))
    index, read = place(apply("sub", moved, whole)), window("a", "x", "j", dtype, last=False)
    more = Elementwise("o", (L, M), dtype.accumulator, apply("add", Arg(0), Lit(1.0)), (Use("a", (L, M)),))
    return TensorProgram((Input("x", (N, M), dtype),), (*made.nodes[:2], index, read, more), ("o",))


def backwards(dtype: DType = F32) -> TensorProgram:
    """From the last to the first, one that is not there before them."""
    return read_at(apply("sub", Arg(1), Arg(0)), dtype)


def every_other(dtype: DType = F32) -> TensorProgram:
    """Two steps at a time."""
    return read_at(apply("mul", Arg(0), Lit(2)), dtype)


def summed(dtype: DType = F32) -> TensorProgram:
    """The sum of each row of joined tensors."""
    made = joined(dtype)
    total = Reduction("s", (M,), dtype.accumulator, Monoid.sum, Use("o", (M, L)), (L,))
    return TensorProgram(made.inputs, (*made.nodes, total), ("s",))


def multiplied(dtype: DType = F32) -> TensorProgram:
    """Joined tensors times u."""
    made, second = joined(dtype), Axis("d1", D.space)
    product = Contraction("p", (M, second), dtype.accumulator, Use("o", (M, L)), Use("u", (L, second)), (L,))
    return TensorProgram((*made.inputs, Input("u", (L, second), dtype)), (*made.nodes, product), ("p",))


ALL = {
    each.__name__: each
    for each in (joined, rows, padded, rolled, rolled_by_remainder, backwards, every_other, summed, multiplied)
}
