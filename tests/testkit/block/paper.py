"""Blockbuster's three examples (section 5), operation by operation as the paper's array programs have them.

Lowering them gives the paper's initial block programs: matrix products take their right operand transposed (KT, VT ...),
softmax is exp, row_sum, 1/t and row_scale, and LayerNorm and RMSNorm are built from sums, a shift and a scale.
"""

from __future__ import annotations

from testkit.block.programs import ADD, F32, MUL, axes, matmul, silu, tensor
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.tensor.axes import Axis
from weft.tensor.program import Elementwise, Extent, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, Scalar, apply

SQUARE = apply("pow", Arg(0), Lit(2.0))
INVERSE = apply("div", Lit(1.0), Arg(0))


def each(name: str, over: tuple[Axis, ...], expr: Scalar, *uses: Use) -> Elementwise:
    """An elementwise operation."""
    return Elementwise(name, over, F32, expr, uses)


def row_sum(name: str, of: str, m: Axis, n: Axis) -> Reduction:
    """The sum of each row of `of`."""
    return Reduction(name, (m,), F32, Monoid.sum, Use(of, (m, n)), (n,))


def attention() -> TensorProgram:
    """softmax(Q @ K.T / sqrt(d)) @ V, without the maximum, as the paper's first example."""
    m, n, d, l = axes("m", "n", "d", "l")  # noqa: E741 - the paper's name
    q, kt, vt = tensor("q", m, d), tensor("kt", n, d), tensor("vt", l, n)
    scale = apply("mul", Arg(0), apply("pow", Arg(1), Lit(-0.5)))
    return TensorProgram((q, kt, vt), (
        Extent("dd", (), F32, d.space),
        matmul("scores", Use("q", (m, d)), Use("kt", (n, d)), d),
        each("scaled", (m, n), scale, Use("scores", (m, n)), Use("dd", ())),
        each("e", (m, n), apply("exp", Arg(0)), Use("scaled", (m, n))),
        row_sum("t", "e", m, n),
        each("inverse", (m,), INVERSE, Use("t", (m,))),
        each("p", (m, n), MUL, Use("e", (m, n)), Use("inverse", (m,))),
        matmul("out", Use("p", (m, n)), Use("vt", (l, n)), n),
    ), ("out",))  # fmt: skip


def layernorm() -> TensorProgram:
    """LayerNorm(X) @ Y with the variance from raw moments, as the paper's second example."""
    m, k, n = axes("m", "k", "n")
    x, yt = tensor("x", m, k), tensor("yt", n, k)
    mean = apply("div", apply("neg", Arg(0)), Arg(1))
    variance = apply("sub", apply("div", Arg(0), Arg(2)), apply("pow", Arg(1), Lit(2.0)))
    return TensorProgram((x, yt), (
        Extent("kk", (), F32, k.space),
        row_sum("s1", "x", m, k),
        each("shift", (m,), mean, Use("s1", (m,)), Use("kk", ())),
        each("centred", (m, k), ADD, Use("x", (m, k)), Use("shift", (m,))),
        each("square", (m, k), SQUARE, Use("x", (m, k))),
        row_sum("s2", "square", m, k),
        each("scale", (m,), apply("pow", variance, Lit(-0.5)), Use("s2", (m,)), Use("shift", (m,)), Use("kk", ())),
        each("normal", (m, k), MUL, Use("centred", (m, k)), Use("scale", (m,))),
        matmul("z", Use("normal", (m, k)), Use("yt", (n, k)), k),
    ), ("z",))  # fmt: skip


def rmsnorm() -> TensorProgram:
    """RMSNorm and FFN-SwiGLU, without the division by the width, as the paper's third example."""
    m, d, k, n = axes("m", "d", "k", "n")
    x, wt, vt, ut = tensor("x", m, d), tensor("wt", k, d), tensor("vt", k, d), tensor("ut", n, k)
    inverse = apply("div", Lit(1.0), apply("sqrt", Arg(0)))
    return TensorProgram((x, wt, vt, ut), (
        each("square", (m, d), SQUARE, Use("x", (m, d))),
        row_sum("s", "square", m, d),
        each("inverse", (m,), inverse, Use("s", (m,))),
        each("normal", (m, d), MUL, Use("x", (m, d)), Use("inverse", (m,))),
        matmul("gate", Use("normal", (m, d)), Use("wt", (k, d)), d),
        each("swish", (m, k), silu(Arg(0)), Use("gate", (m, k))),
        matmul("up", Use("normal", (m, d)), Use("vt", (k, d)), d),
        each("hidden", (m, k), MUL, Use("swish", (m, k)), Use("up", (m, k))),
        matmul("out", Use("hidden", (m, k)), Use("ut", (n, k)), k),
    ), ("out",))  # fmt: skip


EXAMPLES = {f.__name__: f for f in (attention, layernorm, rmsnorm)}
"""The three examples by name."""


def initial(name: str) -> BlockProgram:
    """The initial block program of an example."""
    return lower(EXAMPLES[name]())
