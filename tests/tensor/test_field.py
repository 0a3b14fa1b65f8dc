"""The finite field: its primes, its arithmetic against Python's, its laws, and what it refutes."""

from __future__ import annotations

import math
from fractions import Fraction
from importlib import import_module
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.tensor import modular
from weft.tensor import modular as primes
from weft.tensor.dtypes import DType
from weft.tensor.field import ExactValue, FieldDomain, FieldElements, FieldValue
from weft.tensor.field_arithmetic import FieldArithmetic
from weft.tensor.fp64 import rounded
from weft.tensor.optable import row
from weft.tensor.program import Monoid
from weft.tensor.scalar import Arg, Convert, Lit, Scalar, apply

F = DType.float32
sympy: Any = import_module("sympy")  # it ships no types
X, Y, Z = Arg(0), Arg(1), Arg(2)
CHAIN = primes.of_seed(11)


class Bench:
    """A domain with random inputs."""

    def __init__(self, seed: int) -> None:
        self.domain = FieldDomain(seed)
        self.rng = np.random.default_rng(seed)

    def draw(self, *shape: int) -> FieldElements:
        return self.domain.random(shape, F, self.rng)

    def floats(self, values: Any) -> FieldElements:
        values = np.asarray(values, np.float64)
        parts = [self.domain.full((1,), float(v), F) for v in values.ravel()]
        return self.domain.lift(lambda *a: np.concatenate(a).reshape(values.shape), *parts)

    def run(self, expr: Scalar, *args: FieldElements, dtype: DType = F) -> FieldElements:
        return self.domain.elementwise(expr, args, dtype)

    def column(self, v: FieldElements) -> FieldElements:
        return self.domain.lift(lambda a: a[:, None], v)


@pytest.fixture
def bench() -> Bench:
    return Bench(11)


@pytest.mark.parametrize("value", [0.1, -2.5, 3.0, 1e300, 5e-324, -1e-30, 1.7976931348623157e308, 0.0])
def test_floats_are_their_dyadic_rationals(value: float) -> None:
    exact = Fraction(value)
    for p in CHAIN:
        want = exact.numerator * pow(exact.denominator, -1, p) % p
        assert int(modular.from_floats(np.asarray(value), p)) == want


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (apply("mul", apply("add", X, Y), Z), apply("add", apply("mul", X, Z), apply("mul", Y, Z))),
        (apply("div", apply("mul", X, Y), Y), X),
        (apply("sub", X, apply("neg", Y)), apply("add", Y, X)),
        (apply("exp", apply("add", X, Y)), apply("mul", apply("exp", X), apply("exp", Y))),
        (apply("exp", apply("neg", X)), apply("div", Lit(1.0), apply("exp", X))),
        (
            apply("exp", apply("add", apply("exp", X), apply("exp", Y))),
            apply("mul", apply("exp", apply("exp", X)), apply("exp", apply("exp", Y))),
        ),
        (apply("expm1", X), apply("sub", apply("exp", X), Lit(1.0))),
        (apply("log1p", X), apply("log", apply("add", X, Lit(1.0)))),
        (apply("pow", X, Lit(3)), apply("mul", X, apply("mul", X, X))),
        (apply("pow", X, Lit(-2.0)), apply("div", Lit(1), apply("mul", X, X))),
        (apply("pow", X, Lit(0.5)), apply("sqrt", X)),
        (apply("pow", X, Lit(-0.5)), apply("div", Lit(1.0), apply("sqrt", X))),
        (apply("tanh", apply("add", X, Y)), apply("tanh", apply("add", Y, X))),
        (apply("maximum", X, Y), apply("where", apply("gt", X, Y), X, Y)),
        (apply("maximum", X, apply("maximum", Y, Z)), apply("maximum", apply("maximum", Z, X), Y)),
        (apply("minimum", X, Y), apply("neg", apply("maximum", apply("neg", X), apply("neg", Y)))),
        (apply("abs", X), apply("maximum", X, apply("neg", X))),
        (apply("mul", apply("sign", X), apply("abs", X)), X),
        (apply("mul", X, Lit(0.5)), apply("div", X, Lit(2))),
    ],
)
def test_laws_hold(left: Scalar, right: Scalar, seed: int) -> None:
    bench = Bench(seed)
    args = [bench.draw(40) for _ in range(3)]
    assert bench.domain.equal(bench.run(left, *args), bench.run(right, *args))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (apply("exp", apply("exp", apply("add", X, Y))), apply("exp", apply("exp", X))),
        (apply("exp", X), apply("expm1", X)),
        (apply("exp", apply("exp", apply("exp", X))), apply("exp", apply("exp", apply("exp", Y)))),
        (apply("tanh", X), apply("sin", X)),
        (apply("maximum", X, Y), apply("add", X, Y)),
        (apply("maximum", X, Y), apply("minimum", X, Y)),
        (apply("maximum", X, Lit(0)), X),
        (apply("mul", X, Lit(0.1)), apply("mul", X, Lit(np.nextafter(0.1, 1).item()))),
        (Convert(DType.bfloat16, X), X),
        (Convert(DType.bfloat16, X), Convert(DType.float16, X)),
        (apply("add", apply("exp", X), apply("exp", Y)), apply("exp", apply("add", X, Y))),
    ],
)
def test_what_differs_is_told_apart(left: Scalar, right: Scalar, seed: int) -> None:
    bench = Bench(seed)
    args = [bench.draw(40) for _ in range(3)]
    assert not bench.domain.equal(bench.run(left, *args), bench.run(right, *args))


