"""Rows in groups: a loop over groups leaves out those without a row of the block, and of the others all rows but their own."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from testkit.emit.comparing import compare, scheduled
from testkit.masks.guarded import MASKED, groups
from testkit.masks.limited import fused
from weft.block.check import check
from weft.block.copies import canonical
from weft.block.interpret import interpret
from weft.block.listing import listing
from weft.block.program import BlockProgram, Graph, Map
from weft.block.walk import maps
from weft.cost.guarded import guarded_shares
from weft.emit.triton import GRANULARITY
from weft.errors import InvalidProgramError
from weft.masks import guard, questions
from weft.schedule import EXACT, Granularity, Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.verify import verify

APART = "rows that need not be done are made of those rows alone"


def asking(program: BlockProgram) -> Map:
    (found,) = (m for m in maps(program.graph) if m.guard is not None)
    return found


def with_rows(program: BlockProgram, rows: Axis | None, *, idle: bool = False) -> BlockProgram:
    """`program`, whose guards leave out these rows, where what they ask is `idle`."""

    def changed(graph: Graph) -> Graph:
        nodes = (
            replace(n, body=changed(n.body), guard=None if n.guard is None else replace(n.guard, rows=rows, idle=idle))
            if isinstance(n, Map)
            else n
            for n in graph.nodes
        )
        return replace(graph, nodes=tuple(nodes))

    return replace(program, graph=changed(program.graph))


def placed(rows: int, columns: int = 4, granularity: Granularity = EXACT, *, beforehand: bool = False) -> BlockProgram:
    """The program by blocks of so many rows and columns."""
    program = canonical(guard(fused(groups())))
    row, column, loop, *_ = maps(program.graph)
    sizes = {
        row.name: (LevelPlace.grid, rows),
        column.name: (LevelPlace.grid, columns),
        loop.name: (LevelPlace.loop, 1),
    }
    loops = ((m.name, LoopSchedule((Level(*sizes.get(m.name, (LevelPlace.loop, 2))),))) for m in maps(program.graph))
    return apply(
        program, Schedule(tuple(loops), beforehand=frozenset((loop.name,)) if beforehand else frozenset()), granularity
    )


def test_the_loop_over_groups_is_inside_and_decides_row_by_row() -> None:
    program = guard(fused(groups()))
    row, column, loop, depth = maps(program.graph)
    assert (row.unit, column.unit, loop.unit, depth.unit) == (False, False, True, False)
    assert loop.guard is not None
    assert loop.guard.rows == row.axis
    assert f"and {row.axis} where it is False" in listing(program)


@pytest.mark.parametrize("name", MASKED)
def test_a_mask_that_differs_along_the_loop_leaves_no_rows_out(name: str) -> None:
    assert all(m.guard is None or m.guard.rows is None for m in maps(guard(fused(MASKED[name][0]())).graph))


def test_what_each_row_is_not_made_of_alone_is_refused() -> None:
    program = guard(fused(MASKED["sums"][0]()))
    row = asking(program).guard
    assert row is not None
    with pytest.raises(InvalidProgramError, match=APART):
        check(with_rows(program, next(m.axis for m in maps(program.graph) if m is not asking(program))))
    with pytest.raises(InvalidProgramError, match=APART):
        check(with_rows(guard(fused(groups())), asking(guard(fused(groups()))).axis))


def test_any_schedule_computes_what_was_written() -> None:
    program, rng = groups(), random.Random(0)
    for _ in range(6):
        applied = scheduled(guard(fused(program)), rng)
        assert verify(program, applied, seed=rng.randrange(1000)).agrees, listing(applied)


@pytest.mark.parametrize("granularity", [EXACT, GRANULARITY], ids=["rows", "blocks"])
@pytest.mark.parametrize("beforehand", [False, True])
def test_a_guard_that_leaves_out_what_counts_is_refuted(granularity: Granularity, *, beforehand: bool) -> None:
    right = placed(2, granularity=granularity, beforehand=beforehand)
    assert verify(groups(), right).agrees
    assert verify(groups(), with_rows(right, None, idle=True)).equal is False


def test_the_interpreter_leaves_rows_out() -> None:
    """Turns the guard around: a block of which some rows are of the group is done, but for these rows."""
    right = placed(5)
    rows = asking(right).guard
    assert rows is not None
    first, end = np.array([0, 3, 5, 5, 5, 5, 5]), np.array([3, 5, 5, 5, 5, 5, 5])
    inputs = {"x": np.ones((5, 3)), "w": np.ones((7, 3, 4)), "first": first, "end": end}
    sizes = dict(zip((m.axis.space.name for m in maps(right.graph)), (5, 4, 7, 3), strict=True))
    for program, wanted in (
        (right, 3.0),
        (with_rows(right, None, idle=True), 3.0),
        (with_rows(right, rows.rows, idle=True), 0.0),
    ):
        (found,), _ = interpret(program, inputs, sizes, Fp64Domain())
        np.testing.assert_array_equal(found, np.full((5, 4), wanted))


def test_kernels_compute_what_the_interpreter_computes(tmp_path: Path) -> None:
    rng, program = random.Random(1), groups()
    blocks = [placed(5), placed(3, 2), scheduled(guard(fused(program)), rng)]
    compare(blocks, [s.name for s in program.spaces()], tmp_path, rng, DType.float32, quickly=True)


@pytest.mark.parametrize("beforehand", [False, True])
def test_the_model_expects_as_much_work_as_there_are_rows(*, beforehand: bool) -> None:
    """Seven groups and four blocks of rows meet ten times, of 28; done by rows, the groups' work is that of the rows."""
    applied = placed(16, granularity=GRANULARITY, beforehand=beforehand)
    (asked,) = questions(applied)
    assert asked.of_groups
    assert asked.beforehand == beforehand
    sizes = dict(zip((m.axis.space.name for m in maps(placed(16).graph)), (64, 4, 7, 3), strict=True))
    assert guarded_shares(applied, sizes, {})[asked.loop.name].share == pytest.approx(10 / 28)
    by_rows = placed(16)
    assert guarded_shares(by_rows, sizes, {})[asking(by_rows).name].share == pytest.approx(1 / 7)
