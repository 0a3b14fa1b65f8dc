"""Significand-exponent pairs: a value x stands as (s, t) with x = s * exp(t) (Blockbuster, appendix)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

from weft.block.references import share
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg, Lit, Scalar, apply

Terms: TypeAlias = tuple[tuple[str, int], ...]
"""An exponent as a sum of values times whole numbers, each value once: () is 0, and (("t", 1), ("u", -1)) is t - u."""

Degree: TypeAlias = tuple[tuple[int, int], ...]
"""By the number of an exponential: how often it is a factor. () where all have cancelled."""


@dataclass(frozen=True, slots=True)
class ExponentSource:
    """The exponential that an exponent comes from.

    Attributes:
        number: of the exponential.
        power: 1, or -1 where the exponent has the opposite sign of what the exponential raises.
        axes: what the exponential varies along, by the names that hold here; None where one exponent stands for all along an axis.
    """

    number: int
    power: int
    axes: tuple[Axis | None, ...]

    def renamed(self, old: Axis, new: Axis | None) -> ExponentSource:
        """Rename axis `old` to `new`, or mark it as added up."""
        return replace(self, axes=tuple(new if a == old else a for a in self.axes))

    def shared(self, over: Collection[Axis]) -> ExponentSource:
        """Return the source of an exponent that stands for all elements along `over`."""
        return replace(self, axes=tuple(None if a in over else a for a in self.axes))

    def added(self, over: Collection[Axis]) -> frozenset[int]:
        """Return the positions in `axes` along which a sum over `over` has been taken then."""
        return frozenset(i for i, a in enumerate(self.axes) if a is None or a in over)


@dataclass(frozen=True, slots=True)
class Pair:
    """What a value of the program has become.

    Attributes:
        significand: a value; None stands for 1.
        terms: the exponent; () where the significand is the value itself.
        dtype: what the significand is to be rounded to, once there is one.
    """

    significand: str | None
    terms: Terms = ()
    dtype: DType | None = None


def combined(left: Terms, right: Terms, sign: int = 1) -> Terms:
    """Compute `left` + `sign` * `right`."""
    total = dict(left)
    for name, count in right:
        total[name] = total.get(name, 0) + sign * count
    return tuple(sorted((n, c) for n, c in total.items() if c))


def degree_of(terms: Terms, sources: Mapping[str, ExponentSource]) -> Degree:
    """Count how often each exponential is a factor of exp(terms)."""
    total: dict[int, int] = {}
    for name, count in terms:
        source = sources[name]
        total[source.number] = total.get(source.number, 0) + count * source.power
    return tuple(sorted((o, c) for o, c in total.items() if c))


def cancelling(terms: Terms, sources: Mapping[str, ExponentSource]) -> tuple[tuple[tuple[Terms, int], ...], Terms]:
    """Split `terms` into differences, each of two exponents of one exponential and so many times, and what is left over."""
    left, found = dict(terms), list[tuple[Terms, int]]()
    for name, _ in terms:
        own = sources[name]
        others = [n for n, _ in terms if sources[n].number == own.number]
        for other in sorted(others, key=lambda n: _unlike(own, sources[n])):
            power = sources[other].power
            count = min(left[name] * own.power, -left[other] * power)
            if count > 0:
                found.append((((name, own.power), (other, -power)), count))
                left[name] -= count * own.power
                left[other] += count * power
    return tuple(found), tuple((n, c) for n, c in left.items() if c)


def _unlike(one: ExponentSource, other: ExponentSource) -> int:
    return sum(a != b for a, b in zip(one.axes, other.axes, strict=True))


def exponent(terms: Terms, sources: Mapping[str, ExponentSource], arg: Callable[[str], Scalar]) -> Scalar:
    """Return the value of `terms`, as a sum of differences.

    2 t - 2 u is (t - u) twice: twice t may be infinite where t - u is 0. And t + v - u - w has fewer digits than (t - u) + (v - w).
    """
    differences, rest = cancelling(terms, sources)
    parts = [times(count, sum_of((arg(n), c) for n, c in pair)) for pair, count in differences]
    parts += [sum_of((arg(n), c) for n, c in rest)] if rest or not parts else []
    return reduce(lambda total, part: apply("add", total, part), parts)


def sum_of(counted: Iterable[tuple[Scalar, int]]) -> Scalar:
    """Sum expressions times whole numbers, in as few operations as that takes; positive ones first."""
    total: Scalar | None = None
    for expr, count in sorted(counted, key=lambda t: t[1] < 0):
        part = expr if abs(count) == 1 else apply("mul", Lit(float(abs(count))), expr)
        first = part if count > 0 else apply("neg", part)
        total = first if total is None else apply("add" if count > 0 else "sub", total, part)
    return Lit(0.0) if total is None else total


def product(left: Scalar, right: Scalar) -> Scalar:
    """Multiply, leaving a factor 1 out."""
    if left == Lit(1.0):
        return right
    return left if right == Lit(1.0) else apply("mul", left, right)


def quotient(left: Scalar, right: Scalar) -> Scalar:
    """Divide, leaving a divisor 1 out."""
    return left if right == Lit(1.0) else apply("div", left, right)


def times(count: int, expr: Scalar) -> Scalar:
    """Multiply `expr` by a whole number."""
    return expr if count == 1 else apply("mul", Lit(float(count)), expr)


def scaled_down(significand: Scalar, old: Scalar, new: Scalar, count: int = 1) -> Scalar:
    """Return the significand that goes with `count` times the exponent `new` where `significand` goes with `count` times `old`."""
    return product(significand, share(old, new, count))


FIRST, SECOND = Arg(0), Arg(1)
