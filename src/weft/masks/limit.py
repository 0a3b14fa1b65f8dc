"""Loops over a band: iterations that a comparison of indices makes idle are left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.block.check import body_types, infer
from weft.block.program import BlockProgram, Broadcast, Final, Graph, Index, Map, sealed
from weft.block.ranges import All, Band, Diagonal
from weft.block.scope import Scope, Types
from weft.block.walk import every
from weft.masks.known import Facts, KnownValues, Linear
from weft.masks.values import unchanged, values_inside, values_of
from weft.tensor.axes import Axis
from weft.tensor.passes import block_pass

_FARTHEST = 512
"""Elements off the diagonal that a band may lie: the check of what was left out runs at sizes that reach it."""


@block_pass()
def limit(program: BlockProgram) -> BlockProgram:
    """Limits each loop of `program` that carries a state to the band where its iterations change that state.

        forall i: for j in range(N): s += f(where(j <= i, x, -inf))          where f(-inf) adds nothing, becomes
        forall i: for j in range(N to i+0): s += f(where(j <= i, x, -inf))

    Where a comparison of the loop's index with that of a map around it decides that an iteration contributes the identity to
    each component of the state, the iteration is not done. An excluded operand's NaN does not come through (`of_expression`).

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
    low: dict[Axis, Diagonal] = {}
    high: dict[Axis, Diagonal] = {}
    for outer, kept in _conditions(node, known, scope):
        if dict(kept.indices)[node.axis] > 0:
            begin = Diagonal(-kept.constant, tuple((space, -times) for space, times in kept.sizes))
            low[outer] = _tighter(low.get(outer), begin, 1)
        else:
            high[outer] = _tighter(high.get(outer), kept.diagonal, -1)
    if not _blocks_begin_anywhere(node, types):
        low = {}
    outer = next((a for a in (*high, *low)), None)
    return node if outer is None else replace(node, range=Band(outer, low.get(outer), high.get(outer)))


def _conditions(node: Map, known: KnownValues, scope: Scope) -> Iterator[tuple[Axis, Linear]]:
    """Yields what is at least 0 wherever `node` changes its state: j - i + c or i - j + c, with i the index of a map around it."""
    facts = Facts()
    unchanged(node, known, facts)
    for asked in facts.asked:
        factors = dict(asked.indices)
        own = factors.pop(node.axis, 0)
        outer = next(iter(factors), None)
        if abs(asked.constant) > _FARTHEST:
            continue
        if outer is None or len(factors) != 1 or outer not in scope.maps or {own, factors[outer]} != {1, -1}:
            continue
        for idle in (asked, asked.negated()):
            if unchanged(node, known, Facts((idle,))):
                yield outer, idle.negated()


def _tighter(known: Diagonal | None, end: Diagonal, side: int) -> Diagonal:
    """Chooses the end of a band (its beginning, `side` 1, or its end, -1) that leaves less of it, if that is the same
    for all sizes.
    """
    if known is None or known.sizes != end.sizes:
        return known or end
    return max(known, end, key=lambda d: side * d.constant)


def _blocks_begin_anywhere(node: Map, types: Types) -> bool:
    """Tells whether blocks may begin anywhere; not where the loop goes through a list with one item for each block of
    another loop.
    """
    accesses = [(f.outer, f.access) for f in node.inputs if not isinstance(f.access, Broadcast)]
    return node.unit or all(access.over in types[name].dims for name, access in accesses)
