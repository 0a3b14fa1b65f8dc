"""What the domains of numbers ask of an array, whether it is numpy's or lies elsewhere."""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def as_array(values: Any) -> Array:
    """Returns a number as an array of no dimensions; arrays as they are.

    Also those of other libraries that take numpy's functions by its protocols (NEP 13 and 18), which `np.asarray` would copy.
    """
    return values if hasattr(values, "__array_function__") else np.asarray(values)


def is_numpys(values: object) -> TypeGuard[Array]:
    """Tells whether it is an array in numpy's memory, and no other library's."""
    return isinstance(values, np.ndarray)


@runtime_checkable
class RoundsToBfloat16(Protocol):
    """An array of another library, which has that type: numpy has not."""

    def in_bfloat16(self) -> Any:
        """Returns the elements rounded to bfloat16 by way of float32, half to even, in float64."""
        ...
