"""Structural functions, for `Domain.lift`: what the interpreter does to arrays of any domain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.tensor.domain import Array


def transposed(order: tuple[int, ...]) -> Callable[[Array], Array]:
    """Put dimensions in that order."""

    def transpose(array: Array) -> Array:
        return np.transpose(array, order)

    return transpose


def written(window: tuple[Any, ...]) -> Callable[[Array, Array], Array]:
    """Copy the first array with the second in `window`, an index of numpy's."""

    def write(into: Array, block: Array) -> Array:
        out = into.copy()
        out[window] = block
        return out

    return write


def joined(first: Array, second: Array) -> Array:
    """Join two arrays one after the other along their last dimension."""
    return np.concatenate((first, second), axis=-1)


def stacked(first: Array, second: Array) -> Array:
    """Put two arrays of one shape beside each other, along a last dimension of their own."""
    return np.stack((first, second), axis=-1)
