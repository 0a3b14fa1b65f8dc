"""Work beside a parallel loop moves into it, so that parallel loops nest perfectly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.block.program import (
    BlockNode,
    BlockProgram,
    Broadcast,
    Feed,
    Graph,
    Map,
    Pointwise,
    exports,
    sealed,
)
from weft.block.rename import fresh, rename_body, rename_node, values_of
from weft.block.walk import operands, results
from weft.tensor.passes import block_pass


@block_pass(kinds=("gpu",))
def inside_the_only_loop(program: BlockProgram) -> BlockProgram:
    """Move work beside the only inner parallel loop into it, so that parallel loops nest perfectly.

        forall m:                                   forall m:
          t = f(load(A[m]))                           forall k:
          forall k:                        ==>          t = f(load(A[m]))
            store(g(t, load(B[k])), O[m,k])             store(g(t, load(B[k])), O[m,k])

    Both loops can be on a grid then, and each program of a GPU's grid computes t for itself either way; otherwise a program has all
    of k to itself.

    Condition: both are parallel, the outer one holds no other loop and hands out only what the inner one makes, and all else that
    it holds is elementwise, so that it depends on no other block. Exact: the same operations on the same numbers.
    """
    return replace(program, graph=_in(program.graph))


def _in(graph: Graph) -> Graph:
    return replace(graph, nodes=tuple(_filled(n) if isinstance(n, Map) else n for n in graph.nodes))


def _filled(outer: Map) -> Map:
    """Return `outer` and the parallel loops that are all that it holds, with nothing beside them where that can be."""
    if outer.state is not None:
        return outer
    outer = nothing_beside(outer)
    return sealed(replace(outer, body=_in(outer.body)))


def nothing_beside(outer: Map) -> Map:
    """Return `outer`, a parallel loop, with nothing beside the one loop in it, if that can be; that one stays as it is."""
    loops = [n for n in outer.body.nodes if isinstance(n, Map)]
    beside = [n for n in outer.body.nodes if not isinstance(n, Map)]
    if len(loops) == 1 and beside and _may_go_inside(outer, loops[0], beside):
        return sealed(replace(outer, body=replace(outer.body, nodes=(_with(loops[0], beside),))))
    return outer


def _may_go_inside(outer: Map, inner: Map, beside: Sequence[BlockNode]) -> bool:
    made = set(results(inner))
    return (
        inner.state is None
        and all(map(is_elementwise, beside))
        and made.isdisjoint(name for n in beside for name in operands(n))
        and made.issuperset(exports(outer))
    )


def is_elementwise(node: BlockNode) -> bool:
    """Tell whether an operator depends on no other block: it makes each element of those of the same places, or of none."""
    return isinstance(node, Pointwise) or not (isinstance(node, Map) or operands(node))


def _with(inner: Map, beside: Sequence[BlockNode]) -> Map:
    """Return `inner`, computing `beside` itself."""
    make = fresh(values_of(inner.body))
    made = {name for n in beside for name in results(n)}
    # What the body calls what it was given so far.
    seen = {f.outer: f.inner for f in inner.inputs if f.outer in made}
    inner = rename_body(inner, {f.inner: seen[f.outer] for f in inner.inputs if f.outer in made})
    own = {name: seen.get(name) or make(name) for name in made}
    feeds = [f for f in inner.inputs if f.outer not in made]
    for name in dict.fromkeys(arg for n in beside for arg in operands(n) if arg not in made):
        own[name] = make(name)
        feeds.append(Feed(name, own[name], Broadcast()))
    nodes = (*(rename_node(n, own) for n in beside), *inner.body.nodes)
    return sealed(replace(inner, inputs=tuple(feeds), body=replace(inner.body, nodes=nodes)))
