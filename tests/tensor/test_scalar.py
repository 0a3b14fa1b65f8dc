"""Scalar expressions: which are equal."""

from __future__ import annotations

from itertools import combinations

from weft.tensor.scalar import Apply, Arg, Lit

NAN = float("nan")
APART = (0.0, -0.0, 0, False, 1, 1.0, True, 0.5, float("inf"), float("-inf"), NAN)


def test_numbers_that_programs_tell_apart_are_not_equal() -> None:
    assert all(Lit(a) != Lit(b) for a, b in combinations(APART, 2))
    assert len({Apply("add", (Arg(0), Lit(value))) for value in APART}) == len(APART)


def test_the_same_number_is_equal_wherever_it_was_made() -> None:
    for value in APART:
        again = type(value)(repr(value)) if not isinstance(value, bool) else value
        assert Lit(value) == Lit(again)
        assert hash(Lit(value)) == hash(Lit(again))
    assert Lit(0.0) != 0.0