NUMBERS = [0.0, 1.0, -2.0, 0.5, float("inf"), float("-inf"), float("nan")]
IEEE = "add sub mul div maximum minimum neg abs sign exp lt le gt ge eq ne isnan isinf floor ceil tanh log sqrt"


@pytest.mark.parametrize("op", IEEE.split())
def test_infinities_nan_and_literals_follow_ieee(op: str, bench: Bench) -> None:
    numbers = [n for n in NUMBERS if op not in ("exp", "tanh", "log", "sqrt") or abs(n) not in (0.5, 1.0, 2.0)]
    arity = row(op).arity
    args = np.array(list(product(numbers, repeat=arity))).T
    dtype = DType.bool if row(op).result == "bool" else F
    with np.errstate(all="ignore"):
        want = row(op).meaning(*args)
    got = bench.run(apply(op, *(Arg(i) for i in range(arity))), *map(bench.floats, args), dtype=dtype)
    if dtype is DType.bool:
        assert isinstance(got, ExactValue)
        assert np.array_equal(got.array, want)
    else:
        assert bench.domain.equal(got, bench.floats(want))


def test_infinities_beside_random_elements(bench: Bench) -> None:
    x, low = bench.draw(60), bench.domain.full((60,), float("-inf"), F)
    high, zero = bench.domain.full((60,), float("inf"), F), bench.domain.full((60,), 0.0, F)
    for expr, args, want in (
        (apply("maximum", X, Y), (x, low), x),
        (apply("minimum", X, Y), (high, x), x),
        (apply("exp", apply("sub", Y, X)), (x, low), zero),
        (apply("div", X, Y), (x, high), zero),
        (apply("add", X, Y), (x, low), low),
        (apply("mul", apply("mul", X, X), Y), (x, low), None),
    ):
        got = bench.run(expr, *args)
        assert want is None or bench.domain.equal(got, want)
    scaled = bench.run(apply("mul", X, Lit(0.125)), low)
    assert bench.domain.equal(scaled, low), "the sign of a literal is its own"


def test_order_is_total_odd_and_true_to_literals(bench: Bench) -> None:
    arithmetic = FieldArithmetic(2, CHAIN)
    x = FieldValue(tuple(bench.rng.integers(1, p, 2000) for p in CHAIN), CHAIN)
    keys = arithmetic.order(x)
    assert len(set(keys.tolist())) == 2000
    assert np.array_equal(np.sign(arithmetic.order(arithmetic.neg(x))), -np.sign(keys))
    assert 0.4 < np.mean(keys > 0) < 0.6
    reals = [-1e30, -1e4, -3.5, -1.0, -0.1, -1e-12, 0.0, 1e-12, 0.1, 1.0, 6.0, 1e4, 1e30]
    found = [int(arithmetic.order(arithmetic.literal(r))) for r in reals]
    assert found == sorted(found)
    assert found[6] == 0
    integers = arithmetic.order(arithmetic.from_integers(np.arange(-4000, 4000)))
    assert np.all(np.diff(integers) > 0)
    clamped = bench.run(apply("minimum", apply("maximum", X, Lit(0.0)), Lit(6.0)), bench.draw(200))
    assert isinstance(clamped, FieldValue)
    assert len(np.unique(clamped.last)) > 20, "clamp must not hide its argument"


