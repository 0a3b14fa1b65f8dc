"""Edges: the iteration with less than a block is peeled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.block.copies import continued, fresh_loops
from weft.block.program import BlockNode, Final, Graph, Map
from weft.block.ranges import Part, Spans
from weft.block.rename import fresh, values_of
from weft.block.walk import maps
from weft.errors import ScheduleError
from weft.masks import Known, known_values, unmasked, values_inside


def peel(graph: Graph, loops: frozenset[str], make: Callable[[str], str], given: Known | None = None) -> Graph:
    """Part each loop of `loops` into one over whole blocks and one over the rest.

        for k in range(K): s = update(s, ...)
    becomes
        for k in range(K, full): s = update(s, ...)         every block whole: no bounds to check
        for k in range(K, edge): s = update(s, ...)         at most one iteration; goes on from the state of the first

    One of single elements, not over spans, has nothing but whole blocks, and stays as it is. A loop over spans is parted into the
    blocks that lie wholly in one, without the masks that this decides, and those that lie in part of one, before and after
    these: what the loop computes depends on no order. `given` is what is known of the graph's inputs.

    Raises:
        ScheduleError: for a loop without state, or one that stacks outputs.
    """
    if all(node.name not in loops for node in maps(graph)):
        return graph
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
    if node.tile == 1 and not isinstance(node.range, Spans):
        return [node]
    if isinstance(node.range, Spans):
        node, first = _without_masks(node, node.range, known)
    else:
        first = node
    full = replace(first, range=replace(node.range, part=Part.full))
    edge = replace(fresh_loops(node, make), range=replace(node.range, part=Part.edge))
    return list(continued(full, edge, used))


def _without_masks(node: Map, spans: Spans, known: Known) -> tuple[Map, Map]:
    """Return `node`, and what it does in blocks that lie wholly in a span; spans in which it does something else are marked."""
    bodies = [unmasked(node, span, known) for span in spans.spans]
    marked = tuple(replace(s, decided=body == bodies[0]) for s, body in zip(spans.spans, bodies, strict=True))
    return replace(node, range=Spans(marked, spans.part)), bodies[0]
