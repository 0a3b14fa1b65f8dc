"""The cheapest way to cut a graph into convex parts, where prices take long to find and lower bounds are quick.

Elements are in a row, each after those that it waits for; a part is a set of them, a number whose bit i is element i. Parts can
run one after the other exactly where what is done after each of them waits for nothing else. Such sets of elements are the
down-sets of the graph, so a cut into parts is a path of down-sets, from none to all. docs/internals/cuts.md argues that what is
found is the cheapest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import Protocol, TypeAlias

Subset: TypeAlias = int
"""Elements of a graph, as bits of a number."""

# Elements of the row that a part may leave out, and that may be undone behind the last one that is done, where all are too many.
_REACHES = (8, 4, 3, 2, 1)
# Parts that begin with one element, and down-sets of a graph, that are looked at.
MOST_PARTS, MOST_STATES = 192, 2000
# Parts whose prices may be found side by side, ahead of when they are asked for: most take 0.02 s, as a round of children does.
_AHEAD = 30


def elements(part: Subset) -> tuple[int, ...]:
    """List the elements of a part in order."""
    found: list[int] = []
    while part:
        low = part & -part
        found.append(low.bit_length() - 1)
        part ^= low
    return tuple(found)


def subset_of(members: Iterable[int]) -> Subset:
    """Return `members` as bits of a number."""
    return _united(1 << i for i in members)


def _united(parts: Iterable[Subset]) -> Subset:
    found = 0
    for part in parts:
        found |= part
    return found


@dataclass(frozen=True)
class Waits:
    """What each element of a graph waits for: `before[i]` are elements that come before i in the row, as a part."""

    before: tuple[Subset, ...]

    @cached_property
    def behind(self) -> tuple[Subset, ...]:
        """The elements that wait for each one."""
        found = [0] * len(self.before)
        for i, before in enumerate(self.before):
            for j in elements(before):
                found[j] |= 1 << i
        return tuple(found)

    @cached_property
    def _reach(self) -> tuple[tuple[Subset, ...], tuple[Subset, ...]]:
        """All that each element waits for, and all that waits for it, by way of others too."""
        count = len(self.before)
        up, down = [0] * count, [0] * count
        for i in range(count):
            up[i] = _united(up[j] | 1 << j for j in elements(self.before[i]))
        for i in reversed(range(count)):
            down[i] = _united(down[j] | 1 << j for j in elements(self.behind[i]))
        return tuple(up), tuple(down)

    def waiting_for(self, element: int) -> Subset:
        """Return all that waits for an element, by way of others too."""
        return self._reach[1][element]

    def hull(self, part: Subset) -> Subset:
        """Add to `part` what waits for some of it and is waited for by others of it."""
        up, down = self._reach
        members = elements(part)
        return part | (_united(up[i] for i in members) & _united(down[i] for i in members))

    def need(self, part: Subset) -> Subset:
        """Return what `part` waits for, outside of it."""
        return _united(self.before[i] for i in elements(part)) & ~part

    def beside(self, part: Subset) -> Subset:
        """Return the elements that wait for one of `part`, or that one of it waits for."""
        return _united(self.before[i] | self.behind[i] for i in elements(part)) & ~part


def convex_parts(waits: Waits, possible: Callable[[Subset], bool]) -> Iterator[tuple[Subset, ...]]:
    """Yield, for each element, the connected convex parts that begin with it, itself first, smaller ones earlier.

    Where these are more than `MOST_PARTS` they are stretches of the row, and what leaves out few elements of it, the fewest that
    must be.

    Args:
        waits: of the graph.
        possible: whether a part of several may be one; if not, then none that contains it may.
    """
    for first in range(len(waits.before)):
        found = _beginning(waits, first, possible, {1 << first: None}, len(waits.before))
        if found is None:
            own = dict.fromkeys(_stretches_of(waits, first, possible))
            grown = (_beginning(waits, first, possible, own, most) for most in _REACHES)
            found = next((parts for parts in grown if parts is not None), tuple(own))
        yield found


def _stretches_of(waits: Waits, first: int, possible: Callable[[Subset], bool]) -> Iterator[Subset]:
    """Yield the connected stretches of the row that begin with `first`."""
    part = 1 << first
    yield part
    for _ in waits.before[first + 1 :]:
        part |= part << 1
        whole, seen = 0, 1 << first
        while seen != whole:
            whole, seen = seen, seen | waits.beside(seen) & part
        if not possible(part):
            return  # nor any longer one, connected or not yet
        if whole == part:
            yield part


def _beginning(
    waits: Waits, first: int, possible: Callable[[Subset], bool], known: Mapping[Subset, None], most: int
) -> tuple[Subset, ...] | None:
    """Find the parts that begin with `first`: what is `known`, and what grows from it and leaves out at most so many elements of
    the row; None where that is too many.

    A convex part grows from any of its elements by steps, each of which adds an element beside it and the hull with that.
    """
    found, refused = dict(known), set[Subset]()
    waiting = list(known)
    for part in waiting:
        for other in elements(waits.beside(part) >> first << first):
            grown = waits.hull(part | 1 << other)
            if grown & ((1 << first) - 1) or grown in found or grown in refused:
                continue
            if grown.bit_length() - first - grown.bit_count() > most or not possible(grown):
                refused.add(grown)
                continue
            if len(found) >= MOST_PARTS:
                return None
            found[grown] = None
            waiting.append(grown)
    return tuple(sorted(found, key=lambda part: (part.bit_count(), part)))


def stretches(count: int, parts: Iterable[Subset]) -> Iterator[tuple[int, int]]:
    """Yield the stretches of the row, (first, end), that no part goes beyond: they are cut one by one."""
    ends = list(range(1, count + 1))
    for part in parts:
        first = (part & -part).bit_length() - 1
        ends[first] = max(ends[first], part.bit_length())
    begin = 0
    for place, reach in enumerate(accumulate(ends, max), 1):
        if reach == place:
            yield begin, place
            begin = place


@dataclass(frozen=True)
class _Moves:
    """The down-sets of a graph, none first, all last, and the parts that lead from one to the next: by number of the first, of the
    part among `parts`, and of the second.
    """

    parts: tuple[Subset, ...]
    count: int
    steps: tuple[tuple[int, int, int], ...]


def _moves(waits: Waits, parts: Sequence[Subset]) -> _Moves:
    """Find all moves, or those by way of down-sets with few elements undone behind the last one that is done."""
    for most in (len(waits.before), *_REACHES, 0):
        found = _moves_within(waits, parts, most, MOST_STATES if most else None)
        if found is not None:
            return found
    raise AssertionError("each element after the other is always possible")


def _moves_within(waits: Waits, parts: Sequence[Subset], most: int, limit: int | None) -> _Moves | None:
    count = len(waits.before)
    beginning: list[list[tuple[int, Subset, Subset]]] = [[] for _ in range(count)]
    for number, part in enumerate(parts):
        beginning[(part & -part).bit_length() - 1].append((number, part, waits.need(part)))
    layers: list[dict[Subset, None]] = [{} for _ in range(count + 1)]  # by how many elements are done
    layers[0][0] = None
    numbers: dict[Subset, int] = {}
    steps: list[tuple[Subset, int, Subset]] = []
    for layer in layers:
        for done in layer:
            numbers[done] = len(numbers)
            if limit is not None and len(numbers) > limit:
                return None
            for first in range(count):
                if done >> first & 1 or waits.before[first] & ~done:
                    continue
                for number, part, need in beginning[first]:
                    then = done | part
                    if part & done or need & ~done or then.bit_length() - then.bit_count() > most:
                        continue
                    layers[then.bit_count()].setdefault(then)
                    steps.append((done, number, then))
    return _Moves(tuple(parts), len(numbers), tuple((numbers[a], number, numbers[b]) for a, number, b in steps))


def cheapest(
    waits: Waits,
    bounds: Mapping[Subset, float],
    price: Callable[[Subset], float],
    ahead: Ahead | None = None,
) -> tuple[tuple[Subset, ...], float]:
    """Cut a graph into the parts whose prices have the least sum; returned in the order in which they run, with that sum.

    The cheapest way to a down-set is that to a smaller one and one part more. This is done with bounds in place of prices that are
    not known; of the parts that are best so, one is priced, and it is done again, until all of them are priced. No other cut is
    cheaper then: if it were, it would have been the best by its bounds too. If cuts cost the same, one of fewest parts is taken.

    Args:
        waits: of the graph.
        bounds: for each part that may be one, a number that its price is not below. What is not there may not.
        price: of a part, `inf` where it is none after all; asked for in order of need, and again where others are foreseen.
        ahead: hears of parts whose prices will be asked for if those before them turn out to be `inf`.

    Raises:
        NoCutError: there is no cut of a finite price.
    """
    moves = _moves(waits, tuple(bounds))
    paths, priced = _Paths.of(moves, [bounds[part] for part in moves.parts]), set[int]()
    while True:
        path, total = paths.best()
        heaviest = _heaviest(path, paths.costs, priced)
        if heaviest is None:
            return tuple(moves.parts[number] for number in path), total
        if ahead is not None and not ahead.at_hand(moves.parts[heaviest]):
            ahead.foreseen(_following(moves, paths, priced, price, ahead))
        priced.add(heaviest)
        paths.put(heaviest, price(moves.parts[heaviest]))


class NoCutError(ValueError):
    """There is no cut of a finite price."""


class Ahead(Protocol):
    """Prices that are found side by side before they are asked for."""

    def at_hand(self, part: Subset) -> bool:
        """Tells whether the price of `part` takes no time: it was found, or `foreseen` has heard of it."""
        ...

    def foreseen(self, parts: Sequence[Subset]) -> None:
        """Hears of parts whose prices are likely to be asked for, in order."""
        ...


def _heaviest(path: Sequence[int], costs: Sequence[float], priced: Collection[int]) -> int | None:
    """Find what weighs most on `path` of what is not priced: likeliest to be so expensive that the rest is never asked for."""
    return max((number for number in path if number not in priced), key=costs.__getitem__, default=None)


def _following(
    moves: _Moves, paths: _Paths, priced: Collection[int], price: Callable[[Subset], float], ahead: Ahead
) -> list[Subset]:
    """List the parts that will be asked for, in order, if none of those whose prices are not at hand has a finite one."""
    paths, priced, found = paths.copy(), set(priced), list[Subset]()
    with suppress(NoCutError):  # no cut of a finite price is left
        while len(found) < _AHEAD:
            number = _heaviest(paths.best()[0], paths.costs, priced)
            if number is None:
                break
            priced.add(number)
            part = moves.parts[number]
            if ahead.at_hand(part):
                paths.put(number, price(part))
            else:
                found.append(part)
                paths.put(number, inf)
    return found


@dataclass
class _Paths:
    """The paths of least cost to all down-sets, while costs of parts change.

    Attributes:
        into: for each down-set, the steps that lead to it: the number of the one before, and of the part.
        costs: of parts, by number.
        least: of each down-set, the seconds and the parts of its path; `last`: that path's last step.
    """

    into: Sequence[Sequence[tuple[int, int]]]
    costs: list[float]
    least: list[tuple[float, int]]
    last: list[tuple[int, int]]

    @staticmethod
    def of(moves: _Moves, costs: list[float]) -> _Paths:
        """Find all paths."""
        into: list[list[tuple[int, int]]] = [[] for _ in range(moves.count)]
        for before, number, then in moves.steps:
            into[then].append((before, number))
        found = _Paths(into, costs, [(0.0, 0)] * moves.count, [(0, 0)] * moves.count)
        for state in range(1, moves.count):
            found._find(state)
        return found

    def copy(self) -> _Paths:
        """Copy what changes."""
        return _Paths(self.into, list(self.costs), list(self.least), list(self.last))

    def put(self, number: int, cost: float) -> None:
        """Change the cost of a part. If it rises, no path changes but those with the part."""
        rises = cost >= self.costs[number]
        self.costs[number] = cost
        changed = [False] * len(self.into)
        for state in range(1, len(self.into)):
            before, by = self.last[state]
            if by == number or changed[before] or not rises:
                old = self.least[state]
                self._find(state)
                changed[state] = self.least[state] != old

    def best(self) -> tuple[tuple[int, ...], float]:
        """Return the path of least cost to the last down-set, as numbers of parts; raises NoCutError where all cost `inf`."""
        if self.least[-1][0] == inf:
            raise NoCutError("no cut of the graph has a finite price")
        path: list[int] = []
        at = len(self.into) - 1
        while at:
            at, number = self.last[at]
            path.append(number)
        return tuple(reversed(path)), self.least[-1][0]

    def _find(self, state: int) -> None:
        """Find the least cost of a down-set, of which those of all smaller ones are known; of equal ones, the first."""
        best, by, least, costs = (inf, 0), (0, 0), self.least, self.costs
        for before, number in self.into[state]:
            seconds, parts = least[before]
            found = seconds + costs[number], parts + 1
            if found < best:
                best, by = found, (before, number)
        self.least[state], self.last[state] = best, by