@pytest.mark.parametrize("monoid", Monoid)
@pytest.mark.parametrize("special", [False, True])
def test_reduce_is_the_repeated_operation(monoid: Monoid, special: bool, bench: Bench) -> None:
    v = bench.draw(4, 3, 5)
    if special:
        patch = np.zeros((4, 3, 5), bool)
        patch[0, 0, 0] = patch[1, 1, 2] = True
        patch[2, 0, 1] = True
        infinite = bench.floats(np.full((4, 3, 5), -np.inf))
        v = bench.domain.lift(lambda a, b: np.where(patch, b, a), v, infinite)
        v = bench.domain.lift(
            lambda a, b: np.where(np.arange(4)[:, None, None] == 2, b, a), v, bench.run(apply("sub", X, Y), v, v)
        )
    got = bench.domain.reduce(monoid, v, [0, 2])
    for j in range(3):
        total = bench.domain.full((), monoid.identity, F)
        for i, k in product(range(4), range(5)):
            element = bench.domain.lift(lambda a, at=(i, j, k): a[at], v)
            total = bench.run(apply(monoid.value, X, Y), total, element)
        assert bench.domain.equal(total, bench.domain.lift(lambda a, j=j: a[j], got))


def test_reductions_of_nothing_and_of_integers(bench: Bench) -> None:
    domain = bench.domain
    for monoid in Monoid:
        empty = domain.reduce(monoid, bench.draw(2, 0), [1])
        assert domain.equal(empty, domain.full((2,), monoid.identity, F))
    mask = domain.elementwise(apply("lt", X, Lit(3)), [domain.iota(5, DType.int64)], DType.bool)
    count = domain.reduce(Monoid.sum, mask, [0])
    assert isinstance(count, ExactValue)
    assert count.array == 3


EINSUMS = [
    ("ik,kj->ij", (4, 6), (6, 5)),
    ("bik,bjk->jbi", (2, 4, 6), (2, 3, 6)),
    ("ii,ij->j", (4, 4), (4, 5)),
    ("ik,lj->ij", (2, 3), (4, 5)),
    (",i->i", (), (4,)),
    ("i,j->ij", (3,), (4,)),
    ("ik,k->i", (3, 0), (0,)),
    ("ab,cbad->dc", (3, 2), (5, 2, 3, 4)),
]


@pytest.mark.parametrize(("spec", "left", "right"), EINSUMS)
@pytest.mark.parametrize("special", [False, True])
def test_contract_is_einsum(spec: str, left: tuple, right: tuple, special: bool, bench: Bench) -> None:
    labels, out = spec.split("->")
    la, ra = ([ord(c) for c in part] for part in labels.split(","))
    oa = [ord(c) for c in out]
    a, b = bench.draw(*left), bench.draw(*right)
    assert isinstance(a, FieldValue)
    assert isinstance(b, FieldValue)
    if special and a.parts[0].size:
        zeros = np.zeros(left, np.int8)
        a = FieldValue(a.parts, a.primes, zeros)
    got = bench.domain.contract(a, la, b, ra, oa)
    assert isinstance(got, FieldValue)
    for x, y, z, p in zip(a.parts, b.parts, got.parts, CHAIN, strict=True):
        exact = np.einsum(spec, x.astype(object), y.astype(object))
        assert np.array_equal(z, np.asarray(exact % p).astype(np.int64))
    i, j = (ExactValue(bench.rng.integers(-9, 9, s)) for s in (left, right))
    exact = bench.domain.contract(i, la, j, ra, oa)
    assert isinstance(exact, ExactValue)
    assert np.array_equal(exact.array, np.einsum(spec, i.array, j.array))
    mixed = bench.domain.contract(i, la, b, ra, oa)
    elements = bench.domain.contract(bench.domain.convert(i, F, False), la, b, ra, oa)
    assert bench.domain.equal(mixed, elements)


def test_contract_with_infinities(bench: Bench) -> None:
    a = bench.floats([[1.0, np.inf], [0.0, 2.0], [np.nan, 1.0]])
    b = bench.floats([[1.0, 0.0], [3.0, -1.0]])
    with np.errstate(all="ignore"):
        want = np.array([[np.inf, -np.inf], [6.0, -2.0], [np.nan, np.nan]])
    assert bench.domain.equal(bench.domain.contract(a, [0, 1], b, [1, 2], [0, 2]), bench.floats(want))


