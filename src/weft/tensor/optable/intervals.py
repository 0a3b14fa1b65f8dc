"""Bounds of a result from bounds of its arguments: every value that is not NaN lies within.

Bounds of functions that are not correctly rounded are widened by a few units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from weft.tensor.optable.row import Array, Interval

EVERYTHING: Interval = (-math.inf, math.inf)
UNKNOWN: Interval = (0.0, 1.0)
TRUE: Interval = (1.0, 1.0)
FALSE: Interval = (0.0, 0.0)


def _hull(values: list[float]) -> Interval:
    return (min(values), max(values))


def _widened(low: float, high: float) -> Interval:
    return (low - 4 * math.ulp(low), high + 4 * math.ulp(high))


def _at(function: Callable[[Array], Array], x: float) -> float:
    with np.errstate(all="ignore"):
        return float(function(np.asarray(x, np.float64)))


def increasing(
    function: Callable[[Array], Array], domain: Interval = EVERYTHING, bounds: Interval = EVERYTHING
) -> Callable[[Interval], Interval]:
    """Bounds a function that never decreases on `domain` and never leaves `bounds`."""

    def interval(x: Interval) -> Interval:
        if x[1] < domain[0] or x[0] > domain[1]:
            return EVERYTHING
        low, high = _widened(_at(function, max(x[0], domain[0])), _at(function, min(x[1], domain[1])))
        return (max(low, bounds[0]), min(high, bounds[1]))

    return interval


def steps(function: Callable[[Array], Array]) -> Callable[[Interval], Interval]:
    """Bounds a function that never decreases and is computed exactly."""
    return lambda x: (_at(function, x[0]), _at(function, x[1]))


def add(a: Interval, b: Interval) -> Interval:
    """Bounds a + b."""
    low, high = a[0] + b[0], a[1] + b[1]
    return (-math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high)


def neg(a: Interval) -> Interval:
    """Bounds -a."""
    return (-a[1], -a[0])


def sub(a: Interval, b: Interval) -> Interval:
    """Bounds a - b."""
    return add(a, neg(b))


def mul(a: Interval, b: Interval) -> Interval:
    """Bounds a * b; 0 * inf counts as 0, the limit from the side of the finite factor."""
    corners = [x * y for x in a for y in b]
    return _hull([0.0 if math.isnan(c) else c for c in corners])


def fma(a: Interval, b: Interval, c: Interval) -> Interval:
    """Bounds a * b + c."""
    return add(mul(a, b), c)


def div(a: Interval, b: Interval) -> Interval:
    """Bounds a / b; the result is everything where b may be 0."""
    if b[0] <= 0.0 <= b[1]:
        return EVERYTHING
    corners = [x / y for x in a for y in b]
    return EVERYTHING if any(math.isnan(c) for c in corners) else _hull(corners)


def absolute(a: Interval) -> Interval:
    """Bounds |a|."""
    low, high = _hull([abs(a[0]), abs(a[1])])
    return (0.0 if a[0] <= 0.0 <= a[1] else low, high)


def _wave(function: Callable[[float], float], peak: float) -> Callable[[Interval], Interval]:
    def contains(a: Interval, point: float) -> bool:
        """Tells whether point + 2 pi n lies in a, for some n; slightly early, because pi is rounded."""
        slack = 1e-9 * (1.0 + abs(a[0]) + abs(a[1]))
        first = math.ceil((a[0] - slack - point) / (2 * math.pi))
        return point + 2 * math.pi * first <= a[1] + slack

    def interval(a: Interval) -> Interval:
        if not (math.isfinite(a[0]) and math.isfinite(a[1])):
            return (-1.0, 1.0)
        low, high = _widened(*_hull([function(a[0]), function(a[1])]))
        return (
            -1.0 if contains(a, peak + math.pi) else max(low, -1.0),
            1.0 if contains(a, peak) else min(high, 1.0),
        )

    return interval


sin = _wave(math.sin, math.pi / 2)
cos = _wave(math.cos, 0.0)


def maximum(a: Interval, b: Interval) -> Interval:
    """Bounds max(a, b)."""
    return (max(a[0], b[0]), max(a[1], b[1]))


def minimum(a: Interval, b: Interval) -> Interval:
    """Bounds min(a, b)."""
    return (min(a[0], b[0]), min(a[1], b[1]))


def power(a: Interval, b: Interval) -> Interval:
    """Bounds a ** b: monotone in each argument for bases above 0; else by a whole exponent's parity."""

    def at(x: float, y: float) -> float:
        with np.errstate(all="ignore"):
            return float(np.power(np.float64(x), np.float64(y)))

    corners = [at(x, y) for x in a for y in b]
    whole = b[0] == b[1] and float(b[0]).is_integer()
    if a[0] > 0.0 or (whole and b[0] >= 0.0 and b[0] % 2 == 1):
        return _widened(*_hull(corners))
    if whole and b[0] >= 0.0:
        low, high = _widened(*_hull(corners))
        return (0.0 if a[0] <= 0.0 <= a[1] and b[0] > 0.0 else low, high)
    return EVERYTHING


def less(a: Interval, b: Interval) -> Interval:
    """Bounds a < b."""
    return TRUE if a[1] < b[0] else FALSE if a[0] >= b[1] else UNKNOWN


def equal(a: Interval, b: Interval) -> Interval:
    """Bounds a == b."""
    if a[0] == a[1] == b[0] == b[1]:
        return TRUE
    return FALSE if a[1] < b[0] or b[1] < a[0] else UNKNOWN


def negated(interval: Callable[[Interval, Interval], Interval]) -> Callable[[Interval, Interval], Interval]:
    """Bounds the opposite of a comparison."""

    def opposite(a: Interval, b: Interval) -> Interval:
        low, high = interval(a, b)
        return (1.0 - high, 1.0 - low)

    return opposite


def swapped(interval: Callable[[Interval, Interval], Interval]) -> Callable[[Interval, Interval], Interval]:
    """Bounds a comparison of the arguments the other way round."""
    return lambda a, b: interval(b, a)


def truth(a: Interval) -> Interval:
    """Bounds a != 0."""
    low, high = equal(a, FALSE)
    return (1.0 - high, 1.0 - low)


def logical_not(a: Interval) -> Interval:
    """Bounds not a, that is a == 0."""
    return equal(a, FALSE)


def logical_and(a: Interval, b: Interval) -> Interval:
    """Bounds a and b."""
    return minimum(truth(a), truth(b))


def logical_or(a: Interval, b: Interval) -> Interval:
    """Bounds a or b."""
    return maximum(truth(a), truth(b))


def where(mask: Interval, a: Interval, b: Interval) -> Interval:
    """Bounds a where the mask is true, else b."""
    match truth(mask):
        case (1.0, _):
            return a
        case (_, 0.0):
            return b
        case _:
            return _hull([*a, *b])


def isnan(a: Interval) -> Interval:
    """Tells nothing: bounds leave NaN out."""
    del a
    return UNKNOWN


def isinf(a: Interval) -> Interval:
    """Tells whether a is infinite."""
    return FALSE if math.isfinite(a[0]) and math.isfinite(a[1]) else UNKNOWN
