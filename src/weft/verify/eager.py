"""Domains of numbers for the judge of emitted code: as eager rounds them, and without what a mask excludes.

Neither runs the program in PyTorch: one of a few numbers takes a few microseconds for each operation here. Of large cases the
arrays are PyTorch's (`TorchArray`), which numpy's functions take as their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from weft.tensor import optable
from weft.tensor.arrays import as_array
from weft.tensor.domain import Array, both, by_doubling, by_pairs, contract_arrays, wrapped
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain, rounded
from weft.tensor.merge import StateMerge
from weft.tensor.program import Monoid, Node, TensorProgram
from weft.tensor.scalar import Apply, Lit, Scalar
from weft.verify.torch_array import TorchArray


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
        places = np.random.default_rng(self.order).permutation(left.shape[-1])
        if isinstance(left, TorchArray) and isinstance(right, TorchArray):
            return left.multiplied_in(places, right).array
        total = np.zeros((*left.shape[:-1], right.shape[-1]), np.result_type(left, right))
        for place in places:
            total += left[..., place, None] * right[..., place, None, :]
        return total

    def reduce(self, monoid: Monoid, v: Array, dims: Sequence[int]) -> Array:
        """Reduces as the base class does, in float32; sums and products go one after another where the order asks for it."""
        plain = monoid is Monoid.sum and not self.order
        if plain or v.dtype.kind != "f" or monoid not in (Monoid.sum, Monoid.prod) or v.size == 0:
            return super().reduce(monoid, v, dims)
        kept = [d for d in range(v.ndim) if d not in dims]
        rows = v.transpose([*kept, *dims]).reshape([*(v.shape[d] for d in kept), -1])
        way = list(range(rows.shape[-1]))
        if self.order:
            np.random.default_rng(self.order).shuffle(way)
        with np.errstate(all="ignore"):
            together = np.add if monoid is Monoid.sum else np.multiply
            return as_array(together.accumulate(rows[..., way], axis=-1)[..., -1])

    def prefixes(self, monoid: Monoid, v: Array) -> Array:
        """Combines from the first element on: in fp64, as on a CPU, and where the order asks for another way in the own type."""
        if v.dtype.kind != "f" or monoid in (Monoid.max, Monoid.min):
            return super().prefixes(monoid, v)
        together = np.add if monoid is Monoid.sum else np.multiply
        with np.errstate(all="ignore"):
            wide = v if self.order else v.astype(np.float64)
            return as_array(together.accumulate(wide, axis=-1)).astype(v.dtype)

    def merges(self, merge: StateMerge, kinds: Sequence[DType], states: Sequence[Array]) -> tuple[Array, ...]:
        """Merges in fp64, as on a CPU, where eager goes from element to element; where the order asks for another way, pairs in the
        own types.
        """
        if self.order:
            return super().merges(merge, kinds, states)
        if DType.float64 not in kinds:
            wide = by_pairs(
                Fp64Domain(), merge, kinds, [v.astype(np.float64) if v.dtype.kind == "f" else v for v in states]
            )
            return tuple(v.astype(state.dtype) for v, state in zip(wide, states, strict=True))
        if not states[0].size:
            return tuple(states)
        found = [tuple(v[..., 0] for v in states)]
        for place in range(1, states[0].shape[-1]):
            found.append(both(self, merge, kinds, found[-1], [v[..., place] for v in states]))
        return tuple(as_array(np.stack(each, axis=-1)) for each in zip(*found, strict=True))

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
        # Literals are Python's floats: they do not widen what they meet, but are rounded to its type. A power shows that.
        numbers = [v.dtype.kind == "f" and _is_literal(e) for v, e in zip(operands, expr.args, strict=True)]
        wide = any(v.dtype == np.float64 and not number for v, number in zip(operands, numbers, strict=True))
        if not wide and not all(numbers):
            operands = [v.astype(np.float32) if number else v for v, number in zip(operands, numbers, strict=True)]
        found = super()._applied(expr, operands)
        return found.astype(np.float32) if found.dtype == np.float64 and not wide else found


class NudgedEagerDomain(EagerDomain):
    """Numbers as eager rounds them, but each sum of a reduction is exact, or off by the most that any order makes it.

    Of n terms that is (n - 1) / 2 units of the sum of their magnitudes (Higham, Accuracy and Stability, 4.2). Of a row that is
    constant up to its roundings all differences to the mean are one number, whose sign depends on that.

    Args:
        way: 1, -1: each sum is above, or below; 0: exact.
    """

    def __init__(self, way: int) -> None:
        super().__init__()
        self._way = way

    def reduce(self, monoid: Monoid, v: Array, dims: Sequence[int]) -> Array:
        """Reduces as the base class does, but for sums of floats."""
        if v.dtype.kind != "f" or monoid is not Monoid.sum:
            return super().reduce(monoid, v, dims)
        terms, wide = math.prod(v.shape[d] for d in dims), v.astype(np.float64)
        with np.errstate(all="ignore"):
            most = 0.5 * (terms - 1) * np.finfo(v.dtype).eps * super().reduce(monoid, np.abs(wide), dims)
            off = np.where(np.isfinite(most), self._way * most, 0.0)
            return (super().reduce(monoid, wide, dims) + off).astype(v.dtype)


def _is_literal(expr: Scalar) -> bool:
    return isinstance(expr, Lit) or (isinstance(expr, Apply) and all(map(_is_literal, expr.args)))


def eagerly(
    program: TensorProgram, inputs: Mapping[str, Array], sizes: Mapping[str, int], domain: EagerDomain
) -> tuple[Array, ...]:
    """Evaluates `program` as eager rounds it, by `domain`; `inputs` are exact in their types, `sizes` those of all spaces."""
    kinds = {n.name: n.dtype for n in program.inputs}
    narrow = {
        name: v.astype(np.float32) if kinds[name].is_float and kinds[name] is not DType.float64 else v
        for name, v in inputs.items()
    }
    with np.errstate(all="ignore"):
        return evaluate(program, narrow, domain, sizes=dict(sizes))


class PoleDomain(Fp64Domain):
    """Numbers, but a quotient by 0 is a large number of its sign.

    Sums of infinities have no sign; of these they have the one of what a kernel gets that divides the sum.
    """

    LARGE = 1e100

    def _applied(self, expr: Apply, operands: Sequence[Array]) -> Array:
        if expr.op == "div":
            of, by = operands
            operands = (of, np.where(by == 0, np.copysign(1 / self.LARGE, by), by))
        return super()._applied(expr, operands)


class MaskedDomain(Fp64Domain):
    """Numbers, but 0 times anything is 0: an operand that a mask excludes does not propagate its NaN (docs/guide/masks.md)."""

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
            some = [_meeting(a, b, labels) for a, b in pairs if a.any() and b.any()]
            return reduce(np.logical_or, some) if some else np.zeros(finite.shape, np.bool_)

        nan = meets("nan", "some") | meets("nan", "nan")
        up, down = meets("inf", "+") | meets("-inf", "-"), meets("inf", "-") | meets("-inf", "+")
        result = np.where(up, np.inf, np.where(down, -np.inf, finite))
        return np.where(nan | (up & down), np.nan, result)

    def _product(self, left: Array, right: Array, labels: tuple[Sequence[int], Sequence[int], Sequence[int]]) -> Array:
        return super().contract(left, labels[0], right, labels[1], labels[2])


def _meeting(left: Array, right: Array, labels: tuple[Sequence[int], Sequence[int], Sequence[int]]) -> Array:
    """Tells which elements of a product have a term whose factors are both true."""
    one, other = left.astype(np.float32), right.astype(np.float32)
    return contract_arrays(np.matmul, one, labels[0], other, labels[1], labels[2]) > 0


class TypedDomain(Fp64Domain):
    """Numbers, with the type that is computed in: what rounding may do depends on it."""

    _of = DType.float32

    def begin(self, node: Node) -> None:
        """Notes the type that the next node is computed in; `watch` of `evaluate`."""
        self._of = node.dtype.accumulator

    def elementwise(self, expr: Scalar, args: Sequence[Array], dtype: DType) -> Array:
        """Computes the expression, each operation in the type that goes with `dtype`."""
        self._of = dtype.accumulator
        return super().elementwise(expr, args, dtype)

    def prefixes(self, monoid: Monoid, v: Array) -> Array:
        """Combines pairs, as this domain reduces them."""
        return by_doubling(self, monoid, v)


class RandomlyRoundedDomain(TypedDomain):
    """Numbers, each result of an operation off by a random part of what rounding may take (Monte Carlo arithmetic, Parker 1997).

    How far results of such runs lie apart is how far any order of right operations may be off: where terms cancel, by much.

    Args:
        seed: of what is off.
        times: how many times what rounding may take an operation may be off by.
        alike: at most so many steps of a sum are rounded alike: those of a sum that is made of short ones, however long it is.
    """

    def __init__(self, seed: int, times: float = 1.0, alike: float = math.inf) -> None:
        self._times, self._alike = times, alike
        rng = np.random.default_rng(seed)
        self._seed, self._key = seed, np.int64(rng.integers(1 << 63))
        self._anyhow = rng if seed % 2 else None
        self._zero = -1.0 if seed % 4 else 1.0

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
        return self._summed(found, product(np.abs(left), np.abs(right)), product(left * left, right * right), terms)

    def reduce(self, monoid: Monoid, v: Array, dims: Sequence[int]) -> Array:
        """Reduces; sums and products are off by what rounding each partial one does: of n terms, by its root (Higham
        and Mary 2019), and by n/2 where all are equal, since these are rounded alike at each step.
        """
        found = super().reduce(monoid, v, dims)
        if v.dtype.kind != "f" or monoid in (Monoid.max, Monoid.min):
            return found
        terms = math.prod(v.shape[d] for d in dims)
        if monoid is Monoid.prod:
            return self._summed(found, np.abs(found), np.zeros_like(found), terms)
        with np.errstate(all="ignore"):
            squares = super().reduce(monoid, v * v, dims)
        return self._summed(found, super().reduce(monoid, np.abs(v), dims), squares, terms)

    def _summed(self, found: Array, of_all: Array, squares: Array, terms: int) -> Array:
        """Returns `found`, off by what rounding does to a sum: of `terms`, their magnitudes and squares summed up.

        A unit that takes numbers below the normal ones for 0 may do so with each term, and with the sum after each.
        """
        with np.errstate(all="ignore"):
            equal = np.abs(terms * squares - of_all * of_all) <= 1e-9 * of_all * of_all  # Cauchy and Schwarz
            steps = np.where(equal, min(terms / 2, self._alike), math.sqrt(terms))
            off = 0.5 * self._times * self._of.eps * steps * of_all * self._parts(found)
            off = off + np.minimum(of_all, terms * self._of.least_normal) * self._parts(found)
            made = self._flushed(found + np.where(np.isfinite(off), off, 0.0), self._parts(found), self._of)
        # Terms of both signs that vanish one by one leave a zero of the last one's sign where they are multiplied and added at
        # once, and their order is nobody's promise.
        vanished = (made == 0) & (of_all > np.abs(found))
        return np.where(vanished, self._zeros(made), made) if vanished.any() else made

    def convert(self, v: Array, dtype: DType, semantic: bool) -> Array:
        """Converts, off by what the type rounds. What becomes of numbers that an integer type has not, is not promised: with one
        seed its least, with the next its greatest.
        """
        found = super().convert(v, dtype, semantic)
        if dtype.is_float or v.dtype.kind != "f" or dtype.kind != "int":
            return self._off(found, dtype) if dtype.is_float else found
        low, high = dtype.bounds
        beyond = ~((v > low - 1.0) & (v < high + 1.0))
        return np.where(beyond, high if self._seed % 2 else low, found) if beyond.any() else found

    def _applied(self, expr: Apply, operands: Sequence[Array]) -> Array:
        match expr:
            case Apply("fma", (one, other, more)):  # twice: the reference is no better
                product = Apply("mul", (one, other))
                return self._applied(Apply("add", (product, more)), (self._applied(product, operands[:2]), operands[2]))
            case Apply("maximum" | "minimum"):  # of zeros of either sign either is right
                found = super()._applied(expr, operands)
                zero = (found == 0) & (found.dtype.kind == "f")
                return np.where(zero, self._zeros(found), found) if zero.any() else found
            case Apply(op) if optable.row(op).rounding in ("chooses", "steps"):
                return super()._applied(expr, operands)
            case _:
                return self._off(super()._applied(expr, operands), self._of)

    def given(self, values: Array, dtype: DType) -> Array:
        """Returns an input: exact, but that numbers below the normal ones may be 0, and zeros have either sign."""
        if values.dtype.kind != "f":
            return values
        return np.where(values == 0, self._zeros(values), self._flushed(values, self._parts(values), dtype))

    def _zeros(self, like: Array) -> Array:
        """Returns zeros of any signs; with an even seed all of one sign, with another such seed of the other."""
        return np.copysign(0.0, self._zero if self._anyhow is None else self._parts(like))

    def _off(self, values: Array, dtype: DType) -> Array:
        if values.dtype.kind != "f":
            return values
        parts = self._parts(values)
        with np.errstate(all="ignore"):
            return self._flushed(values * (1.0 + 0.5 * self._times * dtype.eps * parts), parts, dtype.accumulator)

    def _flushed(self, values: Array, parts: Array, dtype: DType) -> Array:
        """Sets about half of `values` below the normal numbers to 0: units differ in what they make of these."""
        small = (np.abs(values) < dtype.least_normal) & (parts > 0)
        return np.where(small, 0.0, values) if small.any() else values

    def _parts(self, values: Array) -> Array:
        """Returns a number in -1..1 for each of `values`: with an even seed equal ones have equal numbers, as one unit
        rounds them.

        Equal roundings add up; values computed in another order elsewhere do not cancel them.
        """
        if self._anyhow is not None:
            if isinstance(values, TorchArray):
                return values.uniform(self._anyhow).array
            return self._anyhow.uniform(-1.0, 1.0, values.shape)
        with np.errstate(over="ignore"):  # numpy warns of it where there is one element alone
            mixed = (values.astype(np.float64, order="C", copy=False).view(np.int64) ^ self._key) * _MIXING[0]
            mixed = (mixed ^ _shifted(mixed, 29)) * _MIXING[1]
        return _shifted(mixed, 11).astype(np.float64) * 2.0**-52 - 1.0


_MIXING = np.array((0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9), np.uint64).view(np.int64)


def _shifted(bits: Array, by: int) -> Array:
    """Shifts 64 bits to the right, and zeros in from the left: signed integers alone are PyTorch's to shift."""
    shifted = bits >> by
    shifted &= (1 << 64 - by) - 1
    return shifted


