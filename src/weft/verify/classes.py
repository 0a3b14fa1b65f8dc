"""What two programs hold, class by class, and what their agreement over finite fields shows of each.

Where they differ as quotients of polynomials, they agree at random elements only by an accident of one of these kinds; each is
bounded by what `weft.tensor.degrees` finds of both, and the bounds are added (see `docs/decisions/0021-verdict-and-licence.md`):

- the difference vanishes there, or something that is divided by does: degree / p, for a prime p (Schwartz and Zippel);
- all coefficients of the difference are divisible by the prime that was drawn: (bits / 30) / the number of primes in the range;
- two arguments of a function without laws, different as formulas, are the same element: as above, for each pair of applications;
- of k different exponentials two have the same exponent: as above, modulo the prime before p, for each pair; or a sum of k of them
  vanishes at a random root of unity: 1 / (q - 1) for two, 1 - 1/k + 2/q for more (Mirage, theorem 2, without its o(1/k)).

A bound is of use where it is far from 1 after all trials; otherwise there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from weft.tensor.degrees import DegreeValue
from weft.tensor.formula import Formula, Met, Polynomial
from weft.tensor.modular import FAMILY, LEAST
from weft.verify.thresholds import FARTHEST
from weft.verify.verdict import Aspect, Shown, Verdict

# Of more use than no number; and a claim that rests on less is none.
_OF_USE = 2.0**-10
_BITS_OF_A_PRIME = math.log2(LEAST)
_LARGEST = 1 << 1000  # that a float can hold


@dataclass(frozen=True, slots=True)
class Chances:
    """How likely different programs are to agree in one trial, by accident, at most; and the degree that says so.

    Attributes:
        degree: of the difference, with all that was divided by.
        rational, functions, exponentials: chances of the accidents of each class.
    """

    degree: int = 0
    rational: float = 0.0
    functions: float = 0.0
    exponentials: float = 0.0

    def __or__(self, other: Chances) -> Chances:
        """Returns the greater of each chance."""
        return Chances(*(max(getattr(self, f.name), getattr(other, f.name)) for f in fields(Chances)))

    def total(self, trials: int) -> float | None:
        """Bounds the chance that different programs agree in all trials, where that bound is of use."""
        return _bound(self.rational + self.functions + self.exponentials, trials)

    @staticmethod
    def of(one: Formula, other: Formula, chain: Sequence[int]) -> Chances:
        """Bounds the chances for two values modulo a chain of primes."""
        p, family = chain[-1], FAMILY[len(chain)]
        left, right = one.top.scaled(other.divisor) * other.bottom, other.top.scaled(one.divisor) * one.bottom
        # Whole numbers that are divided by are no factors of the difference: they must not be 0 either.
        whole = (left + right).scaled(one.divisor + other.divisor) * one.poles * other.poles
        count = one.applied + other.applied + 2  # of 0 and 1 the results may be known
        pairs = count * (count - 1) / 2 if count > 2 else 0.0
        argument = one.argument | other.argument
        return Chances(
            whole.degree,
            _vanishes(whole.degree, whole.bits, p, family),
            pairs * _vanishes(2 * argument.degree, 2 * argument.bits + 1, p, family) if pairs else 0.0,
            _exponentials(whole, chain[-2], family) if whole.power and len(chain) > 1 else 0.0,
        )


def _vanishes(degree: float, bits: float, p: int, family: int) -> float:
    """Bounds the chance that a polynomial that is not 0 is 0 at a random point, modulo a prime p of a family."""
    return min(degree, _LARGEST) / p + bits / _BITS_OF_A_PRIME / family


def _exponentials(whole: Polynomial, q: int, family: int) -> float:
    """Bounds the chance that a sum of exponentials vanishes whose coefficients do not, its exponents modulo q."""
    if whole.terms > _BITS_OF_A_PRIME:
        return math.inf
    terms = max(2.0, 2.0**whole.terms)
    same = terms * (terms - 1) / 2 * 2 * _vanishes(2 * whole.power, 2 * whole.power_bits + 1, q, family)
    return same + (1 / (q - 1) if terms <= 2 else 1 - 1 / terms + 2 / q)


@dataclass
class Held:
    """What two programs that agree hold.

    Attributes:
        met: what was met that is no formula.
        chances: of one trial.
        floats: elements are among the results.
        exhausted: all values of the inputs that are integers were tried.
        unreached: spaces of which no size that was checked reaches all that indices decide, by name.
        rounded_apart: the programs agree as well where each cast that rounds is an arbitrary function of its argument.
    """

    met: Met
    chances: Chances = Chances()
    floats: bool = False
    exhausted: bool = False
    rounded_apart: bool = False
    unreached: frozenset[str] = frozenset()

    def add(self, one: Sequence[DegreeValue], other: Sequence[DegreeValue], moduli: Sequence[int]) -> None:
        """Adds what two programs gave, modulo a chain of primes."""
        for a, b in zip(one, other, strict=True):
            if isinstance(a, Formula) and isinstance(b, Formula) and not (a.whole or b.whole):
                self.floats = True
                self.chances |= Chances.of(a, b, moduli)

    @property
    def bounded(self) -> bool:
        """True where theorems may bound all that was met."""
        met = self.met
        named = (met.rounded, met.special, met.constants, met.unbounded)
        return not any((met.order, met.truncated, met.integers, met.lookups, *named))

    @property
    def may_close(self) -> bool:
        """True where something is open that trials with arbitrary functions for it may close, and nothing else is."""
        met = self.met
        return not (met.special or met.lookups) and bool(
            met.constants or met.truncated or (met.integers and not self.exhausted)
        )

    def shown(self, trials: int) -> Iterator[Shown]:
        """Yields what is shown of each class that is there by so many trials, with other primes and elements each."""
        met, chances = self.met, self.chances
        if self.floats:
            bound = _bound(chances.rational, trials)
            of, at = f"of degree {_brief(chances.degree)}", "at random elements modulo random primes"
            words = f"{of}, {at}" if bound is not None else f"{of}, beyond any bound"
            yield Shown(Aspect.rational, words, bound is not None, bound)
        if met.exponentials:
            nested = any("exponent" in each for each in met.unbounded)
            bound = None if nested else _bound(chances.exponentials, trials)
            words = "at random roots of unity" + (
                "" if bound is not None else ", where no theorem gives a useful bound"
            )
            yield Shown(Aspect.exponentials, words, decides=True, bound=bound)
        if met.order:
            yield Shown(Aspect.order, "under random orders of the elements", decides=True)
        if met.functions:
            bound = None if met.unbounded else _bound(chances.functions, trials)
            words = f"{_listed(met.functions)}: as arbitrary functions"
            yield Shown(Aspect.functions, words, decides=True, bound=bound)
        if met.arbitrary:
            yield Shown(Aspect.integers, "as arbitrary elements", decides=True, bound=_bound(chances.rational, trials))
        if met.integers:
            words = "all values" if self.exhausted else "random values, and the numbers of the programs"
            yield Shown(Aspect.integers, words, self.exhausted, 0.0 if self.exhausted else None)
        yield from self._casts()
        if met.special:
            yield Shown(
                Aspect.special,
                f"{_listed(met.special)}: compared only where the tested values produce them",
                decides=False,
            )
        if met.constants:
            words = f"{_listed(met.constants)}: compared at inputs equal and next to the constant"
            yield Shown(Aspect.constants, words, decides=False)
        if met.lookups:
            yield Shown(Aspect.lookups, "at random indices, each of them several times", decides=False)
        if self.unreached:
            words = f"{_listed(self.unreached)}: indices beyond {FARTHEST} were not tested"
            yield Shown(Aspect.slices, words, decides=False)

    def _casts(self) -> Iterator[Shown]:
        met = self.met
        if met.truncated:
            yield Shown(Aspect.casts, "to integers: as arbitrary functions into few integers", decides=False)
        elif met.rounded:
            yield Shown(Aspect.casts, f"to {_listed(met.rounded)}: as arbitrary functions", decides=True)
        if met.precision and not self.rounded_apart:
            yield Shown(Aspect.casts, "roundings to fewer bits: ignored", decides=False)

    def verdict(self, primes: tuple[int, ...], trials: int, made: str) -> Verdict:
        """Returns the verdict on programs that agree, after the trials that `made` tells of."""
        found = tuple(self.shown(trials))
        left = "; ".join(f"{each.kind.value} ({each.shown})" for each in found if not each.decides)
        apart = "; precision casts checked apart" if self.met.precision else ""
        reason = f"agrees over fields of {primes[-1].bit_length()} bits, {made}{apart}" + (
            f"; up to {left}" if left else ""
        )
        bound = None if any(each.bound is None for each in found) else self.chances.total(trials)
        equal = None if left else True
        return Verdict(equal, bound, reason, classes=found, primes=primes, agrees=True)


def _bound(chance: float, trials: int) -> float | None:
    """Bounds the chance that every trial errs, where that bound is of use."""
    found = chance**trials if chance < 1 else 1.0
    return found if found <= _OF_USE else None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _brief(number: int) -> str:
    return str(number) if number < 1_000_000 else f"2^{math.log2(number):.1f}"
