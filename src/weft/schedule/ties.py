"""Which loops must go by the same blocks: those between which whole blocks are counted, not elements."""

from __future__ import annotations

from collections.abc import Iterator

from weft.block.check import body_types, infer
from weft.block.program import BlockProgram, BlockType, Broadcast, Graph, Join, Map
from weft.block.scope import Scope
from weft.block.walk import maps
from weft.tensor.axes import Axis


def begins_where(program: BlockProgram) -> dict[Axis, Axis]:
    """Maps each loop over a rest, by axis, to the loop over the first block that it goes on after: their outermost
    blocks are alike.
    """
    return {m.axis: m.range.follows for m in maps(program.graph) if m.range.follows is not None}


def tied(program: BlockProgram) -> Iterator[tuple[Axis, Axis]]:
    """Yields pairs of loops, by axis, that go by the same blocks on every level.

    A list of items that do not have its axis (a sum of each block, say) has as many items as its maker has blocks; who
    iterates it must have as many. Elements are shared out anew wherever items have the axis.
    """
    made = {m.axis for m in maps(program.graph) if not m.unit}
    yield from _tied(program.graph, dict(program.inputs), Scope({}, applied=False), made)


def _tied(graph: Graph, inputs: dict[str, BlockType], scope: Scope, made: set[Axis]) -> Iterator[tuple[Axis, Axis]]:
    types = infer(graph, inputs, scope)
    for node in graph.nodes:
        match node:
            case Map():
                for feed in node.inputs:
                    over = None if isinstance(feed.access, Broadcast) else feed.access.over
                    if over in made and over not in types[feed.outer].dims and not node.unit:
                        yield over, node.axis
                yield from _tied(node.body, body_types(node, types), scope.inside(node), made)
            case Join(name, axes=((first, rest), *_)):
                if rest in made and rest not in types[name].dims:
                    yield first, rest
            case _:
                pass
