"""Guarded loops: iterations whose block of a mask leaves nothing are not done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from weft.block.check import body_types, infer
from weft.block.guard import Guard
from weft.block.one_hot import one_hots
from weft.block.program import BlockProgram, Final, Graph, Map, sealed
from weft.block.rows import rows_of
from weft.block.scope import Scope, Types
from weft.block.walk import asked, operands
from weft.masks import values
from weft.masks.known import Endless, Facts, KnownNumber, KnownValues
from weft.masks.unmasked import conditions
from weft.tensor.dtypes import DType
from weft.tensor.passes import block_pass


@block_pass()
def guard(program: BlockProgram) -> BlockProgram:
    """Leave out iterations of loops with a state in whose block a mask leaves nothing.

        for j in range(N):                                  for j in range(N):
          s += f(where(load(Mask[i,j]), x, -inf))             skip where load(Mask[i,j]) is False everywhere
                                                              s += f(where(load(Mask[i,j]), x, -inf))

    The mask is a tensor of bools, or a condition on tensors of bools and integers that selects (`doc[i] == doc[j]`), or a tensor
    of floats that may be -inf.

    Condition: with the mask taken for False (or True, or -inf) everywhere in a block, each component of the state comes out as it
    went in; and an iteration does a matmul, or reads something else along the loop, so that more is left out than the mask's own
    reading; and no number that the mask makes 0 is multiplied by what is infinite where the mask's tensor is -inf, as the sum of a
    column of it is. Loops with one-hot reductions go to the rows that they change anyway. Exact, but for NaN and infinities of an
    operand that the mask excludes, which do not come through (`of_expression`).

    Args:
        program: fused, without places; before it is made safe, whose running maxima would hide the identities.

    Returns:
        The program; itself where no loop has such a mask.
    """
    inputs = dict(program.inputs)
    endless = {name: Endless(frozenset({name})) for name, each in inputs.items() if each.dtype.is_float}
    graph = _guarded(program.graph, endless, inputs, Scope({}, applied=False))
    return program if graph == program.graph else replace(program, graph=graph)


def _guarded(graph: Graph, given: KnownValues, inputs: Types, scope: Scope) -> Graph:
    known = values.values_of(graph, given, Facts())
    types = infer(graph, inputs, scope)
    nodes = tuple(_loop(n, known, types, scope) if isinstance(n, Map) else n for n in graph.nodes)
    return replace(graph, nodes=nodes)


def _loop(node: Map, known: KnownValues, types: Types, scope: Scope) -> Map:
    inner, given = scope.inside(node), body_types(node, types)
    body = _guarded(node.body, values.values_inside(node, known), given, inner)
    node = sealed(replace(node, body=body))
    state = node.state
    if state is None or state.resume is not None or state.shown or node.guard is not None:
        return node
    if not all(isinstance(o, Final) for o in node.outputs):
        return node
    of = infer(node.body, given, inner)
    if one_hots(node.body, of):  # goes to the rows that it changes anyway
        return node
    for made in _candidates(node, of):
        found = made.guard
        assert found is not None
        idle = {found.value: KnownNumber(found.idle, raw=True)}
        if _pays(made, given) and values.unchanged(made, known, Facts(excluded=_excluded(made, known)), idle):
            first, rest = asked(made)
            rows = rows_of(made, infer(made.body, given, inner))
            body = replace(made.body, nodes=(*first, *rest))
            return sealed(replace(made, body=body, guard=replace(found, rows=rows)))
    return node


def _excluded(node: Map, known: KnownValues) -> frozenset[str]:
    """Return the tensors whose elements are -inf where the guard of `node` says so; none of a mask of bools."""
    assert node.guard is not None
    here = values.values_inside(node, known).get(node.guard.value)
    return here.all if isinstance(here, Endless) and node.guard.idle == -inf else frozenset()


def _candidates(node: Map, of: Types) -> Iterator[Map]:
    """Yield `node` with each guard that it may have: masks that it is fed, conditions that select, numbers that are added."""
    items = [name for name in node.body.inputs if not of[name].buffered and of[name].dims]
    for name in items:
        if of[name].dtype is DType.bool:
            yield from _with((node, name), (False, True))
    for each in node.body.nodes:
        for condition in conditions(each, of):
            yield from _with(condition.apart(node), (False, True))
    for name in items:
        if of[name].dtype.is_float:
            yield from _with((node, name), (-inf,))


def _with(where: tuple[Map, str], numbers: tuple[float | bool, ...]) -> Iterator[Map]:
    node, name = where
    yield from (replace(node, guard=Guard(name, idle)) for idle in numbers)


def _pays(node: Map, given: Types) -> bool:
    """Tell whether an iteration has more to do than to look at what says that it is idle, which reads a tensor."""
    first, rest = asked(node)
    assert node.guard is not None
    assert node.state is not None
    own = {node.guard.value, *(name for each in first for name in operands(each))}
    if own.isdisjoint(given):
        return False
    if values.multiplies((*rest, *node.state.update.nodes)):
        return True
    return any(node.axis in given[f.inner].dims for f in node.inputs if f.inner not in own)
