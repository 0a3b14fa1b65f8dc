"""The domain of finite fields: programs that agree on random elements compute one function.

What is interpreted. add, sub, mul, div, neg, whole powers, sums, products and contractions are
those of the field, so every polynomial and rational identity holds. exp(x) is omega ** x, the
exponent modulo q, the power modulo p, where q | p - 1 and omega has order q: so exp(a + b) is
exp(a) exp(b). Values have residues modulo a chain of up to three primes (`weft.tensor.modular`), each
dividing the next less one, and an exponential uses one up: exponentials of exponentials are
interpreted two deep, a third is a random function. Integers and bools that come from indices,
constants and comparisons of them are exact, and so are integers that elements are cast to: a random
function of the elements. Maxima, minima, comparisons, sign and abs follow a random total order in which -x is
below 0 where x is above, true to the real order on small integers and on the program's
literals. Infinities and NaN follow IEEE's rules, the sign of an element being its sign in that
order. Everything else (tanh, log, sqrt, erf, roundings, semantic casts) is a random function of
its arguments, right at 0 and infinity. Precision casts are the identity. Floats are their exact
dyadic values.

What agreement proves. The residues modulo the last prime are compared. For an element that is a
rational function of the inputs, of degree d, a false agreement has probability at most d / p per
trial (Schwartz-Zippel), and a little for the few primes that divide all its coefficients, and for
collisions among the arguments of random functions; `weft.verify.classes` adds these up. Of sums of k
distinct exponentials up to about 1 - 1/k of the roots of unity say nothing (Mirage, theorem 2), so a
root is drawn anew with every seed. What goes through a maximum or a comparison is seen only where
the order selects it. So: several seeds, and several elements.

What "not equal" proves: that these laws do not make the programs equal. Laws of tanh, log, sqrt,
or of the order under sums and products (max(x + c, y + c) = max(x, y) + c), are not among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import numpy as np

from weft.tensor import modular, optable
from weft.tensor.domain import (
    Array,
    Structural,
    at,
    broadcast,
    by_doubling,
    by_pairs,
    contract_arrays,
    diagonal,
    identity,
    lengthened,
    nearest,
    random_exact,
    ranking,
    wrapped,
)
from weft.tensor.dtypes import DType
from weft.tensor.field_arithmetic import (
    FieldArithmetic,
    FieldValue,
    select,
    structural,
)
from weft.tensor.fp64 import Fp64Domain, rounded
from weft.tensor.merge import StateMerge
from weft.tensor.order import NOTHING, Order
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar

__all__ = ["ExactValue", "FieldDomain", "FieldElements", "FieldValue"]


@dataclass(frozen=True, slots=True, eq=False)
class ExactValue:
    """Integers (int64) or bools that are known exactly."""

    array: Array


FieldElements: TypeAlias = FieldValue | ExactValue

_NUMBERS = Fp64Domain()
_MOST_OF_A_CAST = 1 << 15
"""Elements that are not known are cast to integers of at most this magnitude, which are known again when they are floats."""


class FieldDomain:
    """Field elements; the module's docstring says what agreement proves.

    The same seed gives the same roots of unity, order and random functions; poison is fresh at
    each call. Values of different seeds must not meet.

    Args:
        seed: of everything that is random but inputs.
        chain: the primes (`weft.tensor.modular`), as many as exponentials are nested deep in what is evaluated, and one more;
            each costs as much work again. With too few, the deepest exponentials are random functions. By default three that
            follow from the seed.
        arbitrary: integers and bools that are data are elements, too, and what is not arithmetic on them is a random function; so
            are casts, equality of elements, and comparisons and extrema with numbers that stand in the program, since random
            elements hardly ever meet these.
            Programs that agree then do so at all inputs.
    """

    def __init__(self, seed: int, chain: tuple[int, ...] | None = None, *, arbitrary: bool = False) -> None:
        self._primes = modular.of_seed(seed) if chain is None else chain
        self._arithmetic = FieldArithmetic(seed, self._primes, arbitrary=arbitrary)
        self._arbitrary = arbitrary
        self._full: dict[tuple[tuple[int, ...], str, DType], FieldElements] = {}
        self._fresh = np.random.default_rng(modular.key(seed, "poison"))

    def shape(self, v: FieldElements) -> tuple[int, ...]:
        """Returns the shape of the arrays."""
        return tuple((v.array if isinstance(v, ExactValue) else v.last).shape)

    def lift(self, fn: Structural, *values: FieldElements) -> FieldElements:
        """Applies `fn` to the residues modulo each prime that all values have."""
        exact = [v.array for v in values if isinstance(v, ExactValue)]
        if len(exact) == len(values):
            return ExactValue(np.asarray(fn(*exact)))
        return structural(fn, *(self._elements(v) for v in values))

    def full(self, shape: Sequence[int], value: float | int | bool, dtype: DType) -> FieldElements:
        """Repeats a number: exactly the dyadic rational that a float is."""
        # 0 and -0, and 1 and True, are one key, but not one value.
        key = tuple(shape), str(value), dtype
        if key not in self._full:
            if dtype.is_float:
                one: FieldElements = self._arithmetic.literal(float(value))
            else:
                one = ExactValue(_NUMBERS.full((), value, dtype))
            self._full[key] = self.lift(broadcast(tuple(shape)), one) if shape else one
        return self._full[key]

    def iota(self, size: int, dtype: DType) -> FieldElements:
        """Counts from 0 to `size` - 1, exactly unless `dtype` is a float type."""
        return self._settled(ExactValue(np.arange(size)), dtype)

    def poison(self, shape: Sequence[int], dtype: DType) -> FieldElements:
        """Draws elements, for floats and bools, or any integers, afresh: what depends on them hardly ever agrees.

        Integers, so that those beside them stay exact: they wrap and have bits, which elements have not.
        """
        if dtype.kind == "int":
            low, high = DType.int64.bounds
            drawn = self._fresh.integers(low, high, tuple(shape), dtype=np.int64, endpoint=True)
            return ExactValue(wrapped(drawn, dtype))
        return self._random(shape, self._fresh)

    def random(self, shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> FieldElements:
        """Draws uniform elements for floats."""
        if dtype.is_float or self._arbitrary:
            return self._random(shape, rng)
        return ExactValue(random_exact(shape, dtype, rng))

    def _random(self, shape: Sequence[int], rng: np.random.Generator) -> FieldValue:
        return FieldValue(tuple(rng.integers(0, p, tuple(shape), dtype=np.int64) for p in self._primes), self._primes)

    def equal(self, a: FieldElements, b: FieldElements) -> bool:
        """Tells whether shapes and elements are exactly equal (modulo the last prime); NaN equals NaN."""
        if self.shape(a) != self.shape(b):
            return False
        if isinstance(a, ExactValue) and isinstance(b, ExactValue):
            return bool(np.array_equal(a.array, b.array))
        x, y = self._elements(a), self._elements(b)
        return bool(np.array_equal(x.last, y.last) and np.array_equal(x.codes, y.codes))

    def elementwise(self, expr: Scalar, args: Sequence[FieldElements], dtype: DType) -> FieldElements:
        """Applies the table's column `field`, or on exact integers `meaning`, where the row is closed."""
        shape = np.broadcast_shapes(*(self.shape(a) for a in args))
        result = self._settled(self._scalar(expr, args), dtype)
        return result if self.shape(result) == shape else self.lift(broadcast(shape), result)

    def _scalar(self, expr: Scalar, args: Sequence[FieldElements]) -> FieldElements:
        match expr:
            case Arg(index):
                return args[index]
            case Lit(float() as value):
                return self._arithmetic.literal(value)
            case Lit(value):
                return ExactValue(np.asarray(value))
            case Apply(op, inner):
                return self._apply(optable.row(op), [self._scalar(a, args) for a in inner])
            case Convert(dtype, inner):
                return self.convert(self._scalar(inner, args), dtype, semantic=True)
            case _:
                assert_never(expr)

    def _apply(self, row: optable.Row, args: Sequence[FieldElements]) -> FieldElements:
        exact = [a.array for a in args if isinstance(a, ExactValue)]
        if row.closed and len(exact) == len(args):
            with np.errstate(all="ignore"):
                result = row.meaning(*exact)
            return self._arithmetic.from_floats(result) if result.dtype.kind == "f" else ExactValue(result)
        integers = len(exact) == 2 and exact[0].dtype.kind == exact[1].dtype.kind == "i"
        if row.name == "where" and integers and not self._arbitrary:
            return self._whole(args[0], *exact)
        if isinstance(row.field, Apply):
            return self._scalar(row.field, args)
        elements = [self._elements(a) for a in args]
        if row.field is None:
            drawn = self._arithmetic.uninterpreted(row.name, *elements)
            return self._right_where_known(row, elements, drawn) if row.closed else drawn
        result = getattr(self._arithmetic, row.field)(*elements)
        return result if isinstance(result, FieldValue) else ExactValue(np.asarray(result))

    def _right_where_known(self, row: optable.Row, args: Sequence[FieldValue], drawn: FieldValue) -> FieldValue:
        """Returns `drawn`, corrected where all arguments are known integers: whether others beside them are known must
        not matter.
        """
        reals = [self._arithmetic.known(a) for a in args]
        known = ~np.logical_or.reduce(np.broadcast_arrays(*map(np.isnan, reals)))
        if not known.any():
            return drawn
        with np.errstate(all="ignore"):
            found = row.meaning(*(np.where(np.isnan(r), 0.0, r) for r in reals))
        numbers = self._arithmetic
        return select(
            known, numbers.from_floats(found) if found.dtype.kind == "f" else numbers.from_integers(found), drawn
        )

    def _whole(self, condition: FieldElements, yes: Array, no: Array) -> FieldElements:
        """Selects among integers, with poison where the condition is poison: those beside it stay exact."""
        known = self._arithmetic.known(self._elements(condition))
        picked = np.where(known != 0, yes, no)
        poison = self.poison(picked.shape, DType.int64)
        assert isinstance(poison, ExactValue)
        return ExactValue(np.where(np.isnan(known), poison.array, picked))

    def _elements(self, v: FieldElements) -> FieldValue:
        return v if isinstance(v, FieldValue) else self._arithmetic.from_integers(v.array)

    def _settled(self, v: FieldElements, dtype: DType) -> FieldElements:
        """Returns `v` as an operation of type `dtype` leaves it: floats are elements, integers wrap."""
        if dtype.is_float:
            return self._elements(v)
        return ExactValue(wrapped(v.array, dtype)) if isinstance(v, ExactValue) else v

    def lookup(self, source: FieldElements, index: Sequence[FieldElements | Array]) -> FieldElements:
        """Reads at integers; elements, which are data that may be any integers, are those of a function of them."""

        def place(each: FieldElements | Array, size: int) -> Array:
            match each:
                case FieldValue():
                    return each.last % size
                case ExactValue():
                    return nearest(each.array, size)
                case _:
                    return each

        places = tuple(place(each, size) for each, size in zip(index, self.shape(source), strict=True))
        return self.lift(at(places), source)

    def convert(self, v: FieldElements, dtype: DType, semantic: bool) -> FieldElements:
        """Rounds what is known exactly in semantic casts; the rest becomes random, integers where the cast gives integers.

        Elements become bools by comparison with 0.
        """
        if isinstance(v, ExactValue):
            if not (semantic and dtype.is_float):
                return self._settled(v, dtype)
            return self._arithmetic.from_floats(rounded(v.array.astype(np.float64), dtype))
        if dtype is DType.bool:
            found = self._arithmetic.ne(v, self._arithmetic.literal(0.0)) if self._arbitrary else None
            return found if isinstance(found, FieldValue) else ExactValue((v.last != 0) | (v.codes != 0))
        if self._arbitrary and not dtype.is_float:
            return self._arithmetic.random_function(f"cast to {dtype}", v)
        if dtype.is_float and (not semantic or dtype is DType.float64):
            return v
        return self._whole_numbers(v, dtype) if dtype.kind == "int" else self._cast(v, dtype)

    def _whole_numbers(self, v: FieldValue, dtype: DType) -> ExactValue:
        """Truncates known elements, and draws integers for the rest.

        All of them exact: integers wrap, have bits and have bounds (those of padding below and above all of a type), which
        elements of a field have not.
        """
        real = self._arithmetic.known(v)
        drawn = self._arithmetic.random_function("whole number", v).last % (2 * _MOST_OF_A_CAST) - _MOST_OF_A_CAST
        unknown = np.isnan(real)
        whole = wrapped(np.where(unknown, 0.0, real), dtype)
        return ExactValue(np.where(unknown, wrapped(drawn, dtype), whole))

    def _cast(self, v: FieldValue, dtype: DType) -> FieldValue:
        """Casts known elements as numbers are, keeps infinities, and draws the rest at random."""
        real = self._arithmetic.known(v)
        unknown = np.isnan(real)
        numbers = _NUMBERS.convert(np.where(unknown, 0.0, real), dtype, semantic=True)
        exact = self._arithmetic.from_floats(numbers.astype(np.float64))
        drawn = self._arithmetic.random_function(f"cast to {dtype}", v)
        return select(v.codes != 0, v, select(unknown, drawn, exact))

    def contract(
        self,
        left: FieldElements,
        left_axes: Sequence[int],
        right: FieldElements,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> FieldElements:
        """Contracts by exact matrix products, or with infinities or NaN by multiplying out and summing."""
        labels = (left_axes, right_axes, out_axes)
        if isinstance(left, ExactValue) and isinstance(right, ExactValue):
            a, b = left.array.astype(np.int64), right.array.astype(np.int64)
            return ExactValue(contract_arrays(np.matmul, a, left_axes, b, right_axes, out_axes))
        x, y = self._elements(left), self._elements(right)
        if x.special is not None or y.special is not None:
            return self._contract_slowly(x, y, *labels)
        count = min(len(x.parts), len(y.parts))
        moduli = x.primes[-count:]
        parts = zip(x.parts[-count:], y.parts[-count:], moduli, strict=True)
        return FieldValue(tuple(_contract_modulo(a, b, p, *labels) for a, b, p in parts), moduli)

    def _contract_slowly(
        self,
        left: FieldValue,
        right: FieldValue,
        left_axes: Sequence[int],
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> FieldElements:
        summed = [x for x in dict.fromkeys((*left_axes, *right_axes)) if x not in out_axes]
        every = [*out_axes, *summed]

        def spread(v: FieldValue, labels: Sequence[int]) -> FieldValue:
            def move(array: Array) -> Array:
                array, own = diagonal(array, labels)
                array = array.transpose([own.index(x) for x in every if x in own])
                return array[tuple(slice(None) if x in own else None for x in every)]

            return structural(move, v)

        product = self._arithmetic.mul(spread(left, left_axes), spread(right, right_axes))
        return self.reduce(Monoid.sum, product, range(len(out_axes), len(every)))

    def reduce(self, monoid: Monoid, v: FieldElements, dims: Sequence[int]) -> FieldElements:
        """Computes sums and products of the field, and extrema under the random order."""
        if isinstance(v, ExactValue):
            return ExactValue(_NUMBERS.reduce(monoid, v.array, dims))
        kept = [d for d in range(len(self.shape(v))) if d not in dims]
        sizes = [self.shape(v)[d] for d in kept]

        def flat(array: Array) -> Array:
            count = math.prod([array.shape[d] for d in dims])
            return array.transpose([*kept, *dims]).reshape([*sizes, count])

        rows = structural(flat, v)
        if rows.last.shape[-1] == 0:
            return self.full(sizes, identity(monoid, "f"), DType.float64)
        match monoid:
            case Monoid.max | Monoid.min:
                return self._extremum(rows, monoid is Monoid.max)
            case Monoid.sum | Monoid.prod if rows.special is not None:
                return self._fold(monoid, rows)
            case Monoid.sum:
                sums = zip(rows.parts, rows.primes, strict=True)
                return FieldValue(tuple(a.sum(axis=-1) % p for a, p in sums), rows.primes)
            case Monoid.prod:
                products = zip(rows.parts, rows.primes, strict=True)
                return FieldValue(tuple(modular.product(a, p) for a, p in products), rows.primes)
            case _:
                assert_never(monoid)

    def prefixes(self, monoid: Monoid, v: FieldElements) -> FieldElements:
        """Combines pairs."""
        return by_doubling(self, monoid, v)

    def merges(
        self, merge: StateMerge, kinds: Sequence[DType], states: Sequence[FieldElements]
    ) -> tuple[FieldElements, ...]:
        """Merges pairs."""
        return by_pairs(self, merge, kinds, states)

    def ranked(
        self, v: FieldElements, numbers: FieldElements, count: int, order: Order
    ) -> tuple[FieldElements, FieldElements]:
        """Ranks under the random order, in which equal means the same element."""
        assert isinstance(numbers, ExactValue), "indices are known"
        if isinstance(v, ExactValue):
            values, places = _NUMBERS.ranked(v.array, numbers.array, count, order)
            return ExactValue(values), ExactValue(places)
        places = lengthened(numbers.array, count, NOTHING)

        def longer(array: Array) -> Array:
            return lengthened(array, count, 0)

        v = structural(longer, v)
        first, missing = ranking(self._arithmetic.order(v), v.nan, places, count, order)

        def take(array: Array) -> Array:
            return np.take_along_axis(array, first, -1)

        last = self._arithmetic.from_floats(np.asarray(order.worst))
        return select(missing, last, structural(take, v)), ExactValue(take(places))

    def _extremum(self, rows: FieldValue, greatest: bool) -> FieldElements:
        keys = self._arithmetic.order(rows)
        best = np.expand_dims(keys.argmax(axis=-1) if greatest else keys.argmin(axis=-1), -1)

        def take(array: Array) -> Array:
            return np.take_along_axis(array, best, -1)[..., 0]

        found = structural(take, rows)
        nan = np.asarray(rows.nan.any(axis=-1))
        if not nan.any():
            return found
        bad = self._arithmetic.from_floats(np.asarray(np.nan))
        return select(nan, bad, found)

    def _fold(self, monoid: Monoid, rows: FieldValue) -> FieldElements:
        """Combines element by element along the last axis, for rows with infinities or NaN."""
        combine = self._arithmetic.add if monoid is Monoid.sum else self._arithmetic.mul
        total = structural(at((..., 0)), rows)
        for i in range(1, rows.last.shape[-1]):
            total = combine(total, structural(at((..., i)), rows))
        return total


def _contract_modulo(
    a: Array,
    b: Array,
    p: int,
    left_axes: Sequence[int],
    right_axes: Sequence[int],
    out_axes: Sequence[int],
) -> Array:
    def matmul(x: Array, y: Array) -> Array:
        return modular.matmul(x, y, p)

    return contract_arrays(matmul, a, left_axes, b, right_axes, out_axes)
