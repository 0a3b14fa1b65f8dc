"""Exponentials and quotients that only 16-bit results come from are computed as exactly as those can show."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from weft.block.check import infer
from weft.block.program import BlockNode, BlockProgram, Collapse, Graph, Map, Pointwise, State, sealed
from weft.block.scope import Scope
from weft.block.walk import operands, with_nodes
from weft.tensor.passes import Conditioning, block_pass
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, apply


@block_pass(Conditioning.rounding)
def coarse_where_kept_in_16_bits(program: BlockProgram) -> BlockProgram:
    """Replace operations of `program` by less exact, cheaper ones where all floats that it reads and gives have 16 bits.

    - `decay`, a significand's power of e, becomes `coarse_decay` (right to 2^-18) where its readers round it to 16 bits, for a
      matmul, or sum it up. Its terms are positive: the sum is right to 2^-18 too, and no reader sees a difference of two.
    - A quotient by a number becomes a product with the number's inverse, right to 1.5 units in the last place of a float. In eager
      what is divided had 16 bits.

    Conditioning: what 16 bits hold is right to 2^-9 at best.
    """
    kinds = [kind.dtype for _, kind in program.inputs]
    types = infer(program.graph, dict(program.inputs), Scope({}, applied=False))
    kinds += [types[name].dtype for name in program.graph.outputs]
    if (
        not kinds
        or any(d.is_float and d.bytes > 2 for d in kinds)
        or not all(types[name].dtype.is_float for name in program.graph.outputs)
    ):
        return program
    return replace(program, graph=_coarse(program.graph))


def _coarse(graph: Graph) -> Graph:
    nodes: list[BlockNode] = []
    for node in graph.nodes:
        match node:
            case Map():
                body, state = _coarse(node.body), None if node.state is None else _of_state(node.state)
                same = body is node.body and state == node.state
                nodes.append(node if same else sealed(replace(node, body=body, state=state)))
            case Pointwise():
                expr = _cheaper(node.expr, decays=_only_rounded_and_summed(graph, node))
                nodes.append(node if expr == node.expr else replace(node, expr=expr))
            case _:
                nodes.append(node)
    return with_nodes(graph, nodes)


def _of_state(state: State) -> State:
    return replace(state, update=_coarse(state.update), finish=_coarse(state.finish))


def _cheaper(expr: Scalar, *, decays: bool) -> Scalar:
    match expr:
        case Apply("decay", (inner,)) if decays:
            return apply("coarse_decay", _cheaper(inner, decays=False))
        case Apply("div", (left, Lit(value) as right)) if 2.0**-100 < abs(value) < 2.0**100 and isfinite(value):
            return apply("coarse_div", _cheaper(left, decays=False), right)
        case Apply(op, inner):
            return Apply(op, tuple(_cheaper(e, decays=False) for e in inner))
        case Convert(dtype, inner):
            return Convert(dtype, _cheaper(inner, decays=False))
        case Arg() | Lit():
            return expr


def _only_rounded_and_summed(graph: Graph, node: Pointwise) -> bool:
    """Tell whether matmuls read `node` in 16 bits, and nothing else but sums reads it."""
    readers = [n for n in graph.nodes if node.name in operands(n)]
    rounded = [n for n in readers if isinstance(n, Pointwise) and _rounds(n)]
    summed = [n for n in readers if isinstance(n, Collapse) and n.monoid is Monoid.sum]
    return bool(rounded) and len(rounded) + len(summed) == len(readers) and node.name not in graph.outputs


def _rounds(node: Pointwise) -> bool:
    expr = node.expr.arg if isinstance(node.expr, Convert) and node.expr.dtype is node.dtype else node.expr
    return expr == Arg(0) and node.dtype.is_float and node.dtype.bytes == 2
