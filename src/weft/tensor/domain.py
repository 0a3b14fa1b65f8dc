"""What the evaluator, and the block interpreter after it, compute with: the value domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from weft.tensor.arrays import Array, is_numpys
from weft.tensor.dtypes import DType
from weft.tensor.merge import StateMerge
from weft.tensor.order import NOTHING, Order
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Lit, Scalar

V = TypeVar("V")
Structural = Callable[..., Array]
"""A numpy function that moves elements and never computes with them."""


class Domain(Protocol[V]):
    """A kind of value, with the operations of a tensor program on it.

    Values are never changed in place.
    """

    def shape(self, v: V) -> tuple[int, ...]:
        """Returns the value's sizes."""
        ...

    def lift(self, fn: Structural, *values: V) -> V:
        """Applies `fn` to every component array of the values: transpose, broadcast, slice, gather, concatenate, pad
        with an element, write into a copy. `fn` may be called several times, with arrays of different dtypes; it
        returns a new array or a view, and changes no argument.
        """
        ...

    def full(self, shape: Sequence[int], value: float | int | bool, dtype: DType) -> V:
        """Returns an array that is `value` everywhere."""
        ...

    def iota(self, size: int, dtype: DType) -> V:
        """Returns 0, 1 .. size - 1."""
        ...

    def poison(self, shape: Sequence[int], dtype: DType) -> V:
        """Returns undefined content: a result that depends on it is wrong."""
        ...

    def elementwise(self, expr: Scalar, args: Sequence[V], dtype: DType) -> V:
        """Applies `expr` at every point of the arguments' common (numpy broadcast) shape, giving `dtype`.

        Float arithmetic is carried exactly or in fp64, not rounded to `dtype`; integers wrap.
        """
        ...

    def contract(
        self,
        left: V,
        left_axes: Sequence[int],
        right: V,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> V:
        """Computes the einsum with these labels, one per dimension: those not in `out_axes` are summed.

        A label twice in one operand is its diagonal; every label of `out_axes` is in an operand.
        """
        ...

    def reduce(self, monoid: Monoid, v: V, dims: Sequence[int]) -> V:
        """Combines `v` over `dims`, which disappear; over no elements, the result is the monoid's identity.

        Sums of bools count.
        """
        ...

    def prefixes(self, monoid: Monoid, v: V) -> V:
        """Combines each element of `v` with all that come before it along the last dimension. Sums of bools count."""
        ...

    def merges(self, merge: StateMerge, kinds: Sequence[DType], states: Sequence[V]) -> tuple[V, ...]:
        """Merges the state of each element along the last dimension with all that come before it: as `scanned`, for states of more
        than a number.
        """
        ...

    def ranked(self, v: V, numbers: V, count: int, order: Order) -> tuple[V, V]:
        """Returns the `count` elements of `v` along its last dimension that come first in `order`, and their `numbers`.

        `numbers` has the shape of `v`. An element whose number is `NOTHING` is not there; where there are not enough, the last
        ones of the result are `order.worst`, their number `NOTHING`.
        """
        ...

    def lookup(self, source: V, index: Sequence[V | Array]) -> V:
        """Returns the elements of `source` at `index`, for each of its dimensions an integer value, or an array of element numbers
        that are there; broadcast. An integer that is no index of its dimension stands for the nearest (`nearest`).
        """
        ...

    def convert(self, v: V, dtype: DType, semantic: bool) -> V:
        """Changes the element type; between floats this rounds if `semantic`, else does nothing."""
        ...

    def random(self, shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> V:
        """Draws a random input: generic floats, integers in -100..99 (uint8: 0..99), fair bools."""
        ...


def looked_up(domain: Domain[V], source: V, index: Sequence[V | Array], checked: Sequence[int], dtype: DType) -> V:
    """Returns `domain.lookup(source, index)`, of type `dtype`; 0 where an index of the dimensions `checked` is none there.

    Args:
        index: for each dimension of `source`, broadcast; a value for each of those that are `checked`.
    """
    shape = domain.shape(source)
    if checked and 0 in shape:
        sizes: list[tuple[int, ...]] = [i.shape if is_numpys(i) else domain.shape(cast("V", i)) for i in index]
        return domain.full(np.broadcast_shapes(*sizes), 0, dtype)
    found = domain.lookup(source, index)
    for dim in checked:
        inside = Apply("logical_and", (Apply("ge", (Arg(1), Lit(0))), Apply("lt", (Arg(1), Lit(shape[dim])))))
        found = domain.elementwise(
            Apply("where", (inside, Arg(0), ZERO[dtype.kind])), [found, cast("V", index[dim])], dtype
        )
    return found


ZERO = {"float": Lit(0.0), "int": Lit(0), "bool": Lit(False)}
"""The literal 0 of each kind of elements."""


def at(index: Any) -> Callable[[Array], Array]:
    """Returns the structural function `array[index]`."""

    def take(array: Array) -> Array:
        return array[index]

    return take


def nearest(integers: Array, size: int) -> Array:
    """Returns `integers` as indices of a dimension of `size` elements: those that are none, as the nearest that is one."""
    return np.clip(integers.astype(np.int64), 0, size - 1)


def broadcast(shape: tuple[int, ...]) -> Callable[[Array], Array]:
    """Returns the structural function that repeats an array up to `shape`."""

    def repeat(array: Array) -> Array:
        return np.broadcast_to(array, shape)

    return repeat


def random_exact(shape: Sequence[int], dtype: DType, rng: np.random.Generator) -> Array:
    """Draws the integers or bools of `Domain.random`."""
    if dtype is DType.bool:
        return rng.integers(0, 2, tuple(shape)).astype(np.bool_)
    return rng.integers(0 if dtype is DType.uint8 else -100, 100, tuple(shape), dtype=np.int64)


def wrapped(values: Array, dtype: DType) -> Array:
    """Returns numbers as integers or bools of `dtype`, as eager converts them, carried as int64 or bool.

    Integers wrap. Floats are truncated to 64 bits, or to 32 for the signed types of at most 32, and then wrap; what does not
    fit those bits, NaN too, becomes their least integer, as the machine's conversion makes it.
    """
    if dtype is DType.bool:
        return values.astype(np.bool_)
    if dtype.is_foreign:  # any integers stand for what only opaque operations read
        return values.astype(np.int64)
    if values.dtype.kind == "f":
        values = _truncated(values, 63 if dtype in (DType.int64, DType.uint8) else 31)
    return values.astype(np.int64).astype(dtype.name).astype(np.int64)


def _truncated(values: Array, bits: int) -> Array:
    whole, bound = np.trunc(values), 2.0**bits
    return np.where((whole >= -bound) & (whole < bound), whole, -bound).astype(np.int64)


def by_doubling(domain: Domain[V], monoid: Monoid, v: V) -> V:
    """Computes `Domain.prefixes` by reductions of pairs: of elements that are one apart, two, four, and so on."""

    def paired(first: Array, second: Array) -> Array:
        return np.stack((first, second), axis=-1)

    def after(first: Array, rest: Array) -> Array:
        return np.concatenate((first, rest), axis=-1)

    v = domain.reduce(monoid, domain.lift(at((..., None)), v), [len(domain.shape(v))])
    size, apart = domain.shape(v)[-1], 1
    while apart < size:
        first, second = (domain.lift(at((..., each)), v) for each in (slice(0, -apart), slice(apart, None)))
        combined = domain.reduce(monoid, domain.lift(paired, first, second), [len(domain.shape(v))])
        v = domain.lift(after, domain.lift(at((..., slice(0, apart))), v), combined)
        apart *= 2
    return v


def scanned(domain: Domain[V], merge: StateMerge, kinds: Sequence[DType], states: Sequence[V]) -> tuple[V, ...]:
    """Merges the state of each element along the last dimension with all that come before it.

    Args:
        domain: what computes.
        merge: of two states.
        kinds: the type of each component.
        states: the components, of one shape.
    """
    monoid = merge.monoid
    return domain.merges(merge, kinds, states) if monoid is None else (domain.prefixes(monoid, states[0]),)


def by_pairs(domain: Domain[V], merge: StateMerge, kinds: Sequence[DType], states: Sequence[V]) -> tuple[V, ...]:
    """Computes `Domain.merges` by merging states that are one apart, two, four, and so on."""

    def after(first: Array, rest: Array) -> Array:
        return np.concatenate((first, rest), axis=-1)

    found, apart = tuple(states), 1
    while apart < domain.shape(states[0])[-1]:
        left, right = (
            [domain.lift(at((..., each)), v) for v in found] for each in (slice(0, -apart), slice(apart, None))
        )
        whole = both(domain, merge, kinds, left, right)
        found = tuple(
            domain.lift(after, domain.lift(at((..., slice(0, apart))), v), w) for v, w in zip(found, whole, strict=True)
        )
        apart *= 2
    return found


def both(
    domain: Domain[V], merge: StateMerge, kinds: Sequence[DType], left: Sequence[V], right: Sequence[V]
) -> tuple[V, ...]:
    """Merges states with those of what comes right after, point by point."""
    parts = zip(merge.parts, kinds, strict=True)
    return tuple(domain.elementwise(part, [*left, *right], kind) for part, kind in parts)


def identity(monoid: Monoid, kind: str) -> float | int | bool:
    """Returns the monoid's neutral element for arrays of numpy kind "f", "i" or "b"."""
    if kind == "f" or monoid in (Monoid.sum, Monoid.prod):
        return monoid.identity if kind == "f" else int(monoid.identity)
    lowest = monoid is Monoid.max
    if kind == "b":
        return not lowest
    bounds = np.iinfo(np.int64)
    return int(bounds.min if lowest else bounds.max)


def ranking(keys: Array, nan: Array, numbers: Array, count: int, order: Order) -> tuple[Array, Array]:
    """Ranks along the last dimension: the places of the elements that come first, and which of these are not there.

    Args:
        keys: ordered as the values are; where `nan`, anything.
        count: no more than there are elements.
    """
    there = numbers != NOTHING
    keys = np.where(nan | ~there, 0, keys)
    if order.largest:
        keys = -keys if keys.dtype.kind == "f" else ~keys
    first = np.lexsort((numbers, keys, nan != order.nan_first, ~there), axis=-1)[..., :count]
    return first, ~np.take_along_axis(there, first, -1)


def first_of(values: Array, numbers: Array, count: int, order: Order) -> tuple[Array, Array]:
    """Returns the `count` elements that come first along the last dimension, and their numbers; False is less than True."""
    last = worst(order, values.dtype.kind)
    values, numbers = lengthened(values, count, last), lengthened(numbers, count, NOTHING)
    keys = values.astype(np.int64) if values.dtype == np.bool_ else values
    first, missing = ranking(keys, np.isnan(values), numbers, count, order)
    found = np.where(missing, last, np.take_along_axis(values, first, -1))
    return found, np.take_along_axis(numbers, first, -1)


def lengthened(array: Array, count: int, value: float | int | bool) -> Array:
    """Returns `array` with its last dimension at least `count` long: with `value` at the end."""
    more = max(0, count - array.shape[-1])
    return np.concatenate((array, np.full((*array.shape[:-1], more), value, array.dtype)), axis=-1) if more else array


def worst(order: Order, kind: str) -> float | int | bool:
    """Returns the number that comes last in arrays of numpy kind "f", "i" or "b"."""
    return identity(Monoid.max if order.largest else Monoid.min, kind)


def diagonal(array: Array, labels: Sequence[int]) -> tuple[Array, list[int]]:
    """Returns `array` with one dimension per distinct label, in order of appearance, and those labels."""
    distinct = list(dict.fromkeys(labels))
    if len(distinct) == len(labels):
        return array, distinct
    places = [distinct.index(x) for x in labels]  # einsum takes labels below 52 alone
    return np.einsum(array, places, range(len(distinct))), distinct


def contract_arrays(
    matmul: Callable[[Array, Array], Array],
    left: Array,
    left_axes: Sequence[int],
    right: Array,
    right_axes: Sequence[int],
    out_axes: Sequence[int],
) -> Array:
    """Contracts arrays, as `Domain.contract` says, by one call of `matmul` on (batch, m, k) and (batch, k, n).

    Labels that only one operand has and that are summed are summed first, by numpy.
    """
    left, la = diagonal(left, left_axes)
    right, ra = diagonal(right, right_axes)
    left, la = _sum_out(left, la, {*out_axes, *ra})
    right, ra = _sum_out(right, ra, {*out_axes, *la})
    size = dict(zip((*la, *ra), (*left.shape, *right.shape), strict=True))
    batch = [x for x in la if x in ra and x in out_axes]
    inner = [x for x in la if x in ra and x not in out_axes]
    rows = [x for x in la if x not in ra]
    columns = [x for x in ra if x not in la]

    def packed(array: Array, labels: list[int], order: Sequence[list[int]]) -> Array:
        flat = [x for group in order for x in group]
        sizes = [math.prod([size[x] for x in group]) for group in order]
        return array.transpose([labels.index(x) for x in flat]).reshape(sizes)

    product = matmul(packed(left, la, (batch, rows, inner)), packed(right, ra, (batch, inner, columns)))
    labels = [*batch, *rows, *columns]
    return product.reshape([size[x] for x in labels]).transpose([labels.index(x) for x in out_axes])


def _sum_out(array: Array, labels: list[int], keep: set[int]) -> tuple[Array, list[int]]:
    gone = tuple(d for d, x in enumerate(labels) if x not in keep)
    return (array.sum(axis=gone) if gone else array), [x for x in labels if x in keep]
