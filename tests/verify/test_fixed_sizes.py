"""Sizes that are numbers are checked at small ones, which reach all that the program's own numbers can tell apart."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from testkit.block import programs
from testkit.schedules import fused
from testkit.verify.edges import everywhere, forget_edge
from weft.block.program import BlockNode, BlockProgram, Map, Pointwise
from weft.block.ranges import Spans
from weft.block.spans import Span
from weft.block.walk import maps
from weft.masks import limit
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import Elementwise, Iota, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, Scalar, substitute
from weft.tensor.scalar import apply as op
from weft.verify import verify
from weft.verify.sizes import different_size, freed
from weft.verify.verdict import Aspect

ROW, COLUMN = Arg(0), Arg(1)
LARGE = 8192


def over_indices(expr: Scalar, rows: int | None, columns: int | None) -> TensorProgram:
    """Sums over n the elements of x[m, n] where `expr`, of the two indices, holds, and 0 elsewhere."""
    m, n = Axis("m", Space("M", rows)), Axis("n", Space("N", columns))
    chosen = op("where", expr, Arg(2), Lit(0.0))
    return TensorProgram(
        (programs.tensor("x", m, n),),
        (
            Iota("i", (m,), DType.int64),
            Iota("j", (n,), DType.int64),
            Elementwise("kept", (m, n), programs.F32, chosen, (Use("i", (m,)), Use("j", (n,)), Use("x", (m, n)))),
            Reduction("out", (m,), programs.F32, Monoid.sum, Use("kept", (m, n)), (n,)),
        ),
        ("out",),
    )


def scheduled(program: TensorProgram, *, limited: bool = False, peel: bool = False) -> BlockProgram:
    block = limit(fused(program)) if limited else fused(program)
    grid, loop = LoopSchedule((Level(LevelPlace.grid, 64),)), LoopSchedule((Level(LevelPlace.loop, 16),), peel=peel)
    return apply(block, Schedule(tuple((m.name, grid if m.state is None else loop) for m in maps(block.graph))))


def changed(program: BlockProgram, old: int, new: int) -> BlockProgram:
    """`program` with another number in its expressions."""

    def change(node: BlockNode) -> BlockNode:
        if not isinstance(node, Pointwise):
            return node
        return replace(node, expr=substitute(node.expr, Arg, lambda lit: Lit(new) if lit.value == old else lit))

    return everywhere(program, change)


def window(width: int) -> Scalar:
    """j <= i and i - j < width."""
    return op("logical_and", op("le", COLUMN, ROW), op("lt", op("sub", ROW, COLUMN), Lit(width)))


CASES: dict[str, tuple[Scalar, int, int | None, int | None]] = {
    # what is kept, a number in it, the sizes
    "a threshold": (op("lt", COLUMN, Lit(5000)), 5000, None, LARGE),
    "one index alone": (op("eq", COLUMN, Lit(700)), 700, 40, LARGE),
    "a window": (window(500), 500, 1000, 1000),
    "an antidiagonal": (op("eq", op("add", ROW, COLUMN), Lit(999)), 999, 1000, 1000),
    "blocks": (op("eq", op("floor_divide", COLUMN, Lit(300)), op("floor_divide", ROW, Lit(7))), 300, LARGE, LARGE),
    "a period": (op("lt", op("fmod", COLUMN, Lit(300)), Lit(3)), 300, None, LARGE),
    "a bit": (op("ne", op("bitwise_and", COLUMN, Lit(512)), Lit(0)), 512, None, LARGE),
    "a bound": (op("lt", op("minimum", op("abs", op("sub", ROW, COLUMN)), Lit(128)), Lit(128)), 128, LARGE, LARGE),
    "further than sizes of several spaces": (
        op("lt", op("add", ROW, op("mul", COLUMN, Lit(3))), Lit(2900)),
        2900,
        800,
        800,
    ),
    "a square": (op("lt", op("mul", COLUMN, COLUMN), Lit(90000)), 90000, None, LARGE),
}


@pytest.mark.parametrize("case", CASES)
def test_a_number_that_is_one_off_is_refuted_at_fixed_sizes(case):
    expr, number, rows, columns = CASES[case]
    program = over_indices(expr, rows, columns)
    right = scheduled(program)
    verdict = verify(program, right, trials=1)
    assert verdict.equal, verdict
    assert math.prod(verdict.sizes[0].values()) < 2**22, "the first sizes are as small as can be"
    assert math.prod(verdict.sizes[1].values()) == 1
    apart = 600 if case == "a square" else 1  # 300 squared, and 301
    for wrong in (changed(right, number, number + apart), changed(right, number, number - apart)):
        assert wrong != right, "the bug was not planted"
        assert verify(program, wrong, trials=1).equal is False


def test_a_number_that_only_the_schedule_has_is_reached():
    program = over_indices(op("lt", COLUMN, Lit(LARGE)), 5, LARGE)  # holds for all j
    wrong = changed(scheduled(program), LARGE, 7000)
    assert verify(program, scheduled(program), trials=1).equal
    assert verify(program, wrong, trials=1).equal is False


@pytest.mark.parametrize(("rows", "columns"), [(None, 9), (9, None), (9, 9), (1000, 9), (1000, 1000)])
def test_spans_over_fixed_spaces(rows, columns):
    """A span over a space of fixed size, or beside one, is checked like others."""
    program = over_indices(window(5), rows, columns)
    right = scheduled(program, limited=True)
    assert any(isinstance(m.range, Spans) for m in maps(right.graph))
    assert verify(program, right, trials=1).equal

    def narrower(node: BlockNode) -> BlockNode:
        if isinstance(node, Map) and isinstance(node.range, Spans):
            (span,) = node.range.spans
            return replace(node, range=Spans((Span(tuple(each.more(-1) for each in span.holds)),)))
        return node

    wrong = everywhere(right, narrower)
    assert wrong != right
    assert verify(program, wrong, trials=1).equal is False


def test_a_wrong_fixed_size_is_refuted():
    program, other = (over_indices(op("le", COLUMN, ROW), size, size) for size in (1000, 999))
    assert verify(program, scheduled(program), trials=1).equal
    verdict = verify(program, scheduled(other), trials=1)
    assert verdict.equal is False
    assert "999" in verdict.reason
    assert different_size(
        over_indices(op("le", COLUMN, ROW), None, 7), scheduled(over_indices(op("le", COLUMN, ROW), 7, 7))
    )


def test_a_tail_that_is_left_out_is_refuted():
    """Even where the real size leaves none: that loops have a tail is for all sizes."""
    program = over_indices(op("le", COLUMN, ROW), 1000, 1000)
    right = scheduled(program, peel=True)
    wrong = everywhere(right, forget_edge)
    assert wrong != right
    assert verify(program, right, trials=1).equal
    assert verify(program, wrong, trials=1).equal is False


def test_sizes_without_indices_are_small():
    """Nothing but its loops depends on how many elements there are."""
    m, n = Axis("m", Space("M", 32000)), Axis("n", Space("N", 4096))
    node = Elementwise("out", (m, n), programs.F32, op("maximum", Arg(0), Lit(100.0)), (Use("x", (m, n)),))
    program = TensorProgram((programs.tensor("x", m, n),), (node,), ("out",))
    grid = LoopSchedule((Level(LevelPlace.grid, 64),))
    block = fused(program)
    verdict = verify(program, apply(block, Schedule(tuple((m.name, grid) for m in maps(block.graph)))))
    assert verdict.agrees
    assert max(size for sizes in verdict.sizes for size in sizes.values()) < 10


def test_no_size_goes_beyond_what_it_is():
    program = over_indices(op("lt", op("add", ROW, COLUMN), Lit(10)), 4, 5)
    assert freed(program, scheduled(program)).most == {"M": 4, "N": 5}
    verdict = verify(program, scheduled(program))
    assert verdict.equal
    assert all(sizes["M"] <= 4 and sizes["N"] <= 5 for sizes in verdict.sizes)


def test_a_number_worked_out_of_sizes_and_indices_alone_has_no_place():
    """A comparison without any axis has one outcome."""
    n = Axis("n", Space("N", 50))
    least = Reduction("least", (), DType.int64, Monoid.min, Use("j", (n,)), (n,))
    kept = op("where", op("lt", Arg(0), Lit(3)), Arg(1), Lit(0.0))
    program = TensorProgram(
        (programs.tensor("x", n),),
        (
            Iota("j", (n,), DType.int64),
            least,
            Elementwise("few", (), DType.bool, op("lt", Arg(0), Lit(3)), (Use("least", ()),)),
            Elementwise("out", (n,), programs.F32, kept, (Use("least", ()), Use("x", (n,)))),
        ),
        ("out", "few"),
    )
    block = fused(program)
    loop = LoopSchedule((Level(LevelPlace.loop, 16),))
    assert verify(program, apply(block, Schedule(tuple((m.name, loop) for m in maps(block.graph))))).equal


SYMBOLIC = {
    name: CASES[name] for name in CASES if name not in ("a bound", "further than sizes of several spaces", "a square")
}


@pytest.mark.parametrize("case", SYMBOLIC)
def test_a_number_that_is_one_off_is_refuted_where_sizes_are_symbols(case):
    expr, number, rows, _ = SYMBOLIC[case]
    program = over_indices(expr, None if rows is None or rows > 100 else rows, None)
    right = scheduled(program)
    verdict = verify(program, right, trials=1)
    assert verdict.equal, verdict
    for wrong in (changed(right, number, number + 1), changed(right, number, number - 1)):
        assert verify(program, wrong, trials=1).equal is False


def test_numbers_that_no_check_reaches_are_said():
    """And numbers that no index is compared with are none of these, however large."""
    far = over_indices(op("lt", COLUMN, Lit(1 << 20)), None, None)
    verdict = verify(far, scheduled(far), trials=1)
    assert verdict.agrees
    assert verdict.equal is None
    (slices,) = (shown for shown in verdict.classes if shown.kind is Aspect.slices)
    assert slices.shown == "N: indices beyond 65536 were not tested"
    filled = op("where", op("le", COLUMN, ROW), Arg(2), Lit(-1e9))
    near = over_indices(op("le", COLUMN, ROW), None, None)
    kept = near.values()["kept"]
    near = replace(near, nodes=tuple(replace(n, expr=filled) if n is kept else n for n in near.nodes))
    assert verify(near, scheduled(near), trials=1).equal
