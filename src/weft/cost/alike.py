"""Which iterations of a loop are alike: they work on blocks of the same lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from weft.block.program import Graph, Map
from weft.block.size import SingleElements, value
from weft.block.walk import maps
from weft.tensor.axes import Axis

_MOST_APART = 128
"""With more groups of iterations, neighbours count as one. A causal mask in rows of one element each has thousands: what is counted
differs by less than 0.1 percent, and a walk takes 20 ms in place of 400."""


@dataclass(frozen=True, slots=True)
class CurrentBlock:
    """Iterations that are alike: how many elements are valid, and the first (where it matters)."""

    base: int
    valid: int


Steps: TypeAlias = Mapping[Axis, CurrentBlock]


Numbered: TypeAlias = Mapping[Axis, tuple[Map, ...] | None]
"""Axes whose iterations differ by where they begin: with the loops over segments that they number, or None where more is
measured from there."""


def numbered_axes(graph: Graph) -> Numbered:
    """Find the axes whose iterations differ by where they begin: other ranges are measured from there.

    All others fall into classes. Of segments, those of equal length are alike; the rest are walked one by one.
    """
    found: dict[Axis, tuple[Map, ...] | None] = {}
    nodes = list(maps(graph))
    for node in reversed(nodes):  # inner maps speak of outer ones
        around = node.range
        exact = node.axis in found
        for outer in around.beside if around.through is None or not exact else (around.through,):
            found[outer] = None
        if around.segment is not None:
            index, before = around.segment[0], found.get(around.segment[0], ())
            found[index] = None if exact or before is None else (*before, node)
    return found


def classes(
    node: Map, scope: Steps, sizes: Mapping[str, int], numbered: Numbered, *, exact: bool
) -> list[tuple[int, CurrentBlock]]:
    """Group the iterations of `node` as (how many, alike in what); one class of none if there are none.

    Of those that are told apart there are at most `_MOST_APART` groups, each as its middle one, unless `exact`.
    """
    space, tile = node.axis.space, node.tile
    found: list[tuple[int, CurrentBlock]] = []
    for run in node.range.runs(space, tile):
        first, last, stop = (value(each, sizes, scope) for each in (run.first, run.last, run.stop))
        block = max(1, stop - first) if tile is None else tile
        stop = min(stop, first - (first - last) // block * block)
        full, rest = divmod(max(0, stop - first), block)
        alike = [(full, first)] if full else []
        if node.axis in numbered:
            begins = [first + i * block for i in range(full)]
            apart = _alike_segments(node.axis, numbered[node.axis], begins, scope, sizes)
            alike = apart if exact else _in_few(apart)
        found += [(count, CurrentBlock(base, block)) for count, base in alike]
        if rest:
            found.append((1, CurrentBlock(first + full * block, rest)))
    return found or [(0, CurrentBlock(0, 0))]


def _alike_segments(
    index: Axis, cut: Sequence[Map] | None, begins: Sequence[int], scope: Steps, sizes: Mapping[str, int]
) -> list[tuple[int, int]]:
    """Group the iterations over `index` that begin at `begins`: those whose segments of the loops `cut` are equally long.

    Returns (how many, where the first of them begins) for each group, shorter ones first; `cut` is None where each is one of its
    own.
    """
    if cut is None:
        return [(1, begin) for begin in begins]
    here = {**scope, index: SingleElements(np.array(begins, dtype=np.int64))}
    limits = [node.range.bounds(node.axis.space, node.tile) for node in cut]
    lengths = [value(each.stop, sizes, here) - value(each.start, sizes, here) for each in limits]
    columns = [np.broadcast_to(each, len(begins)).tolist() for each in lengths]
    groups: dict[tuple[int, ...], tuple[int, int]] = {}
    for begin, *alike in zip(begins, *columns, strict=True):
        count, first = groups.get(tuple(alike), (0, begin))
        groups[tuple(alike)] = count + 1, first
    return [groups[lengths] for lengths in sorted(groups)]


def _in_few(groups: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join neighbours among `groups`, where these are many: as many iterations as all of them, like the middle one."""
    each = -(-len(groups) // _MOST_APART)
    return (
        [_joined(groups[first : first + each]) for first in range(0, len(groups), each)] if each > 1 else list(groups)
    )


def _joined(groups: Sequence[tuple[int, int]]) -> tuple[int, int]:
    count = sum(each for each, _ in groups)
    passed = accumulate(each for each, _ in groups)
    return count, next(begin for (_, begin), so_far in zip(groups, passed, strict=True) if 2 * so_far >= count)
