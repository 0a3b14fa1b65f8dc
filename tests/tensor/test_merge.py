"""Merges: associative, with a neutral state; what is known of the sizes of their results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from testkit.block.scans import LINEAR
from weft.tensor.domain import both
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.merge import Monoid, StateMerge, is_share, of_exponentials
from weft.tensor.scalar import Arg, Lit, apply

State = tuple[float, ...]
NUMBERS = (0.0, 1.0, -2.5, 1e4, -1e4, np.inf, -np.inf)
INTEGERS = (0.0, 1.0, -2.0, 3.0)


def merged(merge: StateMerge, left: State, right: State) -> State:
    sides = ([np.asarray(v) for v in side] for side in (left, right))
    found = both(Fp64Domain(), merge, [DType.float64] * merge.size, *sides)
    return tuple(float(v) for v in found)


MERGES: dict[str, tuple[StateMerge, Sequence[State]]] = {
    **{m.name: (StateMerge.of(m), [(v,) for v in INTEGERS]) for m in Monoid},
    "exponentials": (of_exponentials(1), [(v, 1.0) for v in NUMBERS] + [(np.nan, np.nan)]),
    "two sums of exponentials": (
        of_exponentials(2),
        [(v, 1.0, w) for v, w in itertools.product(NUMBERS[:5], INTEGERS)],
    ),
    "a recurrence": (LINEAR, list(itertools.product(INTEGERS, INTEGERS))),
}


@pytest.mark.parametrize(("merge", "states"), MERGES.values(), ids=MERGES)
def test_merges_are_associative_and_have_a_neutral_state(merge: StateMerge, states: Sequence[State]) -> None:
    for state in states:
        np.testing.assert_array_equal(merged(merge, merge.begin, state), state)
        np.testing.assert_array_equal(merged(merge, state, merge.begin), state)
    for first, second, third in itertools.islice(itertools.product(states, repeat=3), 0, None, 7):
        one = merged(merge, merged(merge, first, second), third)
        other = merged(merge, first, merged(merge, second, third))
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-13)


def test_the_monoid_of_a_merge_is_found() -> None:
    for monoid in Monoid:
        assert StateMerge.of(monoid).monoid is monoid
    assert of_exponentials(1).monoid is LINEAR.monoid is None


def test_factors_from_0_to_1_keep_what_they_multiply_in_its_range() -> None:
    assert [m.name for m in Monoid if StateMerge.of(m).multiplies] == ["prod"]
    assert LINEAR.multiplies
    assert not of_exponentials(3).multiplies
    greatest = apply("maximum", Arg(0), Arg(1))
    below = apply("exp", apply("sub", Arg(0), greatest))
    assert is_share(below)
    assert is_share(apply("where", apply("lt", Arg(0), Arg(1)), Lit(1.0), below))
    for other in (apply("exp", apply("sub", greatest, Arg(0))), apply("exp", Arg(0)), Lit(2.0), Arg(0)):
        assert not is_share(other)
    assert not is_share(apply("exp", apply("sub", Arg(2), greatest)))
