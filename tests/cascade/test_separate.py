"""What an element separates into, what the fixed-point identity says of it, and why others do not: each refusal has a reason."""

from __future__ import annotations

import functools
import time

import numpy as np
import pytest
import torch

import weft
import weft.cascade.chain
from testkit.cascade.chains import CHAINS, REFUSED
from testkit.cascade.programs import analysed, wrong
from weft.cascade import separate
from weft.cascade.chain import MOST_OPERATIONS, Chain, Element, Link, Result
from weft.cascade.formulas import one_product
from weft.cascade.separate import MOST_POWER, MOST_TERMS, NotSeparableError, Term, separated
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.field import FieldDomain
from weft.tensor.program import Monoid, Use
from weft.tensor.scalar import Arg, Lit, Scalar, apply, operations, substitute

M, K = Axis("m", Space("M")), Axis("k", Space("K"))
X, W, F, D, E = map(Arg, range(5))
"""Two rows of data, a number that is fixed along them, and two earlier results."""
F64 = DType.float64


def add(a: Scalar, b: Scalar) -> Scalar:
    return apply("add", a, b)


def sub(a: Scalar, b: Scalar) -> Scalar:
    return apply("sub", a, b)


def mul(a: Scalar, b: Scalar) -> Scalar:
    return apply("mul", a, b)


def div(a: Scalar, b: Scalar) -> Scalar:
    return apply("div", a, b)


def exp(a: Scalar) -> Scalar:
    return apply("exp", a)


def square(a: Scalar) -> Scalar:
    return mul(a, a)


def where(a: Scalar, b: Scalar) -> Scalar:
    """`a` where X is less than W, else `b`."""
    return apply("where", apply("lt", X, W), a, b)


def chain_of(expr: Scalar, monoid: Monoid = Monoid.sum) -> Chain:
    """Two reductions of data, and one of `expr`, which may use their results."""
    sums = tuple(Link(f"d{i}", (M,), Monoid.sum, Element((a,), (None,)), F64) for i, a in enumerate((X, W)))
    last = Link("t", (M,), monoid, Element((expr,), (None,)), F64)
    operands = (Use("x", (M, K)), Use("w", (M, K)), Use("f", (M,)), Result(0), Result(1))
    return Chain(K, (M,), operands, (*sums, last), (("t", 2),))


def factor_of(of: Term) -> Scalar:
    """The whole term as one expression."""
    found = of.scale
    for factor in of.factors:
        found = mul(found, factor.data)
        for shift, exponent in factor.powers:
            for _ in range(exponent):
                found = mul(found, sub(shift.data, shift.result))
        if factor.raised is not None:
            found = mul(found, exp(sub(factor.raised.data, factor.raised.result)))
    return found


def agree(domain: FieldDomain, one: Scalar, other: Scalar) -> bool:
    """Tells whether two expressions of all arguments are equal at 50 random points."""
    rng = np.random.default_rng(0)
    args = [domain.random((50,), F64, rng) for _ in range(5)]
    return domain.equal(domain.elementwise(one, args, F64), domain.elementwise(other, args, F64))


# By what they are: whether they are one product of data and results, and how many terms they have.
ONE_PRODUCT = {
    "x * d": mul(X, D),
    "x / d": div(X, D),
    "x * w / d": div(mul(X, W), D),
    "-(x * d)": apply("neg", mul(X, D)),
    "x * (d + e)": mul(X, add(D, E)),
    "d * x * e * w": mul(mul(D, X), mul(E, W)),
    "x * f / (d * e)": div(mul(X, F), mul(D, E)),
    "x / (w * d)": div(X, mul(W, D)),
    "x * sqrt(d)": mul(X, apply("sqrt", D)),
    "exp(x - d)": exp(sub(X, D)),
    "exp(d - x)": exp(sub(D, X)),
    "exp(-(x - d))": exp(apply("neg", sub(X, D))),
    "exp((x - d) * f)": exp(mul(sub(X, D), F)),
    "exp((x - d) / f)": exp(div(sub(X, D), F)),
    "exp(x - d) / e * w": mul(div(exp(sub(X, D)), E), W),
    "exp(x - d) * exp(w - e)": mul(exp(sub(X, D)), exp(sub(W, E))),
    "w / exp(x - d)": div(W, exp(sub(X, D))),
    "where(.., x * d, 0)": where(mul(X, D), Lit(0.0)),
}
SEVERAL_PRODUCTS = {
    "x - d": sub(X, D),
    "d - x": sub(D, X),
    "x + d": add(X, D),
    "x * f - d": sub(mul(X, F), D),
    "x / e - d": sub(div(X, E), D),
    "(x - d) * (x - d)": square(sub(X, D)),
    "(x - d) ** 2": apply("pow", sub(X, D), Lit(2.0)),
    "(x - d) ** 4": square(square(sub(X, D))),
    "(x - d) / e * w": mul(div(sub(X, D), E), W),
    "(x - d) * (w - e)": mul(sub(X, D), sub(W, E)),
    "exp(x - d) * (w - e) ** 2": mul(exp(sub(X, D)), square(sub(W, E))),
    "((x - d) / e) ** 3": apply("pow", div(sub(X, D), E), Lit(3.0)),
    "(x - d) ** 2 + (w - e) ** 2": add(square(sub(X, D)), square(sub(W, E))),
    "where(.., x * d, w * e)": where(mul(X, D), mul(W, E)),
}
EVERY = {**ONE_PRODUCT, **SEVERAL_PRODUCTS}
NO_NUMBER = "functions and choices of numbers are not worked out: no point is found where the element is a number"
FIXED_IS_SET = "what is fixed along the axis is set to 1 or 0 with the earlier results: it is missing from G"
NOT_FOUND = {
    "x * sqrt(d)": NO_NUMBER,
    "sqrt(x) * d": NO_NUMBER,
    "log(x) * d": NO_NUMBER,
    "where(.., x * d, 0)": NO_NUMBER,
    "exp((x - d) * f)": FIXED_IS_SET,
    "exp((x - d) / f)": FIXED_IS_SET,
}


