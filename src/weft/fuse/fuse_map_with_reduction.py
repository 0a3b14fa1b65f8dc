"""Rule 3: a map followed by a reduction of what it stacks becomes one loop that reduces as it goes."""

from __future__ import annotations

from weft.block.program import Map
from weft.fuse.merge_maps import feeds_only_by_iteration, merge_maps
from weft.fuse.rule import Rewrite, Site, rule
from weft.tensor.passes import Conditioning


@rule(3, Conditioning.exact)
def fuse_map_with_reduction(site: Site) -> Rewrite | None:
    """Fuse the first map and the reduction of its result into one loop that reduces as it goes.

        forall n: store(f(load(A[n])), I[n])
        for n:    c += load(I[n])                     becomes      for n: c += f(load(A[n]))

    Condition: as for rule 1, where the second is a reduction operator: it carries state and has no operators of its own.
    The order in which the partial results are combined is kept.
    """
    graph = site.graph
    loops = [node for node in graph.nodes if isinstance(node, Map)]
    reductions = [node for node in loops if _is_reduction(node)]
    for first in loops:
        for second in reductions:
            if feeds_only_by_iteration(graph, first, second):
                return merge_maps(graph, first, second)
    return None


def _is_reduction(node: Map) -> bool:
    return node.state is not None and not node.body.nodes
