"""Rule 9: two consecutive elementwise operators become one."""

from __future__ import annotations

from dataclasses import replace

from weft.block.program import BlockNode, Extent, Graph, Literal, Pointwise
from weft.block.walk import consumers
from weft.fuse.rule import Rewrite, Site, rule
from weft.tensor.passes import Conditioning
from weft.tensor.scalar import Arg, Scalar, substitute


@rule(9, Conditioning.exact)
def fuse_consecutive_elementwise(site: Site) -> Rewrite | None:
    """Fuse the first pair of consecutive elementwise operators into one.

        t1 = f(t0)
        t2 = g(t1)            becomes      t2 = g(f(t0))

    Condition: both are functions of one item, as in the paper (a chain, not a tree; numbers and sizes, which are no items,
    may take part), and nothing else reads the first.
    Each element goes through the same operations in the same order: nothing is rounded differently.
    """
    graph = site.graph
    constants = {n.name for n in graph.nodes if isinstance(n, Literal | Extent)}
    operators = [n for n in graph.nodes if isinstance(n, Pointwise)]
    for first in operators:
        for second in operators:
            if first.name in second.args and _chained(graph, first, second, constants):
                fused = _composed(first, second)
                nodes: list[BlockNode] = [fused if n is second else n for n in graph.nodes if n is not first]
                return Rewrite(replace(graph, nodes=tuple(nodes)))
    return None


def _chained(graph: Graph, first: Pointwise, second: Pointwise, constants: set[str]) -> bool:
    unary = [n for n in second.args if n not in constants] == [first.name]
    unary = unary and len([n for n in first.args if n not in constants]) == 1
    return unary and first.dims == second.dims and consumers(graph, first.name) == 1


def _composed(first: Pointwise, second: Pointwise) -> Pointwise:
    """Return `second` with `first` in place of its one item."""
    rest = [n for n in second.args if n != first.name]

    def argument(index: int) -> Scalar:
        name = second.args[index]
        return first.expr if name == first.name else Arg(len(first.args) + rest.index(name))

    return replace(second, expr=substitute(second.expr, argument), args=(*first.args, *rest))