@pytest.mark.parametrize("dtype", [F, DType.int64, DType.bool])
def test_poison_refutes(dtype: DType, bench: Bench) -> None:
    domain = bench.domain
    x = bench.draw(30)
    true, false = (domain.full((30,), v, DType.bool) for v in (True, False))
    bad = domain.poison((30,), dtype)
    assert not domain.equal(bad, domain.poison((30,), dtype))
    if dtype is DType.bool:
        chosen = domain.elementwise(apply("where", X, Y, Y), [bad, x], F)
        assert not domain.equal(chosen, x)
        kept = domain.elementwise(apply("logical_and", X, Y), [false, bad], DType.bool)
        assert domain.equal(kept, false)
        for op in ("logical_and", "logical_or"):
            leaked = [
                domain.elementwise(apply(op, X, Y), [true if op == "logical_and" else false, p], DType.bool)
                for p in (bad, domain.poison((30,), dtype))
            ]
            assert not domain.equal(*leaked)
        return
    summed = [domain.elementwise(apply("add", X, Y), [x, p], F) for p in (bad, domain.poison((30,), dtype))]
    assert not domain.equal(*summed)
    masked = domain.elementwise(apply("where", Z, X, Y), [x, bad, true], F)
    assert domain.equal(masked, x)


def test_masks_from_padding(bench: Bench) -> None:
    """A mask with some elements poisoned: what is known stays exact."""
    known = bench.domain.full((3,), True, DType.bool)
    mask = bench.domain.lift(lambda a, b: np.concatenate([a, b]), known, bench.domain.poison((2,), DType.bool))
    x = bench.draw(5)
    got = bench.domain.elementwise(apply("where", X, Y, Lit(0.0)), [mask, x], F)
    assert bench.domain.equal(bench.domain.lift(lambda a: a[:3], got), bench.domain.lift(lambda a: a[:3], x))
    inverted = bench.domain.elementwise(apply("logical_not", X), [mask], DType.bool)
    first = bench.domain.lift(lambda a: a[:3], inverted)
    assert bench.domain.equal(first, bench.domain.full((3,), False, DType.bool))


def test_indices_are_exact(bench: Bench) -> None:
    domain = bench.domain
    i = domain.iota(6, DType.int64)
    causal = domain.elementwise(apply("le", X, Y), [i, bench.column(i)], DType.bool)
    assert isinstance(causal, ExactValue)
    assert np.array_equal(causal.array, np.tril(np.ones((6, 6), bool)))
    as_floats = [domain.convert(v, F, True) for v in (i, bench.column(i))]
    also = domain.elementwise(apply("le", X, Y), as_floats, DType.bool)
    assert domain.equal(causal, also)
    back = domain.convert(domain.elementwise(apply("mul", X, Lit(2.0)), as_floats[:1], F), DType.int32, True)
    assert isinstance(back, ExactValue)
    assert back.array.tolist() == [0, 2, 4, 6, 8, 10]
    wrapped = domain.elementwise(apply("mul", X, Lit(100)), [i], DType.int8)
    assert isinstance(wrapped, ExactValue)
    assert wrapped.array.tolist() == (np.arange(6, dtype=np.int8) * np.int8(100)).tolist()


def test_conversions(bench: Bench) -> None:
    domain, x = bench.domain, bench.draw(20)
    assert domain.equal(domain.convert(x, DType.bfloat16, False), x)
    cast = domain.convert(x, DType.bfloat16, True)
    assert domain.equal(cast, domain.convert(x, DType.bfloat16, True))
    assert not domain.equal(cast, x)
    tenth = domain.full((2,), 0.1, F)
    want = bench.floats(rounded(np.array([0.1, 0.1]), DType.bfloat16))
    assert domain.equal(domain.convert(tenth, DType.bfloat16, True), want)
    edge = bench.floats([np.inf, -np.inf, np.nan, 0.0])
    assert domain.equal(domain.convert(edge, DType.float16, True), edge)
    truth = domain.convert(edge, DType.bool, True)
    assert isinstance(truth, ExactValue)
    assert truth.array.tolist() == [True, True, True, False]


