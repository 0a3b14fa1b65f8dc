"""Loops that must take the same steps: one makes a list with an item for each block, and the other reads it."""

from __future__ import annotations

from collections.abc import Iterator

from weft.block.check import Scope, body_types, infer
from weft.block.program import BlockProgram, BlockType, Broadcast, Graph, Map, maps
from weft.errors import ScheduleError
from weft.schedule.schedule import LevelPlace, Schedule


def ties(program: BlockProgram) -> tuple[tuple[str, str], ...]:
    """The pairs (maker, reader) of loops that exchange a list of one item per block.

    An item with the loop's axis can be cut anew by whoever reads it; one without, such as the exponent that a block's
    elements share, is of that block alone. Loops by single elements have no blocks to disagree about.
    """
    makers = {m.axis: m.name for m in maps(program.graph)}
    found = _ties(program.graph, dict(program.inputs), Scope({}, applied=False))
    return tuple(dict.fromkeys((makers[over], reader) for over, reader in found if over in makers))


def _ties(graph: Graph, inputs: dict[str, BlockType], scope: Scope) -> Iterator[tuple[object, str]]:
    types = infer(graph, inputs, scope)
    for node in graph.nodes:
        if not isinstance(node, Map):
            continue
        for feed in node.inputs:
            if not isinstance(feed.access, Broadcast) and not node.unit:
                kind = types[feed.outer]
                if feed.access.over not in kind.dims:
                    yield feed.access.over, node.name
        yield from _ties(node.body, body_types(node, types), scope.inside(node))


def demand_ties(program: BlockProgram, schedule: Schedule) -> None:
    """Raise `ScheduleError` unless loops that exchange a list of one item per block have one level, and the same."""
    for maker, reader in ties(program):
        one, other = schedule.of(maker).levels, schedule.of(reader).levels
        alike = len(one) == len(other) == 1 and one[0].size == other[0].size
        if not alike or (one[0].place is LevelPlace.whole) != (other[0].place is LevelPlace.whole):
            raise ScheduleError(
                f"loops {maker!r} and {reader!r} exchange a list of one item per block and take different steps",
                todo="give both one level of the same size",
            )
