"""Tensor programs whose reductions are one-hot: each element counts in the row that an integer says."""

from __future__ import annotations

from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import Elementwise, Input, Iota, Lookup, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, Scalar, apply

V, M, B, D = (Axis(n, Space(n.upper())) for n in "vmbd")
F32, I64 = DType.float32, DType.int64
EQUAL = apply("eq", Arg(0), Arg(1))
LEAST = -(2**63)


def chosen(
    monoid: Monoid = Monoid.max, otherwise: float = float("-inf"), condition: Scalar = EQUAL, dtype: DType = F32
) -> TensorProgram:
    """Reduce, for each v, the x of all m for which `condition` of an index of v, in i, and v holds; another integer is in j."""
    inputs = (Input("i", (M,), I64), Input("j", (M,), I64), Input("x", (M,), dtype))
    where = apply("where", condition, Arg(2), Lit(otherwise))
    uses = (Use("r", (M,)), Use("n", (V,)), Use("x", (M,)), Use("j", (M,)))
    nodes = (
        Iota("n", (V,), I64),
        Lookup("r", (M,), I64, "n", (Use("i", (M,)),)),
        Elementwise("y", (V, M), dtype, where, uses),
        Reduction("o", (V,), dtype, monoid, Use("y", (V, M)), (M,)),
    )
    return TensorProgram(inputs, nodes, ("o",))


def last(dtype: DType = F32) -> TensorProgram:
    """Find for each v the last m whose index says it, and read x there; 0 where there is none."""
    inputs = (Input("i", (M,), I64), Input("x", (M, D), dtype))
    nodes = (
        Iota("n", (V,), I64),
        Iota("k", (M,), I64),
        Lookup("r", (M,), I64, "n", (Use("i", (M,)),)),
        Elementwise(
            "y",
            (V, M),
            I64,
            apply("where", EQUAL, Arg(2), Lit(LEAST)),
            (Use("r", (M,)), Use("n", (V,)), Use("k", (M,))),
        ),
        Reduction("s", (V,), I64, Monoid.max, Use("y", (V, M)), (M,)),
        Lookup("g", (V, D), dtype, "x", (Use("s", (V,)), D)),
        Elementwise(
            "o",
            (V, D),
            dtype.accumulator,
            apply("where", apply("lt", Arg(0), Lit(0)), Lit(0.0), Arg(1)),
            (Use("s", (V,)), Use("g", (V, D))),
        ),
    )
    return TensorProgram(inputs, nodes, ("o",))


def in_rows(dtype: DType = F32) -> TensorProgram:
    """Add each x of a row to the place in its row that i says."""
    inputs = (Input("i", (B, M), I64), Input("x", (B, M), dtype))
    uses = (Use("r", (B, M)), Use("n", (V,)), Use("x", (B, M)))
    nodes = (
        Iota("n", (V,), I64),
        Lookup("r", (B, M), I64, "n", (Use("i", (B, M)),)),
        Elementwise("y", (B, V, M), dtype.accumulator, apply("where", EQUAL, Arg(2), Lit(0.0)), uses),
        Reduction("o", (B, V), dtype.accumulator, Monoid.sum, Use("y", (B, V, M)), (M,)),
    )
    return TensorProgram(inputs, nodes, ("o",))


def rows_added(dtype: DType = F32) -> TensorProgram:
    """Add each row of x to the row that i says, an integer less one."""
    inputs = (Input("i", (M,), I64), Input("x", (M, D), dtype))
    equal = apply("eq", Arg(1), apply("sub", Arg(0), Lit(1)))
    uses = (Use("i", (M,)), Use("n", (V,)), Use("x", (M, D)))
    nodes = (
        Iota("n", (V,), I64),
        Elementwise("y", (V, M, D), dtype.accumulator, apply("where", equal, Arg(2), Lit(0.0)), uses),
        Reduction("o", (V, D), dtype.accumulator, Monoid.sum, Use("y", (V, M, D)), (M,)),
    )
    return TensorProgram(inputs, nodes, ("o",))


ALL = {
    "chosen": lambda dtype=F32: chosen(dtype=dtype.accumulator),
    "last": last,
    "in_rows": in_rows,
    "rows_added": rows_added,
}
