"""Which rules for sizes a part of a program keeps."""

from __future__ import annotations

import pytest

from weft.tensor.axes import Space
from weft.tensor.derived import Derived, about, by_space

A, B, C, D, E = (Space(name) for name in "ABCDE")
FOUR = Space("F", 4)


@pytest.mark.parametrize(
    ("own", "rules", "kept"),
    [
        ((A, B), [Derived(B, A, times=4)], [0]),
        ((A,), [Derived(B, A, times=4)], []),
        ((B,), [Derived(B, A, times=4)], []),
        ((A, C), [Derived(B, A, times=4), Derived(C, B, stop=3)], [0, 1]),
        ((B, C), [Derived(B, A, times=4), Derived(C, A, times=2)], [0, 1]),
        ((A, B), [Derived(C, A), Derived(D, C), Derived(B, A), Derived(E, D)], [2]),
        ((A,), [Derived(A, FOUR, times=2)], [0]),
        ((A,), [Derived(FOUR, A, times=2)], [0]),
        ((A, C), [Derived(C, A, others=(B,))], []),
        ((A, C), [Derived(B, FOUR), Derived(C, A, others=(B,))], [0, 1]),
        ((D, E), [Derived(B, A, times=4), Derived(C, B)], []),
    ],
    ids=[
        "of both", "made outside", "of one outside", "through one outside", "of one source", "dead ends", "of a fixed one",
        "makes a fixed one", "of one not known", "of one known outside", "of others",
    ],
)  # fmt: skip
def test_a_part_keeps_the_rules_that_say_something_of_it(own, rules, kept) -> None:
    found = about(own, rules, by_space(rules))
    assert found == tuple(rules[number] for number in kept)
