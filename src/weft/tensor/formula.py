"""Bounds of formulas: polynomials with exponentials, quotients of these, and what an evaluation met that is neither."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Polynomial:
    """Bounds of a polynomial with whole coefficients, each of its terms with an exponential, or of a sum of these.

    Attributes:
        degree: its total degree.
        bits: log2 of the sum of its coefficients' magnitudes.
        terms: log2 of how many different exponentials it has; 0 where there is one, or none.
        power: of an exponent the degree of numerator, denominator and all that was divided by, added; 0 where there is none.
        power_bits: the same of the bits.
    """

    degree: int = 0
    bits: float = 0.0
    terms: float = 0.0
    power: int = 0
    power_bits: float = 0.0

    def __mul__(self, other: Polynomial) -> Polynomial:
        if self is ONE or other is ONE:
            return other if self is ONE else self
        return Polynomial(
            self.degree + other.degree,
            self.bits + other.bits,
            self.terms + other.terms,
            self.power + other.power,
            self.power_bits + other.power_bits,
        )

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial(
            max(self.degree, other.degree),
            _sum(self.bits, other.bits),
            _sum(self.terms, other.terms) if self.power or other.power else 0.0,
            max(self.power, other.power),
            max(self.power_bits, other.power_bits),
        )

    def __or__(self, other: Polynomial) -> Polynomial:
        """Bounds both."""
        if self is other:
            return self
        return Polynomial(
            max(self.degree, other.degree),
            max(self.bits, other.bits),
            max(self.terms, other.terms),
            max(self.power, other.power),
            max(self.power_bits, other.power_bits),
        )

    def to_the(self, n: int) -> Polynomial:
        """Bounds the product of n such."""
        if self is ONE or n == 1:
            return self
        return Polynomial(self.degree * n, self.bits * n, self.terms * n, self.power * n, self.power_bits * n)

    def times(self, n: int) -> Polynomial:
        """Bounds the sum of n such."""
        log = math.log2(n)
        return replace(self, bits=self.bits + log, terms=self.terms + log if self.power else 0.0)

    def scaled(self, bits: float) -> Polynomial:
        """Bounds the product with a whole number of so many bits."""
        return replace(self, bits=self.bits + bits) if bits else self


ONE = Polynomial()


def _sum(a: float, b: float) -> float:
    """Computes log2(2as + 2bs), or a little more."""
    return max(a, b) + math.log2(1.0 + 2.0 ** -min(abs(a - b), 60.0))


@dataclass(frozen=True, slots=True, eq=False)
class Formula:
    """Bounds of what every element of a value is: top / (bottom * a whole number).

    Attributes:
        shape: its sizes.
        top, bottom: numerator and denominator.
        poles: the product of all that was divided by on the way.
        divisor: log2 of the whole number.
        applied: how many functions without laws were applied on the way to an element.
        argument: their arguments: what the difference of two of them has for numerator, at most.
        number: the number that it is, where that stands in the program.
        fixed: no input is in it.
        infinite: it may be infinite or NaN, since a number is.
        whole: integers or bools that are data; of their formula nothing is said.
    """

    shape: tuple[int, ...]
    top: Polynomial = ONE
    bottom: Polynomial = ONE
    poles: Polynomial = ONE
    divisor: float = 0.0
    applied: int = 0
    argument: Polynomial = ONE
    number: float | None = None
    fixed: bool = False
    infinite: bool = False
    whole: bool = False


@dataclass(slots=True)
class Met:
    """What an evaluation met that is no quotient of polynomials.

    Attributes:
        functions: without laws, by name.
        order: maxima and comparisons of what random elements decide.
        constants: numbers that elements are compared with, 0 not among them where a random order decides; in words.
        special: operations that ask for infinities or NaN.
        truncated: casts of elements to integers.
        rounded: types of casts that change a result and that no rewrite may move.
        precision: there are casts that rewrites may move or drop.
        integers: inputs of integers or bools.
        arbitrary: the same, as elements like any others.
        exponentials: there are any.
        lookups: integers that are data say where something is read.
        unbounded: what no theorem bounds: exponentials in exponents or in arguments of functions, and functions that are not
            random everywhere.
    """

    functions: set[str] = field(default_factory=set[str])
    order: bool = False
    constants: set[str] = field(default_factory=set[str])
    special: set[str] = field(default_factory=set[str])
    truncated: bool = False
    rounded: set[str] = field(default_factory=set[str])
    precision: bool = False
    integers: bool = False
    arbitrary: bool = False
    exponentials: bool = False
    lookups: bool = False
    unbounded: set[str] = field(default_factory=set[str])


def made(a: Formula, b: Formula, top: Polynomial, bottom: Polynomial, poles: Polynomial, divisor: float) -> Formula:
    """Combines two operands' properties into the formula of an operation on both."""
    applied, argument = a.applied + b.applied, a.argument | b.argument
    fixed, infinite = a.fixed and b.fixed, a.infinite or b.infinite
    return Formula((), top, bottom, poles, divisor, applied, argument, None, fixed, infinite)


def variable(args: Sequence[Formula]) -> Formula:
    return Formula(args[0].shape, Polynomial(1), fixed=all(a.fixed for a in args))


def summed(v: Formula, count: int) -> Formula:
    """Bounds the sum of `count` elements of `v`; they have one divisor."""
    top = (v.top * v.bottom.to_the(count - 1) if count > 1 else v.top).times(count)
    return replace(
        v, top=top, bottom=v.bottom.to_the(count), poles=v.poles.to_the(count), applied=v.applied * count, number=None
    )


def repeated(v: Formula, count: int) -> Formula:
    """Bounds the product of `count` elements of `v`."""
    return replace(
        v,
        top=v.top.to_the(count),
        bottom=v.bottom.to_the(count),
        poles=v.poles.to_the(count),
        divisor=v.divisor * count,
        applied=v.applied * count,
        number=None,
    )
