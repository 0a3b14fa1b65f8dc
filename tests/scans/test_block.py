"""Scans as block programs: what they lower to, what is fused with them, what the checker demands, what schedules they take."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from testkit.block.rankings import every
from testkit.block.scans import F32, M, N, between, fused, row, scan, summed, twice
from testkit.emit.comparing import scheduled
from weft.block.check import check
from weft.block.interpret import interpret
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockNode, Fill, Prefix
from weft.block.walk import every as every_node
from weft.block.walk import maps
from weft.errors import InvalidProgramError, ScheduleError
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Input, Monoid, Reduction, Scan, TensorProgram, Use


def test_elementwise_work_on_both_sides_is_fused_into_the_loop() -> None:
    assert listing(fused(between())).splitlines() == [
        "forall m in range(M):",
        "  for n in range(N):",
        "    t1 = load(X[m,n])",
        "    t2 = t1*2",
        "    t4,t5 = sums(t3,t2)",
        "    t6 = t4-t2",
        "    store(t6,O2[m,n])",
        "    t7 = load(B[n])",
        "    t8 = col_shift(t4,t7)",
        "    store(t8,O1[m,n])",
        "    t3 = t5",
    ]


def test_scans_of_one_row_are_one_loop() -> None:
    program = fused(twice())
    assert [m.state is not None for m in maps(program.graph)] == [False, True]
    assert sum(isinstance(n, Prefix) for n in every_node(program.graph.nodes)) == 3


@pytest.mark.parametrize("over", [M, N], ids=str)
@pytest.mark.parametrize("monoid", Monoid)
def test_blocks_of_any_size_give_what_the_whole_gives(monoid: Monoid, over: object) -> None:
    rng, domain = random.Random(str(monoid)), Fp64Domain()
    program = lower(scan(monoid, over=M if over == M else N))
    way = {Monoid.sum: np.add, Monoid.prod: np.multiply, Monoid.max: np.maximum, Monoid.min: np.minimum}[monoid]
    for m, n in ((1, 1), (3, 7), (5, 16), (0, 4), (4, 0)):
        x = np.random.default_rng(rng.randrange(1 << 30)).integers(1, 4, (m, n)).astype(np.float64)
        wanted = way.accumulate(x, axis=0 if over == M else 1)
        for _ in range(4):
            applied = scheduled(program, rng)
            (found,), _ = interpret(applied, {"x": x}, {"M": m, "N": n}, domain)
            np.testing.assert_array_equal(found, wanted, err_msg=listing(applied))


def test_what_comes_before_a_row_is_carried_in_fp64_where_the_target_computes_in_it() -> None:
    def carried(dtype: DType, monoid: Monoid, *, doubles: bool = True) -> DType:
        loop = next(m for m in maps(lower(scan(monoid, dtype), doubles=doubles).graph) if m.state is not None)
        assert loop.state is not None
        return loop.state.components[0].dtype

    assert carried(DType.float32, Monoid.sum) is carried(DType.bfloat16, Monoid.prod) is DType.float64
    assert carried(DType.float32, Monoid.sum, doubles=False) is carried(DType.float16, Monoid.max) is DType.float32
    assert carried(DType.bool, Monoid.sum) is carried(DType.int32, Monoid.max) is DType.int64


def test_the_padding_of_what_is_scanned_holds_the_identity() -> None:
    applied = apply(fused(scan()), _levels((LevelPlace.loop, 4)))
    check(applied)

    def unfilled(node: BlockNode) -> BlockNode:
        return replace(node, value=1.0) if isinstance(node, Fill) else node

    with pytest.raises(InvalidProgramError, match="padding along"):
        check(every(applied, unfilled))


@pytest.mark.parametrize(
    ("condition", "change"),
    [
        ("what came before has the axes of a whole", lambda p: replace(p, acc=p.arg)),
        ("combined elements have the axes of what they are made of", lambda p: replace(p, arg=p.acc)),
        ("elements are combined along an axis that they have", lambda p: replace(p, over=Axis("other", N.space))),
    ],
)
def test_a_prefix_that_does_not_fit_is_refused(condition: str, change: Callable[[Prefix], Prefix]) -> None:
    with pytest.raises(InvalidProgramError, match=condition):
        check(every(fused(scan()), lambda node: change(node) if isinstance(node, Prefix) else node))


@pytest.mark.parametrize(
    "levels",
    [
        ((LevelPlace.loop, 16), (LevelPlace.loop, 4)),
        ((LevelPlace.grid, 4),),
    ],
)
def test_a_scan_goes_one_way_in_one_piece(levels: tuple[tuple[LevelPlace, int], ...]) -> None:
    for program in (fused(scan()), fused(summed())):
        with pytest.raises((ScheduleError, InvalidProgramError)):
            apply(program, _levels(*levels))


SEGMENTS = ((LevelPlace.split, 3), (LevelPlace.loop, 4))


def test_a_row_in_segments_begins_each_where_the_one_before_ends() -> None:
    applied = apply(fused(row()), _alone(*SEGMENTS))
    assert listing(applied).splitlines()[6:13] == [
        "    t5 += sum(t4)",
        "  store(t5,I1[ns])",
        "for ns in range(NS):  # loop, 1 a block",
        "  t7 = t6",
        "  t8 = load(I1[ns])",
        "  t6 += t8",
        "  store(t7,I2[ns])",
    ]
    for length in (0, 1, 5, 12, 13, 30, 47):
        x = np.arange(float(length))
        (found,), _ = interpret(applied, {"x": x}, {"N": length}, Fp64Domain())
        np.testing.assert_array_equal(found, np.cumsum(-x) + 1)


def test_what_depends_on_what_came_before_is_in_one_piece() -> None:
    once = Scan("y", (N,), F32, Monoid.sum, Use("x", (N,)), N)
    again = Scan("z", (N,), F32, Monoid.sum, Use("y", (N,)), N)
    total = Reduction("t", (), F32, Monoid.sum, Use("y", (N,)), (N,))
    for last in (again, total):
        program = fused(TensorProgram((Input("x", (N,), F32),), (once, last), ("y", last.name)))
        with pytest.raises(ScheduleError, match="contribute what depends on those before"):
            apply(program, _alone(*SEGMENTS))


def _alone(*levels: tuple[LevelPlace, int]) -> Schedule:
    return Schedule((("n", LoopSchedule(tuple(Level(*each) for each in levels))),))


def _levels(*levels: tuple[LevelPlace, int]) -> Schedule:
    rows = LoopSchedule((Level(LevelPlace.grid, 2),))
    return Schedule((("m", rows), ("n", LoopSchedule(tuple(Level(*each) for each in levels)))))
