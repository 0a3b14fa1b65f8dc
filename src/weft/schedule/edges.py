"""Edges: the iteration with less than a block is peeled, and padding holds what a reduction or contraction needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.block.check import Scope, body_types, infer, update_types
from weft.block.copies import continued, fresh_loops
from weft.block.program import BlockNode, BlockProgram, BlockType, Collapse, Dot, Fill, Final, Graph, Map, Rank, sealed
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

    A loop over a band is parted into the blocks before those that lie wholly in it, these, without the masks that the band
    decides, and those after. `given` is what is known of the graph's inputs.

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
    if state is None or any(not isinstance(o, Final) for o in node.outputs):
        raise ScheduleError(f"loop {node.name!r} cannot be peeled: it carries no state, or stacks outputs")
    parts = [replace(node, range=replace(node.range, part=Part.full))]
    if node.range.beside is not None:
        parts = [unmasked(parts[0], known)]
        if begins_of(node.range.bounds(node.axis.space, None).start):
            parts.insert(0, replace(fresh_loops(node, make), range=replace(node.range, part=Part.before)))
    parts.append(replace(fresh_loops(node, make), range=replace(node.range, part=Part.edge)))
    for place in range(len(parts) - 1):
        parts[place], parts[place + 1] = continued(parts[place], parts[place + 1], used)
    return list(parts)


def fill_edges(program: BlockProgram) -> BlockProgram:
    """Put a `Fill` before each operator that combines elements whose padding does not hold the identity."""
    return replace(program, graph=_fill(program.graph, dict(program.inputs), Scope({}, applied=False)))


def _fill(graph: Graph, inputs: dict[str, BlockType], scope: Scope) -> Graph:
    nodes: list[BlockNode] = []
    make = fresh(values_of(graph))
    types = infer(graph, inputs, scope)
    filled: dict[tuple[str, float], str] = {}

    def padded(name: str, over_may_be_partial: bool, identity: float) -> str:
        if not over_may_be_partial or types[name].pad == identity:
            return name
        if (name, identity) not in filled:
            filled[name, identity] = make(f"{name}_filled")
            nodes.append(Fill(filled[name, identity], name, identity))
        return filled[name, identity]

    for node in graph.nodes:
        match node:
            case Dot():
                partial = scope.may_be_partial(node.over)
                nodes.append(
                    replace(node, left=padded(node.left, partial, 0.0), right=padded(node.right, partial, 0.0))
                )
            case Collapse():
                arg = padded(node.arg, scope.may_be_partial(node.over), node.monoid.identity)
                nodes.append(replace(node, arg=arg))
            case Rank():
                partial = node.over is not None and node.over != node.rank and scope.may_be_partial(node.over)
                nodes.append(replace(node, numbers=padded(node.numbers, partial, float("inf"))))
            case Map():
                nodes.append(_filled(node, body_types(node, types), scope.inside(node)))
            case _:
                nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _filled(node: Map, inputs: dict[str, BlockType], scope: Scope) -> Map:
    """Return `node` with fills in its body and in what updates its state."""
    body, state = _fill(node.body, inputs, scope), node.state
    if state is not None:
        fed = update_types(state, infer(body, inputs, scope))
        state = replace(state, update=_fill(state.update, fed, scope))
    return sealed(replace(node, body=body, state=state))
