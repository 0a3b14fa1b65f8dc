"""A scheduled program with planted bugs, for tests of the check over finite fields."""

from __future__ import annotations

from dataclasses import replace

from testkit.block import programs
from testkit.schedules import fused
from testkit.verify.edges import forget_edge
from weft.block.program import BlockNode, BlockProgram, Dot, Fill, Map, Pointwise
from weft.block.ranges import Segment
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.scalar import Apply, Arg

GRID, LOOP, SPLIT = LevelPlace.grid, LevelPlace.loop, LevelPlace.split
PROGRAM = programs.linear_relu()


def applied(k: LoopSchedule) -> BlockProgram:
    grid = LoopSchedule((Level(GRID, 4),))
    return apply(fused(PROGRAM), Schedule((("m", grid), ("n", grid), ("k", k))))


PEELED = applied(LoopSchedule((Level(LOOP, 3),), peel=True))
WHOLE_LOOP = applied(LoopSchedule((Level(LOOP, 3),)))
IN_SEGMENTS = applied(LoopSchedule((Level(SPLIT, 3), Level(LOOP, 2))))


def drop_bias(node: BlockNode) -> BlockNode:
    added = isinstance(node, Pointwise) and node.expr == Apply("add", (Arg(0), Arg(1)))
    return replace(node, expr=Arg(0)) if added else node


def forget_relu(node: BlockNode) -> BlockNode:
    relu = isinstance(node, Pointwise) and isinstance(node.expr, Apply) and node.expr.op == "maximum"
    return replace(node, expr=Arg(0)) if relu else node


def forget_padding(node: BlockNode) -> BlockNode:
    return replace(node, value=1.0) if isinstance(node, Fill) else node


def overwrite(node: BlockNode) -> BlockNode:
    """Each block's product replaces what was summed before."""
    return replace(node, acc=None) if isinstance(node, Dot) else node


def merge_wrongly(node: BlockNode) -> BlockNode:
    """The merge map keeps the last segment instead of adding them."""
    if not isinstance(node, Map) or not node.unit or node.state is None:
        return node
    nodes = tuple(replace(n, expr=Arg(1)) if isinstance(n, Pointwise) else n for n in node.state.update.nodes)
    return replace(node, state=replace(node.state, update=replace(node.state.update, nodes=nodes)))


def skip_a_segment(node: BlockNode) -> BlockNode:
    """Segments are cut for one more than there are."""
    if isinstance(node, Map) and isinstance(node.range, Segment):
        return replace(node, range=replace(node.range, count=node.range.count + 1))
    return node


BUGS = {
    "drops the bias": (WHOLE_LOOP, drop_bias),
    "forgets relu": (WHOLE_LOOP, forget_relu),
    "forgets an edge": (PEELED, forget_edge),
    "padding that is not zero": (WHOLE_LOOP, forget_padding),
    "overwrites the accumulator": (WHOLE_LOOP, overwrite),
    "overwrites the accumulator of a segment": (IN_SEGMENTS, overwrite),
    "merges wrongly": (IN_SEGMENTS, merge_wrongly),
    "skips a segment": (IN_SEGMENTS, skip_a_segment),
}
