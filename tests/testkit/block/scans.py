"""Tensor programs that scan: sums, products and extrema of all elements of a row, or a column, up to each."""

from __future__ import annotations

from weft.block.copies import canonical
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.pipeline import fuse
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import Cast, Elementwise, Input, Monoid, Reduction, Scan, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, apply

M, N = (Axis(n, Space(n.upper())) for n in "mn")
F32 = DType.float32


def scan(monoid: Monoid = Monoid.sum, dtype: DType = F32, over: Axis = N) -> TensorProgram:
    """`x` combined along `over` up to each element, as its own type or, of a bool, as int64."""
    made = DType.int64 if dtype is DType.bool else dtype.accumulator
    x, nodes = Input("x", (M, N), dtype), [Scan("y", (M, N), made, monoid, Use("x", (M, N)), over)]
    if made is dtype or dtype is DType.bool:
        return TensorProgram((x,), tuple(nodes), ("y",))
    return TensorProgram((x,), (*nodes, Cast("z", (M, N), dtype, Use("y", (M, N)), semantic=True)), ("z",))


def between(over: Axis = N) -> TensorProgram:
    """Elementwise work before a scan and after it, and the difference of what it gives to what it was given."""
    both = (M, N)
    x, b = Input("x", both, F32), Input("b", (N,), F32)
    nodes = (
        Elementwise("d", both, F32, apply("mul", Arg(0), Lit(2.0)), (Use("x", both),)),
        Scan("y", both, F32, Monoid.sum, Use("d", both), over),
        Elementwise("e", both, F32, apply("sub", Arg(0), Arg(1)), (Use("y", both), Use("d", both))),
        Elementwise("z", both, F32, apply("add", Arg(0), Arg(1)), (Use("y", both), Use("b", (N,)))),
    )
    return TensorProgram((x, b), nodes, ("z", "e"))


def twice() -> TensorProgram:
    """A sum and a greatest element along each row, and the sums of these sums, in one loop."""
    both = (M, N)
    nodes = (
        Scan("y", both, F32, Monoid.sum, Use("x", both), N),
        Scan("m", both, F32, Monoid.max, Use("x", both), N),
        Scan("z", both, F32, Monoid.sum, Use("y", both), N),
    )
    return TensorProgram((Input("x", both, F32),), nodes, ("m", "z"))


def row(monoid: Monoid = Monoid.sum, dtype: DType = F32) -> TensorProgram:
    """A single row, scanned; of a float, with elementwise work on both sides."""
    made = DType.int64 if dtype is DType.bool else dtype.accumulator
    x, scanned = Input("x", (N,), dtype), Scan("y", (N,), made, monoid, Use("x", (N,)), N)
    if not dtype.is_float:
        return TensorProgram((x,), (scanned,), ("y",))
    before = Elementwise("d", (N,), F32, apply("neg", Arg(0)), (Use("x", (N,)),))
    after = Elementwise("z", (N,), F32, apply("add", Arg(0), Lit(1.0)), (Use("y", (N,)),))
    return TensorProgram((x,), (before, Scan("y", (N,), F32, monoid, Use("d", (N,)), N), after), ("z",))


def summed() -> TensorProgram:
    """The sum of what a scan of each row gives: of the loop nothing but its state is left."""
    scanned = Scan("y", (M, N), F32, Monoid.sum, Use("x", (M, N)), N)
    total = Reduction("z", (M,), F32, Monoid.sum, Use("y", (M, N)), (N,))
    return TensorProgram((Input("x", (M, N), F32),), (scanned, total), ("z",))


def fused(program: TensorProgram, *, doubles: bool = True) -> BlockProgram:
    """`program` fused by all rules, for a target that carries sums in float64, or for one that does not."""
    return canonical(fuse(lower(program, doubles=doubles), checked=True).last)
