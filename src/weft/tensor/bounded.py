"""The domain of numbers of bounded magnitude: overflow and underflow at many magnitudes of the inputs at once.

Every element of a value is a row of numbers, one for each *lane*. A lane is one choice of how large the inputs are, and of whether
numbers have the range of their type: beyond its largest number they are infinite; below its least normal number they are 0, or lose
digits first where every machine keeps these. Nothing else is rounded. So two lanes that differ only in the range give the same
numbers, bit for bit, unless the range mattered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, assert_never

import numpy as np

from weft.tensor import optable
from weft.tensor.domain import (
    Array,
    Structural,
    by_doubling,
    by_pairs,
    contract_arrays,
    first_of,
    identity,
    nearest,
    random_exact,
    wrapped,
)
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import rounded
from weft.tensor.merge import StateMerge
from weft.tensor.order import Order
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar

_DIGITS = {DType.float64: 52, DType.float32: 23}
"""Bits behind the point of normal numbers. In sums and products of numbers, what lies below them is a multiple of the least number
that there is; functions, products of matrices and types of 16 bits make it 0 on some machines."""
_KEEPS = frozenset({"add", "sub", "mul", "fma"})

_MARGIN, _LEAST_MARGIN = 10, 3
_NARROW, _WIDE = "v", "float64"
"""They give a number that they were given: one that stands for -inf, say."""
_EXPONENTIALS = frozenset({"exp", "exp2", "expm1", "decay", "coarse_decay"})

Kind = Literal["exponential", "square", "product", "other"]


class Lane(Enum):
    """What range the numbers of a lane have."""

    unbounded = "that of the machine's numbers, far beyond the type's"
    bounded = "the type's, with what lies below its normal numbers"
    narrower = "the type's, less a factor at both ends; what leaves it is NaN, but an exponential"


@dataclass
class Event:
    """An operation of which some result left the range.

    Attributes:
        node: the node that was at work.
        expr: the operation.
        over, under: in which lanes a result of finite operands was infinite, or of operands that are not 0 was 0.
    """

    node: Any
    expr: Scalar | None
    over: Array
    under: Array


class BoundedDomain:
    """Numbers with a range. Values: arrays of structures, each with one field, a row of one number a lane (or of one for all). The
    field's name says whether they are float64: sums and products, which are not told a type, have the range of their terms'.

    Poison is NaN (for integers the least int64, for bools True). As a program is compared with itself alone, erf is a function of
    the same bounds that is faster.

    Attributes:
        lanes: what range each lane has.
        events: by node and operation, what left the range; filled as programs run.
        node: what is computed now, for `events`; whoever runs a program sets it.
    """

    def __init__(self, lanes: Sequence[Lane], *, wide: bool = False) -> None:
        """Computes with lanes of these kinds; `wide` where programs have float64, whose range only wider numbers of the
        machine can exceed.
        """
        self.lanes = tuple(lanes)
        self.real: Any = np.longdouble if wide else np.float64
        self.events: dict[tuple[int, int], Event] = {}
        self.node: Any = None
        self._gone = np.array([np.nan if lane is Lane.narrower else np.inf for lane in self.lanes], self.real)
        self._ends = {dtype: self._of(*dtype.exponents) for dtype in DType if dtype.is_float}
        self._spacing = {dtype: self._spaced(dtype.exponents[0] - digits) for dtype, digits in _DIGITS.items()}

    def at(self, node: Any) -> None:
        """Takes note of what is computed next."""
        self.node = node

    def _of(self, low: int, high: int) -> tuple[Array, Array]:
        margin = _MARGIN if high - low > 64 else _LEAST_MARGIN
        one = self.real(1.0)
        ends = {
            Lane.unbounded: (self.real(np.inf), self.real(0.0)),
            Lane.bounded: (np.ldexp(2 - 2.0**-23 * one, high - 1), np.ldexp(one, low)),
            Lane.narrower: (np.ldexp(one, high - margin), np.ldexp(one, low + margin)),
        }
        largest, least = zip(*(ends[lane] for lane in self.lanes), strict=True)
        return np.array(largest, self.real), np.array(least, self.real)

    def _spaced(self, exponent: int) -> Array:
        """Returns for each lane the spacing of numbers below the normal ones: one far beyond them where they are 0."""
        return np.ldexp(self.real(1.0), [exponent if lane is Lane.bounded else 0 for lane in self.lanes])

    # What moves.

    def shape(self, v: Array) -> tuple[int, ...]:
        """Returns the sizes of the array of structures."""
        return tuple(v.shape)

    def lift(self, fn: Structural, *values: Array) -> Array:
        """Applies `fn` to the array of structures, or lane by lane where numpy has no such function of structures."""
        count = max((numbers(v).shape[-1] for v in values), default=1)
        wide = any(map(_is_wide, values))
        if len(values) > 1:
            kind = np.result_type(*(numbers(v).dtype for v in values))
            values = tuple(
                packed(np.broadcast_to(numbers(v), (*v.shape, count)).astype(kind), wide=wide) for v in values
            )
        try:
            return np.asarray(fn(*values))
        except TypeError:
            each = [fn(*(numbers(v)[..., min(i, numbers(v).shape[-1] - 1)] for v in values)) for i in range(count)]
            return packed(np.stack(each, -1), wide=wide)

    def poison(self, shape: Sequence[int], dtype: DType) -> Array:
        """Returns NaN, or for other types the value that comes nearest to it."""
        bad = {"float": self.real(np.nan), "int": np.iinfo(np.int64).min, "bool": True}[dtype.kind]
        return packed(np.full((*shape, 1), bad), wide=dtype is DType.float64)

    # What computes.

    def full(self, shape: Sequence[int], value: float | int | bool, dtype: DType) -> Array:
        """Returns an array of one number, the same in all lanes."""
        if isinstance(value, float) and np.isinf(value) and dtype.kind == "int":
            value = dtype.bounds[1 if value > 0 else 0]
        return packed(self._carried(np.full((*shape, 1), value), dtype), wide=dtype is DType.float64)

    def iota(self, size: int, dtype: DType) -> Array:
        """Counts from 0 to `size` - 1, as np.arange does."""
        return packed(self._carried(np.arange(size)[:, None], dtype))

    def elementwise(self, expr: Scalar, args: Sequence[Array], dtype: DType) -> Array:
        """Applies the table's `meaning` column, each operation within the range of what its operands make it, as both
        emitters compute it.

        A bare argument is a rounding to `dtype`: its range is that of `dtype` itself.
        """
        shape = np.broadcast_shapes(*(a.shape for a in args))
        with np.errstate(all="ignore"):
            found, computed = self._scalar(expr, args)
            found = self._carried(found, dtype)
            if dtype.is_float and (isinstance(expr, Arg) or computed is not dtype.accumulator):
                found = self._within(found, dtype, expr, ())
        count = found.shape[-1] if found.ndim else 1
        return packed(np.broadcast_to(found, (*shape, count)), wide=dtype is DType.float64)

    def contract(
        self,
        left: Array,
        left_axes: Sequence[int],
        right: Array,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> Array:
        """Multiplies with np.matmul; the result is infinite where the magnitudes of the terms, whatever their signs,
        sum to more than the range.
        """
        carried = _carried_in(left, right)
        one, other = numbers(left), numbers(right)
        count = max(one.shape[-1], other.shape[-1])
        one, other = (np.broadcast_to(v, (*v.shape[:-1], count)) for v in (one, other))
        one, other = (v.astype(np.int64) if v.dtype == np.bool_ else v for v in (one, other))
        lane = 1 + max((*left_axes, *right_axes), default=0)
        labels = [*left_axes, lane], [*right_axes, lane], [*out_axes, lane]

        def product(a: Array, b: Array) -> Array:
            return contract_arrays(np.matmul, a, labels[0], b, labels[1], labels[2])

        with np.errstate(all="ignore"):
            found = product(one, other)
            if found.dtype.kind == "f":
                terms = one.size // count * np.max(np.abs(one)) * np.max(np.abs(other))
                total = np.abs(found) if self._inside(terms) else product(np.abs(one), np.abs(other))
                found = self._within(found, carried, None, (), total)
        return packed(found, wide=carried is DType.float64)

    def reduce(self, monoid: Monoid, v: Array, dims: Sequence[int]) -> Array:
        """Reduces with numpy; a sum is infinite where the magnitudes of its terms add up to more than the range."""
        values, carried = numbers(v), _carried_in(v)
        if values.dtype == np.bool_ and monoid in (Monoid.sum, Monoid.prod):
            values = values.astype(np.int64)
        ufunc = {Monoid.sum: np.add, Monoid.prod: np.multiply, Monoid.max: np.maximum, Monoid.min: np.minimum}[monoid]
        with np.errstate(all="ignore"):
            if monoid is Monoid.prod and values.dtype.kind == "f":
                return packed(self._product(values, tuple(dims), carried), wide=_is_wide(v))
            start = identity(monoid, values.dtype.kind)
            found = np.asarray(ufunc.reduce(values, axis=tuple(dims), initial=start))
            if monoid is Monoid.sum and found.dtype.kind == "f":
                total = np.add.reduce(np.abs(values), axis=tuple(dims))
                found = self._within(found, carried, None, (), total, keeps=True)
        return packed(found, wide=_is_wide(v))

    def _product(self, values: Array, dims: tuple[int, ...], dtype: DType) -> Array:
        """Multiplies along `dims`, one factor after the other."""
        kept = tuple(d for d in range(values.ndim) if d not in dims)
        factors = values.transpose(*dims, *kept).reshape(-1, *(values.shape[d] for d in kept))
        found = np.ones(factors.shape[1:], self.real)
        for factor in factors:
            found = self._within(found * factor, dtype, None, ())
        return found

    def prefixes(self, monoid: Monoid, v: Array) -> Array:
        """Combines pairs."""
        return by_doubling(self, monoid, v)

    def merges(self, merge: StateMerge, kinds: Sequence[DType], states: Sequence[Array]) -> tuple[Array, ...]:
        """Merges pairs."""
        return by_pairs(self, merge, kinds, states)

    def ranked(self, v: Array, numbers: Array, count: int, order: Order) -> tuple[Array, Array]:
        """Ranks by sorting; False is less than True."""
        values, own = _lanes_first(v), _lanes_first(numbers)
        found, places = first_of(values, np.broadcast_to(own, values.shape), count, order)
        return packed(np.moveaxis(found, 0, -1), wide=_is_wide(v)), packed(np.moveaxis(places, 0, -1))

    def lookup(self, source: Array, index: Sequence[Array]) -> Array:
        """Reads with numpy's indexing; where lanes disagree about an integer, as the first has it."""
        own = [i if i.dtype.names is None else numbers(i)[..., 0] for i in index]
        return source[tuple(nearest(i, size) for i, size in zip(own, source.shape, strict=True))]

    def convert(self, v: Array, dtype: DType, semantic: bool) -> Array:
        """Rounds to a semantic float type, within its range; integers truncate towards 0 and wrap; bool is `!= 0`."""
        return packed(self._converted(numbers(v), dtype, semantic), wide=dtype is DType.float64)

    def random(self, shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> Array:
        """Draws standard normal floats, small integers or fair bools, equal in all lanes."""
        values = rng.standard_normal(tuple(shape)) if dtype.is_float else random_exact(shape, dtype, rng)
        return packed(values[..., None], wide=dtype is DType.float64)

    # The range.

    def _carried(self, values: Array, dtype: DType) -> Array:
        return values.astype(self.real) if dtype.is_float else wrapped(np.asarray(values), dtype)

    def _converted(self, values: Array, dtype: DType, semantic: bool) -> Array:
        carried = self._carried(values, dtype)
        if not semantic or not dtype.is_float:
            return carried
        near = rounded(carried.astype(np.float64), dtype)
        near = np.where(np.isfinite(near) & (near != 0.0), near, carried).astype(self.real)
        return near if dtype is DType.float8_e4m3fn else self._within(near, dtype, Arg(0), ())

    def _scalar(self, expr: Scalar, args: Sequence[Array]) -> tuple[Array, DType]:
        """Returns the numbers of `expr`, and the type that they are computed in."""
        match expr:
            case Arg(index):
                return numbers(args[index]), _carried_in(args[index])
            case Lit(value):
                return np.asarray([value]), DType.float32
            case Apply(op, inner):
                operands, types = zip(*(self._scalar(a, args) for a in inner), strict=True)
                found = np.asarray(_meaning(op)(*operands))
                if found.dtype.kind != "f":
                    return found, DType.float32
                computed = DType.float64 if DType.float64 in types else DType.float32
                return found if optable.row(op).rounding == "chooses" else self._within(
                    found, computed, expr, operands
                ), computed
            case Convert(to, inner):
                found, _ = self._scalar(inner, args)
                return self._converted(found, to, semantic=True), to.accumulator
            case _:
                assert_never(expr)

    def _inside(self, magnitude: Any) -> bool:
        """Tells whether a magnitude is within all ranges, from the largest one of a value."""
        return bool(magnitude <= np.min(self._ends[DType.float32][0]))

    def _within(
        self,
        values: Array,
        dtype: DType,
        expr: Scalar | None,
        operands: Sequence[Array],
        magnitude: Array | None = None,
        *,
        keeps: bool = False,
    ) -> Array:
        """Returns `values` where they are within the range, else what becomes of them; `magnitude` is theirs, unless it is given.

        `keeps` has those below the normal numbers lose digits before they are 0.
        """
        own = dtype if isinstance(expr, Arg) else dtype.accumulator
        largest, least = self._ends[own]
        size = np.abs(values) if magnitude is None else magnitude
        over, under = size > largest, (size < least) & (size > 0)
        if over.any():
            over = over & _of_finite(size, expr, operands)
        if not over.any() and not under.any():
            return values
        self._note(expr, over, under)
        # An exponential that is infinite has the right sign. A sum or a product has it by chance, and max(x, 0) would hide that.
        gone = np.inf if kind_of(expr) == "exponential" else self._gone
        keeps = keeps or (isinstance(expr, Apply) and expr.op in _KEEPS)
        spacing = self._spacing[own] if keeps and own in _DIGITS else self.real(1.0)
        left = np.where(under, np.round(values / spacing) * spacing, values)
        return np.where(over, np.copysign(gone, values), left).astype(self.real)

    def _note(self, expr: Scalar | None, over: Array, under: Array) -> None:
        lanes = tuple(range(over.ndim - 1))
        key = id(self.node), id(expr)
        event = self.events.get(key)
        if event is None:
            none = np.zeros(len(self.lanes), np.bool_)
            event = self.events[key] = Event(self.node, expr, none, none)
        event.over = event.over | over.any(axis=lanes)
        event.under = event.under | under.any(axis=lanes)


def kind_of(expr: Scalar | None) -> Kind:
    """Names the kind that an operation counts as; None is a contraction or a reduction."""
    match expr:
        case Apply("mul", (one, other)) if one == other:
            return "square"
        case Apply("pow", (_, Lit(2))):
            return "square"
        case None | Apply("mul" | "fma" | "pow", _):
            return "product"
        case Apply(op, _) if op in _EXPONENTIALS:
            return "exponential"
        case _:
            return "other"


def numbers(v: Array) -> Array:
    """Returns the numbers of a value: one more dimension, that of lanes, or of size 1 where all lanes are equal."""
    return v[_WIDE if _is_wide(v) else _NARROW]


def packed(values: Array, *, wide: bool = False) -> Array:
    """Returns a value of these numbers, whose last dimension is that of lanes; `wide` where they are float64."""
    whole = np.ascontiguousarray(values)
    name = _WIDE if wide else _NARROW
    return whole.view(np.dtype([(name, whole.dtype, (whole.shape[-1],))]))[..., 0]


def _is_wide(v: Array) -> bool:
    return v.dtype.names == (_WIDE,)


def _carried_in(*values: Array) -> DType:
    """Returns the type in which a sum or a product of these is carried."""
    return DType.float64 if any(map(_is_wide, values)) else DType.float32


def _of_finite(size: Array, expr: Scalar | None, operands: Sequence[Array]) -> Array:
    """Tells where a magnitude comes of finite operands: 1 / 0 and -inf - x are infinite whatever the range is.

    The machine's numbers hold all sums and products of numbers that have a range, but not powers.
    """
    if kind_of(expr) != "exponential" and not (isinstance(expr, Apply) and expr.op == "pow"):
        return np.isfinite(size)
    found = np.ones(size.shape, np.bool_)
    for each in operands:
        found = found & np.isfinite(each)
    return found


def _lanes_first(v: Array) -> Array:
    return np.moveaxis(numbers(v), -1, 0)


def _meaning(op: str) -> Callable[..., Array]:
    return _like_erf if op == "erf" else optable.row(op).meaning


def _like_erf(x: Array) -> Array:
    return np.tanh(np.asarray(x) * (2.0 / np.sqrt(np.pi)))
