"""Small tiles in place of large ones: what is checked decides as the real program would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testkit.block import programs
from testkit.schedules import fused
from testkit.verify.bugs import (
    BUGS,
    GRID,
    LOOP,
    PROGRAM,
    SPLIT,
    overwrite,
)
from testkit.verify.edges import everywhere
from weft.block.program import BlockNode, BlockProgram, Map, Pointwise
from weft.block.ranges import Part, Segment
from weft.block.walk import maps
from weft.schedule import Level, LoopSchedule, Schedule, apply
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Elementwise,
    Extent,
    Monoid,
    Reduction,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Apply, Arg, Lit, Scalar
from weft.tensor.scalar import apply as apply_
from weft.verify import field_check, verify
from weft.verify.sizes import edge_sizes, small_tiles


def in_tiles(m: int, n: int, k: LoopSchedule) -> BlockProgram:
    rows, columns = (LoopSchedule((Level(GRID, size),)) for size in (m, n))
    return apply(fused(PROGRAM), Schedule((("m", rows), ("n", columns), ("k", k))))


def test_small_tiles_keep_the_order_and_one():
    big = in_tiles(512, 1, LoopSchedule((Level(LOOP, 256), Level(LOOP, 64), Level(LOOP, 1))))
    found = [m.tile for m in maps(small_tiles(big).graph)]
    assert [m.tile for m in maps(big.graph)] == [512, 1, 256, 64, 1]
    assert found == [3, 1, 7, 3, 1]


def test_sums_of_few_iterations_are_merged():
    """However many iterations a sum has, the check goes through the merge of what follows, and sees one that is wrong."""
    right = in_tiles(512, 128, LoopSchedule((Level(LOOP, 256),)))
    assert [m.chain for m in maps(right.graph)] == [0, 0, 16]
    assert [m.chain for m in maps(small_tiles(right).graph)] == [0, 0, 2]

    def forgetful(node: BlockNode) -> BlockNode:
        if not isinstance(node, Map) or node.state is None:
            return node
        left = node.state.merge.inputs[: len(node.state.components)]
        merge = replace(node.state.merge, nodes=(), outputs=left)
        return replace(node, state=replace(node.state, merge=merge))

    assert verify(PROGRAM, right).agrees
    assert not verify(PROGRAM, everywhere(right, forgetful)).agrees


def test_loops_side_by_side_have_few_blocks_and_each_a_rest():
    """A space with many loops over it: tiles are near each other, so that no loop has more than a few blocks."""
    program = programs.square_product()
    block = fused(program)
    loops = tuple(
        (m.name, LoopSchedule((Level(GRID if m.state is None else LOOP, size),)))
        for m, size in zip(maps(block.graph), (512, 128, 64, 2048, 32), strict=False)
    )
    small = small_tiles(apply(block, Schedule(loops)))
    tiles = sorted({m.tile for m in maps(small.graph) if m.tile})
    assert len(tiles) == 3
    (size,) = set(edge_sizes(small)[0].values())
    assert all(size % tile and 1 <= size // tile <= 4 for tile in tiles)
    assert all(a % b for a in tiles for b in tiles if b < a)
    assert verify(program, small).equal


@pytest.mark.parametrize(("size", "tile"), [(3, 2), (4, 2), (5, 3)])
def test_a_size_that_is_a_number_has_as_many_blocks_as_in_the_program(size: int, tile: int):
    m, n, k = *programs.axes("m", "n"), Axis("k", Space("K", size))
    inputs = (programs.tensor("x", m, k), programs.tensor("w", k, n))
    product = programs.matmul("out", Use("x", (m, k)), Use("w", (k, n)), k)
    program = TensorProgram(inputs, (product,), ("out",))
    block = fused(program)
    loops = tuple((m.name, LoopSchedule((Level(GRID if m.state is None else LOOP, tile),))) for m in maps(block.graph))
    right = apply(block, Schedule(loops))
    assert verify(program, right).agrees
    assert not verify(program, everywhere(right, overwrite)).agrees


def turned(expr: Scalar, old: str, new: str) -> Scalar:
    """`expr` with another operation of two arguments in place of `old`."""
    if not isinstance(expr, Apply):
        return expr
    return Apply(new if expr.op == old else expr.op, tuple(turned(a, old, new) for a in expr.args))


@pytest.mark.parametrize(("old", "new"), [("ge", "gt"), ("lt", "le")])
def test_an_index_is_tried_at_both_ends_of_its_space(old: str, new: str):
    """Find a comparison wrong at the first label, or the one after the last, where other inputs let it decide."""
    m, k = programs.axes("m", "k")
    label, kept, size = Use("label", (m,)), Use("kept", (m,)), Use("size", ())
    inside = apply_("logical_and", apply_("ge", Arg(0), Lit(0)), apply_("lt", Arg(0), Arg(1)))
    inputs = (
        programs.tensor("kept", m, dtype=DType.bool),
        programs.tensor("label", m, dtype=DType.int64),
        programs.tensor("x", m, k),
    )
    nodes = (
        Reduction("sum", (m,), programs.F32, Monoid.sum, Use("x", (m, k)), (k,)),
        Extent("size", (), DType.int64, k.space),
        Elementwise("inside", (m,), DType.bool, apply_("logical_and", inside, Arg(2)), (label, size, kept)),
        Elementwise(
            "out",
            (m,),
            programs.F32,
            apply_("where", Arg(0), Arg(1), Lit(0.0)),
            (Use("inside", (m,)), Use("sum", (m,))),
        ),
    )
    program = TensorProgram(inputs, nodes, ("out",))
    block = fused(program)
    loops = tuple((n.name, LoopSchedule((Level(GRID if n.state is None else LOOP, 16),))) for n in maps(block.graph))
    right = apply(block, Schedule(loops))
    wrong = everywhere(right, lambda n: replace(n, expr=turned(n.expr, old, new)) if isinstance(n, Pointwise) else n)
    assert wrong != right
    assert verify(program, right).agrees
    # Which elements are kept is drawn: in one draw of a hundred, those that decide it are not.
    assert sum(verify(program, wrong, seed=seed).agrees for seed in range(6)) <= 2


def test_of_many_segments_a_few_are_checked():
    """Sizes need not give two blocks to each of a thousand."""
    applied = in_tiles(8, 8, LoopSchedule((Level(SPLIT, 1024), Level(LOOP, 64))))
    small = small_tiles(applied)
    assert {m.range.count for m in maps(small.graph) if isinstance(m.range, Segment)} == {3}
    assert max(max(sizes.values()) for sizes in edge_sizes(small)) < 20
    assert verify(PROGRAM, applied).equal


@pytest.mark.parametrize(("count", "together"), [(8, 4), (6, 4), (128, 32), (3, 2), (4, 3)])
def test_parts_that_are_merged_several_at_a_time_leave_blocks_and_a_rest(count: int, together: int):
    split = LoopSchedule((Level(SPLIT, count), Level(LOOP, 2)))
    rows = LoopSchedule((Level(GRID, 4),))
    applied = apply(fused(PROGRAM), Schedule((("m", rows), ("n", rows), ("k", split)), together=together))
    (segments,) = {m.range.index.space for m in maps(applied.graph) if isinstance(m.range, Segment)}

    def forgetful(node: BlockNode) -> BlockNode:
        """The merge keeps the last block of parts."""
        if not isinstance(node, Map) or node.state is None or node.axis.space != segments:
            return node
        update = node.state.update
        before = set(update.inputs[: len(node.state.components)])
        nodes = tuple(
            replace(n, expr=Arg(1) if n.args[0] in before else Arg(0))
            if isinstance(n, Pointwise) and len(n.args) == 2 and before & set(n.args)
            else n
            for n in update.nodes
        )
        return replace(node, state=replace(node.state, update=replace(update, nodes=nodes)))

    wrong = everywhere(applied, forgetful)
    assert wrong != applied
    assert verify(PROGRAM, applied).equal is True
    assert verify(PROGRAM, wrong).equal is False


def test_a_loop_by_single_elements_is_checked_as_one():
    """All its blocks are whole: a loop that visits whole blocks only is right, and one that visits the rest does nothing."""
    ones = in_tiles(8, 8, LoopSchedule((Level(LOOP, 1),)))

    def visiting(part: Part) -> BlockProgram:
        return everywhere(
            ones,
            lambda n: (
                replace(n, range=replace(n.range, part=part)) if isinstance(n, Map) and n.state is not None else n
            ),
        )

    assert verify(PROGRAM, visiting(Part.full)).equal is True
    assert verify(PROGRAM, visiting(Part.edge)).equal is False


AFFORDABLE = {
    "whole loop": in_tiles(12, 9, LoopSchedule((Level(LOOP, 10),))),
    "peeled": in_tiles(9, 12, LoopSchedule((Level(LOOP, 11),), peel=True)),
    "levels": in_tiles(8, 1, LoopSchedule((Level(LOOP, 12), Level(LOOP, 4)))),
    "by ones": in_tiles(1, 10, LoopSchedule((Level(LOOP, 9), Level(LOOP, 1)))),
    "segments": in_tiles(9, 8, LoopSchedule((Level(SPLIT, 3), Level(LOOP, 6)))),
    "many segments": in_tiles(9, 8, LoopSchedule((Level(SPLIT, 8), Level(LOOP, 2)))),
}


@pytest.mark.parametrize("tiles", AFFORDABLE)
def test_small_tiles_decide_as_real_ones_do(monkeypatch, tiles):
    right = AFFORDABLE[tiles]
    wrong = {bug: everywhere(right, change) for bug, (_, change) in BUGS.items()}
    programs_ = {"none": right, **{bug: program for bug, program in wrong.items() if program != right}}
    assert len(programs_) > 4
    small = {bug: verify(PROGRAM, program, trials=1).equal for bug, program in programs_.items()}
    monkeypatch.setattr(field_check, "small_tiles", lambda applied, *_: applied)
    real = {bug: verify(PROGRAM, program, trials=1).equal for bug, program in programs_.items()}
    # Where the innermost block is one element there is no padding, so that it may hold anything.
    harmless = {"none", *(["padding that is not zero"] if tiles == "by ones" else [])}
    assert small == real == {bug: bug in harmless for bug in programs_}