OPAQUE_FUNCTIONS = {"sqrt(x) * d": mul(apply("sqrt", X), D), "log(x) * d": mul(apply("log", X), D)}


@pytest.mark.parametrize("name", {**EVERY, **OPAQUE_FUNCTIONS})
def test_terms_add_up_to_the_element(name):
    expr = {**EVERY, **OPAQUE_FUNCTIONS}[name]
    terms = separated(chain_of(expr), (expr,))
    found = factor_of(terms[0])
    for term in terms[1:]:
        found = add(found, factor_of(term))
    for seed in range(3):
        assert agree(FieldDomain(seed), found, expr)


def test_terms_of_two_sides_multiply():
    sides = (div(exp(sub(X, D)), E), sub(W, E))
    (term,) = separated(chain_of(mul(*sides)), sides)
    assert len(term.factors) == 2
    assert agree(FieldDomain(0), factor_of(term), mul(*sides))


def test_the_magnitude_of_a_product_is_refused():
    """The random order of a field has no law of signs: no check could show the kernel equal."""
    expr = apply("abs", div(mul(X, W), D))
    with pytest.raises(NotSeparableError, match="mixes data with an earlier result"):
        separated(chain_of(expr), (expr,))


@pytest.mark.parametrize("name", {**EVERY, **OPAQUE_FUNCTIONS})
def test_sides_are_of_data_and_scales_are_of_results(name):
    expr = {**EVERY, **OPAQUE_FUNCTIONS}[name]
    chain = chain_of(expr)
    for term in separated(chain, (expr,)):
        assert not chain.varying(term.scale)
        for factor in term.factors:
            shifts = [s for s, _ in factor.powers] + ([] if factor.raised is None else [factor.raised])
            assert not any(chain.dependent(e) for e in (factor.data, *(s.data for s in shifts)))
            assert not any(chain.varying(s.result) for s in shifts)


@pytest.mark.parametrize(
    "name", [wrong(n, reason=NOT_FOUND[n]) if n in NOT_FOUND else n for n in {**ONE_PRODUCT, **OPAQUE_FUNCTIONS}]
)
def test_the_fixed_point_gives_the_one_product(name):
    expr = {**ONE_PRODUCT, **OPAQUE_FUNCTIONS}[name]
    chain = chain_of(expr)
    found = one_product(chain, chain.links[-1])
    assert found is not None
    assert not chain.dependent(found.data)
    assert not chain.varying(found.result)
    assert agree(FieldDomain(1), mul(found.data, found.result), expr)
    (term,) = separated(chain, (expr,))
    assert not any(factor.powers for factor in term.factors)


@pytest.mark.parametrize("name", SEVERAL_PRODUCTS)
def test_the_fixed_point_says_no_where_one_product_is_not_enough(name):
    chain = chain_of(SEVERAL_PRODUCTS[name])
    assert one_product(chain, chain.links[-1]) is None


@pytest.mark.parametrize("monoid", [Monoid.max, Monoid.min])
@pytest.mark.parametrize("expr", [add(X, D), sub(mul(X, W), D), add(sub(X, E), mul(D, F))])
def test_extrema_distribute_over_sums(monoid, expr):
    chain = chain_of(expr, monoid)
    found = one_product(chain, chain.links[-1])
    assert found is not None
    assert not chain.dependent(found.data)
    assert not chain.varying(found.result)
    assert agree(FieldDomain(0), add(found.data, found.result), expr)


