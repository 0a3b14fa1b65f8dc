"""The domain of numbers: floats carried in fp64, integers as int64, bools as bool."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import assert_never

import numpy as np

from weft.tensor import optable
from weft.tensor.arrays import RoundsToBfloat16, as_array, is_numpys
from weft.tensor.domain import (
    Array,
    Structural,
    both,
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
from weft.tensor.merge import StateMerge
from weft.tensor.order import Order
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar

_REDUCE = {
    Monoid.sum: np.add,
    Monoid.prod: np.multiply,
    Monoid.max: np.maximum,
    Monoid.min: np.minimum,
}


def rounded(values: Array, dtype: DType) -> Array:
    """Returns fp64 values rounded to the floats of `dtype`, half to even, still carried in fp64.

    bfloat16 and the types of 8 bits are reached by way of float32, as PyTorch reaches them. Numbers too large for
    float8_e4m3fn, and infinity, become its largest number.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        match dtype:
            case DType.float64:
                return values
            case DType.float32 | DType.float16:
                return values.astype(dtype.name).astype(np.float64)
            case DType.float8_e4m3fn:
                return np.clip(_to_bits(values, 3, -6), -448.0, 448.0)
            case DType.float8_e5m2:
                near = _to_bits(values, 2, -14)
                return np.where(np.abs(near) > 57344.0, np.copysign(np.inf, near), near)
            case DType.bfloat16 if isinstance(values, RoundsToBfloat16):
                return as_array(values.in_bfloat16())
            case _:
                single = values.astype(np.float32, order="C")
                bits = single.view(np.int32)
                up = (bits + np.int32(0x7FFF) + ((bits >> 16) & 1)) & np.int32(-0x10000)
                return np.where(np.isfinite(single), up.view(np.float32), single).astype(np.float64)


def _to_bits(values: Array, mantissa: int, least: int) -> Array:
    """Rounds `values` to the nearest float32 with so many bits behind the first, which is worth at least 2 ** `least`."""
    single = values.astype(np.float32).astype(np.float64)
    step = np.exp2(np.maximum(np.frexp(single)[1] - 1, least).astype(np.float64) - mantissa)
    return np.where(np.isfinite(single), np.copysign(np.rint(single / step) * step, single), single)


