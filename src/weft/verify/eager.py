"""Domains of numbers for the judge of emitted code: as eager rounds them, and without what a mask excludes.

Neither runs PyTorch: a program of a few numbers takes a few microseconds for each operation here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.tensor.domain import Array, contract_arrays, wrapped
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain, rounded
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Lit, Scalar


class EagerDomain(Fp64Domain):
    """Numbers as eager has them: each operation's result rounded to its type, sums and products added up in fp32 or wider.

    Floats of at most 32 bits are carried in float32 arrays, where those of 16 and 8 bits are numbers too.

    Args:
        order: in which sums are added up: 0, as numpy does, in several partial sums; else one after another, in a random order of
            that number. Between them lies what eager loses, whose order is nobody's promise.
    """

    def __init__(self, order: int = 0) -> None:
        self.order = order

    def contract(
        self,
        left: Array,
        left_axes: Sequence[int],
        right: Array,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> Array:
        """Multiplies with np.matmul in float32, adding the terms in another order where the order asks for it."""
        if not self.order or left.dtype.kind != "f" or right.dtype.kind != "f":
            return super().contract(left, left_axes, right, right_axes, out_axes)
        with np.errstate(all="ignore"):
            return contract_arrays(self._matmul, left, left_axes, right, right_axes, out_axes)

    def _matmul(self, left: Array, right: Array) -> Array:
        total = np.zeros((*left.shape[:-1], right.shape[-1]), np.result_type(left, right))
        for place in np.random.default_rng(self.order).permutation(left.shape[-1]):
            total += left[..., place, None] * right[..., place, None, :]
        return total

    def reduce(self, monoid: Monoid, v: Array, dims: Sequence[int]) -> Array:
        """Reduces as the base class does, in float32; sums and products go one after another where the order asks for it."""
        if not self.order or v.dtype.kind != "f" or monoid not in (Monoid.sum, Monoid.prod) or v.size == 0:
            return super().reduce(monoid, v, dims)
        kept = [d for d in range(v.ndim) if d not in dims]
        rows = v.transpose([*kept, *dims]).reshape([*(v.shape[d] for d in kept), -1])
        way = np.random.default_rng(self.order).permutation(rows.shape[-1])
        with np.errstate(all="ignore"):
            together = np.add if monoid is Monoid.sum else np.multiply
            return np.asarray(together.accumulate(rows[..., way], axis=-1)[..., -1])

    def convert(self, v: Array, dtype: DType, semantic: bool) -> Array:  # noqa: ARG002 - the protocol's
        """Rounds, whether the cast is semantic or one of precision."""
        return self._carried(v, dtype)

    def _carried(self, values: Array, dtype: DType) -> Array:
        if not dtype.is_float:
            return wrapped(values, dtype)
        if dtype is DType.float64:
            return values.astype(np.float64)
        with np.errstate(all="ignore"):
            numbers = values if dtype is DType.float32 else rounded(values.astype(np.float64), dtype)
            return numbers.astype(np.float32)

    def _applied(self, expr: Apply, operands: Sequence[Array]) -> Array:
        found = super()._applied(expr, operands)
        # Literals are Python's floats: they do not widen what they meet.
        wide = any(v.dtype == np.float64 and not _is_literal(e) for v, e in zip(operands, expr.args, strict=True))
        return found.astype(np.float32) if found.dtype == np.float64 and not wide else found


def _is_literal(expr: Scalar) -> bool:
    return isinstance(expr, Lit) or (isinstance(expr, Apply) and all(map(_is_literal, expr.args)))


class MaskedDomain(Fp64Domain):
    """Numbers, but 0 times anything is 0: an operand that a mask excludes does not propagate its NaN (docs/masks.md)."""

    def _applied(self, expr: Apply, operands: Sequence[Array]) -> Array:
        found = super()._applied(expr, operands)
        if expr.op != "mul":
            return found
        left, right = operands
        return np.where((left == 0) | (right == 0), 0.0 * np.sign(np.nan_to_num(left)), found)

    def contract(
        self,
        left: Array,
        left_axes: Sequence[int],
        right: Array,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> Array:
        """Sums the products of which neither factor is 0."""
        labels = (left_axes, right_axes, out_axes)
        if np.isfinite(left).all() and np.isfinite(right).all():
            return self._product(left, right, labels)
        finite = self._product(
            np.nan_to_num(left, posinf=0.0, neginf=0.0), np.nan_to_num(right, posinf=0.0, neginf=0.0), labels
        )
        kinds = [
            {
                "nan": np.isnan(v),
                "inf": v == np.inf,
                "-inf": v == -np.inf,
                "some": (v != 0) & ~np.isnan(v),
                "+": v > 0,
                "-": v < 0,
            }
            for v in (left, right)
        ]

        def meets(one: str, other: str) -> Array:
            pairs = ((kinds[0][one], kinds[1][other]), (kinds[0][other], kinds[1][one]))
            return np.logical_or(
                *(self._product(a.astype(np.float64), b.astype(np.float64), labels) > 0 for a, b in pairs)
            )

        nan = meets("nan", "some") | meets("nan", "nan")
        up, down = meets("inf", "+") | meets("-inf", "-"), meets("inf", "-") | meets("-inf", "+")
        result = np.where(up, np.inf, np.where(down, -np.inf, finite))
        return np.where(nan | (up & down), np.nan, result)

    def _product(self, left: Array, right: Array, labels: tuple[Sequence[int], Sequence[int], Sequence[int]]) -> Array:
        return super().contract(left, labels[0], right, labels[1], labels[2])


class RandomlyRoundedDomain(Fp64Domain):
    """Numbers, each result of an operation off by a random part of what rounding may take (Monte Carlo arithmetic, Parker 1997).

    How far results of such runs lie apart is how far any order of right operations may be off: where terms cancel, by much.

    Args:
        seed: of what is off.
    """

    def __init__(self, seed: int) -> None:
        self._of = DType.float32
        rng = np.random.default_rng(seed)
        self._key = np.uint64(rng.integers(1 << 63))
        self._anyhow = rng if seed % 2 else None

    def contract(
        self,
        left: Array,
        left_axes: Sequence[int],
        right: Array,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> Array:
        """Contracts, off by what rounding does to a sum."""
        labels = (left_axes, right_axes, out_axes)

        def product(a: Array, b: Array) -> Array:
            return super(RandomlyRoundedDomain, self).contract(a, labels[0], b, labels[1], labels[2])

        found = product(left, right)
        if found.dtype.kind != "f":
            return found
        sizes = {**dict(zip(left_axes, left.shape, strict=True)), **dict(zip(right_axes, right.shape, strict=True))}
        terms = math.prod(n for axis, n in sizes.items() if axis not in out_axes)
        return self._summed(found, product(np.abs(left), np.abs(right)), terms)

    def reduce(self, monoid: Monoid, v: Array, dims: Sequence[int]) -> Array:
        """Reduces; sums and products are off by what rounding each partial one does: of n terms, by its root (Higham
        and Mary 2019).
        """
        found = super().reduce(monoid, v, dims)
        if v.dtype.kind != "f" or monoid in (Monoid.max, Monoid.min):
            return found
        terms = math.prod(v.shape[d] for d in dims)
        of_all = np.abs(found) if monoid is Monoid.prod else super().reduce(monoid, np.abs(v), dims)
        return self._summed(found, of_all, terms)

    def _summed(self, found: Array, of_all: Array, terms: int) -> Array:
        with np.errstate(all="ignore"):
            off = 0.5 * DType.float32.eps * math.sqrt(terms) * of_all * self._parts(found)
            return self._flushed(found + np.where(np.isfinite(off), off, 0.0), self._parts(found), DType.float32)

    def convert(self, v: Array, dtype: DType, semantic: bool) -> Array:
        """Converts, off by what the type rounds."""
        found = super().convert(v, dtype, semantic)
        return self._off(found, dtype) if dtype.is_float else found

    def elementwise(self, expr: Scalar, args: Sequence[Array], dtype: DType) -> Array:
        """Computes the expression, each operation off by what its type rounds."""
        self._of = dtype.accumulator
        return super().elementwise(expr, args, dtype)

    def _applied(self, expr: Apply, operands: Sequence[Array]) -> Array:
        match expr:
            case Apply("fma", (one, other, more)):  # twice: the reference is no better
                product = Apply("mul", (one, other))
                return self._applied(Apply("add", (product, more)), (self._applied(product, operands[:2]), operands[2]))
            case Apply("maximum" | "minimum"):  # of zeros of either sign either is right
                found = super()._applied(expr, operands)
                zero = (found == 0) & (found.dtype.kind == "f")
                return np.where(zero, np.copysign(0.0, self._parts(found)), found) if zero.any() else found
            case _:
                return self._off(super()._applied(expr, operands), self._of)

    def given(self, values: Array, dtype: DType) -> Array:
        """Returns an input: exact, but that numbers below the normal ones may be 0, and zeros have either sign."""
        if values.dtype.kind != "f":
            return values
        parts = self._parts(values)
        return np.where(values == 0, np.copysign(0.0, parts), self._flushed(values, parts, dtype))

    def _off(self, values: Array, dtype: DType) -> Array:
        if values.dtype.kind != "f":
            return values
        parts = self._parts(values)
        with np.errstate(all="ignore"):
            return self._flushed(values * (1.0 + 0.5 * dtype.eps * parts), parts, dtype.accumulator)

    def _flushed(self, values: Array, parts: Array, dtype: DType) -> Array:
        """Sets about half of `values` below the normal numbers to 0: units differ in what they make of these."""
        small = (np.abs(values) < least_normal(dtype)) & (parts > 0)
        return np.where(small, 0.0, values) if small.any() else values

    def _parts(self, values: Array) -> Array:
        """Returns a number in -1..1 for each of `values`: with an even seed equal ones have equal numbers, as one unit
        rounds them.

        Equal roundings add up; values computed in another order elsewhere do not cancel them.
        """
        if self._anyhow is not None:
            return self._anyhow.uniform(-1.0, 1.0, values.shape)
        bits = np.ascontiguousarray(values, np.float64).view(np.uint64).reshape(values.shape)
        mixed = (bits ^ self._key) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


class FlushedDomain(Fp64Domain):
    """Numbers, but what is below the normal numbers of the type that is computed in is 0, as some units make it."""

    def elementwise(self, expr: Scalar, args: Sequence[Array], dtype: DType) -> Array:
        """Computes as the base class does, but results that are too small are 0."""
        found = super().elementwise(expr, args, dtype)
        least = least_normal(dtype.accumulator)
        return (
            np.where(np.abs(found) < least, np.copysign(0.0, found), found)
            if least and found.dtype.kind == "f"
            else found
        )


def least_normal(dtype: DType) -> float:
    """Returns the least positive number of full precision; 0 for integers and bools."""
    return {
        DType.float64: 2.0**-1022,
        DType.float32: 2.0**-126,
        DType.bfloat16: 2.0**-126,
        DType.float16: 2.0**-14,
        DType.float8_e4m3fn: 2.0**-6,
        DType.float8_e5m2: 2.0**-14,
    }.get(dtype, 0.0)
