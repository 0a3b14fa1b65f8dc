"""A list of which every reader rounds each element to a narrower type is made in that type."""

from __future__ import annotations

from dataclasses import replace

from weft.block.check import body_types, infer
from weft.block.program import BlockNode, BlockProgram, BlockType, Graph, Map, Pointwise, Stacked, exports, sealed
from weft.block.rename import fresh, rename_body, rename_values, values_of
from weft.block.scope import Scope, Types
from weft.block.walk import every, operands, with_nodes
from weft.tensor.dtypes import DType
from weft.tensor.passes import block_pass
from weft.tensor.scalar import Arg


@block_pass()
def round_where_made(program: BlockProgram) -> BlockProgram:
    """Round lists that every reader rounds to one type where they are made, instead of wherever they are read.

        forall k: store(f(load(A[k])), I[k])                      forall k: store(bfloat16(f(load(A[k]))), I[k])
        forall n: for k: s += dot(bfloat16(load(I[k])), ..)  ==>  forall n: for k: s += dot(load(I[k]), ..)

    Condition: all readers round to one type, nothing else reads the list, and the map that stacks it makes its items. Every element
    is rounded once, as before, but by one operator instead of one for each reader and iteration, and the list takes less
    memory: exact.
    """
    if not any(isinstance(node, Pointwise) and _rounds(node) for node in every(program.graph.nodes)):
        return program
    return replace(program, graph=_rounded(program.graph, dict(program.inputs), Scope({}, applied=False)))


def _rounded(graph: Graph, inputs: dict[str, BlockType], scope: Scope) -> Graph:
    types = infer(graph, inputs, scope)
    for node in graph.nodes:
        if not isinstance(node, Map):
            continue
        for output in node.outputs:
            if isinstance(output, Stacked) and output.outer not in graph.outputs:
                found = _readers(graph, output.outer)
                made = types[output.outer].dtype
                inner = infer(node.body, body_types(node, types), scope.inside(node))[output.inner]
                narrower = found is not None and len(found) == 1 and all(d.bytes < made.bytes for d in found)
                if found is not None and narrower and made.is_float and not inner.buffered:
                    maker = _making(node, output, inner, next(iter(found)))
                    rest = replace(graph, nodes=tuple(maker if n is node else n for n in graph.nodes))
                    return _rounded(_without(rest, output.outer, types, scope), inputs, scope)
    nodes: list[BlockNode] = []
    for node in graph.nodes:
        if isinstance(node, Map):
            body = _rounded(node.body, body_types(node, types), scope.inside(node))
            nodes.append(node if body is node.body else sealed(replace(node, body=body)))
        else:
            nodes.append(node)
    return with_nodes(graph, nodes)


def _rounds(node: Pointwise) -> bool:
    return node.expr == Arg(0) and node.dtype.is_float


def _is_rounding(node: BlockNode, name: str) -> bool:
    return isinstance(node, Pointwise) and node.args == (name,) and _rounds(node)


def _readers(graph: Graph, name: str) -> frozenset[DType] | None:
    """Return the types that readers of `name` round it to; None where one of them does something else."""
    found: frozenset[DType] = frozenset()
    if name in graph.outputs:
        return None
    for node in graph.nodes:
        if name not in operands(node):
            continue
        if isinstance(node, Map):
            for feed in node.inputs:
                if feed.outer == name:
                    kept = (*exports(node), *(() if node.state is None else node.state.resume or ()))
                    inner = None if feed.inner in kept else _readers(node.body, feed.inner)
                    if inner is None:
                        return None
                    found |= inner
        elif isinstance(node, Pointwise) and _is_rounding(node, name):
            found |= {node.dtype}
        else:
            return None
    return found


def _making(node: Map, output: Stacked, kind: BlockType, dtype: DType) -> Map:
    """Return `node` with the list that it stacks as `output` rounded."""
    name = fresh(values_of(node.body))(f"{output.inner}.rounded")
    rounding = Pointwise(name, Arg(0), (output.inner,), kind.dims, dtype)
    body = replace(node.body, nodes=(*node.body.nodes, rounding))
    outputs = tuple(replace(o, inner=name) if o == output else o for o in node.outputs)
    return sealed(replace(node, body=body, outputs=outputs))


def _without(graph: Graph, name: str, types: Types, scope: Scope) -> Graph:
    """Return `graph` without the roundings of `name`, which is rounded already; one that also repeats it along an axis stays."""
    gone = _gone(graph, name, types)
    nodes: list[BlockNode] = []
    for node in graph.nodes:
        if isinstance(node, Map):
            for feed in node.inputs:
                if feed.outer == name:
                    node = _stripped(node, feed.inner, types, scope)  # noqa: PLW2901
            nodes.append(node)
        elif node.name not in gone:
            nodes.append(node)
    return rename_values(replace(graph, nodes=tuple(nodes)), gone)


def _stripped(node: Map, inner: str, types: Types, scope: Scope) -> Map:
    within = scope.inside(node)
    own = infer(node.body, body_types(node, types), within)
    body = _without(node.body, inner, own, within)
    return sealed(rename_body(replace(node, body=body), _gone(node.body, inner, own)))


def _gone(graph: Graph, name: str, types: Types) -> dict[str, str]:
    """Map the roundings of `name` in `graph` that are nothing else to `name`."""
    return {n.name: name for n in graph.nodes if _is_rounding(n, name) and types[n.name].dims == types[name].dims}