@pytest.mark.parametrize("expr", [mul(X, D), square(sub(X, D)), apply("maximum", X, D)])
def test_extrema_do_not_distribute_over_anything_else(expr):
    chain = chain_of(expr, Monoid.max)
    assert one_product(chain, chain.links[-1]) is None


MIXES = "mixes data with an earlier result"
DIVIDES = "divides by a sum of data and an earlier result"
CANCEL = "is a sum of data times earlier results: summed separately they could cancel"
TOO_MANY = f"products, more than {MOST_TERMS}"
TOO_HIGH = f"powers above {MOST_POWER} of what uses an earlier result are not carried"


def many(count: int) -> Scalar:
    """A sum of differences, no two alike."""
    found = sub(X, D)
    for number in range(2, count + 1):
        found = add(found, sub(mul(X, Lit(float(number))), mul(Lit(number + 0.5), E)))
    return found


@pytest.mark.parametrize(
    ("expr", "reason"),
    [
        (apply("round", div(X, D)), f"round(x[m, k] / d0) {MIXES}"),
        (apply("tanh", mul(X, D)), f"tanh(x[m, k] * d0) {MIXES}"),
        (mul(W, apply("tanh", mul(X, D))), f"tanh(x[m, k] * d0) {MIXES}"),
        (apply("sqrt", square(sub(X, D))), MIXES),
        (apply("abs", sub(X, D)), f"abs(x[m, k] - d0) {MIXES}"),
        (apply("maximum", X, D), MIXES),
        (apply("where", apply("lt", X, D), X, Lit(0.0)), MIXES),
        (exp(mul(X, D)), MIXES),
        (exp(exp(sub(X, D))), MIXES),
        (div(Lit(1.0), sub(X, D)), DIVIDES),
        (div(X, add(W, D)), DIVIDES),
        (add(mul(X, D), mul(W, E)), CANCEL),
        (sub(mul(X, D), W), CANCEL),
        (mul(square(square(sub(X, D))), sub(X, D)), TOO_HIGH),
        (apply("pow", sub(X, D), Lit(5.0)), f"pow(x[m, k] - d0, 5): {TOO_HIGH}"),
        (apply("pow", sub(X, D), Lit(7)), TOO_HIGH),
        (apply("pow", sub(X, D), Lit(float("inf"))), MIXES),
        (apply("pow", sub(X, D), Lit(float("nan"))), MIXES),
        (apply("pow", sub(X, D), Lit(-2.0)), MIXES),
        (apply("pow", sub(X, D), Lit(0.5)), MIXES),
        (many(MOST_TERMS + 1), TOO_MANY),
        (mul(mul(many(2), many(2)), many(2)), TOO_MANY),
    ],
)
def test_a_refusal_says_what_stands_against_it(expr, reason):
    with pytest.raises(NotSeparableError) as caught:
        separated(chain_of(expr), (expr,))
    assert reason in str(caught.value)


def test_products_of_sums_are_counted_before_they_are_made(monkeypatch):
    sums = [add(sub(mul(X, Lit(n)), D), sub(mul(W, Lit(n)), E)) for n in (float(i) for i in range(2, 14))]
    expr = functools.reduce(mul, sums)
    made: list[object] = []
    times = separate._times

    def counted(left, right):
        made.append(left)
        return times(left, right)

    monkeypatch.setattr(separate, "_times", counted)
    with pytest.raises(NotSeparableError, match=TOO_MANY):
        separated(chain_of(expr), (expr,))
    assert len(made) <= MOST_TERMS


def test_as_many_products_as_are_allowed():
    expr = many(MOST_TERMS)
    assert len(separated(chain_of(expr), (expr,))) == MOST_TERMS


@pytest.mark.parametrize("name", EVERY)
def test_a_decision_takes_less_than_two_seconds(name):
    expr = EVERY[name]
    chain = chain_of(expr)
    start = time.process_time()
    separated(chain, (expr,))
    one_product(chain, chain.links[-1])
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
    "step", [lambda y: y + torch.tanh(y), lambda y: y + 0.5 * y, lambda y: y * y - y], ids=["tanh", "scaled", "square"]
)
def test_work_that_doubles_with_each_step_is_refused_before_it_is_written(step, monkeypatch):
    """Forty such steps would be 2 ** 40 operations, since expressions are trees."""

    def doubling(x):
        y = x - x.mean(-1, keepdim=True)
        for _ in range(40):
            y = step(y)
        return y.sum(-1)

    written: list[int] = []

    def counted(expr, arg):
        written.append(operations(expr))
        return substitute(expr, arg)

    monkeypatch.setattr(weft.cascade.chain, "substitute", counted)
    found = analysed(doubling, torch.randn(8, 64))
    assert not found.folds
    assert (
        f"more than {MOST_OPERATIONS} operations on earlier results, each counted as often as it is read"
        in found.refused[-1].reason
    )
    assert sum(written) <= MOST_OPERATIONS


