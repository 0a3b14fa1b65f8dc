"""Programs with exponentials, operation by operation, and numbers that round as narrow types do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testkit.block.paper import INVERSE, each, row_sum
from testkit.block.programs import ADD, F32, MUL, axes, matmul, silu, tensor
from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain, rounded
from weft.tensor.program import Elementwise, Monoid, Node, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, Scalar, apply

EXP, DIV = apply("exp", Arg(0)), apply("div", Arg(0), Arg(1))
M, N, P = axes("m", "n", "p")
X, Y, MASK = tensor("x", M, N), tensor("y", M, N), tensor("mask", M, N, dtype=DType.bool)


class Narrow(Fp64Domain):
    """Numbers that are rounded after every operation, to the element type that the program gives the result.

    Sums and products are exact and then rounded to fp32, as a good kernel's are.
    """

    def elementwise(self, expr: Scalar, args: Sequence[Array], dtype: DType) -> Array:
        return (
            rounded(super().elementwise(expr, args, dtype), dtype)
            if dtype.is_float
            else super().elementwise(expr, args, dtype)
        )

    def contract(
        self,
        left: Array,
        left_axes: Sequence[int],
        right: Array,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> Array:
        return rounded(super().contract(left, left_axes, right, right_axes, out_axes), DType.float32)

    def reduce(self, monoid: Monoid, v: Array, dims: Sequence[int]) -> Array:
        found = super().reduce(monoid, v, dims)
        return rounded(found, DType.float32) if found.dtype == np.float64 else found


def over(name: str, expr: Scalar, *values: str, dtype: DType = F32) -> Elementwise:
    """An elementwise operation over m and n on values over both; a value called `t...` is a row's, `u...` a column's."""
    kinds = {"t": (M,), "u": (N,)}
    return Elementwise(name, (M, N), dtype, expr, tuple(Use(v, kinds.get(v[0], (M, N))) for v in values))


def _tensors(*nodes: Node, inputs=(X,), outputs=("out",)) -> TensorProgram:
    return TensorProgram(inputs, nodes, outputs)


def softmax() -> TensorProgram:
    """exp(x) / row_sum(exp(x))."""
    return _tensors(over("e", EXP, "x"), row_sum("t", "e", M, N), over("out", DIV, "e", "t"))


def bounded(shift: float = 0.0) -> TensorProgram:
    """A softmax of 20 tanh(x) + shift, which lies within 20 of it."""
    power = apply("add", apply("mul", apply("tanh", Arg(0)), Lit(20.0)), Lit(shift))
    return _tensors(over("e", apply("exp", power), "x"), row_sum("t", "e", M, N), over("out", DIV, "e", "t"))


def two_row_sums() -> TensorProgram:
    """Two softmaxes of different rows, added."""
    return _tensors(
        over("e", EXP, "x"), row_sum("t", "e", M, N), over("f", EXP, "y"), row_sum("t2", "f", M, N),
        over("p", DIV, "e", "t"), over("q", DIV, "f", "t2"), over("out", ADD, "p", "q"),
        inputs=(X, Y),
    )  # fmt: skip


def means_of_the_whole() -> TensorProgram:
    """sum(exp(x) * y) / sum(exp(x)), over both axes, twice: what the loops give as pairs are numbers after them."""
    whole, one = (M, N), ((), F32)
    return _tensors(
        over("e", EXP, "x"), Reduction("t", *one, Monoid.sum, Use("e", whole), whole),
        over("f", MUL, "e", "y"), Reduction("s", *one, Monoid.sum, Use("f", whole), whole),
        *(Elementwise(name, *one, DIV, (Use("s", ()), Use("t", ()))) for name in ("out", "again")),
        inputs=(X, Y), outputs=("out", "again"),
    )  # fmt: skip


def sum_of_products() -> TensorProgram:
    """sum(exp(x) exp(y)) / (sum(exp(x)) sum(exp(y)))."""
    return _tensors(
        over("e", EXP, "x"), row_sum("t", "e", M, N), over("f", EXP, "y"), row_sum("t2", "f", M, N),
        over("ef", MUL, "e", "f"), row_sum("t3", "ef", M, N), each("t4", (M,), MUL, Use("t", (M,)), Use("t2", (M,))),
        each("out", (M,), DIV, Use("t3", (M,)), Use("t4", (M,))), inputs=(X, Y),
    )  # fmt: skip


def largest_of_pairs() -> TensorProgram:
    """max(exp(x)) / sum(exp(x))."""
    return _tensors(
        over("e", EXP, "x"), row_sum("t", "e", M, N), Reduction("t2", (M,), F32, Monoid.max, Use("e", (M, N)), (N,)),
        each("out", (M,), DIV, Use("t2", (M,)), Use("t", (M,))),
    )  # fmt: skip


def clamped_below() -> TensorProgram:
    """max(exp(x), 0) / sum(exp(x))."""
    return _tensors(
        over("e", EXP, "x"), row_sum("t", "e", M, N), over("w", apply("maximum", Arg(0), Lit(0.0)), "e"),
        over("out", DIV, "w", "t"),
    )  # fmt: skip


def masked_by_zero() -> TensorProgram:
    """A softmax in which what a mask leaves out is an exact 0."""
    chosen = Elementwise("w", (M, N), F32, apply("where", Arg(0), Arg(1), Lit(0.0)),
                         (Use("mask", (M, N)), Use("e", (M, N))))  # fmt: skip
    return _tensors(over("e", EXP, "x"), chosen, row_sum("t", "w", M, N), over("out", DIV, "w", "t"), inputs=(X, MASK))


def given_away() -> TensorProgram:
    """exp(x) is wanted itself, beside its softmax."""
    return TensorProgram((X,), softmax().nodes, ("out", "e"))


def gate() -> TensorProgram:
    """x * sigmoid(x)."""
    return _tensors(over("out", silu(Arg(0)), "x"))


def sum_of_both() -> TensorProgram:
    """exp(x) over the sum of two exponentials' rows."""
    return _tensors(
        over("e", EXP, "x"), over("f", EXP, "y"), over("g", ADD, "e", "f"), row_sum("t", "g", M, N),
        over("out", DIV, "e", "t"), inputs=(X, Y),
    )  # fmt: skip


