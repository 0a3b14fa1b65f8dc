"""Scalar expressions built with the identities that need no thought: 1 * x, x / 1, x + 0, and numbers worked out; their text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, apply, is_zero, rewritten

ONE, ZERO = Lit(1.0), Lit(0.0)


def is_one(expr: Scalar) -> bool:
    """Tells whether `expr` is the number 1."""
    return isinstance(expr, Lit) and expr.value == 1


def product(left: Scalar, right: Scalar) -> Scalar:
    """Multiplies left by right, numbers at once."""
    match left, right:
        case Lit(a), Lit(b):
            return Lit(float(a) * float(b))
        case _ if is_one(left):
            return right
        case _ if is_one(right):
            return left
        case (Apply("div", (above, below)), _) if _is_reciprocal(above):
            return quotient(product(above, right), below)
        case (_, Apply("div", (above, below))) if _is_reciprocal(above):
            return quotient(product(left, above), below)
        case _:
            return apply("mul", left, right)


def _is_reciprocal(expr: Scalar) -> bool:
    """Tells whether it is 1, or 1 divided by something, again and again: of what is small enough that alone is infinite."""
    match expr:
        case Apply("div", (above, _)):
            return _is_reciprocal(above)
        case _:
            return is_one(expr)


def quotient(left: Scalar, right: Scalar) -> Scalar:
    """Divides left by right, numbers at once."""
    if isinstance(left, Lit) and isinstance(right, Lit) and right.value != 0:
        return Lit(float(left.value) / float(right.value))
    return left if is_one(right) else apply("div", left, right)


def inverse(expr: Scalar) -> Scalar:
    """Computes 1 / expr."""
    match expr:
        case Apply("div", (above, below)):
            return quotient(below, above)
        case _:
            return quotient(ONE, expr)


def total(left: Scalar, right: Scalar) -> Scalar:
    """Adds left and right, numbers at once."""
    match left, right:
        case Lit(a), Lit(b):
            return Lit(float(a) + float(b))
        case _ if is_zero(left):
            return right
        case _ if is_zero(right):
            return left
        case _, Apply("neg", (inner,)):
            return difference(left, inner)
        case _:
            return apply("add", left, right)


def difference(left: Scalar, right: Scalar) -> Scalar:
    """Subtracts right from left, numbers at once."""
    match left, right:
        case Lit(a), Lit(b):
            return Lit(float(a) - float(b))
        case _ if is_zero(right):
            return left
        case _ if is_zero(left):
            return negative(right)
        case _, Apply("neg", (inner,)):
            return total(left, inner)
        case _:
            return apply("sub", left, right)


def negative(expr: Scalar) -> Scalar:
    """Negates `expr`."""
    match expr:
        case Lit(value):
            return Lit(-float(value))
        case Apply("neg", (inner,)):
            return inner
        case Apply("sub", (left, right)):
            return apply("sub", right, left)
        case _:
            return apply("neg", expr)


def power(base: Scalar, exponent: int) -> Scalar:
    """Raises base to a whole power, as products."""
    if exponent < 0:
        return quotient(ONE, power(base, -exponent))
    result: Scalar = ONE
    for _ in range(exponent):
        result = product(result, base)
    return result


def repeatedly(factor: Scalar, times: int, of: Scalar) -> Scalar:
    """Multiplies `of` by `factor` so many times, one after the other: 0 stays 0 where a power of the factor is infinite."""
    for _ in range(times):
        of = product(factor, of)
    return of


def never_negative(expr: Scalar) -> bool:
    """Tells whether `expr` is known to be at least 0, or NaN."""
    match expr:
        case Lit(value):
            return value >= 0
        case Apply("abs" | "exp" | "decay" | "sqrt" | "sigmoid", _):
            return True
        case Apply("mul", (left, right)) if left == right:
            return True
        case Apply("add" | "mul" | "div" | "minimum", args):
            return all(map(never_negative, args))
        case Apply("maximum", args):
            return any(map(never_negative, args))
        case Apply("where", (_, yes, no)):
            return never_negative(yes) and never_negative(no)
        case Convert(_, inner):
            return never_negative(inner)
        case _:
            return False


def finite_or(value: Scalar, other: Scalar) -> Scalar:
    """Selects `value` where it is a finite number, else `other`."""
    return apply("where", apply("logical_or", apply("isnan", value), apply("isinf", value)), other, value)


def infinite_or(value: Scalar, other: Scalar) -> Scalar:
    """Selects `value` where it is infinite, else `other`."""
    return apply("where", apply("isinf", value), value, other)


_LEVEL = {"add": 1, "sub": 1, "mul": 2, "div": 2}
_SIGN = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def text(expr: Scalar, names: tuple[str, ...], level: int = 0) -> str:
    """Writes `expr` as text, its arguments called `names`, with as few parentheses as it takes inside an expression of `level`.

    Levels: 0 for none, 1 a sum, 2 a product, 3 a power. Exponentials of what is never positive are called as others are.
    """
    match expr:
        case Arg(index):
            return names[index]
        case Lit(value):
            return f"{value:g}" if isinstance(value, float) else repr(value)
        case Apply(("add" | "sub" | "mul" | "div") as op, (left, right)):
            own = _LEVEL[op]
            inner = f"{text(left, names, own)} {_SIGN[op]} {text(right, names, own + (op in ('sub', 'div')))}"
            return f"({inner})" if own < level else inner
        case Apply("neg", (inner,)):
            return f"-{text(inner, names, 3)}"
        case Apply("decay", (inner,)):
            return f"exp({text(inner, names)})"
        case Apply(op, args):
            return f"{op}({', '.join(text(a, names) for a in args)})"
        case Convert(dtype, inner):
            return f"{dtype}({text(inner, names)})"


def where_invertible(of: Scalar, value: Scalar, other: Scalar) -> Scalar:
    """Selects `value` where `of` is a finite number and not 0, else `other`."""
    irregular = apply("logical_or", apply("isnan", of), apply("isinf", of))
    return apply("where", apply("logical_or", apply("eq", of, ZERO), irregular), other, value)


# Products as the algebra of the paper needs them: powers of factors, and one exponential.


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


def above_least(of: Scalar) -> bool:
    """Tells whether `of` is never -inf, since another number is selected where it would be."""
    match of:
        case Apply("where", (condition, Lit(value), other)) if value > -math.inf:
            least = Lit(-math.inf)
            infinite = (
                apply("eq", apply("abs", other), Lit(math.inf)),
                apply("isinf", other),
                apply("eq", other, least),
            )
            return condition in infinite
        case _:
            return False
