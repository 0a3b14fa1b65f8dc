"""A schedule that is applied wrongly never runs: the region is refused, and the graph runs in PyTorch with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

import weft
from testkit.afresh import chosen_afresh
from testkit.block import programs
from weft.block.program import BlockNode, BlockProgram, Dot, Fill, Graph, Map, Pointwise
from weft.block.ranges import Part, Segment
from weft.block.rename import rename_body
from weft.errors import InvalidProgramError, VerificationError
from weft.plan import Example, compile_region
from weft.plan.targets import ways
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply

GRID, LOOP, SPLIT = LevelPlace.grid, LevelPlace.loop, LevelPlace.split
ROWS = ("m", LoopSchedule((Level(GRID, 64),)))
COLUMNS = ("n", LoopSchedule((Level(GRID, 32),)))
BLOCKS = Schedule((ROWS, COLUMNS, ("k", LoopSchedule((Level(LOOP, 128),), peel=True))))
SEGMENTS = Schedule((ROWS, COLUMNS, ("k", LoopSchedule((Level(SPLIT, 3), Level(LOOP, 128))))))


def everywhere(program: BlockProgram, change: Callable[[BlockNode], BlockNode]) -> BlockProgram:
    """`program` with `change` applied to every node, those of states' graphs too."""

    def graph(of: Graph) -> Graph:
        return replace(of, nodes=tuple(map(node, of.nodes)))

    def node(of: BlockNode) -> BlockNode:
        if isinstance(of, Map):
            state = of.state and replace(of.state, update=graph(of.state.update))
            of = replace(of, body=graph(of.body), state=state)
        return change(of)

    return replace(program, graph=graph(program.graph))


def fill_dropped(node: BlockNode) -> BlockNode:
    """Reads what was filled as it is, with whatever its padding holds."""
    if not isinstance(node, Map):
        return node
    filled = {n.name: n.arg for n in node.body.nodes if isinstance(n, Fill)}
    body = replace(node.body, nodes=tuple(n for n in node.body.nodes if not isinstance(n, Fill)))
    return rename_body(replace(node, body=body), filled)


def wrong_fill(node: BlockNode) -> BlockNode:
    return replace(node, value=1.0) if isinstance(node, Fill) else node


def wrong_merge(node: BlockNode) -> BlockNode:
    """The last segment instead of the sum of all."""
    if not isinstance(node, Map) or not node.unit or node.state is None:
        return node
    nodes = tuple(replace(n, expr=programs.Arg(1)) if isinstance(n, Pointwise) else n for n in node.state.update.nodes)
    return replace(node, state=replace(node.state, update=replace(node.state.update, nodes=nodes)))


def segment_skipped(node: BlockNode) -> BlockNode:
    """Segments visit whole blocks alone: one that has less than a block is skipped."""
    if isinstance(node, Map) and isinstance(node.range, Segment):
        return replace(node, range=replace(node.range, part=Part.full))
    return node


def rest_skipped(node: BlockNode) -> BlockNode:
    """The loop over less than a block visits whole blocks of a size that there are none of."""
    if isinstance(node, Map) and node.range.part is Part.edge:
        return replace(node, range=replace(node.range, part=Part.full), tile=4096)
    return node


def axes_exchanged(program: BlockProgram) -> BlockProgram:
    """Rows are given out as columns."""
    return replace(program, output_axes=tuple(axes[::-1] for axes in program.output_axes))


def accumulator_lost(node: BlockNode) -> BlockNode:
    return replace(node, acc=None) if isinstance(node, Dot) else node


BUGS: dict[str, tuple[Schedule, Callable[[BlockNode], BlockNode] | None]] = {
    "a dropped fill": (SEGMENTS, fill_dropped),
    "a wrong fill": (SEGMENTS, wrong_fill),
    "a wrong merge": (SEGMENTS, wrong_merge),
    "a skipped segment": (SEGMENTS, segment_skipped),
    "a skipped rest": (BLOCKS, rest_skipped),
    "a wrong axis": (BLOCKS, None),
    "a lost accumulator": (BLOCKS, accumulator_lost),
    "an accumulator lost in a segment": (SEGMENTS, accumulator_lost),
}


# What the check of types knows, as the padding of blocks, is refused by it first.
WRONG = "the scheduled program does not compute what was written|padding along k holds 0.0"


@pytest.fixture(params=BUGS)
def planted(request) -> Iterator[Schedule]:
    """A schedule that is applied with a bug from here on."""
    schedule, change = BUGS[request.param]
    made: list[bool] = []

    def wrongly(program: BlockProgram, given: Schedule) -> BlockProgram:
        right = apply(program, given)
        wrong = axes_exchanged(right) if change is None else everywhere(right, change)
        made.append(wrong != right)
        return wrong

    with chosen_afresh() as patch:
        patch.setattr(ways, "apply", wrongly)
        patch.setattr(ways, "choose", lambda *_: schedule)
        yield schedule
    assert made
    assert all(made), "the bug was not planted"


def test_the_region_is_refused(planted):
    program = programs.linear_relu()
    example = Example({s.name: 300 for s in program.spaces()}, {n.name: None for n in program.inputs}, 2)
    with pytest.raises((VerificationError, InvalidProgramError), match=WRONG):
        compile_region(program, example, planted)


def test_the_function_runs_in_pytorch_with_the_reason(planted):
    def linear_relu(x, w, b):
        return torch.relu(x @ w + b)

    given = torch.randn(70, 300), torch.randn(300, 40), torch.randn(40)
    program = weft.optimize(linear_relu, given)
    assert program.kernels == ()
    assert program.fallbacks
    for fallback in program.fallbacks:  # one for each call that the region covered
        assert re.search(WRONG, fallback.reason)
    torch.testing.assert_close(program(*given), linear_relu(*given))
    with torch.no_grad():
        torch.testing.assert_close(weft.compile(linear_relu)(*given), linear_relu(*given))