@pytest.mark.parametrize("dtype", [d for d in DType if d.kind == "int"], ids=str)
def test_elements_are_cast_to_exact_integers(dtype: DType, bench: Bench) -> None:
    """Known ones as numbers are, others at random; of padding beside them each time to others, whatever it is padding of."""
    domain, x = bench.domain, bench.draw(40)
    cast = domain.convert(x, dtype, True)
    assert isinstance(cast, ExactValue)
    assert domain.equal(cast, domain.convert(x, dtype, True))
    assert len(set(cast.array.tolist())) > 20
    assert dtype.bounds[0] <= cast.array.min() <= cast.array.max() <= dtype.bounds[1]
    for of, value in ((F, 7.0), (DType.bool, True)):
        known = domain.full((3,), value, of)
        one, other = (
            domain.convert(
                domain.lift(lambda a, b: np.concatenate([a, b]), known, domain.poison((20,), of)), dtype, True
            )
            for _ in range(2)
        )
        assert isinstance(one, ExactValue)
        assert one.array[:3].tolist() == [int(value)] * 3
        assert not domain.equal(one, other)


@pytest.mark.parametrize("monoid", [Monoid.min, Monoid.max])
@pytest.mark.parametrize("of", [F, DType.bool], ids=str)
def test_extrema_of_casts_have_an_identity(monoid: Monoid, of: DType, bench: Bench) -> None:
    """A block is filled up with the least or the greatest number of its type, which changes nothing."""
    domain = bench.domain
    values = domain.lift(lambda a, b: np.concatenate([a, b]), domain.full((4,), 1, of), domain.poison((3,), of))
    cast = domain.convert(values, DType.int32, True)
    padded = domain.lift(lambda a, b: np.concatenate([a, b]), cast, domain.full((2,), monoid.identity, DType.int32))
    assert domain.equal(domain.reduce(monoid, cast, [0]), domain.reduce(monoid, padded, [0]))


