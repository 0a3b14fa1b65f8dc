"""What a target asks of loops: room for matmuls, iterations that run as one, and loads of several in flight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testkit.block import programs
from testkit.schedules import fused
from weft.block.places import LoopDemands
from weft.block.program import BlockProgram, Map
from weft.block.room import Room, room_of
from weft.block.walk import maps
from weft.emit.triton import GRANULARITY
from weft.schedule import EXACT, Level, LevelPlace, LoopSchedule, Schedule, apply, with_demands
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.program import Elementwise, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Apply, Arg, Lit

WHERE = Apply("where", (Arg(0), Arg(1), Lit(0.0)))
GRID, LOOP, WHOLE, SPLIT = LevelPlace.grid, LevelPlace.loop, LevelPlace.whole, LevelPlace.split


def placed(program: BlockProgram, **levels: tuple[Level, ...]) -> BlockProgram:
    """Apply, for Triton, the levels that stand beside the first letter of each loop's name."""
    loops = tuple((m.name, LoopSchedule(levels[m.name[0]])) for m in maps(program.graph))
    return apply(program, Schedule(loops), GRANULARITY)


def linear(dtype: DType, k: tuple[Level, ...] = (Level(LOOP, 8),)) -> dict[str, Map]:
    """Relu of a matmul in blocks of 4 rows and 8 columns: its loops by name."""
    applied = placed(fused(programs.linear_relu(dtype)), m=(Level(GRID, 4),), n=(Level(GRID, 8),), k=k)
    return {m.name: m for m in maps(applied.graph)}


@pytest.mark.parametrize(("dtype", "depth"), [(DType.float32, 16), (DType.bfloat16, 16), (DType.float8_e5m2, 32)])
def test_blocks_of_a_matmul_have_the_room_that_its_unit_wants(dtype: DType, depth: int) -> None:
    """More in depth where factors have 8 bits."""
    loops = linear(dtype)
    assert {name: room_of(node, {}) for name, node in loops.items()} == {"m": 16, "n": 16, "k": depth}
    assert [node.tile for node in loops.values()] == [4, 8, 8]


def test_a_mask_of_bools_asks_for_no_more_depth() -> None:
    m, n, k, rows, columns = programs.axes("m", "n", "k", "m", "n")
    matmul = programs.matmul("y", Use("x", (m, k)), Use("w", (n, k)), k, DType.bfloat16)
    masked = Elementwise("z", (m, n), DType.bfloat16, WHERE, (Use("mask", (m, n)), Use("y", (m, n))))
    inputs = (
        programs.tensor("x", m, k, dtype=DType.bfloat16),
        programs.tensor("w", n, k, dtype=DType.bfloat16),
        programs.tensor("mask", rows, columns, dtype=DType.bool),
    )
    program = fused(TensorProgram(inputs, (matmul, masked), ("z",)))
    applied = placed(program, m=(Level(GRID, 4),), n=(Level(GRID, 8),), k=(Level(LOOP, 8),))
    assert {room_of(node, {}) for node in maps(applied.graph)} == {16}


def test_short_chains_are_all_that_is_asked_of_a_cpus_loops() -> None:
    program = fused(programs.linear_relu())
    loops = {"m": Level(GRID, 4), "n": Level(GRID, 8), "k": Level(LOOP, 8)}
    applied = apply(program, Schedule(tuple((m.name, LoopSchedule((loops[m.name],))) for m in maps(program.graph))))
    assert with_demands(applied, EXACT) == applied
    assert {n.name: n.demands for n in maps(applied.graph)} == {
        "m": LoopDemands(),
        "n": LoopDemands(),
        "k": LoopDemands(chain=EXACT.chain),
    }


def test_the_innermost_loop_is_pipelined() -> None:
    assert {name: node.demands.pipelined for name, node in linear(DType.bfloat16).items()} == {
        "m": False,
        "n": False,
        "k": True,
    }
    levels = (Level(LOOP, 32), Level(LOOP, 8))
    loops = linear(DType.bfloat16, levels)
    assert [(n.tile, n.demands.pipelined) for n in loops.values() if n.tile in (32, 8) and n.place and n.state] == [
        (32, False),
        (8, True),
    ]


def test_a_merge_of_segments_runs_several_iterations_as_one() -> None:
    m, n = programs.axes("m", "n")
    total = Reduction("y", (m,), DType.float32, Monoid.sum, Use("x", (m, n)), (n,))
    program = fused(TensorProgram((programs.tensor("x", m, n),), (total,), ("y",)))
    for count, together in ((8, 8), (16, 8), (12, 4), (7, 1)):
        applied = placed(program, m=(Level(GRID, 1),), n=(Level(SPLIT, count), Level(LOOP, 64)))
        merges = [m for m in maps(applied.graph) if m.unit and m.state is not None]
        assert [m.demands.unroll for m in merges] == [together]
        assert all(m.demands.pipelined is (together == 1) for m in merges)


def test_another_sum_of_single_elements_does_not() -> None:
    """Eight heads, whose matmuls are in memory since another reduction keeps heads, are not the segments of a loop."""
    (m, n, k), h = programs.axes("m", "n", "k"), Axis("h", Space("H", 8))
    heads = programs.matmul("p", Use("x", (h, m, k)), Use("w", (h, n, k)), k)
    total = Reduction("y", (m, n), DType.float32, Monoid.sum, Use("p", (h, m, n)), (h,))
    most = Reduction("z", (h, m), DType.float32, Monoid.max, Use("x", (h, m, k)), (k,))
    inputs = (programs.tensor("x", h, m, k), programs.tensor("w", h, n, k))
    program = fused(TensorProgram(inputs, (heads, total, most), ("y", "z")))
    applied = placed(program, h=(Level(LOOP, 1),), m=(Level(GRID, 16),), n=(Level(GRID, 16),), k=(Level(LOOP, 16),))
    (summed,) = (m for m in maps(applied.graph) if m.unit and m.state is not None)
    assert (summed.demands.unroll, summed.demands.pipelined) == (1, True)


def test_loops_are_told_apart_by_their_axes() -> None:
    applied = placed(fused(programs.linear_relu()), m=(Level(GRID, 4),), n=(Level(GRID, 8),), k=(Level(LOOP, 8),))
    *_, m = applied.graph.nodes
    with pytest.raises(AssertionError, match="axis of its own"):
        with_demands(replace(applied, graph=replace(applied.graph, nodes=(m, m))), GRANULARITY)


def test_whole_blocks_of_one_space_have_the_same_room() -> None:
    """A list goes from one loop to another in registers, so that their blocks are alike."""
    program = fused(programs.two_layers(DType.float8_e5m2))
    levels = {m.name[0]: (Level(WHOLE),) for m in maps(program.graph)}
    applied = placed(program, **levels | {"m": (Level(GRID, 16),)})
    rooms = {room_of(node, {}) for node in maps(applied.graph) if node.tile is None}
    # n: the columns of one matmul, the depth of another
    assert rooms == {Room(Space("K"), 32), Room(Space("N"), 32), Room(Space("P"), 16)}
