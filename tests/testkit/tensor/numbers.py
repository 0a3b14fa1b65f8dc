"""Numbers that programs tell apart, though some are equal to others in Python."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from weft.tensor.scalar import Number

NAN = float("nan")
APART: tuple[Number, ...] = (0.0, -0.0, 0, False, 1, 1.0, True, 0.5, float("inf"), float("-inf"), NAN)
FLOATS = tuple(value for value in APART if isinstance(value, float))


def made_anew(value: Number) -> Number:
    """Make the same number again, floats as other objects: Python's containers take an object to be equal to itself, even NaN."""
    return float(repr(value)) if isinstance(value, float) else value


def demand_told_apart_by_numbers(make: Callable[[Number], object]) -> None:
    """Demand that what `make` makes of a number is equal, and has the same hash, exactly for the same number."""
    assert not any(make(one) == make(other) for one, other in combinations(APART, 2))
    assert len({make(value) for value in APART}) == len(APART)
    for value in APART:
        again = make(made_anew(value))
        assert make(value) == again
        assert hash(make(value)) == hash(again)