def test_seeds_give_different_functions() -> None:
    results = []
    for seed in range(4):
        domain = FieldDomain(seed)
        x = domain.random((20,), F, np.random.default_rng(0))
        values = [domain.elementwise(apply(op, X), [x], F) for op in ("tanh", "exp", "abs")]
        results.append([v.last for v in values if isinstance(v, FieldValue)])
    for a, b in pairwise(results):
        assert not any(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def softmax(bench: Bench, x: FieldElements, shift: bool) -> FieldElements:
    domain = bench.domain
    if shift:
        x = bench.run(apply("sub", X, Y), x, bench.column(domain.reduce(Monoid.max, x, [1])))
    e = bench.run(apply("exp", X), x)
    return bench.run(apply("div", X, Y), e, bench.column(domain.reduce(Monoid.sum, e, [1])))


@given(st.integers(0, 10**6))
def test_softmax_with_and_without_the_shift(seed: int) -> None:
    bench = Bench(seed)
    x = bench.draw(5, 4)
    plain, shifted = softmax(bench, x, False), softmax(bench, x, True)
    assert bench.domain.equal(plain, shifted)
    twice = softmax(bench, plain, False), softmax(bench, shifted, True)
    assert bench.domain.equal(*twice), "two layers of exponentials"
    assert not bench.domain.equal(plain, softmax(bench, bench.draw(5, 4), False))


def test_softmax_of_masked_rows(bench: Bench) -> None:
    """Masked elements vanish exactly; a row with nothing valid is NaN in both."""
    x = bench.draw(4, 6)
    keep = np.arange(6)[None, :] < np.array([6, 3, 1, 0])[:, None]
    low = bench.domain.full((4, 6), float("-inf"), F)
    masked = bench.domain.lift(lambda a, b: np.where(keep, a, b), x, low)
    got = softmax(bench, masked, True)
    assert isinstance(got, FieldValue)
    assert np.array_equal(got.nan, np.broadcast_to(~keep.any(axis=1, keepdims=True), (4, 6)))
    assert not np.any(got.last[~keep])
    short = softmax(bench, bench.domain.lift(lambda a: a[1:2, :3], x), False)
    assert bench.domain.equal(bench.domain.lift(lambda a: a[1:2, :3], got), short)


def whole(*values: int) -> ExactValue:
    return ExactValue(np.array(values, np.int64))


@pytest.mark.parametrize("dtype", [d for d in DType if d.kind == "int"], ids=str)
def test_integers_are_exact_modulo_the_number_of_their_values(dtype: DType, bench: Bench) -> None:
    """Beyond 2^53, where floats end, and beyond 2^63, where they wrap; against Python's integers."""
    low, high = dtype.bounds
    numbers = [low, high, high // 3, 2**53 + 1 if high > 2**53 else 7, 3]
    pairs = [(a, b) for a in numbers for b in numbers]
    left, right = (whole(*column) for column in zip(*pairs, strict=True))
    for op, exact in (("add", int.__add__), ("sub", int.__sub__), ("mul", int.__mul__), ("bitwise_xor", int.__xor__)):
        got = bench.domain.elementwise(Convert(dtype, apply(op, Arg(0), Arg(1))), [left, right], dtype)
        assert isinstance(got, ExactValue)
        assert got.array.tolist() == [dtype.wraps(exact(a, b)) for a, b in pairs], op
    for monoid, wanted in ((Monoid.sum, sum(numbers)), (Monoid.prod, math.prod(numbers)), (Monoid.max, high)):
        got = bench.domain.reduce(monoid, whole(*numbers), [0])
        assert isinstance(got, ExactValue)
        assert int(got.array) == DType.int64.wraps(wanted)
    product = bench.domain.contract(whole(*numbers), [0], whole(*numbers), [0], [])
    assert isinstance(product, ExactValue)
    assert int(product.array) == DType.int64.wraps(sum(n * n for n in numbers))


def test_integers_beside_padding_stay_exact(bench: Bench) -> None:
    """Bits and wrapping, which field elements have not, are those of the valid integers; the padding never agrees."""
    domain = bench.domain

    def padded() -> Any:
        return domain.lift(lambda a, b: np.concatenate([a, b]), whole(2**62 + 1), domain.poison((40,), DType.int64))

    expr = apply("bitwise_and", apply("mul", Arg(0), Lit(3)), Lit(-2))
    one, other = (domain.elementwise(expr, [padded()], DType.int64) for _ in range(2))
    assert isinstance(one, ExactValue)
    assert int(one.array[0]) == DType.int64.wraps((2**62 + 1) * 3) & -2
    assert not domain.equal(one, other)


def test_integers_selected_by_padded_masks_stay_exact(bench: Bench) -> None:
    """They wrap where the mask is known; where it is padding, what is selected never agrees."""
    domain = bench.domain
    known, ends = domain.full((1,), True, DType.bool), whole(*[2**62 + 1] * 41)

    def selected() -> Any:
        mask = domain.lift(lambda a, b: np.concatenate([a, b]), known, domain.poison((40,), DType.bool))
        return domain.elementwise(apply("mul", apply("where", X, Y, Lit(0)), Lit(3)), [mask, ends], DType.int64)

    one, other = selected(), selected()
    assert isinstance(one, ExactValue)
    assert int(one.array[0]) == DType.int64.wraps((2**62 + 1) * 3)
    assert not domain.equal(one, other)


def test_bounds_of_extrema_are_those_of_the_type(bench: Bench) -> None:
    for dtype in (DType.int8, DType.uint8, DType.int64):
        for bound, value in zip(dtype.bounds, (float("-inf"), float("inf")), strict=True):
            assert domain_value(bench.domain.full((), value, dtype)) == bound


def domain_value(value: Any) -> int:
    assert isinstance(value, ExactValue)
    return int(value.array)


@pytest.mark.parametrize("op", ["floor_divide", "trunc_divide", "fmod", "bitwise_and", "bitwise_right_shift"])
def test_integers_beside_what_is_not_known_are_what_they_are_alone(op):
    """Elements of a cast of floats that are known are divided as integers are; those of padding are not known. So are bools."""
    domain = FieldDomain(1)
    for known, dtype, of in ((7.0, F, Convert(DType.int64, X)), (True, DType.bool, X)):
        sevens = domain.full((3,), known, dtype)
        mixed = domain.lift(lambda a, b: np.concatenate([a, b]), sevens, domain.poison((2,), dtype))
        alone, beside = (domain.elementwise(apply(op, of, Lit(2)), [v], DType.int64) for v in (sevens, mixed))
        assert isinstance(alone, ExactValue)
        assert domain.equal(alone, domain.lift(lambda a: a[:3], beside))