class Fp64Domain:
    """Numbers. Values: numpy arrays of float64, int64 or bool, whatever the element type's width.

    The reference of the error rule. Poison is NaN (for integers the least int64, for bools True).

    Attributes:
        place: moves what a program makes of no input to where the inputs are, if that is not numpy's memory.
    """

    place: Callable[[Array], Array] | None = None

    def shape(self, v: Array) -> tuple[int, ...]:
        """Returns the array's shape."""
        return tuple(v.shape)

    def lift(self, fn: Structural, *values: Array) -> Array:
        """Applies `fn` to the arrays themselves."""
        return as_array(fn(*values))

    def full(self, shape: Sequence[int], value: float | int | bool, dtype: DType) -> Array:
        """Returns an array of one number."""
        if math.isinf(value) and dtype.kind == "int":  # where an extremum of integers starts
            value = dtype.bounds[1 if value > 0 else 0]
        return self._placed(self._carried(np.full(tuple(shape), value), dtype))

    def iota(self, size: int, dtype: DType) -> Array:
        """Counts from 0 to `size` - 1, as np.arange does."""
        return self._placed(self._carried(np.arange(size), dtype))

    def poison(self, shape: Sequence[int], dtype: DType) -> Array:
        """Returns NaN, or for other types the value that comes nearest to it."""
        bad = {"float": np.nan, "int": np.iinfo(np.int64).min, "bool": True}[dtype.kind]
        return np.full(tuple(shape), bad)

    def elementwise(self, expr: Scalar, args: Sequence[Array], dtype: DType) -> Array:
        """Applies the table's `meaning` column, in fp64."""
        shape = np.broadcast_shapes(*(a.shape for a in args))
        with np.errstate(all="ignore"):
            result = self._carried(self._scalar(expr, args), dtype)
        return np.broadcast_to(result, shape)

    def contract(
        self,
        left: Array,
        left_axes: Sequence[int],
        right: Array,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> Array:
        """Multiplies with np.matmul, small matrices in one thread; bools count as 0 and 1."""
        left, right = (v.astype(np.int64) if v.dtype == np.bool_ else v for v in (left, right))
        with np.errstate(all="ignore"):
            return contract_arrays(self._matrices, left, left_axes, right, right_axes, out_axes)

    def _matrices(self, left: Array, right: Array) -> Array:
        """Multiplies matrices, [batch, m, k] and [batch, k, n]."""
        return matmul_in_parts(left, right)

    def reduce(self, monoid: Monoid, v: Array, dims: Sequence[int]) -> Array:
        """Reduces with numpy; NaN propagates through all four."""
        if v.dtype == np.bool_ and monoid in (Monoid.sum, Monoid.prod):
            v = v.astype(np.int64)
        with np.errstate(all="ignore"):
            if monoid is Monoid.prod and v.dtype == np.float64:
                return self._multiplied(v, dims)
            start = identity(monoid, v.dtype.kind)
            if monoid is Monoid.sum and v.dtype.kind == "f":
                # numpy adds in several partial sums along the last dimension alone, else one term after another: results in fp64
                # may be more exact than that.
                return as_array(np.add.reduce(_in_rows(v, dims), axis=-1, initial=start))
            return as_array(_REDUCE[monoid].reduce(v, axis=tuple(dims), initial=start))

    def _multiplied(self, v: Array, dims: Sequence[int]) -> Array:
        """Returns the product over `dims`, significands and exponents by themselves: it leaves the range only where it is out of
        it, whatever the order."""
        parts, exponents = np.frexp(_in_rows(v, dims))
        exponents = exponents.astype(np.int64)
        while parts.shape[-1] > 1:
            half = parts.shape[-1] // 2
            odd = parts[..., 2 * half :], exponents[..., 2 * half :]
            pairs, more = np.frexp(parts[..., :half] * parts[..., half : 2 * half])
            both = exponents[..., :half] + exponents[..., half : 2 * half] + more
            parts, exponents = np.concatenate((pairs, odd[0]), -1), np.concatenate((both, odd[1]), -1)
        if not parts.shape[-1]:
            return np.ones(parts.shape[:-1])
        return np.ldexp(parts[..., 0], np.clip(exponents[..., 0], -3000, 3000))

    def prefixes(self, monoid: Monoid, v: Array) -> Array:
        """Combines from the first element on, sums in the widest type that numpy has; products by pairs, whose range is wider."""
        if v.dtype == np.bool_ and monoid in (Monoid.sum, Monoid.prod):
            v = v.astype(np.int64)
        if monoid is Monoid.prod and v.dtype == np.float64:
            return by_doubling(self, monoid, v)
        wide = v.astype(np.longdouble) if monoid is Monoid.sum and v.dtype.kind == "f" else v
        with np.errstate(all="ignore"):
            return self._placed(as_array(_REDUCE[monoid].accumulate(wide, axis=-1)).astype(v.dtype))

    def merges(self, merge: StateMerge, kinds: Sequence[DType], states: Sequence[Array]) -> tuple[Array, ...]:
        """Merges pairs."""
        # As a kernel's loop begins. It changes no state but one with a NaN, of which other components become NaN too.
        begin = [np.full_like(each, start) for each, start in zip(states, merge.begin, strict=True)]
        return by_pairs(self, merge, kinds, both(self, merge, kinds, begin, states))

    def ranked(self, v: Array, numbers: Array, count: int, order: Order) -> tuple[Array, Array]:
        """Ranks by sorting; False is less than True."""
        return first_of(v, numbers, count, order)

    def lookup(self, source: Array, index: Sequence[Array]) -> Array:
        """Reads with numpy's indexing."""
        return source[tuple(nearest(i, size) for i, size in zip(index, source.shape, strict=True))]

    def convert(self, v: Array, dtype: DType, semantic: bool) -> Array:
        """Rounds to a semantic float type; integers truncate towards 0 and wrap; bool is `!= 0`."""
        carried = self._carried(v, dtype)
        return rounded(carried, dtype) if semantic and dtype.is_float else carried

    def random(self, shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> Array:
        """Draws standard normal floats."""
        return rng.standard_normal(tuple(shape)) if dtype.is_float else random_exact(shape, dtype, rng)

    def _placed(self, values: Array) -> Array:
        return values if self.place is None or not values.ndim else self.place(values)

    def _carried(self, values: Array, dtype: DType) -> Array:
        return values.astype(np.float64) if dtype.is_float else wrapped(values, dtype)

    def _scalar(self, expr: Scalar, args: Sequence[Array]) -> Array:
        match expr:
            case Arg(index):
                return args[index]
            case Lit(value):
                return np.asarray(value)
            case Apply(_, inner):
                return self._applied(expr, [self._scalar(a, args) for a in inner])
            case Convert(dtype, inner):
                return self.convert(self._scalar(inner, args), dtype, semantic=True)
            case _:
                assert_never(expr)

    def _applied(self, expr: Apply, operands: Sequence[Array]) -> Array:
        """Applies one operation of a scalar expression to its operands; domains that round otherwise override it."""
        return optable.row(expr.op).meaning(*operands)


def _in_rows(v: Array, dims: Sequence[int]) -> Array:
    """Returns `v` with `dims` as its last dimension, whose elements lie side by side."""
    kept = [d for d in range(v.ndim) if d not in dims]
    shape = [*(v.shape[d] for d in kept), math.prod(v.shape[d] for d in dims)]
    rows = v.transpose([*kept, *dims]).reshape(shape)
    return np.ascontiguousarray(rows) if is_numpys(rows) else rows


_ALONE, _SHARED = 1 << 18, 1 << 23
"""Multiplications of a matmul that numpy's BLAS makes in one thread, and those from which on threads are worth waiting for."""


def matmul_in_parts(a: Array, b: Array) -> Array:
    """Computes np.matmul(a, b), small matrices in parts that are too small to be shared out among threads.

    On a busy machine the threads of a product of 0.5 million terms wait for each other for 4 to 30 ms; it takes 0.05.
    """
    rows, terms, columns = *a.shape[-2:], b.shape[-1]
    elsewhere = not is_numpys(a) or not is_numpys(b)
    if elsewhere or "f" not in (a.dtype.kind, b.dtype.kind) or not _ALONE < rows * terms * columns <= _SHARED:
        return np.matmul(a, b)
    high = min(rows, 8)
    wide = max(1, _ALONE // (high * terms))
    result = np.empty((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), rows, columns), np.result_type(a, b))
    for i in range(0, rows, high):
        for j in range(0, columns, wide):
            np.matmul(a[..., i : i + high, :], b[..., j : j + wide], out=result[..., i : i + high, j : j + wide])
    return result