class AlikeRoundedDomain(RandomlyRoundedDomain):
    """Numbers, each result of an operation off by half a unit, and all in one direction.

    That is the worst that rounding may do, and what it does to numbers on one grid that are moved by less than a step of it: a row
    of 16 bits less its mean, rounded to 16 bits, is off by nearly the mean in each of its large elements.
    """

    def __init__(self, alike: float = math.inf) -> None:
        super().__init__(0, alike=alike)

    def _off(self, values: Array, dtype: DType) -> Array:
        return values + 0.5 * dtype.eps * np.abs(values) if values.dtype.kind == "f" else values

    def _parts(self, values: Array) -> Array:
        return np.ones_like(values, dtype=np.float64)


class MaskedEagerDomain(MaskedDomain, EagerDomain):
    """Numbers as eager rounds them, and 0 times anything is 0: which operands of 0 there are may be rounding's to decide."""


class MaskedRandomlyRoundedDomain(MaskedDomain, RandomlyRoundedDomain):
    """Numbers that round at random, and 0 times anything is 0."""


class FlushedDomain(Fp64Domain):
    """Numbers, but what is below the normal numbers of the type that is computed in is 0, as some units make it."""

    def elementwise(self, expr: Scalar, args: Sequence[Array], dtype: DType) -> Array:
        """Computes as the base class does, but results that are too small are 0."""
        found = super().elementwise(expr, args, dtype)
        least = dtype.accumulator.least_normal
        return (
            np.where(np.abs(found) < least, np.copysign(0.0, found), found)
            if least and found.dtype.kind == "f"
            else found
        )
