"""Products as the algebra of the paper needs them: powers of factors, and one exponential."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.cascade.algebra import ONE, ZERO, difference, is_zero, negative, power, product, quotient, total
from weft.tensor.scalar import Apply, Arg, Lit, Scalar, apply, rewritten


@dataclass(frozen=True, slots=True)
class Monomial:
    """number * product of factor ** power * exp(exponent).

    Attributes:
        number: a constant.
        factors: expressions that are no products, each once, with a power that is not 0.
        exponent: summands with their signs; none is the negative of another.
    """

    number: float = 1.0
    factors: tuple[tuple[Scalar, int], ...] = ()
    exponent: tuple[tuple[Scalar, int], ...] = ()

    def times(self, other: Monomial, sign: int = 1) -> Monomial:
        """Multiplies by `other`, or for sign -1 divides by it."""
        number = self.number * other.number if sign > 0 else self.number / other.number
        return Monomial(
            number, _joined(self.factors, other.factors, sign), _joined(self.exponent, other.exponent, sign)
        )

    @property
    def expr(self) -> Scalar:
        """An expression of the product: what is in the numerator first."""
        above: Scalar = ONE if self.number == 1 else Lit(self.number)
        below: Scalar = ONE
        for factor, exponent in self.factors:
            above = product(above, power(factor, exponent)) if exponent > 0 else above
            below = product(below, power(factor, -exponent)) if exponent < 0 else below
        if self.exponent:
            raised: Scalar = ZERO
            for summand, count in sorted(self.exponent, key=lambda t: t[1] < 0):
                times = product(Lit(float(abs(count))), summand)
                raised = total(raised, times) if count > 0 else difference(raised, times)
            above = product(above, apply("exp", raised))
        return quotient(above, below)


def monomial(expr: Scalar) -> Monomial:
    """Reads `expr` as a product; anything else is one factor."""
    match expr:
        case Lit(value) if value != 0:
            return Monomial(float(value))
        case Apply("mul", (left, right)):
            return monomial(left).times(monomial(right))
        case Apply("div", (left, right)):
            return monomial(left).times(monomial(right), -1)
        case Apply("neg", (inner,)):
            return Monomial(-1.0).times(monomial(inner))
        case Apply("exp" | "decay", (inner,)):
            return Monomial(exponent=_joined((), tuple(_summands(inner, 1)), 1))
        case _:
            return Monomial(factors=((expr, 1),))


def _summands(expr: Scalar, sign: int) -> list[tuple[Scalar, int]]:
    match expr:
        case Apply("add", (left, right)):
            return [*_summands(left, sign), *_summands(right, sign)]
        case Apply("sub", (left, right)):
            return [*_summands(left, sign), *_summands(right, -sign)]
        case Apply("neg", (inner,)):
            return _summands(inner, -sign)
        case Lit(value) if value == 0:
            return []
        case _:
            return [(expr, sign)]


def _joined(
    left: tuple[tuple[Scalar, int], ...], right: tuple[tuple[Scalar, int], ...], sign: int
) -> tuple[tuple[Scalar, int], ...]:
    found = dict(left)
    for factor, exponent in right:
        found[factor] = found.get(factor, 0) + sign * exponent
    return tuple((f, e) for f, e in found.items() if e)


def simplified(expr: Scalar, given: Callable[[int], Scalar]) -> Scalar:
    """Returns `expr` with its arguments replaced, and worked out as far as numbers go."""
    match expr:
        case Arg(index):
            return given(index)
        case Apply(op, args):
            return _worked_out(op, tuple(simplified(a, given) for a in args))
        case _:
            return rewritten(expr, lambda inner: simplified(inner, given))


_WORKED_OUT = {"add": total, "sub": difference, "mul": product, "div": quotient, "neg": negative}


def _worked_out(op: str, args: tuple[Scalar, ...]) -> Scalar:
    if op in ("exp", "decay") and is_zero(args[0]):
        return ONE
    return _WORKED_OUT[op](*args) if op in _WORKED_OUT else Apply(op, args)
