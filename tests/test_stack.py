"""Room for Python's frames: no call asks the system for memory, from however far down."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable

import pytest

from weft.stack import roomy

CALLS = 2000


def leaf(number: int) -> int:
    return number


def many() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for number in range(CALLS):
        leaf(number)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def below(depth: int, function: Callable[[], int]) -> int:
    return function() if depth == 0 else below(depth - 1, function)


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted as Linux counts them")
def test_calls_in_a_loop_fault_at_some_depth_and_with_room_at_none() -> None:
    faults = [below(depth, many) for depth in range(300)]
    assert max(faults) >= CALLS, "CPython no longer gives memory back at each return: weft.stack is not needed"
    assert max(below(depth, roomy(many)) for depth in range(300)) < CALLS / 10


def test_what_goes_in_and_comes_out_is_the_functions_own() -> None:
    @roomy
    def divided(number: int, *, by: int) -> float:
        """Divides."""
        return number / by

    assert divided(6, by=4) == 1.5
    assert divided.__name__ == "divided"
    with pytest.raises(ZeroDivisionError):
        divided(1, by=0)
