"""What a loop carries for a chain: sums relative to running values, closed under moving these (the state behind A.4).

A term exp(g - h) is summed as exp(g - z) with z the largest g so far, and (g - h) ** p as (g - c) ** p with c the mean of g so
far. When z moves, a sum is multiplied by exp(z_old - z); when c moves by m, it needs by the binomial theorem the sums of all lower
powers:

    sum (g - c - m) ** 2  =  sum (g - c) ** 2  -  2 m sum (g - c)  +  m ** 2 sum 1

so all of them are carried. Any z and c would do over the reals; these keep exponentials at most 1, and differences near those of
the program. What a term multiplies them by need not be small: `weft.cascade.separate.overflowing` says which terms are no way to
compute their sum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from weft.cascade.chain import Chain
from weft.cascade.rounding import Scaling
from weft.cascade.separate import Factor, Shift, Term
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Scalar, arguments


@dataclass(frozen=True, slots=True)
class Carried:
    """A sum along the axis of the product of `factors`, one for each side, each shift in it relative to its running value.

    Attributes:
        rounded: the type that each factor is rounded to before a product; None where it is not.
    """

    factors: tuple[Factor, ...]
    rounded: tuple[DType | None, ...]

    @property
    def shifts(self) -> tuple[tuple[Shift, int], ...]:
        """Its differences, and to which power."""
        found: dict[Shift, int] = {}
        for factor in self.factors:
            for shift, exponent in factor.powers:
                found[shift] = found.get(shift, 0) + exponent
        return tuple(found.items())

    @property
    def raised(self) -> tuple[Shift, ...]:
        """The differences under its exponentials."""
        return tuple(f.raised for f in self.factors if f.raised is not None)

    @property
    def scaled(self) -> tuple[Scaling, ...]:
        """The scalings by running values at which factors are rounded."""
        return tuple(f.scaled for f in self.factors if f.scaled is not None)

    @property
    def moving(self) -> bool:
        """True where the sum is relative to anything that moves."""
        return bool(self.shifts or self.raised or self.scaled)


def carried(term: Term, rounded: tuple[DType | None, ...]) -> Carried:
    """Returns the sum that carries `term`; a side that is 1 is left out, and with it the product."""
    kept = [(f, r) for f, r in zip(term.factors, rounded, strict=True) if not f.trivial]
    kept = kept or [(Factor(), None)]
    if len(kept) == 1:
        kept = [(kept[0][0], None)]
    return Carried(tuple(f for f, _ in kept), tuple(r for _, r in kept))


def squared(of: Carried) -> bool:
    """Tells whether a sum is of products of differences, which may be infinite where these are numbers."""
    return sum(p for _, p in of.shifts) > 1


def expansion(of: Carried, moved: frozenset[Shift]) -> Iterator[tuple[int, tuple[tuple[Shift, int], ...], Carried]]:
    """Expands `of` relative to other centres, as a sum: (coefficient, moves, carried sum).

    With c' = c + m, (g - c') ** p = sum over r of binomial(p, r) * (-m) ** (p - r) * (g - c) ** r. Moves say which shift of
    `moved` has which power of m. The first summand is `of` itself.
    """
    shifts = [(side, shift, p) for side, f in enumerate(of.factors) for shift, p in f.powers if shift in moved]
    for lowered in itertools.product(*(range(p, -1, -1) for _, _, p in shifts)):
        coefficient, moves = 1, dict[Shift, int]()
        factors = list(of.factors)
        for (side, shift, p), r in zip(shifts, lowered, strict=True):
            coefficient *= math.comb(p, r) * (-1) ** (p - r)
            if p > r:
                moves[shift] = moves.get(shift, 0) + p - r
            powers = {**dict(factors[side].powers), shift: r}
            factors[side] = replace(factors[side], powers=tuple((s, q) for s, q in powers.items() if q))
        yield coefficient, tuple(moves.items()), carried(Term(factors[0].data, tuple(factors)), of.rounded)


def closure(wanted: list[Carried]) -> list[Carried]:
    """Returns `wanted` and every sum that it takes to move them, each once, lowest powers first."""
    found: dict[Carried, None] = {}
    for each in wanted:
        every = frozenset(shift for shift, _ in each.shifts)
        for _, _, part in reversed(list(expansion(each, every))):
            found.setdefault(part)
    return list(found)


def factor_axes(chain: Chain, factor: Factor) -> frozenset[Axis]:
    """Returns the axes of a factor: of its data, and of the running values that it is relative to."""
    exprs = [factor.data, *(e for s, _ in factor.powers for e in (s.data, s.result))]
    if factor.raised is not None:
        exprs.append(factor.raised.data)
    if factor.scaled is not None:
        exprs += (factor.scaled.data, factor.scaled.result)
    return frozenset(a for e in exprs for a in expr_axes(chain, e))


def expr_axes(chain: Chain, expr: Scalar) -> frozenset[Axis]:
    """Returns the axes of an expression over the chain's operands."""
    return frozenset(a for i in arguments(expr) for a in chain.axes_of(i))
