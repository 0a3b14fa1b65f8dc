"""Running exponents that jump: what they make 0 is 0, however far they moved; in fp32, where that overflows."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from testkit.cascade.chains import one_loop
from testkit.cascade.folding import Folding, Numbers, cutting
from weft.tensor.fp64 import Fp64Domain

HALF = 8
ENDS = float(np.finfo(np.float32).max)


def row(*changes: tuple[slice, float]) -> np.ndarray:
    found = np.random.default_rng(1).standard_normal(2 * HALF)
    for place, value in changes:
        found[place] = value
    return found


FIRST, LAST = slice(0, HALF), slice(HALF, None)
ROWS = np.stack(
    [
        row((FIRST, -1e38)),
        row((FIRST, -0.7 * ENDS)),
        row((LAST, -0.7 * ENDS)),
        row((slice(0, 4), -0.9 * ENDS), (slice(4, 9), -1e30)),
        row((FIRST, -ENDS)),
        row((FIRST, 0.6 * ENDS), (LAST, 0.6 * ENDS)),
        row((FIRST, -0.9 * ENDS), (LAST, -0.9 * ENDS)),
    ]
).astype(np.float32)


def folded(name: str, orders: range, **inputs: np.ndarray):
    """The fold in fp32 over any pieces merged in any order, and the program in fp64."""
    program, fold = one_loop(name)
    given = dict(zip((n.name for n in program.inputs), inputs.values(), strict=True))
    exact = Folding(program, fold, Fp64Domain(), {n: v.astype(np.float64) for n, v in given.items()}).wanted
    folding = Folding(program, fold, Numbers(np.float32), given)
    for seed in orders:
        order = random.Random(seed)
        with np.errstate(all="ignore"):
            found = folding.over(cutting(folding.length, order.randint(1, 5), order), order)
        yield from ((found[value], exact[value]) for value in found)


def test_an_entropy_where_the_exponent_jumps():
    for found, exact in folded("entropy", range(24), x=ROWS):
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)


def test_an_entropy_where_each_block_is_one_element():
    """Each move is one that something is relative to."""
    program, fold = one_loop("entropy")
    (node,) = program.inputs
    exact = Folding(program, fold, Fp64Domain(), {node.name: ROWS.astype(np.float64)}).wanted
    folding = Folding(program, fold, Numbers(np.float32), {node.name: ROWS})
    with np.errstate(all="ignore"):
        found = folding.over([[1] * folding.length])
    for value in found:
        np.testing.assert_allclose(found[value], exact[value], rtol=1e-5, atol=1e-6)


def test_infinite_differences_are_nan_as_written():
    """From one end of the numbers to the other: 0 * -inf, in one block and in two."""
    x = row((FIRST, -0.9 * ENDS), (LAST, 0.9 * ENDS))[None].astype(np.float32)
    for found, _ in folded("entropy", range(8), x=x):
        assert np.isnan(found).all()


def test_what_is_brought_back_to_nothing_is_nothing():
    """All exponentials are 0 below the bound, and differences so large that their sum is infinite."""
    bound = np.full(len(ROWS), 0.9 * ENDS, np.float32)
    bound[0] = 1.0
    x = np.abs(np.random.default_rng(0).standard_normal(ROWS.shape)).astype(np.float32)
    for found, exact in folded("entropy below a bound", range(8), x=x, bound=bound):
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["exponentials below the greatest and biased", "exponentials from the greatest"])
def test_exponentials_that_no_maximum_bounds(name):
    """One is infinite although the maximum is a number."""
    x = np.random.default_rng(0).standard_normal((3, 2 * HALF)).astype(np.float32)
    infinite = x.copy()
    infinite[0, 1], infinite[1, -1] = (-math.inf,) * 2 if "from" in name else (math.inf,) * 2
    inputs = {"x": infinite} if "from" in name else {"x": x, "bias": infinite}
    for found, exact in folded(name, range(8), **inputs):
        assert np.isinf(exact[:2]).all()
        np.testing.assert_allclose(found, exact, rtol=1e-5)
