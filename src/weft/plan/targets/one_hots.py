"""Blocks for one-hot reductions on a CPU: each block of rows goes over all that is reduced."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from weft.block.check import body_types, infer
from weft.block.one_hot import one_hots
from weft.block.program import BlockProgram, BlockType, Collapse, Graph, Map
from weft.block.scope import Scope
from weft.block.walk import maps
from weft.tensor.axes import Axis

_FEWEST_ROWS, _MOST_ROWS = 64, 1 << 16
_FEWEST_NUMBERS = 1 << 14
"""Where a row is one number, it takes longer to start other threads than to go over so many."""
_STATE = 1 << 18
"""Elements of a state with more axes than rows."""
_REDUCED = 1 << 14
"""Elements that are gone over before the block's rows, which are filled and merged for them."""


def one_hot_tiles(
    program: BlockProgram, tiles: Mapping[Axis, int], sizes: Mapping[str, int], threads: int
) -> dict[Axis, int]:
    """Choose the elements per iteration of loops over rows, what is reduced, and what lies beside rows.

    Rows are as many as give each thread a block, less where the states of rows would not stay in the second-level cache. Beside
    them blocks are no longer than what they go over: `tiles` has them for long rows.
    """
    scope, given = Scope({}, applied=False), dict(program.inputs)
    pairs = dict(_pairs(program.graph, given, scope))
    states = [c.dims for m in maps(program.graph) if m.state is not None for c in m.state.components]
    together = [
        {*dims} for dims in (*_items(program.graph, given, scope), *states) if not {*dims}.isdisjoint(pairs.values())
    ]
    beside = set[Axis]().union(*together).difference(pairs, pairs.values())
    found = dict.fromkeys(pairs, _REDUCED)
    for row in pairs.values():
        alone = all(beside.isdisjoint(dims) for dims in together if row in dims)
        each = _power(math.ceil(row.space.size(sizes) / threads))
        found[row] = min(_MOST_ROWS, max(_FEWEST_NUMBERS if alone else _FEWEST_ROWS, each))
    found |= {a: min(tiles[a], _power(a.space.size(sizes))) for a in beside}
    for dims in states:
        for axis in (a for a in dims if a in found and len(dims) > 1):
            while math.prod(found.get(a, 1) for a in dims) > _STATE and found[axis] > _FEWEST_ROWS:
                found[axis] //= 2
    return found


def _power(size: int) -> int:
    """Return the least power of two that is no less than `size`."""
    return 1 << max(0, size - 1).bit_length()


def _items(graph: Graph, inputs: dict[str, BlockType], scope: Scope) -> Iterator[tuple[Axis, ...]]:
    """Yield the axes of all items."""
    types = infer(graph, inputs, scope)
    yield from (kind.dims for kind in types.values() if not kind.buffered)
    for node in graph.nodes:
        if isinstance(node, Map):
            yield from _items(node.body, body_types(node, types), scope.inside(node))


def _pairs(graph: Graph, inputs: dict[str, BlockType], scope: Scope) -> Iterator[tuple[Axis, Axis]]:
    """Yield (what is reduced, rows) of each one-hot reduction."""
    types = infer(graph, inputs, scope)
    alone = one_hots(graph, types)
    yield from ((n.over, alone[n.name]) for n in graph.nodes if isinstance(n, Collapse) and n.name in alone)
    for node in graph.nodes:
        if isinstance(node, Map):
            yield from _pairs(node.body, body_types(node, types), scope.inside(node))
