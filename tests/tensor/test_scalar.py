"""Numbers in expressions and programs: which are equal."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from testkit.tensor.numbers import APART, demand_told_apart_by_numbers, made_anew
from weft.tensor.dtypes import DType
from weft.tensor.program import Constant
from weft.tensor.scalar import Apply, Arg, ExactNumbers, Lit, Number, exactly_equal

FORMS: dict[str, Callable[[Number], ExactNumbers]] = {
    "Lit": Lit,
    "Constant": lambda value: Constant("c", (), DType.float32, value),
}


def test_numbers_that_programs_tell_apart_are_not_exactly_equal() -> None:
    assert not any(exactly_equal(one, other) for one, other in combinations(APART, 2))
    assert all(exactly_equal(value, made_anew(value)) for value in APART)


@pytest.mark.parametrize("form", FORMS)
def test_what_has_a_number_is_equal_exactly_where_the_number_is_the_same(form: str) -> None:
    demand_told_apart_by_numbers(FORMS[form])


def test_a_number_is_not_what_has_it() -> None:
    assert Lit(0.0) != 0.0
    assert Lit(1) != Constant("c", (), DType.int64, 1)


def test_a_constant_is_equal_only_where_all_its_fields_are() -> None:
    one = Constant("c", (), DType.float32, 1.0)
    others = (Constant("d", (), DType.float32, 1.0), Constant("c", (), DType.bfloat16, 1.0))
    assert all(one != other for other in others)


def test_expressions_are_told_apart_by_their_numbers() -> None:
    assert len({Apply("add", (Arg(0), Lit(value))) for value in APART}) == len(APART)
