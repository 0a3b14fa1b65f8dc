"""Rule 6: a map is extended to its entire graph, so that a map outside meets one over the same dimension inside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.block.program import BlockNode, Broadcast, Extent, Feed, Graph, Literal, Map, Pointwise, sealed
from weft.block.ranges import All
from weft.block.rename import fresh, rename_body, rename_node, values_of
from weft.block.walk import in_order, operands, results
from weft.fuse.merge_maps import are_siblings, feeds_only_by_iteration
from weft.fuse.rule import Rewrite, Site, rule
from weft.tensor.passes import Conditioning


@rule(6, Conditioning.exact)
def extend_map(site: Site) -> Rewrite | None:
    """Extend the graph's last map to all of the graph, if that exposes a fusion.

        (a)  forall y: store(f(load(A[y])), I[y])              forall x:
             forall x:                                           forall y: store(f(load(A[y])), I[y])
               forall y: store(g(load(I[y])), B[x,y])     ->     forall y: store(g(load(I[y])), B[x,y])

        (b)  forall y: store(f(load(A[y])), I[y])              forall x:
             c = h(I)                                            forall y: store(f(load(A[y])), I[y])
             forall x:                                    ->     c = h(I)
               forall y: store(g(load(A[y])), J[y])              forall y: store(g(load(A[y])), J[y])
               store(k(c,J), B[x])                               store(k(c,J), B[x])

        (c)  as (b), where A is not an input of the graph but made in it

             forall y: store(f(load(A[y])), I[y])              forall x:
             forall x:                                           forall z:
        (d)    forall z:                                  ->       forall y: store(f(load(A[y])), I[y])
                 forall y: store(g(load(I[y])), B[x,z,y])          forall y: store(g(load(I[y])), B[x,z,y])

    Condition: the graph's results are the x-map's alone, or made of these alone by operators on items, as a rounding is, which
    stay behind it; the x-map sees whatever the others make as a whole, not item by item; and once all is in its inner graph, one
    of the maps that were outside can be fused with one that was inside: by rule 1 in (a), by rule 2 in (b) and (c). In (d), which
    the paper does not have, that takes extensions of maps inside one another; they are one step, and what goes into all but the
    innermost of them is elementwise. What was done once is then done for every x.
    """
    inner = _extended(site.graph)
    return None if inner is None else Rewrite(inner)


def _extended(graph: Graph) -> Graph | None:
    """Extend the last map, or that and the last map within it, and so on, up to one that then meets another."""
    found = extensible(graph)
    if found is not None:
        node, before, behind = found
        return replace(graph, nodes=(extended(before, node)[0], *behind))
    for node, before, behind in _last_maps(graph):
        if all(_is_elementwise(other) for other in before.nodes if other is not node):
            outer = extended(before, node)[0]
            inner = _extended(outer.body)
            if inner is not None:
                return replace(graph, nodes=(sealed(replace(outer, body=inner)), *behind))
    return None


def _is_elementwise(node: BlockNode) -> bool:
    """Tell whether a node computes each element of others by themselves, in any number of loops."""
    if isinstance(node, Map):
        return node.range == All() and node.state is None and all(map(_is_elementwise, node.body.nodes))
    return isinstance(node, Pointwise | Literal | Extent)


def extensible(graph: Graph) -> tuple[Map, Graph, tuple[BlockNode, ...]] | None:
    """Find the map of `graph` that can be extended and then meets another: the condition of rules 6 and 7.

    With it come `graph` without the operators on items that only follow the map, and these.
    """
    for node, before, behind in _last_maps(graph):
        inside = {n.name for n in node.body.nodes if isinstance(n, Map)}
        if exposes(extended(before, node)[0].body, inside):
            return node, before, behind
    return None


def _last_maps(graph: Graph) -> Iterator[tuple[Map, Graph, tuple[BlockNode, ...]]]:
    """Yield what `extensible` finds of each map that could be extended, whatever it then meets."""
    for node in graph.nodes:
        if isinstance(node, Map) and node.range == All() and _sees_wholes(graph, node):
            behind = _behind(graph, node)
            if len(graph.nodes) > 1 + len(behind) and _is_last(graph, node, behind):
                yield node, replace(graph, nodes=tuple(n for n in graph.nodes if n not in behind)), tuple(behind)


def _behind(graph: Graph, node: Map) -> list[BlockNode]:
    """List the operators on items that read nothing but what `node` makes, and one another."""
    made, found = set(results(node)), list[BlockNode]()
    for other in graph.nodes:
        if isinstance(other, Pointwise) and other.args and made.issuperset(other.args):
            made.add(other.name)
            found.append(other)
    return found


def _is_last(graph: Graph, node: Map, behind: list[BlockNode]) -> bool:
    """Tell whether `graph` gives, and its other operators read, nothing of `node` but through `behind`."""
    own = {name for n in (node, *behind) for name in results(n)}
    unread = all(own.isdisjoint(operands(n)) for n in graph.nodes if n not in behind)
    return unread and set(graph.outputs) <= own


def _sees_wholes(graph: Graph, node: Map) -> bool:
    made = {name for n in graph.nodes for name in results(n)}
    return all(f.access == Broadcast() for f in node.inputs if f.outer in made)


def extended(graph: Graph, node: Map) -> tuple[Map, dict[str, str]]:
    """Put every other operator of `graph` in front of `node`'s body; returned with the names there of what they make and read."""
    others = [n for n in graph.nodes if n is not node]
    made = dict.fromkeys(name for n in others for name in results(n))
    make = fresh(values_of(node.body))
    names: dict[str, str] = {}  # from the graph to the body, of what is broadcast or moves in
    same: dict[str, str] = {}  # from one name of the body to another of the same value
    feeds: list[Feed] = []
    for feed in node.inputs:
        if feed.access == Broadcast() and feed.outer in names:
            same[feed.inner] = names[feed.outer]
            continue
        if feed.access == Broadcast():
            names[feed.outer] = feed.inner
        if feed.outer not in made:
            feeds.append(feed)
    for name in dict.fromkeys((*made, *_read(others))):
        if name not in names:
            names[name] = make(name)
            if name not in made:
                feeds.append(Feed(name, names[name], Broadcast()))
    moved = tuple(rename_node(n, names) for n in others)
    renamed = rename_body(node, same)
    nodes = in_order((*moved, *renamed.body.nodes), (f.inner for f in feeds))
    return sealed(replace(renamed, inputs=tuple(feeds), body=replace(renamed.body, nodes=nodes))), names


def _read(nodes: list[BlockNode]) -> Iterator[str]:
    return (name for n in nodes for name in operands(n))


def exposes(body: Graph, inside: set[str]) -> bool:
    """Tell whether a map that came from outside can be fused with one that was `inside`."""
    loops = [n for n in body.nodes if isinstance(n, Map)]
    pairs = ((a, b) for a in loops if a.name not in inside for b in loops if b.name in inside)
    return any(feeds_only_by_iteration(body, a, b) or are_siblings(body, a, b) for a, b in pairs)
