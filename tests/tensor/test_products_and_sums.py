"""The laws of factors and of distribution: what they draw, what they leave alone, and that they keep the value."""

from __future__ import annotations

import random

import numpy as np
import pytest

from testkit.block import paper
from testkit.block.programs import ADD, F32, MUL, SQUARE, axes, matmul, tensor
from testkit.tensor.rewritten import rewritten
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws import expand_sums, merge_equal, scale_rows_last
from weft.tensor.program import (
    Cast,
    Elementwise,
    Extent,
    Input,
    Monoid,
    Node,
    Reduction,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Arg, Lit, Scalar, apply
from weft.tensor.wellformed import well_formed
from weft.verify import equivalent

M, K, N, P = axes("m", "k", "n", "p")
X, R, S, G, W = tensor("x", M, K), tensor("r", M), tensor("s", M), tensor("g", K), tensor("w", K, N)
DIV, SUB = apply("div", Arg(0), Arg(1)), apply("sub", Arg(0), Arg(1))
ROWS, BOTH = (M,), (M, K)
SHAPES = {"x": (4, 5), "r": (4,), "s": (4,), "g": (5,), "w": (5, 3)}
PRODUCT = matmul("z", Use("y", BOTH), Use("w", (K, N)), K)


def each(name: str, over: tuple[Axis, ...], expr: Scalar, *uses: Use) -> Elementwise:
    return Elementwise(name, over, F32, expr, uses)


def program(
    *nodes: Node, outputs: tuple[str, ...] = ("z",), inputs: tuple[Input, ...] = (X, R, S, G, W)
) -> TensorProgram:
    made = TensorProgram(inputs, nodes, outputs)
    well_formed(made)
    return made


def x() -> Use:
    return Use("x", BOTH)


def chain(first: Scalar, one: Use, second: Scalar, other: Use) -> TensorProgram:
    """second(first(x, one), other) @ w."""
    return program(each("t", BOTH, first, x(), one), each("y", BOTH, second, Use("t", BOTH), other), PRODUCT)


def assert_kept(before: TensorProgram, after: TensorProgram) -> None:
    well_formed(after)
    shapes = {n.name: SHAPES[n.name] for n in before.inputs}
    verdict = equivalent(before, after, [shapes])
    assert verdict.equal, verdict
    numbers, rng = Fp64Domain(), np.random.default_rng(0)
    inputs = {name: numbers.random(shape, F32, rng) for name, shape in shapes.items()}
    for one, other in zip(*(evaluate(p, inputs, numbers) for p in (before, after)), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-12)


def last(of: TensorProgram, name: str = "y") -> Elementwise:
    node = of.values()[name]
    assert isinstance(node, Elementwise)
    return node


R_, S_, G_ = Use("r", ROWS), Use("s", ROWS), Use("g", (K,))


@pytest.mark.parametrize(("first", "op"), [(MUL, "mul"), (apply("mul", Arg(1), Arg(0)), "mul"), (DIV, "div")])
@pytest.mark.parametrize("second", [MUL, apply("mul", Arg(1), Arg(0)), DIV])
def test_what_scales_rows_comes_last(first, op, second):
    before = chain(first, R_, second, G_)
    after = scale_rows_last(before)
    assert last(after).expr == apply(op, Arg(0), Arg(1))
    assert last(after).args[1] == R_
    assert len(after.nodes) == 3
    assert_kept(before, after)
    assert scale_rows_last(after) == after


def test_quotients_nest():
    """g / (x / r) has r above the line."""
    t = each("t", BOTH, DIV, x(), R_)
    before = program(t, each("y", BOTH, DIV, G_, Use("t", BOTH)), PRODUCT)
    after = scale_rows_last(before)
    assert last(after).expr == MUL
    assert last(after).args[1] == R_
    assert_kept(before, after)


def test_only_inverses_are_divided_into_one():
    """1 / (x * r): nothing multiplies."""
    t = each("t", BOTH, MUL, x(), R_)
    before = program(t, each("y", BOTH, apply("div", Lit(1.0), Arg(0)), Use("t", BOTH)), PRODUCT)
    after = scale_rows_last(before)
    assert last(after).args[1] == R_
    assert_kept(before, after)
    inverse = program(each("t", BOTH, DIV, R_, x()), each("y", BOTH, DIV, Use("t", BOTH), G_), PRODUCT)
    after = scale_rows_last(inverse)
    assert last(after).args[1] == R_
    assert_kept(inverse, after)


def test_a_rounding_for_the_product_is_no_obstacle():
    rounded = Cast("c", BOTH, DType.bfloat16, Use("y", BOTH), False)
    before = program(
        each("t", BOTH, MUL, x(), R_), each("y", BOTH, MUL, Use("t", BOTH), G_), rounded,
        matmul("z", Use("c", BOTH), Use("w", (K, N)), K),
    )  # fmt: skip
    after = scale_rows_last(before)
    assert last(after).args[1] == R_
    assert_kept(before, after)


def test_two_scales_of_rows_stay_in_their_order():
    before = program(
        each("a", BOTH, MUL, x(), R_), each("t", BOTH, DIV, Use("a", BOTH), S_),
        each("y", BOTH, MUL, Use("t", BOTH), G_), PRODUCT,
    )  # fmt: skip
    after = scale_rows_last(before)
    assert last(after).args[1] == S_
    inner = last(after, last(after).args[0].value)
    assert inner.args[1] == R_
    assert_kept(before, after)


@pytest.mark.parametrize(
    "kept",
    [
        chain(MUL, G_, MUL, R_),
        chain(MUL, G_, ADD, R_),
        chain(ADD, R_, MUL, G_),
        program(each("t", BOTH, MUL, x(), R_), each("y", BOTH, MUL, Use("t", BOTH), G_), PRODUCT, outputs=("z", "t")),
        program(each("t", BOTH, MUL, x(), R_), each("y", BOTH, MUL, Use("t", BOTH), G_), outputs=("y",)),
        program(each("t", BOTH, MUL, x(), R_), each("y", BOTH, SQUARE, Use("t", BOTH)), PRODUCT),
    ],
    ids=["in order", "shifted last", "shifted first", "read elsewhere", "no product", "a square"],
)
def test_other_chains_stay(kept):
    assert scale_rows_last(kept) == kept


# Sums.


def sums(of: TensorProgram) -> list[str]:
    """Names what the sums of `of` sum, with their axes left out."""
    values = of.values()
    found = (values[n.arg.value] for n in of.nodes if isinstance(n, Reduction))
    return sorted(n.name if isinstance(n, Input) else str(getattr(n, "expr", n)) for n in found)


def centred(shift: Use, power: Scalar = SQUARE, divided: bool = False) -> TensorProgram:
    """The sum over k of (x - shift) ** 2, or its mean."""
    nodes = [
        each("d", BOTH, SUB, x(), shift),
        each("q", BOTH, power, Use("d", BOTH)),
        Reduction("v", ROWS, F32, Monoid.sum, Use("q", BOTH), (K,)),
    ]
    if not divided:
        return program(*nodes, outputs=("v",))
    mean = (Extent("kk", (), F32, K.space), Reduction("total", ROWS, F32, Monoid.sum, x(), (K,)))
    mean = (*mean, each("mean", ROWS, DIV, Use("total", ROWS), Use("kk", ())))
    return program(*mean, *nodes, each("z", ROWS, DIV, Use("v", ROWS), Use("kk", ())))


@pytest.mark.parametrize("power", [SQUARE, apply("pow", Arg(0), Lit(2)), apply("pow", Arg(0), Lit(2.0))], ids=str)
def test_a_square_about_a_shift_is_three_sums(power):
    before = centred(R_, power)
    after = expand_sums(before)
    assert sums(after) == sorted([str(SQUARE), "x"])
    assert any(isinstance(n, Extent) for n in after.nodes)
    assert_kept(before, after)
    assert expand_sums(after) == after


def test_about_the_mean_it_is_the_difference_of_two_moments():
    before = centred(Use("mean", ROWS), divided=True)
    after = expand_sums(before)
    assert sums(after) == sorted([str(SQUARE), "x"])
    root = last(after, "z")
    assert root.expr == SUB
    moment, square = (last(after, u.value) for u in root.args)
    assert (moment.expr, square.expr) == (DIV, SQUARE)
    assert [u.value for u in square.args] == ["mean"]
    assert_kept(before, after)


def test_numbers_and_signs():
    """The sum of -(2 x - r) * (x / 4 + 3)."""
    before = program(
        each("a", BOTH, apply("sub", apply("mul", Arg(0), Lit(2.0)), Arg(1)), x(), R_),
        each("b", BOTH, apply("neg", Arg(0)), Use("a", BOTH)),
        each("c", BOTH, apply("div", Arg(0), Lit(4)), x()),
        each("d", BOTH, apply("add", Arg(0), Lit(3.0)), Use("c", BOTH)),
        each("e", BOTH, MUL, Use("b", BOTH), Use("d", BOTH)),
        Reduction("v", ROWS, F32, Monoid.sum, Use("e", BOTH), (K,)),
        outputs=("v",),
    )
    after = expand_sums(before)
    assert_kept(before, after)
    assert len([n for n in after.nodes if isinstance(n, Reduction)]) >= 2


def test_over_several_axes():
    both = (M, K)
    extents = (Extent("mm", (), F32, M.space), Extent("kk", (), F32, K.space))
    before = program(
        *extents,
        each("count", (), MUL, Use("mm", ()), Use("kk", ())),
        Reduction("total", (), F32, Monoid.sum, x(), both),
        each("mean", (), DIV, Use("total", ()), Use("count", ())),
        each("d", both, SUB, x(), Use("mean", ())),
        each("q", both, SQUARE, Use("d", both)),
        Reduction("v", (), F32, Monoid.sum, Use("q", both), both),
        each("z", (), DIV, Use("v", ()), Use("count", ())),
    )
    after = expand_sums(before)
    assert last(after, "z").expr == SUB
    assert_kept(before, after)


@pytest.mark.parametrize(
    "kept",
    [
        program(
            each("a", BOTH, ADD, x(), G_), Reduction("v", ROWS, F32, Monoid.sum, Use("a", BOTH), (K,)), outputs=("v",)
        ),
        program(
            each("a", BOTH, MUL, x(), R_), Reduction("v", ROWS, F32, Monoid.sum, Use("a", BOTH), (K,)), outputs=("v",)
        ),
        program(
            each("a", BOTH, SUB, x(), R_), Reduction("v", ROWS, F32, Monoid.max, Use("a", BOTH), (K,)), outputs=("v",)
        ),
        paper.rmsnorm(),
        paper.attention(),
    ],
    ids=["no term lacks the axis", "one term", "a maximum", "rmsnorm", "attention"],
)
def test_other_sums_stay(kept):
    assert expand_sums(kept) == kept


@pytest.mark.parametrize("before", [centred(R_), centred(Use("mean", ROWS), divided=True)], ids=["shift", "mean"])
def test_writing_it_otherwise_changes_no_sum(before):
    wanted = expand_sums(before)
    for seed in range(20):
        other = expand_sums(rewritten(before, random.Random(seed)))
        assert len(other.nodes) == len(wanted.nodes)
        assert sums(other) == sums(wanted)
        assert merge_equal(other) == other
