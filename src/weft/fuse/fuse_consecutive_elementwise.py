"""Rule 9: two consecutive elementwise operators become one."""

from __future__ import annotations

from dataclasses import replace

from weft.block.program import BlockNode, Graph, Pointwise, consumers
from weft.fuse.rule import Rewrite, Rule
from weft.tensor.scalar import substitute


def _rewrite(graph: Graph) -> Rewrite | None:
    """Fuse the first pair that matches.

        t1 = f(t0)
        t2 = g(t1)            becomes      t2 = g(f(t0))

    Condition: both are functions of one item, as in the paper (a chain, not a tree), and nothing else reads the first.
    Each element goes through the same operations in the same order: nothing is rounded differently.
    """
    for first in graph.nodes:
        for second in graph.nodes:
            if isinstance(first, Pointwise) and isinstance(second, Pointwise) and _chained(graph, first, second):
                fused = replace(second, expr=substitute(second.expr, lambda _, f=first: f.expr), args=first.args)
                nodes: list[BlockNode] = [fused if n is second else n for n in graph.nodes if n is not first]
                return Rewrite(replace(graph, nodes=tuple(nodes)))
    return None


def _chained(graph: Graph, first: Pointwise, second: Pointwise) -> bool:
    unary = len(first.args) == 1 and second.args == (first.name,)
    return unary and first.dims == second.dims and consumers(graph, first.name) == 1


FUSE_CONSECUTIVE_ELEMENTWISE = Rule("fuse_consecutive_elementwise", 9, _rewrite)
