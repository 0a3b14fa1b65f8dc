"""The cheapest cut of a chain, beside every cut of it."""

from __future__ import annotations

import itertools
import random
from math import inf, isclose

import pytest

from weft.plan.partition.chain import ChainInterval, cheapest

MOST = 10


def every_cut(count: int) -> list[tuple[ChainInterval, ...]]:
    """The 2 ** (count - 1) ways to cut a chain."""
    found: list[tuple[ChainInterval, ...]] = []
    for places in itertools.product((False, True), repeat=count - 1):
        ends = [0, *(i for i, cut in enumerate(places, 1) if cut), count]
        found.append(tuple(itertools.pairwise(ends)))
    return found


def random_prices(rng: random.Random, count: int) -> tuple[dict[ChainInterval, float], dict[ChainInterval, float]]:
    """Bounds and prices of the intervals of a chain: longer ones cost about what their parts do; some are none, by either."""
    single = [rng.uniform(1, 10) for _ in range(count)]
    bounds: dict[ChainInterval, float] = {}
    prices: dict[ChainInterval, float] = {}
    for first, end in itertools.combinations(range(count + 1), 2):
        price = sum(single[first:end]) * (1.0 if end == first + 1 else rng.uniform(0.5, 1.5))
        if end > first + 1 and rng.random() < 0.1:
            continue
        prices[first, end] = inf if end > first + 1 and rng.random() < 0.1 else price
        bounds[first, end] = price * rng.uniform(0.3, 1.0)
    return bounds, prices


@pytest.mark.parametrize("count", range(1, MOST + 1))
def test_no_cut_of_a_chain_is_cheaper(count: int) -> None:
    rng = random.Random(count)
    for _ in range(40):
        bounds, prices = random_prices(rng, count)
        asked: list[ChainInterval] = []

        def price(
            interval: ChainInterval, asked: list[ChainInterval] = asked, prices: dict[ChainInterval, float] = prices
        ) -> float:
            asked.append(interval)
            return prices[interval]

        path, total = cheapest(count, bounds, price)
        best = min(sum(prices.get(i, inf) for i in cut) for cut in every_cut(count))
        assert isclose(total, best)
        assert isclose(sum(prices[i] for i in path), best)
        assert path in every_cut(count)
        assert len(asked) == len(set(asked)) <= len(bounds)


def test_what_bounds_leave_out_is_not_priced() -> None:
    """A long interval that costs what it must: nothing else could be cheaper, and nothing else is asked for."""
    bounds: dict[ChainInterval, float] = dict.fromkeys(itertools.combinations(range(MOST + 1), 2), 2.0)
    asked: list[ChainInterval] = []

    def price(interval: ChainInterval) -> float:
        asked.append(interval)
        return 3.0

    path, _ = cheapest(MOST, bounds, price)
    assert path == ((0, MOST),)
    assert asked == [(0, MOST)]


def test_of_equal_cuts_the_one_with_fewer_kernels_is_taken() -> None:
    bounds: dict[ChainInterval, float] = {i: float(i[1] - i[0]) for i in itertools.combinations(range(6), 2)}
    assert cheapest(5, bounds, bounds.__getitem__) == (((0, 5),), 5.0)


def test_a_chain_that_nothing_covers_is_an_error() -> None:
    with pytest.raises(ValueError, match="finite"):
        cheapest(2, {(0, 1): 1.0}, lambda _: 1.0)
