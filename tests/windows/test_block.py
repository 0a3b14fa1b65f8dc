"""Loads that read nothing beside what there is: the evaluator, the interpreter's blocks, bytes, where they are lowered."""

from __future__ import annotations

import random

import numpy as np
import pytest

from testkit.block.windows import ALL, joined, padded, rolled
from testkit.schedules import fused
from weft.block.interpret import interpret
from weft.block.walk import maps
from weft.cost.traffic import traffic
from weft.lab.fuzz.random_schedules import fitting_schedule
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.wellformed import well_formed


@pytest.mark.parametrize("name", ALL)
def test_blocks_of_any_length_give_what_the_evaluator_gives(name: str) -> None:
    """And bytes are counted as they are moved, in closed form; sizes need not fit each other."""
    program, domain, rng = ALL[name](), Fp64Domain(), random.Random(name)
    well_formed(program)
    for number in range(12):
        numbers = np.random.default_rng(number)
        sizes = {s.name: int(numbers.integers(1, 9)) for s in program.spaces()}
        given = {n.name: numbers.standard_normal([a.space.size(sizes) for a in n.axes]) for n in program.inputs}
        wanted = evaluate(program, given, domain, sizes=sizes)
        schedule, applied = fitting_schedule(fused(program), rng)
        found, seen = interpret(applied, given, sizes, domain)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-12, atol=1e-12, err_msg=f"{sizes} {schedule}")
        counted = traffic(applied, sizes)
        assert (counted.loaded, counted.stored) == (seen.loaded, seen.stored)


def test_what_is_beside_is_zero() -> None:
    x = np.array([[1.0, 2.0, 3.0]])
    (found,) = evaluate(padded(), {"x": x}, Fp64Domain(), sizes={"L": 7})
    np.testing.assert_array_equal(found, [[1, 1, 1, 2, 3, 4, 1]])
    (found,) = evaluate(rolled(), {"x": x}, Fp64Domain(), sizes={"L": 3})
    np.testing.assert_array_equal(found, [[3, 4, 2]])


def test_of_what_has_no_elements_nothing_is_read() -> None:
    (found,) = evaluate(padded(), {"x": np.zeros((2, 0))}, Fp64Domain(), sizes={"L": 4})
    np.testing.assert_array_equal(found, np.ones((2, 4)))


def test_what_is_joined_is_read_where_it_is_used() -> None:
    """One nest, no list between."""
    program = fused(joined())
    assert [m.axis.space.name for m in maps(program.graph)] == ["M", "L"]
