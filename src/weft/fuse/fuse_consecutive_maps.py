"""Rule 1: two consecutive maps over one dimension become one map."""

from __future__ import annotations

from weft.block.program import Map
from weft.fuse.merge_maps import feeds_only_by_iteration, merge_maps
from weft.fuse.rule import Rewrite, Site, rule
from weft.tensor.passes import Conditioning


@rule(1, Conditioning.exact)
def fuse_consecutive_maps(site: Site) -> Rewrite | None:
    """Fuse the first pair of consecutive maps over one dimension into one map.

        forall n: store(f(load(A[n])), I[n])
        forall n: store(g(load(I[n])), B[n])          becomes      forall n: store(g(f(load(A[n]))), B[n])

    Condition: the second iterates what the first stacks, on every edge between them, and there is no way from the first to
    the second through a third operator. The list that only the second reads is gone; the others stay outputs.
    """
    graph = site.graph
    loops = [node for node in graph.nodes if isinstance(node, Map)]
    for first in loops:
        for second in loops:
            if feeds_only_by_iteration(graph, first, second):
                return merge_maps(graph, first, second)
    return None
