"""Significand-exponent pairs: a value x stands as (s, t) with x = s * exp(t) (Blockbuster, appendix)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg, Lit, Scalar, apply

Terms: TypeAlias = tuple[tuple[str, int], ...]
"""An exponent as a sum of values times whole numbers, each value once: () is 0, and (("t", 1), ("u", -1)) is t - u."""

Degree: TypeAlias = tuple[tuple[int, int], ...]
"""By the number of an exponential: how often it is a factor. () where all have cancelled."""


class Share(Enum):
    """Which elements of a block share an exponent where one has to be shared.

    Until something adds elements up, each has an exponent of its own. A sum along a row needs one for the row; one for the
    whole block is cheaper by a few operations and loses rows that lie far below the block's maximum.
    """

    row = "row"
    block = "block"


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
    """`left` + `sign` * `right`."""
    total = dict(left)
    for name, count in right:
        total[name] = total.get(name, 0) + sign * count
    return tuple(sorted((n, c) for n, c in total.items() if c))


def degree_of(terms: Terms, degrees: Mapping[str, Degree]) -> Degree:
    """How often each exponential is a factor of exp(terms)."""
    total: dict[int, int] = {}
    for name, count in terms:
        for origin, times in degrees.get(name, ()):
            total[origin] = total.get(origin, 0) + count * times
    return tuple(sorted((o, c) for o, c in total.items() if c))


def sum_of(counted: Iterable[tuple[Scalar, int]]) -> Scalar:
    """The sum of expressions times whole numbers, as few operations as that takes; positive ones first."""
    total: Scalar | None = None
    for expr, count in sorted(counted, key=lambda t: t[1] < 0):
        part = expr if abs(count) == 1 else apply("mul", Lit(float(abs(count))), expr)
        first = part if count > 0 else apply("neg", part)
        total = first if total is None else apply("add" if count > 0 else "sub", total, part)
    return Lit(0.0) if total is None else total


def product(left: Scalar, right: Scalar) -> Scalar:
    """left * right, where a factor 1 is left out."""
    if left == Lit(1.0):
        return right
    return left if right == Lit(1.0) else apply("mul", left, right)


def quotient(left: Scalar, right: Scalar) -> Scalar:
    """left / right, where a divisor 1 is left out."""
    return left if right == Lit(1.0) else apply("div", left, right)


def scaled_down(significand: Scalar, old: Scalar, new: Scalar) -> Scalar:
    """The significand that goes with exponent `new` where `significand` goes with `old`."""
    return product(significand, apply("decay", apply("sub", old, new)))


FIRST, SECOND = Arg(0), Arg(1)
