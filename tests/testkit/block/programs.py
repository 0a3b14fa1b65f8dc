"""Tensor programs written by hand, for the tests of everything that starts from one."""

from __future__ import annotations

from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Contraction,
    Elementwise,
    Input,
    Monoid,
    Reduction,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Arg, Lit, Scalar, apply

F32 = DType.float32
ADD, MUL = apply("add", Arg(0), Arg(1)), apply("mul", Arg(0), Arg(1))
SQUARE = apply("mul", Arg(0), Arg(0))


def axes(*names: str) -> list[Axis]:
    """Axes m, n ... over spaces M, N ...; `m2` is a second axis over M."""
    return [Axis(n, Space(n.rstrip("0123456789").upper())) for n in names]


def tensor(name: str, *over: Axis, dtype: DType = F32) -> Input:
    """An input over its own axes (each use binds them to others), named as `over`'s spaces."""
    return Input(name, tuple(Axis(f"{name}.{a.name}", a.space) for a in over), dtype)


def matmul(name: str, left: Use, right: Use, over: Axis, dtype: DType = F32) -> Contraction:
    """`left` times `right`, summed over `over`."""
    free = [a for a in (*left.axes, *right.axes) if a != over]
    return Contraction(name, tuple(dict.fromkeys(free)), dtype, left, right, (over,))


def silu(of: Scalar) -> Scalar:
    """x / (1 + exp(-x))."""
    return apply("div", of, apply("add", Lit(1.0), apply("exp", apply("neg", of))))


def relu(of: Scalar) -> Scalar:
    """The larger of x and 0."""
    return apply("maximum", of, Lit(0.0))


def linear_relu(dtype: DType = F32) -> TensorProgram:
    """relu(x @ w + b)."""
    m, k, n = axes("m", "k", "n")
    x, w, b = (
        tensor("x", m, k, dtype=dtype),
        tensor("w", k, n, dtype=dtype),
        tensor("b", n, dtype=dtype),
    )
    return TensorProgram((x, w, b), (
        matmul("product", Use("x", (m, k)), Use("w", (k, n)), k, dtype),
        Elementwise("sum", (m, n), dtype, ADD, (Use("product", (m, n)), Use("b", (n,)))),
        Elementwise("out", (m, n), dtype, relu(Arg(0)), (Use("sum", (m, n)),)),
    ), ("out",))  # fmt: skip


def gated(dtype: DType = F32) -> TensorProgram:
    """silu(x @ w) * (x @ v)."""
    m, k, n = axes("m", "k", "n")
    x, w, v = (
        tensor("x", m, k, dtype=dtype),
        tensor("w", k, n, dtype=dtype),
        tensor("v", k, n, dtype=dtype),
    )
    return TensorProgram((x, w, v), (
        matmul("gate", Use("x", (m, k)), Use("w", (k, n)), k, dtype),
        matmul("up", Use("x", (m, k)), Use("v", (k, n)), k, dtype),
        Elementwise("silu", (m, n), dtype, silu(Arg(0)), (Use("gate", (m, n)),)),
        Elementwise("out", (m, n), dtype, MUL, (Use("silu", (m, n)), Use("up", (m, n)))),
    ), ("out",))  # fmt: skip


def row_sum_of_squares(dtype: DType = F32) -> TensorProgram:
    """((x @ w) ** 2).sum(1)."""
    m, k, n = axes("m", "k", "n")
    x, w = tensor("x", m, k, dtype=dtype), tensor("w", k, n, dtype=dtype)
    return TensorProgram((x, w), (
        matmul("product", Use("x", (m, k)), Use("w", (k, n)), k, dtype),
        Elementwise("square", (m, n), dtype, SQUARE, (Use("product", (m, n)),)),
        Reduction("out", (m,), dtype, Monoid.sum, Use("square", (m, n)), (n,)),
    ), ("out",))  # fmt: skip


def two_layers(dtype: DType = F32) -> TensorProgram:
    """relu(x @ w1 + b1) @ w2 + b2."""
    m, k, n, p = axes("m", "k", "n", "p")
    x, w1, b1 = (
        tensor("x", m, k, dtype=dtype),
        tensor("w1", k, n, dtype=dtype),
        tensor("b1", n, dtype=dtype),
    )
    w2, b2 = tensor("w2", n, p, dtype=dtype), tensor("b2", p, dtype=dtype)
    return TensorProgram((x, w1, b1, w2, b2), (
        matmul("first", Use("x", (m, k)), Use("w1", (k, n)), k, dtype),
        Elementwise("shifted", (m, n), dtype, ADD, (Use("first", (m, n)), Use("b1", (n,)))),
        Elementwise("hidden", (m, n), dtype, relu(Arg(0)), (Use("shifted", (m, n)),)),
        matmul("second", Use("hidden", (m, n)), Use("w2", (n, p)), n, dtype),
        Elementwise("out", (m, p), dtype, ADD, (Use("second", (m, p)), Use("b2", (p,)))),
    ), ("out",))  # fmt: skip


def batched(dtype: DType = F32) -> TensorProgram:
    """x @ y for each of a batch."""
    b, m, k, n = axes("b", "m", "k", "n")
    x, y = tensor("x", b, m, k, dtype=dtype), tensor("y", b, k, n, dtype=dtype)
    product = Contraction("out", (b, m, n), dtype, Use("x", (b, m, k)), Use("y", (b, k, n)), (k,))
    return TensorProgram((x, y), (product,), ("out",))


def square_product(dtype: DType = F32) -> TensorProgram:
    """x @ y for square x and y: three axes over one space, so that no size tells them apart."""
    m, m1, m2 = axes("m", "m1", "m2")
    x, y = tensor("x", m, m1, dtype=dtype), tensor("y", m, m1, dtype=dtype)
    return TensorProgram((x, y), (matmul("out", Use("x", (m, m1)), Use("y", (m1, m2)), m1, dtype),), ("out",))


ALL = {f.__name__: f for f in (linear_relu, gated, row_sum_of_squares, two_layers, batched, square_product)}
"""Every program of this file, by name."""
