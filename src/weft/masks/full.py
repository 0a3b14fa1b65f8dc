"""Full blocks: what an iteration of a guarded loop does where its mask leaves nothing out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.block.guard import GuardedBlocks
from weft.block.program import BlockProgram, Final, Graph, Map
from weft.block.walk import needed, operands
from weft.masks.known import Facts, KnownNumber, KnownValues
from weft.masks.unmasked import known_values, simplified
from weft.masks.values import values_inside


def full_blocks(node: Map, known: KnownValues) -> Map | None:
    """Return what `node`, a guarded loop, does in blocks in which its mask leaves nothing out: a loop over these alone.

        where(load(Mask[i,j]), x, -inf)   becomes   x          where load(Mask[i,j]) is True everywhere
        x + load(Bias[i,j])               becomes   x          where load(Bias[i,j]) is 0 everywhere

    Of a condition it is the other value than the one that leaves the state as it is, of numbers it is 0.

    Args:
        node: a loop in a graph of whose values `known` is known.
        known: as `known_values` gives it.

    Returns:
        None where the loop has no guard, or reads its mask in such blocks all the same.
    """
    guard, state = node.guard, node.state
    if guard is None or guard.blocks is not GuardedBlocks.busy or state is None or state.shown:
        return None
    if not all(isinstance(o, Final) for o in node.outputs):
        return None
    full = not guard.idle if isinstance(guard.idle, bool) else 0.0
    given = {**values_inside(node, known), guard.value: KnownNumber(full)}
    body = simplified(node.body, given, Facts())
    if any(guard.value in operands(each) for each in needed(body.nodes, state.feeds)):
        return None
    return replace(node, body=body, guard=replace(guard, full=full, blocks=GuardedBlocks.full))


def with_full_blocks(program: BlockProgram) -> frozenset[str]:
    """Name the guarded loops of `program` that need no mask in full blocks."""
    return frozenset(_named(program.graph, {}))


def _named(graph: Graph, given: KnownValues) -> Iterator[str]:
    known = known_values(graph, given)
    for node in graph.nodes:
        if isinstance(node, Map):
            if full_blocks(node, known) is not None:
                yield node.name
            yield from _named(node.body, values_inside(node, known))
