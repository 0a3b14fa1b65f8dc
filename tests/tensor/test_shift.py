"""The law of shifts: what cancels goes, what does not stays, however the program is written."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from testkit.tensor.rewritten import rewritten
from weft.pipeline import normalize
from weft.tensor.axes import Axis, Space
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate, returned
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws import cancel_shifts
from weft.tensor.program import (
    Elementwise,
    Input,
    Monoid,
    Node,
    Opaque,
    Reduction,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Apply, Arg, Lit, Scalar, apply
from weft.tensor.wellformed import well_formed
from weft.verify import equivalent

F32, BF16 = DType.float32, DType.bfloat16
EXP = apply("exp", Arg(0))
ADD, SUB, MUL, DIV = (apply(op, Arg(0), Arg(1)) for op in ("add", "sub", "mul", "div"))
M, N, K = 4, 5, 3


class Writer:
    """Writes PyTorch-like programs over x[M, N], y[M, N], v[N, K] and c[M]."""

    def __init__(self, dtype: DType = F32) -> None:
        self.b = Builder()
        self.x, self.y = self.b.input("x", (M, N), dtype), self.b.input("y", (M, N), dtype)
        self.v, self.c = self.b.input("v", (N, K), dtype), self.b.input("c", (M, 1), dtype)

    def each(self, expr: Scalar, *refs: Ref) -> Ref:
        return self.b.elementwise(expr, refs)

    def max(self, of: Ref, dims: tuple[int, ...] = (-1,)) -> Ref:
        return self.b.reduce(Monoid.max, of, dims, True)

    def sum(self, of: Ref, dims: tuple[int, ...] = (-1,)) -> Ref:
        return self.b.reduce(Monoid.sum, of, dims, True)

    def mean(self, of: Ref) -> Ref:
        return self.b.mean(of, (-1,), True)

    def shifted(self, x: Ref, c: Ref) -> Ref:
        return self.each(EXP, self.each(SUB, x, c))


def softmax(w: Writer) -> list[Ref]:
    e = w.shifted(w.x, w.max(w.x))
    return [w.each(DIV, e, w.sum(e))]


def softmax_in_one_expression(w: Writer) -> list[Ref]:
    e = w.each(apply("exp", SUB), w.x, w.max(w.x))
    return [w.each(DIV, e, w.sum(e))]


def softmax_added(w: Writer) -> list[Ref]:
    negative = w.each(apply("neg", Arg(0)), w.max(w.x))
    e = w.each(EXP, w.each(ADD, negative, w.x))
    return [w.each(DIV, e, w.sum(e))]


def softmax_scaled(w: Writer) -> list[Ref]:
    """exp((x - c) * 2 / 4), with the shift once more outside."""
    top = w.max(w.x)
    scaled = w.each(apply("div", apply("mul", Lit(2.0), Arg(0)), Lit(4.0)), w.each(SUB, w.x, top))
    e = w.each(EXP, w.each(ADD, scaled, w.each(apply("mul", Arg(0), Lit(3)), top)))
    return [w.each(DIV, e, w.sum(e))]


def softmax_reversed(w: Writer) -> list[Ref]:
    """exp(c - x), as in a soft minimum."""
    e = w.each(EXP, w.each(SUB, w.b.reduce(Monoid.min, w.x, (-1,), True), w.x))
    return [w.each(DIV, e, w.sum(e))]


def softmax_of_columns(w: Writer) -> list[Ref]:
    e = w.shifted(w.x, w.max(w.x, (0,)))
    return [w.each(DIV, e, w.sum(e, (0,)))]


def softmax_of_all(w: Writer) -> list[Ref]:
    e = w.shifted(w.x, w.max(w.x, (0, 1)))
    return [w.each(DIV, e, w.sum(e, (0, 1)))]


def by_the_mean(w: Writer) -> list[Ref]:
    e = w.shifted(w.x, w.mean(w.x))
    return [w.each(DIV, e, w.sum(e))]


def weighted(w: Writer) -> list[Ref]:
    """(exp(x - m) @ v) / sum."""
    e = w.shifted(w.x, w.max(w.x))
    return [w.each(DIV, w.b.matmul(e, w.v), w.sum(e))]


def masked(w: Writer) -> list[Ref]:
    """The weights of masked elements are an exact 0, of any degree."""
    mask = w.b.elementwise(apply("lt", Arg(0), Arg(1)), (w.y, w.c), DType.bool)
    e = w.shifted(w.x, w.max(w.x))
    e = w.each(apply("where", Arg(0), Arg(1), Lit(0.0)), mask, e)
    return [w.each(DIV, e, w.sum(e))]


def squares(w: Writer) -> list[Ref]:
    """e**2 / (sum e)**2."""
    e = w.shifted(w.x, w.max(w.x))
    square = apply("pow", Arg(0), Lit(2))
    return [w.each(DIV, w.each(MUL, e, e), w.each(square, w.sum(e)))]


def negated(w: Writer) -> list[Ref]:
    """Signs, numbers and casts keep degrees."""
    e = w.b.cast(w.b.cast(w.shifted(w.x, w.max(w.x)), BF16), F32)
    minus = w.each(apply("mul", apply("neg", Arg(0)), Lit(0.5)), e)
    return [w.each(DIV, minus, w.sum(e))]


def products_of_two(w: Writer) -> list[Ref]:
    """exp(x - c) * exp(c - y), whose degrees are opposite."""
    top = w.max(w.x)
    return [w.each(MUL, w.shifted(w.x, top), w.shifted(top, w.y))]


def products_of_opposites(w: Writer) -> list[Ref]:
    """exp(-(x - c)) * exp(y - c)."""
    top = w.max(w.x)
    negative = w.each(EXP, w.each(apply("neg", Arg(0)), w.each(SUB, w.x, top)))
    return [w.each(MUL, negative, w.shifted(w.y, top))]


def two_of_one_shift(w: Writer) -> list[Ref]:
    top = w.max(w.x)
    e, f = w.shifted(w.x, top), w.shifted(w.y, top)
    both = w.each(ADD, e, f)
    return [w.each(DIV, both, w.sum(both)), w.each(DIV, e, w.sum(f))]


def rows_and_columns(w: Writer) -> list[Ref]:
    """exp(x - r - c): neither shift stands in the other's way."""
    e = w.shifted(w.each(SUB, w.x, w.max(w.x)), w.mean(w.x))
    return [w.each(DIV, e, w.sum(e))]


