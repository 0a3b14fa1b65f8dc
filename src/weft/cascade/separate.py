"""Decomposition of an element into what depends on the data alone and what depends on earlier results alone (RedFuser, 4.2).

The paper asks for one product F(x, d) = G(x) * H(d). Here F may be a sum of a few: `separated` gives terms

    H(d) * G(x) * (g(x) - h(d)) ** p * exp(g'(x) - h'(d))

in which differences and exponentials of differences stand as they are: over the reals each is a finite sum of products too (expand
the power; exp(g') * exp(-h')), and `weft.cascade.fold` carries those relative to a running value of h, where nothing cancels
and nothing overflows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import permutations

from weft.cascade.algebra import ONE, ZERO, difference, is_one, monomial, negative, product, quotient, total
from weft.cascade.chain import Chain, Result
from weft.cascade.rounding import Scaling, misfit, peeled
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, apply, arguments, is_zero

MOST_TERMS = 6
"""A decomposition into more products than this carries more than it saves."""
MOST_POWER = 4
"""Of a difference: kurtosis has the fourth."""
_TOO_HIGH = f"powers above {MOST_POWER} of what uses an earlier result are not carried"


@dataclass(frozen=True, slots=True)
class Shift:
    """A difference g(x) - h(d) of data and earlier results."""

    data: Scalar
    result: Scalar


@dataclass(frozen=True, slots=True)
class Factor:
    """One side of a term, without what depends on earlier results alone: data * shift ** power ... * exp(raised) * R(scaled).

    Attributes:
        data: G, varies along the axis or is a number.
        powers: of differences, each once.
        raised: the difference under the exponential, if there is one.
        scaled: what is rounded at a running scale, if anything is.
    """

    data: Scalar = ONE
    powers: tuple[tuple[Shift, int], ...] = ()
    raised: Shift | None = None
    scaled: Scaling | None = None

    @property
    def trivial(self) -> bool:
        """True where the factor is 1."""
        return self == Factor()


@dataclass(frozen=True, slots=True)
class Term:
    """`scale` * one factor for each side; `scale` is H, of earlier results and what does not vary along the axis."""

    scale: Scalar
    factors: tuple[Factor, ...]


class NotSeparableError(Exception):
    """An expression has no decomposition that is known here; the message names the part that has none."""


def separated(chain: Chain, sides: tuple[Scalar, ...]) -> tuple[Term, ...]:
    """Return the terms whose sum is the product of `sides`.

    Raises:
        NotSeparableError: some part mixes data and earlier results for good, or there are too many terms.
    """
    terms: list[Term] = [Term(ONE, ())]
    for side in sides:
        parts = _Separation(chain).parts(side)
        _few(chain, side, len(terms) * len(parts))
        terms = [Term(product(t.scale, p.scale), (*t.factors, p.factor)) for t in terms for p in parts]
    return tuple(terms)


def _few(chain: Chain, expr: Scalar, count: int) -> None:
    """Raise where `expr` would come to `count` terms: before they are made, since those of products multiply."""
    if count > MOST_TERMS:
        raise NotSeparableError(f"{chain.show(expr)} is a sum of {count} products, more than {MOST_TERMS}")


def factored(chain: Chain, expr: Scalar) -> Term:
    """Return the one term H(d) * G(x) * exp(g(x) - h(d)) that `expr` is: n of these multiplied are data by the n-th
    power of results.

    Raises:
        NotSeparableError: it is no such product.
    """
    terms = separated(chain, (expr,))
    if len(terms) == 1 and terms[0].factors[0].scaled is not None:
        raise NotSeparableError(
            f"{chain.show(expr)} is rounded, each factor by a different number, so no single number stands for all of them"
        )
    if len(terms) != 1 or terms[0].factors[0].powers:
        raise NotSeparableError(
            f"{chain.show(expr)} is not a product of data and an earlier result: "
            "the state of a product of sums would grow with the number of elements"
        )
    return terms[0]


def overflowing(chain: Chain, term: Term) -> str | None:
    """Say why `term` is no way to compute its sum; None where it is one.

    H is applied after the sum. If H scales large elements down, or tiny ones up, to ordinary size, the sum without it is
    infinite or 0. Dividing by an extremum is meant to do this, and powers of H do it too.
    """
    data = [f.data for f in term.factors if not is_one(f.data)]
    differences = any(f.powers for f in term.factors)
    if not data and not differences:
        return None
    if any(_extremum(chain, i) for i in _dividing(term.scale, False)):
        return f"{chain.show(term.scale)} keeps the sum in range: without it, the sum may be infinite or 0"
    powers = (e for f, e in monomial(term.scale).factors if chain.dependent(f))
    if any(abs(e) > 1 for e in powers):
        return f"{chain.show(term.scale)} is a power: without it, the sum may be infinite or 0"
    return None


def freed_of_both(chain: Chain, sides: tuple[Scalar, ...], scaling: Collection[str]) -> str | None:
    """Say why the product of two sides without the scale of one of them is no way to compute it; None where it is one.

    A scale, a norm say, brings data of any size to about 1. Times ordinary numbers, the data may go without it until all is
    added up; times other data of any size, scaled or not, their product may be of the size of a square.

    Args:
        chain: what the sides are expressions of.
        sides: of the product.
        scaling: the values that scales in the program are made of.
    """
    for side, other in permutations(sides, 2):
        factors = [f for term in separated(chain, (side,)) for f, _ in monomial(term.scale).factors]
        scales = [f for f in factors if chain.dependent(f) and not _counting(chain, f)]
        if scales and not _leaves(chain, other).isdisjoint(scaling):
            shown = chain.show(scales[0]), chain.show(side), chain.show(other)
            return "{} keeps {} in range: without it, the product with {} may be out of range".format(*shown)
    return None


def _leaves(chain: Chain, expr: Scalar) -> frozenset[str]:
    """Return the values outside of the chain that `expr` is made of."""
    found: set[str] = set()
    for index in arguments(expr):
        operand = chain.operands[index]
        if isinstance(operand, Result):
            found.update(*(_leaves(chain, side) for side in chain.links[operand.index].element.sides))
        else:
            found.add(operand.value)
    return frozenset(found)


def far_apart(chain: Chain, term: Term) -> bool:
    """Tell whether elements are brought into range by several factors, one of them a result: data times data by two lengths.

    The sum without them is of another size than any of the data, and may be infinite where the elements are ordinary numbers.
    """
    factors = [f for f, _ in monomial(term.scale).factors if arguments(f) and not _counting(chain, f)]
    return len(factors) > 1 and any(chain.dependent(f) for f in factors)


def _counting(chain: Chain, expr: Scalar) -> bool:
    """Tell whether `expr` is a sum of exponentials: relative to the greatest, from 1 to the number of elements."""
    found = chain.operands[expr.index] if isinstance(expr, Arg) else None
    if not isinstance(found, Result):
        return False
    link = chain.links[found.index]
    return (
        link.monoid is Monoid.sum and isinstance(link.element.expr, Apply) and link.element.expr.op in ("exp", "decay")
    )


def _extremum(chain: Chain, operand: int) -> bool:
    found = chain.operands[operand]
    return isinstance(found, Result) and chain.links[found.index].monoid in (Monoid.max, Monoid.min)


def _dividing(expr: Scalar, below: bool) -> Iterator[int]:
    """Yield the arguments that `expr` divides by, or the other ones: what is under an exponential is neither."""
    match expr:
        case Arg(index):
            if below:
                yield index
        case Apply("div", (left, right)):
            yield from _dividing(left, below)
            yield from _dividing(right, not below)
        case Apply("pow", (base, Lit(exponent))):
            yield from _dividing(base, below != (exponent < 0))
        case Apply("exp" | "decay", _) | Lit():
            pass
        case Apply(_, args):
            for each in args:
                yield from _dividing(each, below)
        case Convert(_, inner):
            yield from _dividing(inner, below)


def summands(chain: Chain, expr: Scalar) -> list[Scalar]:
    """Split `expr` into summands, as far apart as addition, subtraction and scaling by what is fixed take it."""
    return _Separation(chain).additive(expr)


@dataclass(frozen=True, slots=True)
class _Part:
    scale: Scalar
    factor: Factor = Factor()


@dataclass(frozen=True, slots=True)
class _Separation:
    chain: Chain

    def fixed(self, expr: Scalar) -> bool:
        """Tell whether `expr` is the same all along the axis."""
        return not self.chain.varying(expr)

    def parts(self, expr: Scalar) -> list[_Part]:
        """Return the terms of one side."""
        if not self.chain.dependent(expr):
            return [_Part(expr) if self.fixed(expr) else _Part(ONE, Factor(expr))]
        if self.fixed(expr):
            return [_Part(expr)]
        rounding = peeled(expr) if self.chain.running else None
        if rounding is not None:
            return [self._rounded(expr, *rounding)]
        match expr:
            case Apply("neg", (inner,)):
                return [replace(p, scale=negative(p.scale)) for p in self.parts(inner)]
            case Apply("add" | "sub" as op, (left, right)):
                return self._sum(expr, self.parts(left), self.parts(right), op == "sub")
            case Apply("mul", (left, right)):
                return self._product(expr, self.parts(left), self.parts(right))
            case Apply("div", (left, right)):
                below = self._divisor(expr, right)
                return [_times(a, below) for a in self.parts(left)]
            case Apply("pow", (base, Lit(exponent))) if exponent >= 1 and float(exponent).is_integer():
                if exponent > MOST_POWER:
                    raise NotSeparableError(f"{self.chain.show(expr)}: {_TOO_HIGH}")
                return self._power(expr, base, int(exponent))
            case Apply("exp" | "decay", (inner,)):
                return [self._raised(expr, inner)]
            case Apply("where", (condition, yes, no)) if not self.chain.dependent(condition):
                return self._chosen(expr, condition, self.parts(yes), self.parts(no))
            case _:
                raise NotSeparableError(f"{self.chain.show(expr)} mixes data with an earlier result")

    def _rounded(self, expr: Scalar, around: Scalar, inner: Scalar) -> _Part:
        """Return a product, rounded, as a part."""
        parts = self.parts(inner)
        if len(parts) > 1 or not _plain(parts[0]):
            raise NotSeparableError(f"{self.chain.show(expr)} rounds more than a product of data and earlier results")
        scaling = Scaling(parts[0].factor.data, parts[0].scale, around)
        reason = misfit(self.chain, scaling)
        if reason is not None:
            raise NotSeparableError(reason)
        return _Part(ONE, Factor(scaled=scaling))

    def _divisor(self, expr: Scalar, divisor: Scalar) -> _Part:
        """Return the part that dividing by `divisor` multiplies by."""
        below = self.parts(divisor)
        if len(below) > 1 or below[0].factor.powers or below[0].factor.scaled:
            raise NotSeparableError(f"{self.chain.show(expr)} divides by a sum of data and an earlier result")
        return _inverse(below[0])

    def _product(self, expr: Scalar, left: list[_Part], right: list[_Part]) -> list[_Part]:
        """Return the terms of the product `expr` of two sums."""
        _few(self.chain, expr, len(left) * len(right))
        return [_times(a, b) for a in left for b in right]

    def _power(self, expr: Scalar, base: Scalar, exponent: int) -> list[_Part]:
        result, each = [_Part(ONE)], self.parts(base)
        for _ in range(exponent):
            result = self._product(expr, result, each)
        return result

    def _sum(self, expr: Scalar, left: list[_Part], right: list[_Part], minus: bool) -> list[_Part]:
        if minus:
            right = [replace(p, scale=negative(p.scale)) for p in right]
        shifted = self._shift(left, right)
        if shifted is not None:
            return [shifted]
        parts: list[_Part] = []
        for part in (*left, *right):
            same = next((i for i, p in enumerate(parts) if p.scale == part.scale and _plain(p) and _plain(part)), None)
            if same is None:
                parts.append(part)
            else:
                joined = total(parts[same].factor.data, part.factor.data)
                parts[same] = replace(parts[same], factor=Factor(joined))
        _few(self.chain, expr, len(parts))
        if len(parts) > 1 and not any(p.factor.powers or p.factor.raised for p in parts):
            raise NotSeparableError(
                f"{self.chain.show(expr)} is a sum of data times earlier results: summed separately they could cancel"
            )
        return parts

    def _shift(self, left: list[_Part], right: list[_Part]) -> _Part | None:
        """Return the one difference of data and an earlier result that the two make, if they do."""
        if len(left) != 1 or len(right) != 1:
            return None
        one, other = left[0], right[0]
        if _plain(other) and not is_one(other.factor.data):
            one, other = other, one
        if not (_plain(one) and other.factor.trivial) or is_one(one.factor.data):
            return None
        if not self.chain.dependent(other.scale):
            return None  # data plus what is fixed: no earlier result to keep apart
        moved = negative(quotient(other.scale, one.scale))
        return _Part(one.scale, Factor(ONE, ((Shift(one.factor.data, moved), 1),)))

    def _raised(self, expr: Scalar, inner: Scalar) -> _Part:
        """Return exp of a sum of data and earlier results as a part."""
        data: Scalar = ZERO
        result: Scalar = ZERO
        for part in self.additive(inner):
            if self.fixed(part):
                result = difference(result, part)
            elif not self.chain.dependent(part):
                data = total(data, part)
            else:
                raise NotSeparableError(
                    f"{self.chain.show(part)} in {self.chain.show(expr)} mixes data with an earlier result"
                )
        return _Part(ONE, Factor(ONE, (), Shift(data, result)))

    def additive(self, expr: Scalar) -> list[Scalar]:
        """Split `expr` into summands, as far apart as addition, subtraction and scaling by what is fixed take them."""
        match expr:
            case Apply("add", (left, right)):
                return [*self.additive(left), *self.additive(right)]
            case Apply("sub", (left, right)):
                return [*self.additive(left), *map(negative, self.additive(right))]
            case Apply("neg", (inner,)):
                return list(map(negative, self.additive(inner)))
            case Apply("mul", (left, right)) if self._outer(left) and self.chain.dependent(right):
                return [product(left, p) for p in self.additive(right)]
            case Apply("mul", (left, right)) if self._outer(right) and self.chain.dependent(left):
                return [product(p, right) for p in self.additive(left)]
            case Apply("div", (left, right)) if self._outer(right) and self.chain.dependent(left):
                return [quotient(p, right) for p in self.additive(left)]
            case _:
                return [expr]

    def _outer(self, expr: Scalar) -> bool:
        """Tell whether `expr` neither varies nor comes from the chain."""
        return self.fixed(expr) and not self.chain.dependent(expr)

    def _chosen(self, expr: Scalar, condition: Scalar, yes: list[_Part], no: list[_Part]) -> list[_Part]:
        """Return a choice that the data make: each side's data, or 0 where the other is chosen."""
        if not all(map(_plain, (*yes, *no))):
            raise NotSeparableError(
                f"{self.chain.show(expr)} leaves out elements, which a running value would still contain"
            )
        found: list[_Part] = []
        for part, chosen in [*((p, True) for p in yes), *((p, False) for p in no)]:
            if not is_zero(part.scale):
                data = part.factor.data
                one, other = (data, ZERO) if chosen else (ZERO, data)
                found.append(replace(part, factor=replace(part.factor, data=apply("where", condition, one, other))))
        _few(self.chain, expr, len(found))
        return found


def _plain(part: _Part) -> bool:
    return not part.factor.powers and part.factor.raised is None and part.factor.scaled is None


def _times(left: _Part, right: _Part) -> _Part:
    powers = dict(left.factor.powers)
    for shift, exponent in right.factor.powers:
        powers[shift] = powers.get(shift, 0) + exponent
    if any(exponent > MOST_POWER for exponent in powers.values()):
        raise NotSeparableError(_TOO_HIGH)
    one, other = left.factor.raised, right.factor.raised
    raised = one or other
    if one is not None and other is not None:
        raised = Shift(total(one.data, other.data), total(one.result, other.result))
    if left.factor.scaled and right.factor.scaled:
        raise NotSeparableError("a product of two numbers that are both rounded at a running scale")
    scaled = left.factor.scaled or right.factor.scaled
    factor = Factor(product(left.factor.data, right.factor.data), tuple(powers.items()), raised, scaled)
    return _Part(product(left.scale, right.scale), factor)


def _inverse(part: _Part) -> _Part:
    raised = part.factor.raised
    inverse = None if raised is None else Shift(negative(raised.data), negative(raised.result))
    return _Part(quotient(ONE, part.scale), Factor(quotient(ONE, part.factor.data), (), inverse))
