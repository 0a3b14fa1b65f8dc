"""Full blocks of guarded loops, in which a mask leaves nothing out, have a loop of their own, which reads no mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.block.copies import continued, fresh_loops
from weft.block.guard import GuardedBlocks
from weft.block.program import BlockNode, Graph, Map
from weft.block.rename import fresh, values_of
from weft.block.walk import maps, pruned
from weft.errors import ScheduleError
from weft.masks import Known, full_blocks, known_values, values_inside


def part_full(graph: Graph, loops: frozenset[str], make: Callable[[str], str], given: Known | None = None) -> Graph:
    """Part each guarded loop of `loops` into one over full blocks and one over the others that have something to do.

        for k in range(K): skip where load(Mask[n,k]) is False everywhere
                           s = update(s, where(load(Mask[n,k]), x, -inf))
    becomes
        for k in range(K): skip where load(Mask[n,k]) is not True everywhere
                           s = update(s, x)
        for k in range(K): skip where load(Mask[n,k]) is False everywhere, or True everywhere
                           s = update(s, where(load(Mask[n,k]), x, -inf))          goes on from the state of the first

    What the loop computes depends on no order. Of one that is peeled it is the part over whole blocks; a part of which the range
    says that the mask leaves nothing out has no guard any more, and stays as it is. `given` is what is known of the graph's inputs.

    Raises:
        ScheduleError: for a loop that reads its mask in full blocks all the same.
    """
    if all(node.name not in loops for node in maps(graph)):
        return graph
    nodes, used, known = list[BlockNode](), fresh(values_of(graph)), known_values(graph, given or {})
    for node in graph.nodes:
        if not isinstance(node, Map):
            nodes.append(node)
            continue
        node = replace(node, body=part_full(node.body, loops, make, values_inside(node, known)))  # noqa: PLW2901
        if node.name not in loops or node.guard is None:
            nodes.append(node)
            continue
        full = full_blocks(node, known)
        if full is None or full.guard is None:
            raise ScheduleError(f"loop {node.name!r} has no full blocks to part: it reads its mask in all of them")
        partial = replace(fresh_loops(node, make), guard=replace(full.guard, blocks=GuardedBlocks.partial))
        nodes += continued(pruned(full), partial, used)
    return replace(graph, nodes=tuple(nodes))