def normalised_twice(w: Writer) -> list[Ref]:
    """exp(x - m - log t) with t = sum exp(x - m), over its own sum: one shift hides another."""
    top = w.max(w.x)
    t = w.sum(w.shifted(w.x, top))
    e = w.shifted(w.each(SUB, w.x, top), w.each(apply("log", Arg(0)), t))
    return [w.each(DIV, e, w.sum(e))]


CANCEL: dict[str, Callable[[Writer], list[Ref]]] = {
    f.__name__: f
    for f in (
        softmax, softmax_in_one_expression, softmax_added, softmax_scaled, softmax_reversed, softmax_of_columns,
        softmax_of_all, by_the_mean, weighted, masked, squares, negated, products_of_two,
        products_of_opposites, two_of_one_shift, rows_and_columns, normalised_twice,
    )
}  # fmt: skip


def by_an_input(w: Writer) -> list[Ref]:
    """An infinite one makes its row no number."""
    e = w.shifted(w.x, w.c)
    return [w.each(DIV, e, w.sum(e))]


def log_softmax(w: Writer) -> list[Ref]:
    """A logarithm is not homogeneous: its g comes out as a term."""
    shift = w.each(SUB, w.x, w.max(w.x))
    return [w.each(SUB, shift, w.each(apply("log", Arg(0)), w.sum(w.each(EXP, shift))))]


def also_the_weights(w: Writer) -> list[Ref]:
    e = w.shifted(w.x, w.max(w.x))
    return [w.each(DIV, e, w.sum(e)), e]


def epsilon(w: Writer) -> list[Ref]:
    e = w.shifted(w.x, w.max(w.x))
    return [w.each(DIV, e, w.each(apply("add", Arg(0), Lit(1e-6)), w.sum(e)))]


