"""Counters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from weft.run.stats import Counters, Stats


def test_counts_of_many_threads_add_up() -> None:
    counters = Counters()

    def many(_: int) -> None:
        for _ in range(500):
            counters.count("cache_hits")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(many, range(8)))
    counters.count("fallbacks", 3)
    assert counters.snapshot() == Stats(cache_hits=4000, fallbacks=3)


def test_a_snapshot_stays_as_it_was() -> None:
    counters = Counters()
    before = counters.snapshot()
    counters.count("compiles")
    assert (before.compiles, counters.snapshot().compiles) == (0, 1)
    with pytest.raises(AttributeError):
        before.compiles = 2  # pyright: ignore[reportAttributeAccessIssue]
