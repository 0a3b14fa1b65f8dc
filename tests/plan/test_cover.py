"""The cheapest cut of a graph into convex parts, beside every cut of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, isclose

import pytest

from weft.plan.partition import cover
from weft.plan.partition.cover import (
    Subset,
    Waits,
    _moves,
    _Paths,
    _stretches_of,
    cheapest,
    convex_parts,
    elements,
    stretches,
    subset_of,
)

MOST = 9


def random_waits(rng: random.Random, count: int) -> Waits:
    """A graph in which most elements wait for one or two of the last few."""
    found: list[Subset] = []
    for i in range(count):
        near = range(max(0, i - rng.choice((1, 3, 5))), i)
        found.append(subset_of(rng.sample(near, min(len(near), rng.choice((0, 1, 1, 1, 2, 2))))))
    return Waits(tuple(found))


def chain(count: int) -> Waits:
    return Waits(tuple(1 << i - 1 if i else 0 for i in range(count)))


def is_convex(waits: Waits, part: Subset) -> bool:
    """Tells by walking from the part: what is reached outside of it leads to none of it."""
    waiting = list(elements(part))
    outside = set[int]()
    while waiting:
        for other in elements(waits.behind[waiting.pop()]):
            if not part >> other & 1 and other not in outside:
                outside.add(other)
                waiting.append(other)
            elif part >> other & 1 and outside & set(elements(waits.before[other])):
                return False
    return True


def is_connected(waits: Waits, part: Subset) -> bool:
    seen, waiting = {elements(part)[0]}, [elements(part)[0]]
    while waiting:
        i = waiting.pop()
        for other in elements((waits.before[i] | waits.behind[i]) & part):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return len(seen) == part.bit_count()


def every_part(waits: Waits) -> list[Subset]:
    every = range(1, 1 << len(waits.before))
    return [part for part in every if is_connected(waits, part) and is_convex(waits, part)]


def every_cut(waits: Waits, parts: list[Subset]) -> Iterator[list[Subset]]:
    """Every set of parts, disjoint and of all elements, that can run one after the other."""

    def rest(chosen: list[Subset], covered: Subset) -> Iterator[list[Subset]]:
        if covered == (1 << len(waits.before)) - 1:
            if can_run(waits, chosen):
                yield chosen
            return
        first = next(i for i in range(len(waits.before)) if not covered >> i & 1)
        for part in parts:
            if part & -part == 1 << first and not part & covered:
                yield from rest([*chosen, part], covered | part)

    return rest([], 0)


def can_run(waits: Waits, chosen: list[Subset]) -> bool:
    left, done = list(chosen), 0
    while left:
        ready = next((part for part in left if not waits.need(part) & ~done), None)
        if ready is None:
            return False
        left.remove(ready)
        done |= ready
    return True


def random_prices(rng: random.Random, parts: list[Subset]) -> tuple[dict[Subset, float], dict[Subset, float]]:
    """Bounds and prices: larger parts cost about what their elements do; some are none after all."""
    single = {part: rng.uniform(1, 10) for part in parts if part.bit_count() == 1}
    bounds: dict[Subset, float] = {}
    prices: dict[Subset, float] = {}
    for part in parts:
        price = sum(single[1 << i] for i in elements(part)) * (1.0 if part in single else rng.uniform(0.5, 1.5))
        prices[part] = inf if part not in single and rng.random() < 0.1 else price
        bounds[part] = price * rng.uniform(0.3, 1.0)
    return bounds, prices


@pytest.mark.parametrize("count", range(1, MOST + 1))
def test_the_parts_are_all_connected_convex_ones(count: int) -> None:
    rng = random.Random(count)
    for _ in range(20):
        waits = random_waits(rng, count)
        found = [part for parts in convex_parts(waits, lambda _: True) for part in parts]
        assert len(found) == len(set(found))
        assert set(found) == set(every_part(waits))


@pytest.mark.parametrize("count", range(1, MOST + 1))
def test_no_cut_of_a_graph_is_cheaper(count: int) -> None:
    rng = random.Random(count)
    for _ in range(25):
        waits = random_waits(rng, count)
        parts = [part for own in convex_parts(waits, lambda _: True) for part in own]
        bounds, prices = random_prices(rng, parts)
        asked: list[Subset] = []

        def price(part: Subset, asked: list[Subset] = asked, prices: dict[Subset, float] = prices) -> float:
            asked.append(part)
            return prices[part]

        path, total = cheapest(waits, bounds, price)
        assert isclose(total, min(sum(map(prices.__getitem__, cut)) for cut in every_cut(waits, parts)))
        assert isclose(total, sum(map(prices.__getitem__, path)))
        assert can_run(waits, list(path))
        assert sum(path) == (1 << count) - 1
        assert len(asked) == len(set(asked)) <= len(bounds)


def test_where_parts_or_down_sets_are_too_many_it_is_the_best_of_those_that_keep_to_the_row(monkeypatch) -> None:
    """It is then a cut that can run, no worse than the best one into stretches of the row, and worse than the best of all by no
    more than the most that a part of that saves over its elements apart.
    """
    rng = random.Random(0)
    missed = 0
    for _ in range(60):
        waits = random_waits(rng, MOST)
        every = [part for own in convex_parts(waits, lambda _: True) for part in own]
        bounds, prices = random_prices(rng, every)
        chosen, best = cheapest(waits, bounds, prices.__getitem__)
        saved = max(sum(prices[1 << i] for i in elements(part)) / prices[part] for part in chosen)
        rows = {p for p in every if p.bit_length() - p.bit_count() == (p & -p).bit_length() - 1}
        in_row = min(sum(map(prices.__getitem__, cut)) for cut in every_cut(waits, sorted(rows)))
        with monkeypatch.context() as patched:
            patched.setattr(cover, "MOST_STATES", 24)
            patched.setattr(cover, "MOST_PARTS", 12)
            parts = [part for own in convex_parts(waits, lambda _: True) for part in own]
            path, total = cheapest(waits, {p: bounds[p] for p in parts}, prices.__getitem__)
        assert can_run(waits, list(path))
        assert best - 1e-9 <= total <= min(in_row, saved * best) + 1e-9
        missed += not isclose(best, total)
    assert missed, "else nothing was too many"


@dataclass(frozen=True)
class Counted(Waits):
    """Counts how often it is asked what is beside a part."""

    asked: list[Subset] = field(default_factory=list[Subset])

    def beside(self, part: Subset) -> Subset:
        self.asked.append(part)
        return super().beside(part)


@pytest.mark.parametrize("count", [100, 1000])
def test_of_a_long_row_only_as_much_is_looked_at_as_a_part_may_have(count: int) -> None:
    """The first element is read by the last alone, so that no stretch that begins with it is connected before all of them are."""
    waits = Counted((0, 0, *(1 << i for i in range(1, count - 2)), 1 | 1 << count - 2))

    def few(part: Subset) -> bool:
        return part.bit_count() <= 8

    assert list(_stretches_of(waits, 0, few)) == [1]
    assert len(waits.asked) < 50
    assert set(_stretches_of(waits, 0, lambda _: True)) == {1, (1 << count) - 1}


def test_a_part_that_may_not_be_is_in_none() -> None:
    waits = chain(5)
    found = [part for parts in convex_parts(waits, lambda part: part & 0b1100 != 0b1100) for part in parts]
    assert set(found) == {0b1, 0b10, 0b100, 0b1000, 0b10000, 0b11, 0b110, 0b111, 0b11000}
    assert list(stretches(5, found)) == [(0, 3), (3, 5)]


def test_what_bounds_leave_out_is_not_priced() -> None:
    """A large part that costs what it must: nothing else could be cheaper, and nothing else is asked for."""
    waits = chain(MOST)
    bounds = dict.fromkeys((p for own in convex_parts(waits, lambda _: True) for p in own), 2.0)
    asked: list[Subset] = []

    def price(part: Subset) -> float:
        asked.append(part)
        return 3.0

    path, _ = cheapest(waits, bounds, price)
    assert path == ((1 << MOST) - 1,)
    assert asked == [(1 << MOST) - 1]


def test_of_equal_cuts_the_one_with_fewer_kernels_is_taken() -> None:
    waits = chain(5)
    bounds = {p: float(p.bit_count()) for own in convex_parts(waits, lambda _: True) for p in own}
    assert cheapest(waits, bounds, bounds.__getitem__) == ((0b11111,), 5.0)


@dataclass
class Foresight:
    """Hears what will be asked for; prices of single elements, and of others that are `known`, are at hand."""

    known: frozenset[Subset] = frozenset()
    told: list[tuple[Subset, ...]] = field(default_factory=list[tuple[Subset, ...]])

    def at_hand(self, part: Subset) -> bool:
        return part.bit_count() == 1 or part in self.known or any(part in parts for parts in self.told)

    def foreseen(self, parts: Sequence[Subset]) -> None:
        self.told.append(tuple(parts))


def test_what_is_asked_for_when_prices_fail_is_told_ahead() -> None:
    """Go through parts none of which has a price: the search asks for them one by one, but tells of them before."""
    waits, alone = chain(5), 4.0
    bounds = {p: alone if p.bit_count() == 1 else 3.0 for own in convex_parts(waits, lambda _: True) for p in own}
    asked: dict[Subset, None] = {}

    def price(part: Subset) -> float:
        asked.setdefault(part)
        return alone if part.bit_count() == 1 else inf

    found = cheapest(waits, bounds, price, ahead := Foresight())
    assert found == cheapest(waits, bounds, lambda part: alone if part.bit_count() == 1 else inf)
    several = [part for part in asked if part.bit_count() > 1]
    assert len(several) == 10  # all stretches of 2 to 5 elements
    assert ahead.told == [tuple(several)]  # in the order in which they are asked for


def test_what_is_at_hand_is_not_told_and_counts_at_its_price() -> None:
    """Prices that are known say what is asked for next: nothing, where a known part is the cheapest."""
    bounds = {p: 1.0 for own in convex_parts(chain(5), lambda _: True) for p in own}
    known = frozenset(part for part in bounds if part.bit_count() < 5)
    prices = {part: 1.5 if part == 0b1111 else 9.0 for part in bounds}
    ahead = Foresight(known)
    assert cheapest(chain(5), bounds, prices.__getitem__, ahead)[0] == (0b11111,)
    assert ahead.told == [(0b11111,)]
    ahead = Foresight(frozenset(bounds))
    assert cheapest(chain(5), bounds, prices.__getitem__, ahead)[0] == (0b11111,)
    assert not ahead.told


def test_what_is_told_ahead_changes_no_cut() -> None:
    """Find the cheapest cut all the same where prices are finite, so that not all that was told is asked for."""
    for seed in range(30):
        drawn = random.Random(seed)
        waits = chain(6)
        bounds = {p: drawn.random() for own in convex_parts(waits, lambda _: True) for p in own}
        prices = {p: inf if drawn.random() < 0.3 else bound + drawn.random() for p, bound in bounds.items()}
        prices |= {1 << i: 3.0 for i in range(6)}
        known = frozenset(part for part in bounds if drawn.random() < 0.3)
        found = cheapest(waits, bounds, prices.__getitem__, Foresight(known))
        assert found == cheapest(waits, bounds, prices.__getitem__)


def test_paths_that_are_kept_up_to_date_are_those_found_anew() -> None:
    """Change costs up and down, equal ones among them: each path is the one that a search from the beginning finds."""
    drawn = random.Random(5)
    waits = Waits((0, 0b1, 0b10, 0b100, 0b1, 0b10000, 0b100000, 0b1001000))
    parts = [part for own in convex_parts(waits, lambda _: True) for part in own]
    moves = _moves(waits, parts)
    costs = [float(drawn.randrange(1, 4)) for _ in parts]
    paths = _Paths.of(moves, list(costs))
    for _ in range(300):
        number = drawn.randrange(len(parts))
        costs[number] = inf if drawn.random() < 0.1 else float(drawn.randrange(1, 6))
        kept = paths.copy()
        paths.put(number, costs[number])
        anew = _Paths.of(moves, list(costs))
        assert (paths.least, paths.last) == (anew.least, anew.last)
        assert kept.costs != paths.costs or kept.least == paths.least


def test_a_graph_that_nothing_covers_is_an_error() -> None:
    with pytest.raises(ValueError, match="finite"):
        cheapest(chain(2), {1: 1.0, 2: 1.0}, lambda _: inf)


def test_branches_that_are_longer_than_one_operator_are_cut_across() -> None:
    """Two chains of three from one element into another; what is cheap together is no stretch of the row, nor nearly one."""
    waits = Waits((0, 0b1, 0b10, 0b100, 0b1, 0b10000, 0b100000, 0b1001000))
    parts = [part for own in convex_parts(waits, lambda _: True) for part in own]
    cheap = (subset_of((0, 1, 2, 4, 5)), subset_of((3, 6, 7)))
    prices = {part: 1.0 if part in cheap else 3.0 * part.bit_count() for part in parts}
    path, total = cheapest(waits, prices, prices.__getitem__)
    assert (path, total) == (cheap, 2.0)