def summed_over_the_shift(w: Writer) -> list[Ref]:
    """The sum runs over the axis along which the shift varies."""
    e = w.shifted(w.x, w.max(w.x))
    return [w.each(DIV, e, w.sum(e, (0,)))]


def contracted_over_the_shift(w: Writer) -> list[Ref]:
    e = w.shifted(w.x, w.max(w.x))
    return [w.each(DIV, w.b.matmul(w.b.transpose(e, 0, 1), w.y), w.b.matmul(w.b.transpose(e, 0, 1), w.x))]


def two_of_two_shifts(w: Writer) -> list[Ref]:
    both = w.each(ADD, w.shifted(w.x, w.max(w.x)), w.shifted(w.y, w.max(w.y)))
    return [w.each(DIV, both, w.sum(both))]


def other_rows(w: Writer) -> list[Ref]:
    """e[m, n] / e[p, n], summed over n: g of one row is not g of another."""
    b = Builder()
    x = b.input("x", (M, N), F32)
    e = b.elementwise(EXP, (b.elementwise(SUB, (x, b.reduce(Monoid.max, x, (-1,), True))),))
    quotient = b.elementwise(DIV, (b.unsqueeze(e, 0), b.unsqueeze(e, 1)))
    w.b = b
    return [b.reduce(Monoid.sum, quotient, (-1,), False)]


def compared(w: Writer) -> list[Ref]:
    e = w.shifted(w.x, w.max(w.x))
    share = w.each(DIV, e, w.sum(e))
    large = w.b.elementwise(apply("gt", Arg(0), Lit(0.5)), (e,), DType.bool)
    return [w.each(apply("where", Arg(0), Arg(1), Lit(0.0)), large, share)]


def multiplied(w: Writer) -> list[Ref]:
    e = w.shifted(w.x, w.max(w.x))
    return [w.each(DIV, e, w.b.reduce(Monoid.prod, e, (-1,), True))]


def in_pytorch(w: Writer) -> list[Ref]:
    e = w.shifted(w.x, w.max(w.x))
    made = w.b.opaque("aten.sort", "call", [e], [a for a in e.dims if a is not None], F32, "not weft's")
    return [w.each(DIV, e, w.sum(e)), made]


def rounded(w: Writer) -> list[Ref]:
    """A semantic cast of the weights."""
    e = w.b.cast(w.shifted(w.x, w.max(w.x)), BF16, True)
    return [w.each(DIV, e, w.sum(e))]


def nothing_else_raised(w: Writer) -> list[Ref]:
    e = w.each(EXP, w.b.expand(w.c, (M, N)))
    e = w.b.elementwise(MUL, (e, w.x))
    return [w.each(DIV, e, w.sum(e))]


KEEP: dict[str, Callable[[Writer], list[Ref]]] = {
    f.__name__: f
    for f in (
        by_an_input, log_softmax, also_the_weights, epsilon, summed_over_the_shift, contracted_over_the_shift, two_of_two_shifts,
        other_rows, compared, multiplied, in_pytorch, rounded, nothing_else_raised,
    )
}  # fmt: skip


def written(of: Callable[[Writer], list[Ref]]) -> TensorProgram:
    w = Writer()
    outputs = of(w)
    return w.b.finish(outputs)


def raises_a_difference(program: TensorProgram) -> bool:
    """Tells whether an exponential reads a sum, a difference or a multiple of one."""
    values = program.values()

    def made(name: str) -> Node:
        node = values[name]
        while isinstance(node, Elementwise) and len(node.args) == 1:
            node = values[node.args[0].value]
        return node

    exponentials = [n for n in program.nodes if isinstance(n, Elementwise) and n.expr == EXP]
    assert exponentials
    found = (made(n.args[0].value) for n in exponentials)
    return any(isinstance(n, Elementwise) and isinstance(n.expr, Apply) and n.expr.op in ("add", "sub") for n in found)


def shapes_of(program: TensorProgram, rows: int = 2) -> dict[str, tuple[int, ...]]:
    sizes = {s.name: rows + i for i, s in enumerate(program.spaces())}
    return {n.name: tuple(a.space.size(sizes) for a in n.axes) for n in program.inputs}


