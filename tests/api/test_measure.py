"""Orders in which candidates are timed."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from weft.lab.measure import orders


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_each_candidate_has_each_place_and_follows_each_other_one_equally_often(count):
    rows = orders(count)
    assert all(sorted(row) == list(range(count)) for row in rows)
    places = Counter((each, place) for row in rows for place, each in enumerate(row))
    followed = Counter(pair for row in rows for pair in pairwise(row))
    assert len(places) == count * count
    assert len(followed) == count * (count - 1)
    assert len(set(places.values())) == 1
    assert len(set(followed.values())) <= 1
