"""Every operator that some operators of an applied program run, with the types of the values that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.block.check import body_types, infer, update_types
from weft.block.program import BlockNode, BlockProgram, BlockType, Map
from weft.block.scope import Scope, Types


def typed(program: BlockProgram, nodes: Iterable[BlockNode]) -> Iterator[tuple[BlockNode, Types]]:
    """Yield `nodes`, of the graph of the applied `program`, and all that their maps run; each with the types of its graph."""
    around = Scope({}, applied=True)
    return _typed(nodes, infer(program.graph, dict(program.inputs), around), around)


def _typed(nodes: Iterable[BlockNode], types: Types, scope: Scope) -> Iterator[tuple[BlockNode, Types]]:
    for node in nodes:
        yield node, types
        if isinstance(node, Map):
            inside = scope.inside(node)
            body = infer(node.body, body_types(node, types), inside)
            yield from _typed(node.body.nodes, body, inside)
            if node.state is not None:
                update, finish = node.state.update, node.state.finish
                known = infer(update, update_types(node.state, body), inside)
                yield from _typed(update.nodes, known, inside)
                components = {c.name: BlockType((), c.dims, c.dtype) for c in node.state.components}
                yield from _typed(finish.nodes, infer(finish, components, scope), scope)
