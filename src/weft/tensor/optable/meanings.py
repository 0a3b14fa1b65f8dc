"""Meanings over numpy arrays, where numpy's own differ from torch's or do not exist."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.tensor.arrays import as_array
from weft.tensor.optable.row import Array

_ERF = np.frompyfunc(math.erf, 1, 1)


def arithmetic(ufunc: Callable[..., Any]) -> Callable[..., Array]:
    """Applies `ufunc` with bool arguments taken as the integers 0 and 1 (numpy has no bool subtraction)."""

    def meaning(*args: Array) -> Array:
        numbers = [as_array(a).astype(np.int64) if as_array(a).dtype == np.bool_ else a for a in args]
        return as_array(ufunc(*numbers))

    return meaning


def rounding(ufunc: Callable[..., Any]) -> Callable[..., Array]:
    """Applies `ufunc` to floats; integers stay as they are."""

    def meaning(x: Array) -> Array:
        return as_array(ufunc(x) if as_array(x).dtype.kind == "f" else x)

    return meaning


def sign(x: Array) -> Array:
    """Returns -1, 0 or 1; 0 for NaN, as torch has it."""
    return as_array(np.where(np.isnan(x), 0, np.sign(arithmetic(np.positive)(x))))


def erf(x: Array) -> Array:
    """Computes the error function, by the C library."""
    values = as_array(x).astype(np.float64)
    return as_array(_ERF(values)).astype(np.float64)


def power(base: Array, exponent: Array) -> Array:
    """Computes base ** exponent; of integers an integer that wraps, for a negative exponent 1 / base truncated."""
    if "f" in (as_array(base).dtype.kind, as_array(exponent).dtype.kind):
        return as_array(np.power(as_array(base).astype(np.float64), as_array(exponent).astype(np.float64)))
    whole, by = as_array(base).astype(np.int64), as_array(exponent).astype(np.int64)
    inverse = np.where(whole == 1, 1, np.where(whole == -1, np.where(by % 2 == 0, 1, -1), 0))
    return np.where(by < 0, inverse, np.power(whole, np.maximum(by, 0)))


def where(mask: Array, true: Array, false: Array) -> Array:
    """Selects `true` where the mask is not 0, else `false`."""
    return as_array(np.where(as_array(mask).astype(np.bool_), true, false))


def fused(a: Array, b: Array, c: Array) -> Array:
    """Computes a * b + c, as floats."""
    return as_array(np.multiply(a, b, dtype=np.float64) + c)
