"""Numbers whose exponents have hardly an end, for results that fp64 has not the range to say.

`p = exp(s) * mask; p / p.sum()` is a right number wherever `s` is one; in fp64 exp(s) is infinite beyond 709. A kernel that takes a
maximum off its exponents gives the number, where eager PyTorch and a reference in fp64 have NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from weft.tensor.arrays import Array
from weft.tensor.domain import contract_arrays
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.order import Order
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply

_WIDE = np.dtype([("part", np.longdouble), ("power", np.int64)])
"""A number is `part` times 2 to the `power`; `part` is 0, NaN, infinite, or from 1/2 to 1."""
_MOST = 1 << 60
"""No power is beyond this: longer numbers are infinite, or 0."""
_APART = 20_000
"""What is so many powers below a term of a sum is nothing beside it."""
_SMALL = np.ldexp(np.longdouble(1), int(np.finfo(np.longdouble).minexp) // 2)
"""Beside a sum of this size, terms that numpy's widest type has not the range for are nothing."""
_PRODUCTS = 1 << 23
"""So many products of a contraction are held at once at the most."""


class WideDomain(Fp64Domain):
    """Numbers of any magnitude, and 0 times anything is 0: an operand that a mask excludes does not propagate its NaN.

    Values: floats are numpy arrays of two fields (`_WIDE`), integers and bools as in fp64. Casts between floats round nothing.
    Operations that few masks meet go by way of fp64, and leave its range as it does.

    Args:
        seed: of what each operation is off by, at random within what it rounds; None: exact as far as 64 bits are.
        eps: of the type that is rounded to.
    """

    def __init__(self, seed: int | None = None, eps: float = 0.0) -> None:
        self._rng, self._eps = None if seed is None else np.random.default_rng(seed), eps

    @staticmethod
    def given(values: Array) -> Array:
        """Returns an input: of floats, wide numbers."""
        return _wide(values) if values.dtype.kind == "f" else values

    @staticmethod
    def told(values: Array) -> Array:
        """Returns an output as numbers of fp64, infinite where they are beyond its range."""
        with np.errstate(over="ignore"):
            return _in_fp64(values)

    def contract(
        self,
        left: Array,
        left_axes: Sequence[int],
        right: Array,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> Array:
        """Multiplies and sums; raises MemoryError where a sum has too many terms."""
        if _WIDE not in (left.dtype, right.dtype):
            return super().contract(left, left_axes, right, right_axes, out_axes)
        return contract_arrays(self._matmul, _wide(left), left_axes, _wide(right), right_axes, out_axes)

    def _matmul(self, left: Array, right: Array) -> Array:
        """Multiplies matrices, each row and each column beside its greatest element; term by term where that lacks the range."""
        at_once = _PRODUCTS // max(1, left.shape[-1])
        if not at_once:
            raise MemoryError("a sum has too many terms")
        left, right, given = _numbers(left), _numbers(right), (left["part"], right["part"])
        one, of_rows = _beside_greatest(left, 2)
        other, of_columns = _beside_greatest(right, 1)
        sizes = np.abs(one) @ np.abs(other)
        found = self._sum(one @ other, of_rows + of_columns, lambda: sizes, left.shape[-1])
        small = (sizes < _SMALL) & _any_meet(left["part"] != 0, right["part"] != 0)
        places = np.nonzero(small)
        for begin in range(0, len(places[0]), at_once):
            batch, row, column = (each[begin : begin + at_once] for each in places)
            terms = _multiplied(left[batch, row], right[batch, :, column])
            found[batch, row, column] = self._summed(terms, (1,))
        return _with_endless(found, *given)

    def reduce(self, monoid: Monoid, v: Array, dims: Sequence[int]) -> Array:
        """Reduces; NaN propagates."""
        if v.dtype != _WIDE:
            return super().reduce(monoid, v, dims)
        if monoid is Monoid.sum:
            return self._summed(v, dims)
        combine = {Monoid.prod: _multiplied, Monoid.max: _greater, Monoid.min: _lesser}
        kept = [d for d in range(v.ndim) if d not in dims]
        flat = v.transpose([*kept, *dims]).reshape([*(v.shape[d] for d in kept), -1])
        if not flat.shape[-1]:
            return super().reduce(monoid, _plain(v), dims)
        while flat.shape[-1] > 1:
            half = flat.shape[-1] // 2
            joined = combine[monoid](flat[..., :half], flat[..., half : 2 * half])
            flat = np.concatenate((joined, flat[..., 2 * half :]), -1)
        return flat[..., 0]

    def _summed(self, v: Array, dims: Sequence[int]) -> Array:
        """Sums beside the greatest power of each sum; off by what rounding each partial sum may take."""
        power = np.max(v["power"], axis=tuple(dims), keepdims=True, initial=-_MOST)
        terms = _scaled(v["part"], v["power"] - power)
        return self._sum(
            np.sum(terms, axis=tuple(dims)),
            np.squeeze(power, tuple(dims)),
            lambda: np.sum(np.abs(terms), axis=tuple(dims)),
            math.prod(v.shape[d] for d in dims),
        )

    def _sum(self, parts: Array, power: Array, sizes: Callable[[], Array], count: int) -> Array:
        """Returns sums of `count` terms, `parts` times 2 to the `power`, of absolute values `sizes()` in all."""
        found = _normalised(parts, power)
        if self._rng is None:
            return found
        off = sizes() * (0.5 * self._eps * math.sqrt(max(1, count)))
        return _added(found, _normalised(np.multiply(off, self._uniform(off.shape)), power))

    def prefixes(self, monoid: Monoid, v: Array) -> Array:
        """Combines from the first element on, in fp64's range."""
        return super().prefixes(monoid, _in_fp64(v))

    def ranked(self, v: Array, numbers: Array, count: int, order: Order) -> tuple[Array, Array]:
        """Ranks by sorting, in fp64's range."""
        return super().ranked(_in_fp64(v), numbers, count, order)

    def convert(self, v: Array, dtype: DType, semantic: bool) -> Array:
        """Converts; floats round at random alone."""
        if not dtype.is_float:
            return super().convert(_in_fp64(v), dtype, semantic)
        return self._off(self._carried(v, dtype), dtype.eps)

    def poison(self, shape: Sequence[int], dtype: DType) -> Array:
        """Returns NaN, or for other types the value that comes nearest to it."""
        return self.given(super().poison(shape, dtype))

    def _carried(self, values: Array, dtype: DType) -> Array:
        if dtype.is_float:
            return _wide(values)
        return super()._carried(_in_fp64(values), dtype)

    def _applied(self, expr: Apply, operands: Sequence[Array]) -> Array:
        found = _applied(expr.op, operands) if any(v.dtype == _WIDE for v in operands) else None
        if found is None:
            found = super()._applied(expr, [_plain(v) if v.dtype == _WIDE else v for v in operands])
            found = _wide(found) if found.dtype.kind == "f" else found
        return self._off(found, self._eps) if found.dtype == _WIDE else found

    def _off(self, values: Array, eps: float) -> Array:
        """Returns numbers off at random by what rounding to a type takes."""
        if self._rng is None:
            return values
        found = values.copy()
        found["part"] *= 1.0 + 0.5 * eps * self._uniform(values.shape)
        return found

    def _uniform(self, shape: Sequence[int]) -> Array:
        return np.zeros(shape) if self._rng is None else self._rng.uniform(-1.0, 1.0, tuple(shape))


def _wide(values: Array) -> Array:
    """Returns wide numbers; those that are, as they are."""
    return values if values.dtype == _WIDE else _normalised(values.astype(np.longdouble), np.zeros((), np.int64))


def _plain(values: Array) -> Array:
    """Returns numbers in numpy's widest type, infinite or 0 where they are beyond its range."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values["part"], np.clip(values["power"], -_APART, _APART).astype(np.int32))


def _in_fp64(values: Array) -> Array:
    """Returns wide numbers as fp64, infinite where they are beyond its range; others as they are."""
    return _plain(values).astype(np.float64) if values.dtype == _WIDE else values


def _logarithm(value: Array) -> Array:
    value = _wide(value)
    with np.errstate(all="ignore"):  # of 0 and of what is negative
        return _wide(np.log(value["part"]) + value["power"] * np.log(np.longdouble(2)))


def _beside_greatest(values: Array, axis: int) -> tuple[Array, Array]:
    """Returns numbers from -1 to 1, and the powers along an axis that they are beside."""
    power: Array = np.max(values["power"], axis=axis, keepdims=True, initial=-_MOST)
    return _scaled(np.ascontiguousarray(values["part"]), values["power"] - power), power


def _numbers(values: Array) -> Array:
    """Returns numbers with 0 for what is infinite or no number."""
    odd = ~np.isfinite(values["part"])
    if not odd.any():
        return values
    found = values.copy()
    found["part"][odd], found["power"][odd] = 0, -_MOST
    return found


def _with_endless(sums: Array, left: Array, right: Array) -> Array:
    """Returns sums of products with the terms that are infinite, or no numbers; 0 times either is 0."""
    if np.isfinite(left).all() and np.isfinite(right).all():
        return sums
    none = _any_meet(np.isnan(left), right != 0) | _any_meet(left != 0, np.isnan(right))
    up, down = (
        _any_meet(left == sign * np.inf, right > 0)
        | _any_meet(left == -sign * np.inf, right < 0)
        | _any_meet(left > 0, right == sign * np.inf)
        | _any_meet(left < 0, right == -sign * np.inf)
        for sign in (1, -1)
    )
    odd = np.where(none | (up & down), np.nan, np.where(up, np.inf, -np.inf))
    sums["part"] = np.where(none | up | down, odd, sums["part"])
    sums["power"] = np.where(none | up | down, 0, sums["power"])
    return sums


def _any_meet(left: Array, right: Array) -> Array:
    """Tells in which sums of products some term has both."""
    return left.astype(np.float32) @ right.astype(np.float32) > 0


def _scaled(parts: Array, powers: Array) -> Array:
    return np.ldexp(parts, np.clip(powers, -_APART, 0).astype(np.int32))


def _normalised(parts: Array, powers: Array) -> Array:
    found = np.empty(np.broadcast_shapes(parts.shape, powers.shape), _WIDE)
    found["part"], more = np.frexp(parts)
    found["power"] = powers + np.where(np.isfinite(parts), more, 0)
    found["part"] = np.where(found["power"] > _MOST, np.copysign(np.inf, found["part"]), found["part"])
    found["part"] = np.where(found["power"] < -_MOST, 0.0, found["part"])
    found["power"] = np.where(found["part"] == 0, -_MOST, np.where(np.isfinite(found["part"]), found["power"], 0))
    return found


def _added(one: Array, other: Array) -> Array:
    one, other = _wide(one), _wide(other)
    power = np.maximum(one["power"], other["power"])
    both = (_scaled(each["part"], each["power"] - power) for each in (one, other))
    return _normalised(np.add(*both), power)


def _negated(value: Array) -> Array:
    found = _wide(value).copy()
    found["part"] = -found["part"]
    return found


def _absolute(value: Array) -> Array:
    found = _wide(value).copy()
    found["part"] = np.abs(found["part"])
    return found


def _multiplied(one: Array, other: Array) -> Array:
    one, other = _wide(one), _wide(other)
    none = (one["part"] == 0) | (other["part"] == 0)
    parts = np.where(none, 0.0, one["part"] * other["part"])
    return _normalised(parts, np.where(none, 0, one["power"] + other["power"]))


def _divided(one: Array, other: Array) -> Array:
    one, other = _wide(one), _wide(other)
    none = (one["part"] == 0) | (other["part"] == 0)
    return _normalised(one["part"] / other["part"], np.where(none, 0, one["power"] - other["power"]))


def _exponential(value: Array, base: np.longdouble | float = 1.0) -> Array:
    """Returns 2 to the `value` times the logarithm of a base."""
    exponent = _plain(_wide(value)) * base
    whole = np.where(np.isfinite(exponent), np.clip(np.rint(exponent), -2 * _MOST, 2 * _MOST), 0.0)
    return _normalised(np.exp2(np.clip(exponent - whole, -_APART, _APART)), whole.astype(np.int64))


def _less(one: Array, other: Array) -> Array:
    one, other = _wide(one), _wide(other)
    endless = np.isinf(one["part"]) | np.isinf(other["part"])
    return np.where(endless, one["part"] < other["part"], _added(one, _negated(other))["part"] < 0)


def _equal(one: Array, other: Array) -> Array:
    one, other = _wide(one), _wide(other)
    return (one["part"] == other["part"]) & (one["power"] == other["power"])


def _greater(one: Array, other: Array) -> Array:
    one, other = _wide(one), _wide(other)
    found = np.where(_less(one, other), other, one)
    return np.where(np.isnan(other["part"]), other, found)


def _lesser(one: Array, other: Array) -> Array:
    return _negated(_greater(_negated(one), _negated(other)))


def _applied(op: str, operands: Sequence[Array]) -> Array | None:
    """Applies an operation; None where it is none of those that are exact here."""
    match op, *operands:
        case ("add", one, other):
            return _added(one, other)
        case ("sub", one, other):
            return _added(one, _negated(other))
        case ("mul", one, other):
            return _multiplied(one, other)
        case ("div", one, other):
            return _divided(one, other)
        case ("fma", one, other, more):
            return _added(_multiplied(one, other), more)
        case ("neg", value):
            return _negated(value)
        case ("abs", value):
            return _absolute(value)
        case ("exp", value):
            return _exponential(value, 1 / np.log(np.longdouble(2)))
        case ("exp2", value):
            return _exponential(value)
        case ("log", value):
            return _logarithm(value)
        case _:
            return _decided(op, operands)


def _decided(op: str, operands: Sequence[Array]) -> Array | None:
    """Compares or chooses; None where the operation does neither."""
    match op, *operands:
        case ("maximum", one, other):
            return _greater(one, other)
        case ("minimum", one, other):
            return _lesser(one, other)
        case ("where", condition, one, other):
            return np.where(condition, _wide(one), _wide(other))
        case ("lt", one, other):
            return _less(one, other)
        case ("gt", one, other):
            return _less(other, one)
        case ("le", one, other):
            return _less(one, other) | _equal(one, other)
        case ("ge", one, other):
            return _less(other, one) | _equal(one, other)
        case ("eq", one, other):
            return _equal(one, other)
        case ("ne", one, other):
            return ~_equal(one, other)
        case ("isnan", value):
            return np.isnan(_wide(value)["part"])
        case _:
            return None
