"""What each difference of a chain is relative to while its loop runs: a mean so far, or the greatest exponent so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from weft.cascade.algebra import (
    is_one,
    never_negative,
    product,
)
from weft.cascade.basis import Carried, carried
from weft.cascade.chain import Chain, Result
from weft.cascade.components import Centre, Exponent, Reference
from weft.cascade.rounding import Scaling
from weft.cascade.separate import Factor, NotSeparableError, Shift, Term, summands
from weft.tensor.program import Extent, Monoid, Node, Use
from weft.tensor.scalar import Apply, Arg, Lit, Scalar, apply, substitute


@dataclass(frozen=True, slots=True)
class Decomposition:
    """A chain whose elements have all been taken apart.

    Attributes:
        chain: as written.
        terms: for each reduction the terms of its element; of an extremum one, whose data are combined.
    """

    chain: Chain
    terms: tuple[tuple[Term, ...], ...]

    @property
    def scaled(self) -> tuple[Scaling, ...]:
        """The scalings by running values at which terms are rounded."""
        factors = (f for terms in self.terms for term in terms for f in term.factors)
        return tuple(dict.fromkeys(f.scaled for f in factors if f.scaled is not None))


COUNT = Carried((Factor(),), (None,))
"""The number of elements."""


def centres(found: Decomposition, values: Mapping[str, Node]) -> dict[Shift, Reference]:
    """Chooses a running value for each difference to be relative to, near what it subtracts wherever its terms have weight.

    That is what it subtracts, where that is a mean; or the running exponent, where the same data are under the term's exponential
    and what it subtracts is not less.

    Raises:
        NotSeparableError: neither: about another value, terms could cancel, and be infinite where the program is not; about
            the greatest, which lies up to log(n) above most of the weight of n elements, they could if what is subtracted does not.
    """
    met: dict[Shift, list[tuple[Term, int]]] = {}
    for terms in found.terms:
        for term in terms:
            for side, factor in enumerate(term.factors):
                for shift, _ in factor.powers:
                    met.setdefault(shift, []).append((term, side))
    centres: dict[Shift, Reference] = {}
    for shift, places in met.items():
        reference: Reference | None = _mean(found, shift, values)
        if reference is None and all(_raises(term, side, shift) for term, side in places):
            if not _not_below_the_greatest(found.chain, shift) or any(_degree(term) > 1 for term, _ in places):
                text = f"{found.chain.show(shift.data)} - ({found.chain.show(shift.result)})"
                raise NotSeparableError(
                    f"{text} is multiplied by its own exponential, and is not the only difference or not from a maximum: "
                    "relative to the greatest so far it could cancel or overflow"
                )
            reference = Exponent(shift.data)
        if reference is None:
            text = f"{found.chain.show(shift.data)} - ({found.chain.show(shift.result)})"
            if all(_counts_all_alike(term, side) for term, side in places):
                raise NotSeparableError(
                    f"{text} is not a difference to a mean of these data, so no running value is known to be near it"
                )
            raise NotSeparableError(
                f"{text} is weighted, and no running value is known to be near the data with large weights"
            )
        centres[shift] = reference
    return centres


def _not_below_the_greatest(chain: Chain, shift: Shift) -> bool:
    """Tells whether `shift` subtracts a maximum of its data, or that and logarithms, as of a sum of exponentials below it."""
    parts = summands(chain, shift.result)
    others = [part for part in parts if not _covers(chain, part, Counter(summands(chain, shift.data)))]
    return len(others) < len(parts) and all(isinstance(part, Apply) and part.op == "log" for part in others)


def _degree(term: Term) -> int:
    """Counts the differences that a term multiplies."""
    return sum(exponent for factor in term.factors for _, exponent in factor.powers)


def _raises(term: Term, side: int, shift: Shift) -> bool:
    """Tells whether the data of `shift` are under the exponential of the same factor."""
    raised = term.factors[side].raised
    return raised is not None and raised.data == shift.data


def _counts_all_alike(term: Term, side: int) -> bool:
    """Tells whether nothing but differences varies in `term`."""
    others = [f for i, f in enumerate(term.factors) if i != side]
    own = term.factors[side]
    return is_one(own.data) and own.raised is None and own.scaled is None and all(f.trivial for f in others)


def _mean(found: Decomposition, shift: Shift, values: Mapping[str, Node]) -> Centre | None:
    """Matches what `shift` subtracts with one sum by another, sum(w * g) / sum(w), or sum(g) / the number of elements.

    Weights that may be negative may add up to about 0, above all those so far, and put their mean anywhere. So the centre is
    then the mean weighted by their magnitudes, which lies among the data.
    """
    match shift.result:
        case Apply("div", (Arg(above), (Arg() | Lit()) as divisor)):
            pass
        case Apply("mul", (Arg(above), Apply("div", (Lit(one), (Arg() | Lit()) as divisor)))) if one == 1:
            pass
        case _:
            return None
    one = _plain_sum(found, above)
    other = _below(found, divisor, values)
    if one is None or other is None:
        return None
    weight = other.factors[0].data if len(other.factors) == 1 else None
    if weight is None or len(one.factors) != 1:
        return None
    data = one.factors[0].data
    if data in (shift.data if other.factors[0].trivial else product(weight, shift.data), product(shift.data, weight)):
        if never_negative(weight):
            return Centre(shift, one, other, mean=not isinstance(divisor, Lit))
        size = apply("abs", weight)
        return Centre(shift, Carried((Factor(product(size, shift.data)),), (None,)), Carried((Factor(size),), (None,)))
    return None


def _plain_sum(found: Decomposition, operand: int) -> Carried | None:
    """Returns the sum that a result is, if it is of data alone."""
    result = found.chain.operands[operand]
    if not isinstance(result, Result) or found.chain.links[result.index].monoid is not Monoid.sum:
        return None
    terms = found.terms[result.index]
    if len(terms) != 1 or terms[0].scale != Lit(1.0) or any(f.powers or f.raised or f.scaled for f in terms[0].factors):
        return None
    return carried(terms[0], found.chain.links[result.index].element.rounded)


def _below(found: Decomposition, divisor: Arg | Lit, values: Mapping[str, Node]) -> Carried | None:
    """Returns what a mean divides by; a number is taken for the length, which may have been known when the program was written."""
    if isinstance(divisor, Lit):
        return COUNT
    return _count(found, divisor.index, values) or _plain_sum(found, divisor.index)


def _count(found: Decomposition, operand: int, values: Mapping[str, Node]) -> Carried | None:
    """Returns the sum of 1 over the axis, if the operand is the number of its elements."""
    use = found.chain.operands[operand]
    node = values.get(use.value) if isinstance(use, Use) else None
    if isinstance(node, Extent) and node.space == found.chain.over.space:
        return COUNT
    return None


def below_its_maximum(chain: Chain, shift: Shift) -> bool:
    """Tells whether what is subtracted is at least the maximum of all that is raised: if that is infinite, so is it."""
    data = Counter(summands(chain, shift.data))
    return any(_covers(chain, part, data) for part in summands(chain, shift.result))


def _covers(chain: Chain, part: Scalar, data: Counter[Scalar]) -> bool:
    """Tells whether `part` is the maximum of the sum of `data`, or of that and more."""
    match part:
        case Apply("maximum", args):
            return any(_covers(chain, each, data) for each in args)
        case Apply("mul", (Lit(times), Arg(i))) | Apply("mul" | "div", (Arg(i), Lit(times))) if times > 0:
            pass
        case Arg(i):
            pass
        case _:
            return False  # by another sign than a positive one it would be the least
    result = chain.operands[i]
    if not isinstance(result, Result) or chain.links[result.index].monoid is not Monoid.max:
        return False
    element = chain.links[result.index].element.expr
    return Counter(summands(chain, substitute(part, lambda _: element))) == data
