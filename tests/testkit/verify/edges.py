"""Faults for the field check to find: a program that forgets an edge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.block.program import BlockNode, BlockProgram, Graph, Map
from weft.block.ranges import Part


def everywhere(program: BlockProgram, change: Callable[[BlockNode], BlockNode]) -> BlockProgram:
    """`program` with `change` applied to every node, those of states' graphs too."""

    def graph(of: Graph) -> Graph:
        return replace(of, nodes=tuple(node(n) for n in of.nodes))

    def node(of: BlockNode) -> BlockNode:
        if isinstance(of, Map):
            state = of.state and replace(of.state, update=graph(of.state.update), finish=graph(of.state.finish))
            of = replace(of, body=graph(of.body), state=state)
        return change(of)

    return replace(program, graph=graph(program.graph))


def forget_edge(node: BlockNode) -> BlockNode:
    """The loop over the rest of the blocks does whole blocks again: none."""
    if isinstance(node, Map) and node.range.part is Part.edge:
        return replace(node, range=replace(node.range, part=Part.full), tile=64)
    return node
