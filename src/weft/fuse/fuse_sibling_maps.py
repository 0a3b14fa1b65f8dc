"""Rule 2: two maps over one dimension that read the same value become one map."""

from __future__ import annotations

from weft.block.program import Map
from weft.fuse.merge_maps import are_siblings, merge_maps
from weft.fuse.rule import Rewrite, Site, rule
from weft.tensor.passes import Conditioning


@rule(2, Conditioning.exact)
def fuse_sibling_maps(site: Site) -> Rewrite | None:
    """Fuse the first pair of maps over one dimension that read the same value.

        forall n: store(f(load(A[n])), B[n])
        forall n: store(g(load(A[n])), C[n])     becomes     forall n: t = load(A[n]); store(f(t), B[n]); store(g(t), C[n])

    Condition: both read one value through one access (so that the two edges become one), and neither can be reached from the
    other: an edge between them is rule 1's, and a longer way would become a loop. All outputs stay.
    """
    graph = site.graph
    loops = [node for node in graph.nodes if isinstance(node, Map)]
    for first in loops:
        for second in loops:
            if are_siblings(graph, first, second):
                return merge_maps(graph, first, second)
    return None
