"""The cheapest way to cut a chain into intervals, where prices take long to find and lower bounds are quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import TypeAlias

ChainInterval: TypeAlias = tuple[int, ...]
"""Elements `first` up to, but without, `end` of a chain; where these may be taken in several ways, which one comes third."""


def cheapest(
    count: int, bounds: Mapping[ChainInterval, float], price: Callable[[ChainInterval], float]
) -> tuple[tuple[ChainInterval, ...], float]:
    """Cuts a chain of `count` elements into the intervals whose prices have the least sum; returned with that sum.

    The best cut of a prefix is that of a shorter one and one interval more. This is done with bounds in place of prices that
    are not known; of the intervals that are best so, one is priced, and it is done again, until all of them are priced. No
    other cut is cheaper then: if it were, it would have been the best by its bounds too. If cuts cost the same, the one with
    the fewest intervals is taken.

    Args:
        count: of elements.
        bounds: for each interval that may be one, in each way, a number that its price is not below. What is not there may not.
        price: of an interval, `inf` where it is none after all; asked for once each, in order of need.

    Raises:
        ValueError: there is no cut of a finite price.
    """
    costs, priced = dict(bounds), set[ChainInterval]()
    ending: dict[int, list[ChainInterval]] = {end: [] for end in range(1, count + 1)}
    for interval in sorted(costs):
        ending[interval[1]].append(interval)
    while True:
        path, total = _best(count, ending, costs)
        open_ones = [interval for interval in path if interval not in priced]
        if not open_ones:
            return path, total
        # What weighs most is likeliest to turn out so expensive that the rest of this path is never asked for.
        heaviest = max(open_ones, key=costs.__getitem__)
        priced.add(heaviest)
        costs[heaviest] = price(heaviest)


def _best(
    count: int, ending: Mapping[int, list[ChainInterval]], costs: Mapping[ChainInterval, float]
) -> tuple[tuple[ChainInterval, ...], float]:
    """Finds the cut of least cost; raises ValueError where every one costs `inf`."""
    least: list[tuple[float, int]] = [(0.0, 0)]
    last: list[ChainInterval] = [(0, 0)]
    for end in range(1, count + 1):
        best, by = (inf, 0), (0, end)
        for interval in ending[end]:
            before, cuts = least[interval[0]]
            found = before + costs[interval], cuts + 1
            if found < best:
                best, by = found, interval
        least.append(best)
        last.append(by)
    if least[count][0] == inf:
        raise ValueError("no cut of the chain has a finite price")
    path: list[ChainInterval] = []
    end = count
    while end:
        path.append(last[end])
        end = last[end][0]
    return tuple(reversed(path)), least[count][0]
