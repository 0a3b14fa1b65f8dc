"""Loops over spans: iterations that comparisons of indices make idle are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.block.check import body_types, infer
from weft.block.linear import Linear
from weft.block.program import BlockProgram, Broadcast, Final, Graph, Index, Map, sealed
from weft.block.ranges import All, Spans
from weft.block.scope import Scope, Types
from weft.block.spans import OWN, Span
from weft.block.walk import every
from weft.masks.conditions import Conditions
from weft.masks.known import Facts, KnownValues
from weft.masks.values import values_inside, values_of
from weft.tensor.passes import block_pass


@block_pass()
def limit(program: BlockProgram) -> BlockProgram:
    """Limits each loop of `program` that carries a state to the spans where its iterations change that state.

        forall i: for j in range(N): s += f(where(j <= i, x, -inf))          where f(-inf) adds nothing, becomes
        forall i: for j in range(N to i+0): s += f(where(j <= i, x, -inf))

    Where comparisons of the loop's index with numbers and with indices of maps around it decide that an iteration contributes the
    identity to each component of the state, the iteration is not done. An excluded operand's NaN does not come through
    (`of_expression`).

    Args:
        program: fused, without places; before it is made safe, whose running maxima would hide the identities.

    Returns:
        The program; itself where no loop can be limited.
    """
    if not any(isinstance(node, Index) for node in every(program.graph.nodes)):
        return program
    graph = _limited(program.graph, {}, dict(program.inputs), Scope({}, applied=False))
    return program if graph == program.graph else replace(program, graph=graph)


def _limited(graph: Graph, given: KnownValues, inputs: Types, scope: Scope) -> Graph:
    known = values_of(graph, given, Facts())
    types = infer(graph, inputs, scope)
    nodes = tuple(_loop(n, known, types, scope) if isinstance(n, Map) else n for n in graph.nodes)
    return replace(graph, nodes=nodes)


def _loop(node: Map, known: KnownValues, types: Types, scope: Scope) -> Map:
    inner = scope.inside(node)
    body = _limited(node.body, values_inside(node, known), body_types(node, types), inner)
    node = sealed(replace(node, body=body))
    if node.state is None or node.state.resume is not None or node.range != All():
        return node
    if not all(isinstance(o, Final) for o in node.outputs):
        return node  # a list has all its blocks
    spans = Conditions(node, known, scope).spans()
    if not _blocks_begin_anywhere(node, types):
        spans = _from_the_beginning(spans)
    return node if not spans else replace(node, range=Spans(tuple(spans)))


def _from_the_beginning(spans: Sequence[Span]) -> list[Span]:
    """Widen a single span so that it begins with the loop; several cannot."""
    if len(spans) != 1:
        return []
    holds = tuple(each for each in spans[0].holds if not _begins(each))
    return [Span(holds)] if holds else []


def _begins(condition: Linear) -> bool:
    end = condition.end(OWN)
    return end is not None and end[0]


def _blocks_begin_anywhere(node: Map, types: Types) -> bool:
    """Tells whether blocks may begin anywhere; not where the loop goes through a list with one item for each block of
    another loop.
    """
    accesses = [(f.outer, f.access) for f in node.inputs if not isinstance(f.access, Broadcast)]
    return node.unit or all(access.over in types[name].dims for name, access in accesses)
