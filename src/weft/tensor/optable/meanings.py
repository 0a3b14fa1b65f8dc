"""Meanings over numpy arrays, where numpy's own differ from torch's or do not exist."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.tensor.optable.row import Array


def arithmetic(ufunc: Callable[..., Any]) -> Callable[..., Array]:
    """Applies `ufunc` with bool arguments taken as the integers 0 and 1 (numpy has no bool subtraction)."""

    def meaning(*args: Array) -> Array:
        numbers = [np.asarray(a).astype(np.int64) if np.asarray(a).dtype == np.bool_ else a for a in args]
        return np.asarray(ufunc(*numbers))

    return meaning


def rounding(ufunc: Callable[..., Any]) -> Callable[..., Array]:
    """Applies `ufunc` to floats; integers stay as they are."""

    def meaning(x: Array) -> Array:
        return np.asarray(ufunc(x) if np.asarray(x).dtype.kind == "f" else x)

    return meaning


def sign(x: Array) -> Array:
    """Returns -1, 0 or 1; 0 for NaN, as torch has it."""
    return np.asarray(np.where(np.isnan(x), 0, np.sign(arithmetic(np.positive)(x))))


def erf(x: Array) -> Array:
    """Computes the error function, by the C library."""
    values = np.asarray(x, dtype=np.float64)
    return np.fromiter((math.erf(v) for v in values.flat), np.float64, values.size).reshape(values.shape)


def power(base: Array, exponent: Array) -> Array:
    """Computes base ** exponent; of integers an integer that wraps, for a negative exponent 1 / base truncated."""
    if "f" in (np.asarray(base).dtype.kind, np.asarray(exponent).dtype.kind):
        return np.asarray(np.power(np.asarray(base, np.float64), np.asarray(exponent, np.float64)))
    whole, by = np.asarray(base).astype(np.int64), np.asarray(exponent).astype(np.int64)
    inverse = np.where(whole == 1, 1, np.where(whole == -1, np.where(by % 2 == 0, 1, -1), 0))
    return np.where(by < 0, inverse, np.power(whole, np.maximum(by, 0)))


def where(mask: Array, true: Array, false: Array) -> Array:
    """Selects `true` where the mask is not 0, else `false`."""
    return np.asarray(np.where(np.asarray(mask).astype(np.bool_), true, false))


def fused(a: Array, b: Array, c: Array) -> Array:
    """Computes a * b + c, as floats."""
    return np.asarray(np.multiply(a, b, dtype=np.float64) + c)
