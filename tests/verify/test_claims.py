"""What a verdict claims: only what its classes have an argument for, with a number only where a theorem gives one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from weft.tensor.builder import Builder
from weft.tensor.degrees import DegreeDomain
from weft.tensor.dtypes import DType
from weft.tensor.formula import Formula, Polynomial
from weft.tensor.modular import FAMILY, LEAST
from weft.tensor.program import Monoid, TensorProgram
from weft.tensor.scalar import Arg, Lit, Scalar, apply
from weft.verify import Aspect, Verdict, equivalent
from weft.verify.classes import Chances

F = DType.float32
X, Y, Z = Arg(0), Arg(1), Arg(2)
SHAPES = [{"x": (3,), "y": (3,), "z": (3,)}, {"x": (5,), "y": (5,), "z": (5,)}]
# The primes that every check used when they were fixed.
ONCE = (536863709, 1073727419, 2147454839)


def elementwise(expr: Scalar, inputs: str = "xyz", dtype: DType = F, of: DType = F) -> TensorProgram:
    builder = Builder()
    refs = [builder.input(name, [5], of) for name in inputs]
    return builder.finish([builder.elementwise(expr, refs, dtype=dtype)])


def compared(one: Scalar, other: Scalar, dtype: DType = F, of: DType = F) -> Verdict:
    first, second = (elementwise(side, dtype=dtype, of=of) for side in (one, other))
    return equivalent(first, second, SHAPES)


def kinds(verdict: Verdict) -> set[Aspect]:
    return {each.kind for each in verdict.classes}


def repeated_squares(exponent: int) -> TensorProgram:
    """x to a power, by squares, as a program that hides what it is would have it."""
    builder = Builder()
    x = builder.input("x", [5], F)
    square, product = x, None
    while exponent:
        if exponent & 1:
            product = square if product is None else builder.elementwise(apply("mul", X, Y), [product, square])
        square, exponent = builder.elementwise(apply("mul", X, X), [square]), exponent >> 1
    assert product is not None
    return builder.finish([product])


def ones() -> TensorProgram:
    builder = Builder()
    return builder.finish([builder.elementwise(apply("div", X, X), [builder.input("x", [5], F)])])


@pytest.mark.parametrize("prime", ONCE)
def test_fermats_powers_are_not_called_one(prime: int) -> None:
    """No prime is known beforehand, so no exponent makes x ** (p - 1) agree with 1."""
    verdict = equivalent(repeated_squares(prime - 1), ones(), SHAPES)
    assert verdict.equal is False
    assert not verdict.agrees


def test_a_degree_beyond_the_prime_is_no_argument() -> None:
    """A power that agrees modulo the primes drawn, were they known, still is not called equal: its degree says why."""
    verdict = equivalent(repeated_squares(1 << 31), repeated_squares(1 << 31), SHAPES)
    assert verdict.agrees
    assert verdict.equal is None
    assert verdict.error_probability is None
    assert "of degree 2^" in verdict.reason
    power = elementwise(apply("pow", X, Lit(float(1 << 31))), "x")
    assert equivalent(power, repeated_squares(1 << 31), SHAPES).agrees, "a power is its squares, whatever the exponent"
    assert equivalent(power, power, SHAPES).equal is None


@pytest.mark.parametrize("exponent", [3, 1000, 3001])
def test_a_power_is_its_products_with_a_bound_by_its_degree(exponent: int) -> None:
    power = elementwise(apply("pow", X, Lit(float(exponent))), "x")
    verdict = equivalent(power, repeated_squares(exponent), SHAPES)
    assert verdict.equal is True
    (shown,) = verdict.classes
    assert f"of degree {exponent}," in shown.shown
    least = min(verdict.primes)
    assert verdict.error_probability == shown.bound
    assert verdict.error_probability is not None
    assert (exponent / least) ** 2 * 0.2 < verdict.error_probability < (exponent / least) ** 2 * 10
    assert equivalent(power, repeated_squares(exponent + 1), SHAPES).equal is False


def test_a_verdict_can_be_computed_again_and_is_drawn_anew_otherwise() -> None:
    one, other = (
        elementwise(apply("mul", apply("exp", X), apply("exp", Y))),
        elementwise(apply("exp", apply("add", X, Y))),
    )
    verdict, another = equivalent(one, other, SHAPES), equivalent(one, other, SHAPES)
    assert len(verdict.primes) == 2 * 3, "a chain for each trial; exponentials are counted, nested or not"
    assert not set(verdict.primes) & set(another.primes)
    again = equivalent(one, other, SHAPES, primes=verdict.primes)
    assert again == verdict
    with pytest.raises(ValueError, match="no chain"):
        equivalent(one, other, SHAPES, primes=verdict.primes[::-1])
    with pytest.raises(ValueError, match="trials"):
        equivalent(one, other, SHAPES, trials=3, primes=verdict.primes)


TANH_TWICE = apply("tanh", apply("tanh", X))
CLAIMS: dict[str, tuple[Scalar, Scalar, set[Aspect], bool]] = {
    # both sides, their classes, and whether there is a number
    "rational": (
        apply("div", apply("add", X, Y), Z),
        apply("add", apply("div", X, Z), apply("div", Y, Z)),
        {Aspect.rational},
        True,
    ),
    "one exponential": (
        apply("exp", apply("sub", X, Y)),
        apply("div", apply("exp", X), apply("exp", Y)),
        {Aspect.rational, Aspect.exponentials},
        True,
    ),
    "sums of exponentials": (
        apply("mul", apply("add", apply("exp", X), apply("exp", Y)), apply("exp", Z)),
        apply("add", apply("exp", apply("add", X, Z)), apply("exp", apply("add", Y, Z))),
        {Aspect.rational, Aspect.exponentials},
        False,
    ),
    "exponentials in an exponent": (
        apply("exp", apply("exp", apply("add", X, Y))),
        apply("exp", apply("mul", apply("exp", X), apply("exp", Y))),
        {Aspect.rational, Aspect.exponentials},
        False,
    ),
    "a function": (
        apply("mul", apply("tanh", apply("add", X, Y)), Z),
        apply("mul", Z, apply("tanh", apply("add", Y, X))),
        {Aspect.rational, Aspect.functions},
        True,
    ),
    "a function of exponentials": (
        apply("tanh", apply("exp", apply("add", X, Y))),
        apply("tanh", apply("mul", apply("exp", X), apply("exp", Y))),
        {Aspect.rational, Aspect.exponentials, Aspect.functions},
        False,
    ),
    "a maximum": (apply("maximum", X, Y), apply("maximum", Y, X), {Aspect.rational, Aspect.order}, False),
    "relu": (
        apply("maximum", X, Lit(0.0)),
        apply("where", apply("gt", X, Lit(0.0)), X, Lit(0.0)),
        {Aspect.rational, Aspect.order},
        False,
    ),
    "a comparison that cancels": (
        apply(
            "sub",
            apply("add", X, apply("where", apply("lt", Y, Lit(3.7)), Y, Z)),
            apply("where", apply("lt", Y, Lit(3.7)), Y, Z),
        ),
        X,
        {Aspect.rational, Aspect.functions},
        True,
    ),
    "a clamp": (
        apply("mul", apply("minimum", apply("add", X, Y), Lit(6.0)), Lit(2.0)),
        apply("mul", Lit(2.0), apply("minimum", apply("add", Y, X), Lit(6.0))),
        {Aspect.rational, Aspect.functions},
        True,
    ),
}


def test_equality_of_elements_is_an_arbitrary_function_of_their_difference() -> None:
    """Take programs for equal that agree whatever it is, ties or not: 3 * 3 + 4 * 4 == 5 * 5."""
    equal = apply("eq", apply("mul", X, Y), Z)
    unequal = apply("ne", Z, apply("mul", Y, X))
    verdict = compared(apply("where", equal, X, Y), apply("where", unequal, Y, X))
    assert verdict.equal is True, verdict
    assert verdict.error_probability is not None


def test_an_even_function_has_two_arguments_that_others_may_meet() -> None:
    domain = DegreeDomain(arbitrary=True)
    x = domain.random((3,), F, np.random.default_rng(0))
    found = domain.elementwise(apply("abs", X), [x], F)
    assert isinstance(found, Formula)
    assert found.applied == 2


def test_whole_numbers_that_are_divided_by_count_in_the_bound() -> None:
    """A prime that divides one of them tells nothing, nor does one that divides the difference."""
    f, g = (Formula((3,), Polynomial(1), divisor=bits) for bits in (3000.0, 2000.0))
    of_primes = Chances.of(f, g, (LEAST + 3,)).rational - 1 / (LEAST + 3)
    assert of_primes * 30 * FAMILY[1] >= 3000 + 2000 + 3000


@pytest.mark.parametrize("name", CLAIMS)
def test_what_is_claimed_has_an_argument_and_a_number_by_a_theorem_alone(name: str) -> None:
    one, other, classes, number = CLAIMS[name]
    verdict = compared(one, other)
    assert verdict.equal is True, verdict
    assert kinds(verdict) == classes
    assert all(each.decides for each in verdict.classes)
    assert (verdict.error_probability is not None) == number, verdict
    if number:
        assert verdict.error_probability is not None
        assert 0 < verdict.error_probability < 1e-9


OPEN: dict[str, tuple[Scalar, Scalar, DType, DType, Aspect]] = {
    "a threshold that no random element meets": (
        apply("where", apply("gt", apply("mul", X, Y), Lit(1e30)), Lit(0.0), apply("mul", X, Y)),
        apply("mul", X, Y),
        *(F, F, Aspect.constants),
    ),
    "the negation of a comparison": (
        apply("where", apply("gt", X, Lit(3.7)), Y, Z),
        apply("where", apply("le", X, Lit(3.7)), Z, Y),
        *(F, F, Aspect.constants),
    ),
    "equal to a number": (
        apply("where", apply("eq", apply("mul", X, Lit(2.0)), Lit(3.0)), Lit(1.0), X),
        X,
        *(F, F, Aspect.constants),
    ),
    "equal to 0": (
        apply("where", apply("eq", apply("fma", X, Y, Lit(7.0)), Lit(0.0)), Z, X),
        X,
        F,
        F,
        Aspect.constants,
    ),
    "elements equal to each other": (
        apply(
            "where", apply("eq", apply("add", apply("mul", X, X), apply("mul", Y, Y)), apply("mul", Z, Z)), Lit(0.0), X
        ),
        X,
        *(F, F, Aspect.constants),
    ),
    "NaN": (apply("where", apply("isnan", X), Y, X), X, F, F, Aspect.special),
    "integers": (
        apply("bitwise_xor", apply("bitwise_xor", X, Y), Y),
        X,
        *(DType.int64, DType.int64, Aspect.integers),
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_what_agreement_leaves_open_is_said_and_is_not_called_equal(name: str) -> None:
    one, other, of, dtype, kind = OPEN[name]
    verdict = compared(one, other, of=of, dtype=dtype)
    if verdict.equal is False:
        pytest.fail(f"{name} is refuted at random: {verdict}")
    assert verdict.agrees
    assert verdict.equal is None
    assert verdict.error_probability is None
    assert kind in {each.kind for each in verdict.classes if not each.decides}
    assert "; up to " in verdict.reason
    assert "agrees, but is not shown equal" in str(verdict)


def test_sums_and_products_of_integers_are_those_of_any_elements() -> None:
    """Whatever wraps: a law of whole polynomials holds modulo any number."""
    whole = {"of": DType.int64, "dtype": DType.int64}
    one = apply("mul", X, apply("add", Y, Z))
    other = apply("add", apply("mul", X, Y), apply("mul", X, Z))
    verdict = compared(one, other, **whole)
    assert verdict.equal is True
    assert kinds(verdict) == {Aspect.rational, Aspect.integers}
    assert verdict.error_probability is not None
    assert compared(one, apply("mul", X, apply("add", Y, Y)), **whole).equal is False
    # i * (1 / i) is 1 among elements, and 0 among integers.
    inverse = apply("mul", X, apply("pow", X, Lit(-1)))
    assert compared(inverse, apply("floor_divide", X, X), **whole).equal is not True


def test_booleans_are_exhausted_where_each_result_depends_on_few() -> None:
    """Random bools hardly ever are all true: six of them are, once in 64 elements."""
    names = "abcdef"
    every: Scalar = Arg(0)
    for i in range(1, 6):
        every = apply("logical_and", every, Arg(i))
    never = apply("logical_and", every, apply("logical_not", Arg(0)))
    shapes = [dict.fromkeys(names, (2, 3))]

    def of(expr: Scalar) -> TensorProgram:
        builder = Builder()
        refs = [builder.input(name, [10, 14], DType.bool) for name in names]
        return builder.finish([builder.elementwise(expr, refs, dtype=DType.bool)])

    verdict = equivalent(of(never), of(apply("logical_and", never, Arg(1))), shapes)
    assert verdict.equal is True
    assert kinds(verdict) == {Aspect.integers}
    for seed in range(3):
        assert equivalent(of(every), of(never), shapes, seed=seed).equal is False


def test_bools_that_are_summed_are_exhausted_where_they_are_few() -> None:
    def of(monoid: Monoid, negated: bool) -> TensorProgram:
        builder = Builder()
        x = builder.input("x", [5], DType.bool)
        turned = builder.elementwise(apply("logical_not", X), [x], dtype=DType.bool) if negated else x
        found = builder.reduce(monoid, turned, [0])
        return builder.finish(
            [builder.elementwise(apply("logical_not", X), [found], dtype=DType.bool) if negated else found]
        )

    verdict = equivalent(of(Monoid.max, False), of(Monoid.min, True), [{"x": (9,)}])
    assert verdict.agrees
    assert verdict.equal is None
    assert equivalent(of(Monoid.max, False), of(Monoid.min, True), [{"x": (5,)}]).equal is True, "32 values"


def casts(*dtypes: DType, factor: bool = False) -> TensorProgram:
    builder = Builder()
    value = builder.input("x", [5], F)
    for dtype in dtypes:
        value = builder.cast(value, dtype, semantic=False)
    if factor:
        value = builder.elementwise(apply("mul", X, Lit(1000.0)), [value])
    return builder.finish([builder.cast(value, F, semantic=False)])


def test_two_programs_whose_roundings_differ_are_not_called_equal() -> None:
    """A field has no roundings: what it says of the rest is not said of these, unless both round the same in the same places."""
    half, bfloat16 = DType.float16, DType.bfloat16
    for one, other in (
        (casts(half), casts(bfloat16)),
        (casts(half), casts()),
        (casts(half, factor=True), casts(factor=True)),
        (casts(half, bfloat16), casts(bfloat16)),
    ):
        verdict = equivalent(one, other, SHAPES)
        assert verdict.agrees
        assert verdict.equal is None
        assert "roundings" in verdict.reason
    assert equivalent(casts(half, factor=True), casts(half, factor=True), SHAPES).equal is True


def test_a_bound_that_is_not_known_is_none_and_not_1() -> None:
    wrong: Callable[[Scalar], Verdict] = lambda expr: compared(expr, X)  # noqa: E731
    assert wrong(apply("add", X, Y)).error_probability is None
    assert wrong(apply("add", X, Y)).primes