@pytest.mark.parametrize("name", CANCEL)
def test_a_shift_that_cancels_goes(name):
    before = normalize(written(CANCEL[name]))
    after = cancel_shifts(before)
    well_formed(after)
    assert raises_a_difference(before)
    assert not raises_a_difference(after)
    assert not [n for n in after.nodes if isinstance(n, Reduction) and n.monoid in (Monoid.max, Monoid.min)]
    verdict = equivalent(before, after, [shapes_of(before), shapes_of(before, 4)])
    assert verdict.equal, verdict
    numbers = Fp64Domain()
    rng = np.random.default_rng(0)
    inputs = {name: numbers.random(shape, F32, rng) for name, shape in shapes_of(before, 4).items()}
    results = [returned(p, evaluate(p, inputs, numbers), numbers) for p in (before, after)]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12)
    assert cancel_shifts(after) is after


@pytest.mark.parametrize("name", KEEP)
def test_a_shift_that_does_not_cancel_stays(name):
    program = normalize(written(KEEP[name]))
    assert cancel_shifts(program) is program


def without_shifts(program: TensorProgram) -> TensorProgram:
    """Every exponential of a difference without what is subtracted, whether or not that cancels."""
    values = program.values()
    nodes = list(program.nodes)
    for i, node in enumerate(nodes):
        if isinstance(node, Elementwise) and node.expr == EXP:
            made = values[node.args[0].value]
            if isinstance(made, Elementwise) and made.expr == SUB:
                nodes[i] = replace(node, args=made.args[:1])
    return replace(program, nodes=tuple(nodes))


def test_an_infinity_that_stays_would_not_have_shown():
    program, numbers = normalize(written(by_an_input)), Fp64Domain()
    inputs = {n: numbers.random(shape, F32, np.random.default_rng(0)) for n, shape in shapes_of(program, 3).items()}
    inputs["c"].flat[0] = -np.inf
    with np.errstate(all="ignore"):
        with_it, without = (evaluate(p, inputs, numbers)[0] for p in (program, without_shifts(program)))
    assert np.isnan(with_it[0]).all()
    assert np.isfinite(without).all()


@pytest.mark.parametrize("name", [n for n in KEEP if n not in ("in_pytorch", "nothing_else_raised", "by_an_input")])
def test_what_stays_would_have_changed_the_result(name):
    """The conditions are not idle: taking the shift away all the same is refuted."""
    program = normalize(written(KEEP[name]))
    assert equivalent(program, without_shifts(program), [shapes_of(program, 3)]).equal is False


def test_the_maximum_stays_where_it_is_read():
    def also_the_maximum(w: Writer) -> list[Ref]:
        top = w.max(w.x)
        e = w.shifted(w.x, top)
        return [w.each(DIV, e, w.sum(e)), top]

    before = normalize(written(also_the_maximum))
    after = cancel_shifts(before)
    assert not raises_a_difference(after)
    assert [n.monoid for n in after.nodes if isinstance(n, Reduction)] == [Monoid.max, Monoid.sum]
    assert equivalent(before, after, [shapes_of(before)]).equal


def test_one_of_two_exponentials_with_the_same_shift_may_cancel():
    """The weights of y are returned as they are; those of x are not, and lose their shift."""

    def half(w: Writer) -> list[Ref]:
        top = w.max(w.x)
        e = w.shifted(w.x, top)
        return [w.each(DIV, e, w.sum(e)), w.shifted(w.y, top)]

    before = normalize(written(half))
    after = cancel_shifts(before)
    differences = [n for n in after.nodes if isinstance(n, Elementwise) and n.expr == SUB]
    assert [u.value for u in differences[0].args][:1] == ["y"]
    assert len(differences) == 1
    assert equivalent(before, after, [shapes_of(before)]).equal