def inverse_pair() -> TensorProgram:
    """exp(x) * exp(-x), summed."""
    return _tensors(
        over("e", EXP, "x"), over("f", apply("exp", apply("neg", Arg(0))), "x"), over("ef", MUL, "e", "f"),
        row_sum("out", "ef", M, N),
    )  # fmt: skip


def over_two_axes() -> TensorProgram:
    """A softmax over the last two axes of three."""
    x = tensor("x", M, N, P)
    return TensorProgram((x,), (
        each("e", (M, N, P), EXP, Use("x", (M, N, P))),
        Reduction("t", (M,), F32, Monoid.sum, Use("e", (M, N, P)), (N, P)),
        each("out", (M, N, P), DIV, Use("e", (M, N, P)), Use("t", (M,))),
    ), ("out",))  # fmt: skip


def rows_and_columns() -> TensorProgram:
    """One exponential, over the sum of its row and over the sum of its column."""
    return _tensors(
        over("e", EXP, "x"), row_sum("t", "e", M, N), Reduction("u", (N,), F32, Monoid.sum, Use("e", (M, N)), (M,)),
        over("p", DIV, "e", "t"), over("q", DIV, "e", "u"), over("out", MUL, "p", "q"),
    )  # fmt: skip


def rows_plus_columns() -> TensorProgram:
    """Builds `rows_and_columns` with its last two values added: two pairs of one degree, 0."""
    program = rows_and_columns()
    return TensorProgram(program.inputs, (*program.nodes[:-1], over("out", ADD, "p", "q")), program.outputs)


def in_half() -> TensorProgram:
    """The mean of the rows of v, weighted by a softmax whose exponentials, and so its significands, are float16."""
    x, v = tensor("x", M, N, dtype=DType.float16), tensor("v", P, N)
    return TensorProgram((x, v), (
        over("e", EXP, "x", dtype=DType.float16), row_sum("t", "e", M, N),
        matmul("z", Use("e", (M, N)), Use("v", (P, N)), N), each("out", (M, P), DIV, Use("z", (M, P)), Use("t", (M,))),
    ), ("out",))  # fmt: skip


def times_the_inverse() -> TensorProgram:
    """exp(x) * (1 / row_sum(exp(x)))."""
    return _tensors(
        over("e", EXP, "x"), row_sum("t", "e", M, N), each("t2", (M,), INVERSE, Use("t", (M,))), over("out", MUL, "e", "t2"),
    )  # fmt: skip


CONVERTED = {
    f.__name__: f
    for f in (softmax, two_row_sums, means_of_the_whole, masked_by_zero, over_two_axes, rows_and_columns,
              rows_plus_columns, in_half, times_the_inverse)
}  # fmt: skip
"""Programs in which every exponential becomes a pair."""
PLAIN = {
    f.__name__: f
    for f in (given_away, sum_of_products, gate, largest_of_pairs, clamped_below, sum_of_both, inverse_pair)
}
"""Programs in which every exponential stays as it is."""
