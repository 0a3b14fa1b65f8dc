"""Edges: the iteration with less than a block is peeled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.block.copies import continued, fresh_loops
from weft.block.program import BlockNode, Final, Graph, Map
from weft.block.ranges import Part
from weft.block.rename import fresh, values_of
from weft.block.size import begins_of
from weft.errors import ScheduleError
from weft.masks import Known, known_values, unmasked, values_inside


def peel(graph: Graph, loops: frozenset[str], make: Callable[[str], str], given: Known | None = None) -> Graph:
    """Part each loop of `loops` into one over whole blocks and one over the rest.

        for k in range(K): s = update(s, ...)
    becomes
        for k in range(K, full): s = update(s, ...)         every block whole: no bounds to check
        for k in range(K, edge): s = update(s, ...)         at most one iteration; goes on from the state of the first

    One of single elements, not in a band, has nothing but whole blocks, and stays as it is. A loop over a band is parted into the
    blocks before those that lie wholly in it, these, without the masks that the band decides, and those after. `given` is what
    is known of the graph's inputs.

    Raises:
        ScheduleError: for a loop without state, or one that stacks outputs.
    """
    nodes: list[BlockNode] = []
    used = fresh(values_of(graph))
    known = known_values(graph, given or {})
    for node in graph.nodes:
        if not isinstance(node, Map):
            nodes.append(node)
            continue
        node = replace(node, body=peel(node.body, loops, make, values_inside(node, known)))  # noqa: PLW2901
        nodes += _peeled(node, known, make, used) if node.name in loops else [node]
    return replace(graph, nodes=tuple(nodes))


def _peeled(node: Map, known: Known, make: Callable[[str], str], used: Callable[[str], str]) -> list[BlockNode]:
    state = node.state
    if state is None or state.shown or any(not isinstance(o, Final) for o in node.outputs):
        raise ScheduleError(f"loop {node.name!r} cannot be peeled: it carries no state, or stacks outputs")
    if node.tile == 1 and node.range.beside is None:
        return [node]
    parts = [replace(node, range=replace(node.range, part=Part.full))]
    if node.range.beside is not None:
        parts = [unmasked(parts[0], known)]
        if begins_of(node.range.bounds(node.axis.space, None).start):
            parts.insert(0, replace(fresh_loops(node, make), range=replace(node.range, part=Part.before)))
    parts.append(replace(fresh_loops(node, make), range=replace(node.range, part=Part.edge)))
    for place in range(len(parts) - 1):
        parts[place], parts[place + 1] = continued(parts[place], parts[place + 1], used)
    return list(parts)
