"""Which iterations of a loop are alike: they work on blocks of the same lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.block.program import Graph, Map
from weft.block.size import SingleElements, value
from weft.block.walk import maps
from weft.tensor.axes import Axis

_MOST_APART = 128
"""With more groups of iterations, neighbours count as one. A causal mask in rows of one element each has thousands, and a walk of
all takes half a second."""


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

    Unless `exact`, those that are told apart are about `_MOST_APART` groups at most, each counted as its middle one: what grows by
    as much from each to the next is exact then, and what is counted in whole blocks nearly so.
    """
    space, tile = node.axis.space, node.tile
    found: list[tuple[int, CurrentBlock]] = []
    for run in node.range.runs(space, tile):
        first, last, stop = (value(each, sizes, scope) for each in (run.first, run.last, run.stop))
        block = max(1, stop - first) if tile is None else tile
        stop = min(stop, first - (first - last) // block * block)
        full, rest = divmod(max(0, stop - first), block)
        alike = [((), full, first)] if full else []
        if node.axis in numbered:
            begins = [first + i * block for i in range(full)]
            apart = _alike_segments(node.axis, numbered[node.axis], begins, scope, sizes)
            alike = apart if exact else _in_few(apart)
        found += [(count, CurrentBlock(base, block)) for _, count, base in alike]
        if rest:
            found.append((1, CurrentBlock(first + full * block, rest)))
    return found or [(0, CurrentBlock(0, 0))]


_Lengths: TypeAlias = tuple[int, ...]


def _alike_segments(
    index: Axis, cut: Sequence[Map] | None, begins: Sequence[int], scope: Steps, sizes: Mapping[str, int]
) -> list[tuple[_Lengths, int, int]]:
    """Group the iterations over `index` that begin at `begins`: those whose segments of the loops `cut` are equally long.

    Returns (how long these are, how many, where the first of them begins) for each group, in the order of their first ones; `cut`
    is None where each is a group of its own.
    """
    if cut is None:
        return [((), 1, begin) for begin in begins]
    here = {**scope, index: SingleElements(np.array(begins, dtype=np.int64))}
    limits = [node.range.bounds(node.axis.space, node.tile) for node in cut]
    lengths = [value(each.stop, sizes, here) - value(each.start, sizes, here) for each in limits]
    columns = [np.broadcast_to(each, len(begins)).tolist() for each in lengths]
    groups: dict[_Lengths, tuple[int, int]] = {}
    for begin, *alike in zip(begins, *columns, strict=True):
        count, first = groups.get(tuple(alike), (0, begin))
        groups[tuple(alike)] = count + 1, first
    return [(alike, *group) for alike, group in groups.items()]


def _in_few(groups: Sequence[tuple[_Lengths, int, int]]) -> Sequence[tuple[_Lengths, int, int]]:
    """Join neighbours among `groups`, where these are many: as many iterations as all of them, like the middle one.

    The first stays alone, since states begin there. An odd number is joined, so that there is a middle.
    """
    if len(groups) <= _MOST_APART:
        return groups
    rest = sorted(groups[1:])
    each = -(-len(rest) // _MOST_APART) | 1
    found = list(groups[:1])
    while rest:
        # Of the last ones, fewer than the others, an odd number and perhaps one more.
        now = rest[: each if len(rest) >= each else len(rest) - 1 | 1]
        rest = rest[len(now) :]
        alike, _, begin = now[len(now) // 2]
        found.append((alike, sum(count for _, count, _ in now), begin))
    return found