def test_arithmetic_of_data_that_doubles_is_read_as_a_value():
    def doubling(x):
        y = x
        for _ in range(40):
            y = y + 0.5 * y
        return (y - y.mean(-1, keepdim=True)).square().sum(-1)

    found = analysed(doubling, torch.randn(8, 64))
    (fold,) = found.decompositions
    assert max(operations(link.element.expr) for link in fold.chain.links) <= 2 * MOST_OPERATIONS + 4


# As the user meets them: a reduction that starts anew, and why.


def softmax_of_softmax(x):
    return torch.softmax(torch.softmax(x, -1), -1)


def rounded_quantisation(x):
    return torch.round(x / x.abs().amax(-1, keepdim=True)).sum(-1)


def squashed(x):
    return torch.tanh(x * x.sum(-1, keepdim=True)).sum(-1)


def exponentials_of_those_chosen(x):
    """Those that are not chosen may be far above the greatest of those that are."""
    chosen = x * x > 0.25
    greatest = torch.where(chosen, x, -torch.inf).amax(-1, keepdim=True)
    return torch.where(chosen, torch.exp(x - greatest), 0.0).sum(-1)


def greatest_product(x):
    return (x * x.sum(-1, keepdim=True)).amax(-1)


@pytest.mark.parametrize(
    ("function", "mixing"),
    [
        (softmax_of_softmax, "exp("),
        (softmax_of_softmax, "/ t3: it uses an earlier result, and a finite field cannot check an extremum of that"),
        (rounded_quantisation, "round("),
        (squashed, "tanh("),
        (exponentials_of_those_chosen, "leaves out elements, which a running value would still contain"),
        (greatest_product, "a finite field cannot check an extremum"),
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)
def test_a_refused_reduction_is_named_with_what_mixes(function, mixing):
    found = analysed(function, torch.rand(9, 16))
    assert found.refused
    for refused in found.refused:
        assert mixing in refused.reason
        assert str(refused) == f"{refused.node}: {refused.reason}"
        assert refused.node.startswith("t")


def test_of_a_softmax_of_a_softmax_each_is_one_loop():
    """The second one starts anew: the first one's four reductions would have to be over before its maximum begins."""
    found = analysed(softmax_of_softmax, torch.rand(9, 16))
    wanted = [[link.node for link in d.chain.links] for d in found.decompositions]
    assert len(wanted) == 2
    assert not set(wanted[0]) & set(wanted[1])


# Found now and then lost: chains that are to be one loop.


def attention_with_alibi(q, k, v, slope, distance):
    return torch.softmax(q @ k.T / 4 + slope[:, None] * distance, -1) @ v


def attention_with_a_bias(q, k, v, bias):
    return torch.softmax(q @ k.T + bias, -1) @ v


def attention_with_a_sink(q, k, v, sink):
    scores = q @ k.T
    most = torch.maximum(scores.amax(-1, keepdim=True), sink[:, None])
    weights = torch.exp(scores - most)
    return weights / (weights.sum(-1, keepdim=True) + torch.exp(sink[:, None] - most)) @ v


QUERIES = ((9, 8), (16, 8), (16, 5))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (attention_with_alibi, (*QUERIES, (9,), (9, 16))),
        (attention_with_a_bias, (*QUERIES, (9, 16))),
        (attention_with_a_sink, (*QUERIES, (9,))),
    ],
)
def test_exponentials_below_what_is_at_least_their_maximum_are_one_loop(function, shapes):
    found = analysed(function, *(torch.rand(shape) for shape in shapes))
    assert found.refused == ()
    assert len(found.folds) == 1


def test_a_product_in_float64_is_refused():
    """Its state would have to be wider."""
    function, shapes = CHAINS["product below the greatest"].function, CHAINS["product below the greatest"].shapes
    found = analysed(function, *(torch.rand(shape, dtype=torch.float64) for shape in shapes))
    assert found.folds == ()
    assert ["no wider type" in refused.reason for refused in found.refused] == [True]


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_lose_its_precision_is_refused(name):
    chain, reason = REFUSED[name]
    found = analysed(chain.function, *(torch.rand(shape) for shape in chain.shapes))
    assert any(reason in refused.reason for refused in found.refused)


@pytest.mark.parametrize("exponent", [float("inf"), float("nan"), 5.0])
def test_powers_that_are_not_carried_are_computed_all_the_same(exponent):
    def powers(x):
        return ((x - x.mean(-1, keepdim=True)) ** exponent).sum(-1)

    x = torch.randn(4, 32)
    program = weft.optimize(powers, x)
    assert not program.fallbacks
    torch.testing.assert_close(program(x), powers(x), rtol=1e-3, atol=1e-3, equal_nan=True)
