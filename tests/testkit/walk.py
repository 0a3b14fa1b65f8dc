"""How much of a long list a run of the tests tries: a share spread over the list; with WALK_ALL=1 in the environment all of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

WALK_ALL = os.environ.get("WALK_ALL") == "1"


def share(items: Iterable[T], one_in: int, start: int = 0) -> list[T]:
    """Every `one_in`-th of `items` from number `start` on; all of them where the whole walk is asked for."""
    return list(items) if WALK_ALL else list(items)[start % one_in :: one_in]


def spread(cases: Sequence[Mapping[str, int]], one_in: int) -> list[int]:
    """Chooses one in so many cases, and of these as many that differ as there are.

    Each next one has most values of parameters that none before it has; then those that fewest have; then it is every `one_in`-th.

    Args:
        cases: of each, by the name of a parameter, the number of its value.
        one_in: the first of so many, and of the rest, is taken.

    Returns:
        Their places, in order.
    """
    taken: Counter[tuple[str, int]] = Counter()
    left = sorted(range(len(cases)), key=lambda place: (place % one_in, place))

    def like_others(place: int) -> tuple[int, int]:
        before = [taken[value] for value in cases[place].items()]
        return -before.count(0), sum(before)

    chosen: list[int] = []
    for _ in range(-(-len(cases) // one_in)):
        best = min(left, key=like_others)
        left.remove(best)
        taken.update(cases[best].items())
        chosen.append(best)
    return sorted(chosen)