def test_an_extremum_of_equal_degrees_keeps_them():
    """max(e, f) / sum(f), and max over n of e: no field says that max(g a, g b) = g max(a, b), so only numbers do."""

    def extrema(w: Writer) -> list[Ref]:
        top = w.max(w.x)
        e, f = w.shifted(w.x, top), w.shifted(w.y, top)
        largest = w.each(apply("maximum", Arg(0), Arg(1)), e, f)
        return [w.each(DIV, largest, w.sum(f)), w.each(DIV, w.max(e), w.sum(f))]

    before = normalize(written(extrema))
    after = cancel_shifts(before)
    assert not raises_a_difference(after)
    numbers, rng = Fp64Domain(), np.random.default_rng(0)
    inputs = {name: numbers.random(shape, F32, rng) for name, shape in shapes_of(before).items()}
    for one, other in zip(*(evaluate(p, inputs, numbers) for p in (before, after)), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12)


def test_a_term_that_is_spread_and_moved_by_a_number_is_left_alone():
    """exp(x - (c + 1)) where c + 1 is written over both axes: nothing but a number would be left of it."""
    m, n = Axis("m", Space("M")), Axis("n", Space("N"))
    both, rows = (m, n), (m,)
    program = TensorProgram((Input("x", both, F32),), (
        Reduction("c", rows, F32, Monoid.max, Use("x", both), (n,)),
        Elementwise("spread", both, F32, Arg(0), (Use("c", rows),)),
        Elementwise("moved", both, F32, apply("add", Arg(0), Lit(1.0)), (Use("spread", both),)),
        Elementwise("shifted", both, F32, SUB, (Use("x", both), Use("moved", both))),
        Elementwise("e", both, F32, EXP, (Use("shifted", both),)),
        Reduction("t", rows, F32, Monoid.sum, Use("e", both), (n,)),
        Elementwise("y", both, F32, DIV, (Use("e", both), Use("t", rows))),
    ), ("y",))  # fmt: skip
    assert cancel_shifts(program) is program
    plain = replace(program.nodes[2], expr=Arg(0))
    after = cancel_shifts(replace(program, nodes=(*program.nodes[:2], plain, *program.nodes[3:])))
    assert len(after.nodes) == 3


@pytest.mark.parametrize("name", [*CANCEL, *KEEP])
def test_writing_it_otherwise_changes_nothing(name):
    program = normalize(written((CANCEL | KEEP)[name]))
    wanted = sorted(_kinds(cancel_shifts(program)))
    for seed in range(20):
        assert sorted(_kinds(cancel_shifts(rewritten(program, random.Random(seed))))) == wanted


def _kinds(program: TensorProgram) -> list[str]:
    return [f"{type(n).__name__} {n.expr if isinstance(n, Elementwise) else ''} {len(n.axes)}" for n in program.nodes]


def test_a_row_of_minus_infinity_is_nan_on_both_sides():
    before = normalize(written(softmax))
    x = np.zeros((2, 3))
    x[0] = -np.inf
    inputs = {"x": x, "y": x, "v": np.zeros((3, 2)), "c": np.zeros(2)}
    for program in (before, cancel_shifts(before)):
        (result,) = evaluate(program, inputs, Fp64Domain())
        assert np.isnan(result[0]).all()
        np.testing.assert_allclose(result[1], 1 / 3)


def test_long_chains_and_shared_terms_take_no_time():
    """exp((...((x + x) + (x + x))...) - c): 2**60 paths, and terms a thousand deep."""

    def deep(w: Writer) -> list[Ref]:
        x = w.x
        for _ in range(60):
            x = w.each(apply("mul", apply("add", Arg(0), Arg(0)), Lit(0.5)), x)
        for _ in range(1000):
            x = w.each(ADD, x, w.y)
        e = w.shifted(x, w.max(x))
        return [w.each(DIV, e, w.sum(e))]

    def deep_in_rows(w: Writer) -> list[Ref]:
        """Does the same with what is a number for each row."""
        c = w.max(w.x)
        for _ in range(60):
            c = w.each(ADD, w.each(apply("neg", Arg(0)), c), w.each(apply("mul", Arg(0), Lit(2.0)), c))
        for _ in range(2000):
            c = w.each(ADD, c, w.max(w.x))
        e = w.shifted(w.x, c)
        return [w.each(DIV, e, w.sum(e))]

    for function in (deep, deep_in_rows):
        after = cancel_shifts(normalize(written(function)))
        assert not [n for n in after.nodes if isinstance(n, Elementwise) and n.expr == SUB]
    assert not any(isinstance(n, Opaque) for n in after.nodes)
