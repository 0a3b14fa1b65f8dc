"""The operations of the table on field elements. What they prove is said in `weft.tensor.field`.

A `FieldValue` has residues modulo the last primes of a chain (`weft.tensor.modular`), at least the last one, which
decides everything that is not arithmetic: equality, order, and the arguments of random functions. Infinity,
minus infinity and NaN are no residues; they are kept beside them and follow IEEE's rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partialmethod

import numpy as np

from weft.tensor import modular, optable
from weft.tensor.domain import Array

SQUARE = 4
"""A square modulo each later prime of a chain, and not 1; so its order is the prime before."""

NAN = 2
_KEY_STEPS = 1 << 31
_TOP = np.int64(3 << 61)
_SMALL_INTEGER = 1 << 20
# A comparison with its arguments turned round.
_TURNED = {"lt": "gt", "le": "ge"}
_LARGEST_WHOLE_POWER = 2.0**53


@dataclass(frozen=True, slots=True, eq=False)
class FieldValue:
    """Field elements.

    Attributes:
        parts: residues modulo each of `primes`; 0 where special.
        primes: the last len(parts) of a chain.
        special: int8: 0 for a residue, 1 inf, -1 minus inf, `NAN`; None where all are residues.
    """

    parts: tuple[Array, ...]
    primes: tuple[int, ...]
    special: Array | None = None

    @property
    def last(self) -> Array:
        """The residues modulo the last prime."""
        return self.parts[-1]

    @property
    def codes(self) -> Array:
        """`special`, as an array."""
        return np.zeros(self.last.shape, np.int8) if self.special is None else self.special

    @property
    def nan(self) -> Array:
        """A mask of the elements that are NaN."""
        return self.codes == NAN


def structural(fn: Callable[..., Array], *values: FieldValue) -> FieldValue:
    """Apply a function that only moves elements, on values of the primes that all of them have."""
    if len(values) == 1:  # as it mostly is
        (v,) = values
        if v.special is None:
            return FieldValue(tuple([np.asarray(fn(part)) for part in v.parts]), v.primes)
    count = min([len(v.parts) for v in values])
    parts = tuple([np.asarray(fn(*[v.parts[i] for v in values])) for i in range(-count, 0)])
    primes = values[0].primes[-count:]
    if all(v.special is None for v in values):
        return FieldValue(parts, primes)
    special = np.asarray(fn(*(v.codes for v in values)))
    return FieldValue(parts, primes, special if special.any() else None)


def _pointwise(fn: Callable[[Array, Array, int], Array], a: FieldValue, b: FieldValue) -> FieldValue:
    count = min(len(a.parts), len(b.parts))
    primes = a.primes[-count:]
    parts = zip(a.parts[-count:], b.parts[-count:], primes, strict=True)
    return FieldValue(tuple(fn(x, y, p) for x, y, p in parts), primes)


def select(mask: Array, a: FieldValue, b: FieldValue) -> FieldValue:
    """Select a where the mask says so, else b."""

    def choose(x: Array, y: Array) -> Array:
        return np.where(mask, x, y)

    return structural(choose, a, b)


class FieldArithmetic:
    """Field arithmetic modulo one chain of primes, under one seed: the roots of unity, the order, the random functions."""

    def __init__(self, seed: int, chain: tuple[int, ...], *, arbitrary: bool = False) -> None:
        self._seed = seed
        self._arbitrary = arbitrary
        self._chain = chain
        self._last = chain[-1]
        self._tables: dict[int, tuple[Array, Array]] = {}
        self._constants: dict[int, float] = {}
        self._known = np.zeros(0, np.int64), np.zeros(0)  # the same, in order
        self._literals: dict[tuple[float, float], FieldValue] = {}
        self._order_key = np.uint64(modular.key(seed, "order"))

    # Elements from numbers, and back

    def from_floats(self, values: Array) -> FieldValue:
        """Return the elements that floats denote; infinities and NaN are special."""
        values = np.asarray(values, np.float64)
        finite = np.isfinite(values)
        dyadic = np.where(finite, values, 0.0)
        parts = tuple(modular.from_floats(dyadic, p) for p in self._chain)
        if finite.all():
            return FieldValue(parts, self._chain)
        codes = np.where(np.isnan(values), NAN, np.where(finite, 0, np.sign(values)))
        return FieldValue(parts, self._chain, codes.astype(np.int8))

    def from_integers(self, values: Array) -> FieldValue:
        """Return the elements that integers denote."""
        return FieldValue(tuple(values.astype(np.int64) % p for p in self._chain), self._chain)

    def literal(self, value: float) -> FieldValue:
        """Return a number that stands in the program; from now on `known` knows it."""
        key = (value, math.copysign(1.0, value))
        if key not in self._literals:
            if math.isfinite(value):
                for number in (value, -value):
                    self._constants.setdefault(int(self.from_floats(np.asarray(number)).last), number)
                residues = np.array(sorted(self._constants), np.int64)
                self._known = residues, np.array([self._constants[int(r)] for r in residues])
            self._literals[key] = self.from_floats(np.asarray(value))
        return self._literals[key]

    def known(self, a: FieldValue) -> Array:
        """Return the real numbers that elements stand for where that is known, else NaN.

        Known are integers below 2^20 and the literals of the programs seen. A random element is
        taken for one with probability about 2^-10, which changes its place in the order, no more.
        """
        centred = np.where(a.last > self._last // 2, a.last - self._last, a.last)
        small = (np.abs(centred) <= _SMALL_INTEGER) & (a.codes == 0)
        numbers = np.where(small, centred, np.nan)
        if self._constants:
            residues, reals = self._known
            at = np.minimum(np.searchsorted(residues, a.last), len(residues) - 1)
            found = (residues[at] == a.last) & (a.codes == 0) & ~small
            numbers = np.where(found, reals[at], numbers)
        return np.asarray(numbers)

    # Order: total, random, odd, and true to the real order on what is known

    def order(self, a: FieldValue) -> Array:
        """Return int64 keys: distinct for distinct elements, 0 for 0, opposite signs for x and -x."""
        centred = np.where(a.last > self._last // 2, a.last - self._last, a.last)
        digits = modular.mixed(np.asarray(self._order_key), np.abs(centred)) >> np.uint64(11)
        unit = np.sign(centred) * (digits.astype(np.float64) / 2.0**52 - 1.0)
        real = self.known(a)
        unit = np.where(np.isnan(real), unit, real / (1.0 + np.abs(real)))
        keys = np.floor(unit * _KEY_STEPS).astype(np.int64) * _KEY_STEPS + a.last
        if a.special is None:
            return keys
        return np.where(a.special == 0, keys, np.where(a.nan, 0, a.special * _TOP))

    def _representatives(self, a: FieldValue) -> Array:
        """Return real numbers that are infinite, NaN, 0 or of the sign that the elements are."""
        signs = np.sign(self.order(a)).astype(np.float64)
        codes = a.codes
        return np.where(codes == 0, signs, np.where(codes == NAN, np.nan, codes * np.inf))

    def _patched(self, op: str, result: FieldValue, mask: Array, *args: FieldValue) -> FieldValue:
        """Return `result`, replaced by IEEE's where `mask` says so: decided by the arguments' representatives."""
        if not mask.any():
            return result
        with np.errstate(all="ignore"):
            reals = optable.row(op).meaning(*(self._representatives(a) for a in args))
        return select(mask, self.from_floats(reals), result)

    def _is_special(self, *args: FieldValue) -> Array:
        if all(a.special is None for a in args):
            return np.zeros((), np.bool_)
        return np.logical_or.reduce(np.broadcast_arrays(*(a.codes != 0 for a in args)))

    # Functions without an interpretation

    def random_function(self, name: str, *args: FieldValue) -> FieldValue:
        """Return the value of a random function, which is fixed by the name and the arguments."""
        state = np.asarray(np.uint64(modular.key(self._seed, "function", name)))
        for a in args:
            state = modular.mixed(modular.mixed(state, a.last), a.codes.astype(np.int64))
        parts = (modular.mixed(state, np.asarray(p)) % np.uint64(p) for p in self._chain)
        return FieldValue(tuple(np.asarray(x).astype(np.int64) for x in parts), self._chain)

    def uninterpreted(self, op: str, *args: FieldValue) -> FieldValue:
        """Return random elements for a row without a meaning over fields, but right ones at 0, 1 and infinities.

        At 0 and 1 it is right where the result is a whole number or infinite: log 1, erf 0.
        """
        result = self.random_function(op, *args)
        if len(args) != 1:
            return result
        real = self.known(args[0])
        with np.errstate(all="ignore"):
            exact = optable.row(op).meaning(real)
        whole = ((real == 0) | (real == 1)) & ((np.floor(exact) == exact) | np.isinf(exact))
        result = self._patched(op, result, self._is_special(args[0]), args[0])
        return select(whole, self.from_floats(np.where(whole, exact, 0.0)), result)

    # Rows with an interpretation: each method's name is in the table's column `field`

    def add(self, a: FieldValue, b: FieldValue) -> FieldValue:
        """Return a + b."""
        result = _pointwise(lambda x, y, p: (x + y) % p, a, b)
        return self._patched("add", result, self._is_special(a, b), a, b)

    def sub(self, a: FieldValue, b: FieldValue) -> FieldValue:
        """Return a - b."""
        result = _pointwise(lambda x, y, p: (x - y) % p, a, b)
        return self._patched("sub", result, self._is_special(a, b), a, b)

    def mul(self, a: FieldValue, b: FieldValue) -> FieldValue:
        """Return a * b."""
        result = _pointwise(lambda x, y, p: x * y % p, a, b)
        return self._patched("mul", result, self._is_special(a, b), a, b)

    def div(self, a: FieldValue, b: FieldValue) -> FieldValue:
        """Return a / b; by 0 as IEEE has it."""
        result = _pointwise(lambda x, y, p: x * modular.inverse(y, p) % p, a, b)
        zero = (b.last == 0) & (b.codes == 0)
        return self._patched("div", result, self._is_special(a, b) | zero, a, b)

    def neg(self, a: FieldValue) -> FieldValue:
        """Return -a."""
        result = FieldValue(tuple(-x % p for x, p in zip(a.parts, a.primes, strict=True)), a.primes)
        return self._patched("neg", result, self._is_special(a), a)

    def abs(self, a: FieldValue) -> FieldValue:
        """Return a or -a, whichever is not below 0; where comparisons with numbers are arbitrary, a random function
        that is even.
        """
        if self._arbitrary:
            return self._patched("abs", self.random_function("abs", self._even(a)), self._is_special(a), a)
        result = select(self.order(a) >= 0, a, self.neg(a))
        return self._patched("abs", result, self._is_special(a), a)

    def _even(self, a: FieldValue) -> FieldValue:
        """Return the same one of a and -a for both."""
        return select(a.last > self._last // 2, self.neg(a), a)

    def sign(self, a: FieldValue) -> FieldValue:
        """Return -1, 0 or 1; 0 for NaN."""
        return self.from_integers(np.sign(self.order(a)))

    def exp(self, a: FieldValue) -> FieldValue:
        """Return omega ** a, a residue of each prime giving one of the next; random where none is left."""
        if len(a.parts) == 1:
            return self.uninterpreted("exp", a)
        parts = tuple(
            modular.exponential(self._exponential(p), x, p) for x, p in zip(a.parts[:-1], a.primes[1:], strict=True)
        )
        return self._patched("exp", FieldValue(parts, a.primes[1:]), self._is_special(a), a)

    def _exponential(self, p: int) -> tuple[Array, Array]:
        """Return the powers of a random element, not 1, whose order is the prime before p."""
        if p not in self._tables:
            before = self._chain[self._chain.index(p) - 1]
            exponent = 1 + modular.key(self._seed, "root", p) % (before - 1)
            self._tables[p] = modular.exponential_tables(pow(SQUARE, exponent, p), p)
        return self._tables[p]

    def pow(self, a: FieldValue, b: FieldValue) -> FieldValue:
        """Multiply for known whole exponents, take square roots for known halves, else draw at random."""
        real = np.broadcast_to(self.known(b), np.broadcast_shapes(a.last.shape, b.last.shape))
        whole = (real == np.floor(real)) & (np.abs(real) <= _LARGEST_WHOLE_POWER)
        n = np.where(whole, real, 0.0).astype(np.int64)
        # Of the exponents that give the same, one above 0 where there is one: 0 to it is 0.
        powers = (
            modular.power(x, np.where(n > 0, (n - 1) % (p - 1) + 1, n % (p - 1)), p)
            for x, p in zip(a.parts, a.primes, strict=True)
        )
        result = FieldValue(tuple(powers), a.primes)
        zero = (a.last == 0) & (a.codes == 0) & (n < 0)
        result = self._patched_power(result, self._is_special(a) | zero, a, n)
        if whole.all():
            return result
        root = self.uninterpreted("sqrt", a)
        inverse = self.div(self.from_floats(np.asarray(1.0)), root)
        other = select(real == 0.5, root, select(real == -0.5, inverse, self.random_function("pow", a, b)))
        return select(whole, result, other)

    def _patched_power(self, result: FieldValue, mask: Array, a: FieldValue, n: Array) -> FieldValue:
        if not mask.any():
            return result
        with np.errstate(all="ignore"):
            reals = np.power(self._representatives(a), n.astype(np.float64))
        return select(mask, self.from_floats(reals), result)

    def _rounding(self, op: str, a: FieldValue) -> FieldValue:
        """Round what is known, else draw at random."""
        real = self.known(a)
        exact = self.from_floats(optable.row(op).meaning(np.where(np.isnan(real), 0.0, real)))
        result = select(np.isnan(real), self.random_function(op, a), exact)
        return self._patched(op, result, self._is_special(a), a)

    floor = partialmethod(_rounding, "floor")
    ceil = partialmethod(_rounding, "ceil")
    trunc = partialmethod(_rounding, "trunc")
    round = partialmethod(_rounding, "round")

    def _beside_number(self, op: str, a: FieldValue, b: FieldValue, *, ties: bool = False) -> FieldValue | None:
        """Return a random function of the operand that is no number, if the other is one and comparisons with numbers
        are arbitrary.

        No number here is what a random order has on both sides: infinity, and 0 unless only equal elements count.
        """
        if not self._arbitrary:
            return None
        for data, number, name in ((a, b, op), (b, a, _TURNED.get(op, op))):
            if self._is_number(number, ties=ties) and not self._is_number(data, ties=True):
                return self.random_function(name, data, number)
        return None

    def _is_number(self, a: FieldValue, *, ties: bool) -> bool:
        """Tell whether all elements are one number of the programs."""
        if not a.last.size or a.special is not None:
            return False
        first = int(a.last.flat[0])
        return first in self._constants and (first != 0 or ties) and bool((a.last == first).all())

    def _tied(self, a: FieldValue, b: FieldValue) -> FieldValue | None:
        """Return a random function of the difference, whatever its sign, if what elements decide is arbitrary: random ones that are
        different formulas are never equal.
        """
        if not self._arbitrary or a.special is not None or b.special is not None:
            return None
        if not np.isnan(self.known(a)).any() and not np.isnan(self.known(b)).any():
            return None
        return self.random_function("eq", self._even(self.sub(a, b)))

    def maximum(self, a: FieldValue, b: FieldValue) -> FieldValue:
        """Return the greater under the random order; NaN if either is."""
        return self._extremum("maximum", a, b, self.order(a) >= self.order(b))

    def minimum(self, a: FieldValue, b: FieldValue) -> FieldValue:
        """Return the lesser under the random order; NaN if either is."""
        return self._extremum("minimum", a, b, self.order(a) <= self.order(b))

    def _extremum(self, op: str, a: FieldValue, b: FieldValue, first: Array) -> FieldValue:
        found = self._beside_number(op, a, b)
        return self._with_nan(select(first, a, b), a.nan | b.nan) if found is None else found

    def _with_nan(self, a: FieldValue, nan: Array) -> FieldValue:
        return select(nan, self.from_floats(np.asarray(np.nan)), a) if nan.any() else a

    def lt(self, a: FieldValue, b: FieldValue) -> Array | FieldValue:
        """Compute a < b under the random order, as a mask; False beside NaN."""
        found = self._beside_number("lt", a, b)
        return (self.order(a) < self.order(b)) & ~(a.nan | b.nan) if found is None else found

    def le(self, a: FieldValue, b: FieldValue) -> Array | FieldValue:
        """Compute a <= b, as `lt` does."""
        found = self._beside_number("le", a, b)
        return (self.order(a) <= self.order(b)) & ~(a.nan | b.nan) if found is None else found

    def eq(self, a: FieldValue, b: FieldValue) -> Array | FieldValue:
        """Tell whether the elements are the same, as a mask; False beside NaN."""
        found = self._beside_number("eq", a, b, ties=True) or self._tied(a, b)
        return (a.last == b.last) & (a.codes == b.codes) & ~(a.nan | b.nan) if found is None else found

    def ne(self, a: FieldValue, b: FieldValue) -> Array | FieldValue:
        """Tell whether the elements differ, as a mask; True beside NaN."""
        found = self._beside_number("ne", a, b, ties=True)
        tied = None if found is not None else self._tied(a, b)
        found = self.sub(self.from_integers(np.asarray(1)), tied) if tied is not None else found
        return (a.last != b.last) | (a.codes != b.codes) | a.nan | b.nan if found is None else found

    def isnan(self, a: FieldValue) -> Array:
        """Return a mask of the elements that are NaN."""
        return a.nan

    def isinf(self, a: FieldValue) -> Array:
        """Return a mask of the elements that are infinite."""
        return np.abs(a.codes) == 1

    def _is_mask(self, a: FieldValue) -> bool:
        """Tell whether all elements are 0 or 1."""
        return bool((a.last <= 1).all())

    def _truth(self, a: FieldValue) -> Array:
        """Return 1.0, 0.0, or NaN where nothing is known: a mask read where nobody promised anything."""
        real = self.known(a)
        return np.where(np.isnan(real), np.nan, real != 0)

    def _mask(self, op: str, truth: Array, *args: FieldValue) -> Array | FieldValue:
        unknown = np.isnan(truth)
        if not unknown.any():
            return truth.astype(np.bool_)
        exact = self.from_floats(np.where(unknown, 0.0, truth))
        return select(unknown, self.random_function(op, *args), exact)

    def logical_not(self, a: FieldValue) -> Array | FieldValue:
        """Return a mask where `a` is known, else random elements; so do the next two. Arbitrary ones: 1 - a, ab, a + b - ab."""
        if self._arbitrary and not self._is_mask(a):
            return self.sub(self.from_integers(np.asarray(1)), a)
        return self._mask("logical_not", 1.0 - self._truth(a), a)

    def logical_and(self, a: FieldValue, b: FieldValue) -> Array | FieldValue:
        """See `logical_not`; false if either is."""
        if self._arbitrary and not (self._is_mask(a) and self._is_mask(b)):
            return self.mul(a, b)
        x, y = self._truth(a), self._truth(b)
        return self._mask("logical_and", np.where((x == 0) | (y == 0), 0.0, x * y), a, b)

    def logical_or(self, a: FieldValue, b: FieldValue) -> Array | FieldValue:
        """See `logical_not`; true if either is."""
        if self._arbitrary and not (self._is_mask(a) and self._is_mask(b)):
            return self.sub(self.add(a, b), self.mul(a, b))
        x, y = self._truth(a), self._truth(b)
        return self._mask("logical_or", np.where((x == 1) | (y == 1), 1.0, x + y), a, b)

    def where(self, mask: FieldValue, a: FieldValue, b: FieldValue) -> FieldValue:
        """Select a or b where the mask is known, else draw at random; an arbitrary mask is a number: b + mask (a - b)."""
        if self._arbitrary and not self._is_mask(mask) and a.special is b.special is None:
            return self.add(b, self.mul(mask, self.sub(a, b)))
        truth = self._truth(mask)
        chosen = select(truth == 1, a, b)
        if not np.isnan(truth).any():
            return chosen
        return select(np.isnan(truth), self.random_function("where", mask, a, b), chosen)
