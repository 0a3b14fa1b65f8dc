"""Tensor programs that scan: sums, products and extrema of all elements of a row, or a column, up to each."""

from __future__ import annotations

from weft.block.copies import canonical
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.pipeline import fuse
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.merge import StateMerge, of_exponentials
from weft.tensor.program import Cast, Elementwise, Input, Monoid, Reduction, Scan, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, Scalar, apply

M, N = (Axis(n, Space(n.upper())) for n in "mn")
F32 = DType.float32


def scan(monoid: Monoid = Monoid.sum, dtype: DType = F32, over: Axis = N) -> TensorProgram:
    """`x` combined along `over` up to each element, as its own type or, of a bool, as int64."""
    made = DType.int64 if dtype is DType.bool else dtype.accumulator
    x, nodes = Input("x", (M, N), dtype), [Scan.of(monoid, "y", (M, N), made, Use("x", (M, N)), over)]
    if made is dtype or dtype is DType.bool:
        return TensorProgram((x,), tuple(nodes), ("y",))
    return TensorProgram((x,), (*nodes, Cast("z", (M, N), dtype, Use("y", (M, N)), semantic=True)), ("z",))


def between(over: Axis = N) -> TensorProgram:
    """Elementwise work before a scan and after it, and the difference of what it gives to what it was given."""
    both = (M, N)
    x, b = Input("x", both, F32), Input("b", (N,), F32)
    nodes = (
        Elementwise("d", both, F32, apply("mul", Arg(0), Lit(2.0)), (Use("x", both),)),
        Scan.of(Monoid.sum, "y", both, F32, Use("d", both), over),
        Elementwise("e", both, F32, apply("sub", Arg(0), Arg(1)), (Use("y", both), Use("d", both))),
        Elementwise("z", both, F32, apply("add", Arg(0), Arg(1)), (Use("y", both), Use("b", (N,)))),
    )
    return TensorProgram((x, b), nodes, ("z", "e"))


def twice() -> TensorProgram:
    """A sum and a greatest element along each row, and the sums of these sums, in one loop."""
    both = (M, N)
    nodes = (
        Scan.of(Monoid.sum, "y", both, F32, Use("x", both), N),
        Scan.of(Monoid.max, "m", both, F32, Use("x", both), N),
        Scan.of(Monoid.sum, "z", both, F32, Use("y", both), N),
    )
    return TensorProgram((Input("x", both, F32),), nodes, ("m", "z"))


def row(monoid: Monoid = Monoid.sum, dtype: DType = F32) -> TensorProgram:
    """A single row, scanned; of a float, with elementwise work on both sides."""
    made = DType.int64 if dtype is DType.bool else dtype.accumulator
    x, scanned = Input("x", (N,), dtype), Scan.of(monoid, "y", (N,), made, Use("x", (N,)), N)
    if not dtype.is_float:
        return TensorProgram((x,), (scanned,), ("y",))
    before = Elementwise("d", (N,), F32, apply("neg", Arg(0)), (Use("x", (N,)),))
    after = Elementwise("z", (N,), F32, apply("add", Arg(0), Lit(1.0)), (Use("y", (N,)),))
    return TensorProgram((x,), (before, Scan.of(monoid, "y", (N,), F32, Use("d", (N,)), N), after), ("z",))


def summed() -> TensorProgram:
    """The sum of what a scan of each row gives: of the loop nothing but its state is left."""
    scanned = Scan.of(Monoid.sum, "y", (M, N), F32, Use("x", (M, N)), N)
    total = Reduction("z", (M,), F32, Monoid.sum, Use("y", (M, N)), (N,))
    return TensorProgram((Input("x", (M, N), F32),), (scanned, total), ("z",))


def log_sums(dtype: DType = F32, over: Axis = N) -> TensorProgram:
    """The logarithms of sums of exponentials up to each element along `over`: states of two components, merged."""
    both, kind = (M, N), dtype.accumulator
    return TensorProgram(
        (Input("x", both, dtype),),
        (
            *of_states(of_exponentials(1), (Use("x", both),), (Arg(0), Lit(1.0)), kind, over),
            Elementwise("z", both, kind, _LOG_SUM, (Use("y0", both), Use("y1", both))),
        ),
        ("z",),
    )


def recurrence(dtype: DType = F32, over: Axis = N) -> TensorProgram:
    """h[t] = a[t] h[t - 1] + b[t], which begins with b[0], and the products of all a up to each element; what is merged does not
    commute.
    """
    both, kind = (M, N), dtype.accumulator
    given = tuple(Input(name, both, dtype) for name in "ab")
    nodes = of_states(LINEAR, (Use("a", both), Use("b", both)), (Arg(0), Arg(1)), kind, over)
    return TensorProgram(given, nodes, ("y0", "y1"))


def log_sums_of_a_row() -> TensorProgram:
    """Take logarithms of sums, as above, of a single row."""
    nodes = of_states(of_exponentials(1), (Use("x", (N,)),), (Arg(0), Lit(1.0)), F32, N)
    last = Elementwise("z", (N,), F32, _LOG_SUM, (Use("y0", (N,)), Use("y1", (N,))))
    return TensorProgram((Input("x", (N,), F32),), (*nodes, last), ("z",))


def of_states(
    merge: StateMerge, args: tuple[Use, ...], element: tuple[Scalar, ...], dtype: DType, over: Axis
) -> tuple[Scan, ...]:
    """All results of a scan, called y0, y1 .."""
    axes, kinds = args[0].axes, (dtype,) * merge.size
    return tuple(Scan(f"y{i}", axes, dtype, merge, args, element, kinds, i, over) for i in range(merge.size))


_LOG_SUM = apply("add", Arg(0), apply("log", Arg(1)))

LINEAR = StateMerge((1.0, 0.0), (apply("mul", Arg(0), Arg(2)), apply("add", apply("mul", Arg(2), Arg(1)), Arg(3))))
"""How two steps h -> a h + b, one after the other, are one."""


def fused(program: TensorProgram, *, doubles: bool = True) -> BlockProgram:
    """`program` fused by all rules, for a target that carries sums in float64, or for one that does not."""
    return canonical(fuse(lower(program, doubles=doubles), checked=True).last)
