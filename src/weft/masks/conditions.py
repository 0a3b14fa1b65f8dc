"""The conditions under which an iteration of a loop changes its state, as a union of conjunctions."""

from __future__ import annotations

from itertools import chain

from weft.block.linear import Linear
from weft.block.program import Map
from weft.block.scope import Scope
from weft.block.spans import OWN, Span
from weft.masks.known import Facts, KnownValues
from weft.masks.values import unchanged

_FARTHEST = 8192
"""Elements off the diagonal that an end may lie: the check of what was left out runs at sizes that reach it."""
_MOST_CONDITIONS = 6
"""Comparisons of one loop that are looked at together."""
_MOST_SPANS = 3
"""Spans of one loop: with more, what says where its blocks lie would cost more than some blocks."""


class Conditions:
    """What is known of the iterations of one loop, under assumptions on comparisons that its index decides."""

    def __init__(self, node: Map, known: KnownValues, scope: Scope) -> None:
        self.node, self.known, self.scope = node, known, scope
        self.found: dict[frozenset[Linear], tuple[bool, Linear | None]] = {}

    def spans(self) -> list[Span]:
        """Find the spans outside of which iterations change nothing; none where nothing is known to be idle.

        Each comparison that can be solved for the loop's index is taken for true, then for false, until none is left that is
        asked for. What is left of conjunctions under which iterations are not idle is made as short as it can be: the spans
        may overlap.
        """
        leaves = self.leaves(())
        if leaves is None or not leaves[1]:
            return []
        shortest = [self.shortened(leaf) for leaf in leaves[0]]
        kept = list[tuple[Linear, ...]]()
        for holds in dict.fromkeys(shortest):
            if not any(_implied(holds, other) for other in kept):
                kept = [*(other for other in kept if not _implied(other, holds)), holds]
        if len(kept) > _MOST_SPANS or () in kept:
            return []
        index = self.node.axis
        spans = [Span(tuple(h.along(index, OWN) for h in holds)) for holds in kept]
        # Those that begin with the loop come first: nothing lies before them.
        return sorted(spans, key=lambda span: len(span.ends[0]))

    def leaves(self, holds: tuple[Linear, ...]) -> tuple[list[tuple[Linear, ...]], bool] | None:
        """List the conjunctions that go on from `holds` under which iterations are not idle, and tell whether others are.

        None where there are too many comparisons.
        """
        idle, asked = self.at(holds)
        if idle:
            return [], True
        if asked is None:
            return [holds], False
        if len(holds) == _MOST_CONDITIONS:
            return None
        parts = [self.leaves((*holds, each)) for each in (asked, asked.negated())]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return [*chain.from_iterable(part[0] for part in known)], any(part[1] for part in known)

    def at(self, holds: tuple[Linear, ...]) -> tuple[bool, Linear | None]:
        """Tell whether iterations are idle wherever `holds` do, and which comparison would tell more."""
        key = frozenset(holds)
        if key not in self.found:
            facts = Facts(holds)
            idle = unchanged(self.node, self.known, facts)
            self.found[key] = idle, next((each for each in facts.asked if self.solvable(each)), None)
        return self.found[key]

    def solvable(self, asked: Linear) -> bool:
        """Tell whether a comparison bounds the loop's index by numbers and by indices of maps around."""
        end = asked.end(self.node.axis)
        if end is None or asked.reach > _FARTHEST:
            return False
        return end[1].axes <= self.scope.maps.keys()

    def shortened(self, holds: tuple[Linear, ...]) -> tuple[Linear, ...]:
        """Leave out what need not hold for iterations not to be idle."""
        for each in holds:
            fewer = tuple(h for h in holds if h != each)
            found = self.leaves(fewer)
            if found is not None and not found[1]:
                holds = fewer
        return holds


def _implied(holds: tuple[Linear, ...], others: tuple[Linear, ...]) -> bool:
    """Tell whether wherever `holds` do, so do all of the others."""
    return all(Facts(holds).decide(each) for each in others)
