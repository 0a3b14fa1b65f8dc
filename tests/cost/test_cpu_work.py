"""What operators do on a CPU: which of their elements lie side by side, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from testkit.block.programs import linear_relu
from testkit.schedules import fused
from weft.block.walk import maps
from weft.cost import Machine, MemoryLevel, estimate, total
from weft.cost.cpu_cycles import cycles_of
from weft.cost.cpu_work import BlockCopy, BlockMove, BlockProduct, ElementLoop, works_of
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.dtypes import DType

F32, BF16 = DType.float32, DType.bfloat16
MACHINE = Machine(1, 1e11, {F32: 1e11, BF16: 2e11}, (MemoryLevel("memory", float("inf"), 1e11, 1e-8),))
SIZES = {"M": 256, "K": 256, "N": 256}
PANEL = BlockProduct((0, 1, 2), F32, panel=True, across=True, plain=False, turned=False, row=None)
DIRECT = replace(PANEL, panel=False, row="n")
WORK = ElementLoop(4.0, (1, 0), None, along=False)


def placed(panels: bool, **tiles: int) -> Any:
    """Place relu(x @ w + b) with loops of these tiles; `panels`: its right operand is staged."""
    program = fused(linear_relu())
    loops = {
        m.name: LoopSchedule((Level(LevelPlace.loop, tiles.get(m.axis.space.name.lower(), 64)),))
        for m in maps(program.graph)
    }
    return apply(program, Schedule(tuple(loops.items()), panels=frozenset(dots(program) if panels else ())))


def dots(program: Any) -> list[str]:
    from weft.block.program import Dot
    from weft.block.walk import every

    return [node.name for node in every(program.graph.nodes) if isinstance(node, Dot)]


def of(kind: type, works: Mapping[str, Any]) -> list[Any]:
    return [work for work in works.values() if isinstance(work, kind)]


@pytest.mark.parametrize("panels", [True, False])
def test_a_product_says_how_its_right_operand_lies(panels: bool) -> None:
    program = placed(panels)
    (found,) = of(BlockProduct, works_of(program, {}))
    assert (found.panel, found.turned, found.plain) == (panels, False, False)
    (turned,) = of(BlockProduct, works_of(program, {"x": 0}))
    assert turned.turned, "rows of x lie as columns"
    (other,) = of(BlockProduct, works_of(program, {"w": 0}))
    assert other.panel or found.across != other.across
    assert len(of(BlockCopy, works_of(program, {}))) == panels


def test_loads_say_of_which_list_they_are_and_along_which_side() -> None:
    plain, other = (works_of(placed(panels=False), {"x": place}) for place in (1, 0))
    moved = [{w.memory: w.side for w in of(BlockMove, works)} for works in (plain, other)]
    assert {each["x"] for each in moved} == {0, 1}
    assert {n: s for n, s in moved[0].items() if n != "x"} == {n: s for n, s in moved[1].items() if n != "x"}


def test_blocks_along_memory_are_predicted_to_be_faster_than_narrow_ones() -> None:
    wide, narrow = (total(estimate(placed(panels=False, n=n), SIZES, MACHINE)).predicted_seconds for n in (256, 8))
    assert wide < narrow / 2


@pytest.mark.parametrize(
    ("better", "worse", "lengths"),
    [
        (PANEL, replace(PANEL, plain=True), (64, 64, 64)),
        (PANEL, replace(PANEL, turned=True), (64, 64, 64)),
        (PANEL, DIRECT, (64, 64, 64)),
        (DIRECT, replace(DIRECT, row="far"), (4, 64, 64)),
        (replace(DIRECT, across=False), replace(DIRECT, across=False, row="far"), (4, 64, 64)),
        (replace(DIRECT, across=False), replace(DIRECT, across=False, row="far"), (32, 64, 64)),
        (replace(PANEL, dtype=BF16), PANEL, (64, 64, 64)),
        (WORK, replace(WORK, apart=(0, 1)), (16, 64)),
        (replace(WORK, along=True), WORK, (16, 64)),
        (WORK, replace(WORK, over=1), (16, 64)),
        (WORK, replace(WORK, over=0), (16, 64)),
        (BlockCopy(F32, turned=False), BlockCopy(F32, turned=True), (64, 64)),
    ],
)
def test_what_costs_more(better: Any, worse: Any, lengths: tuple[int, ...]) -> None:
    sizes = {"n": 64, "far": 4096}
    assert cycles_of(better, lengths, sizes, MACHINE) < cycles_of(worse, lengths, sizes, MACHINE)


@pytest.mark.parametrize("work", [PANEL, DIRECT, replace(DIRECT, across=False), replace(PANEL, dtype=BF16)])
def test_a_product_in_small_blocks_costs_more(work: BlockProduct) -> None:
    whole = cycles_of(work, (128, 128, 128), {"n": 128}, MACHINE)
    assert (
        whole
        < 8 * cycles_of(work, (64, 64, 64), {"n": 64}, MACHINE)
        < 4096 * cycles_of(work, (8, 8, 8), {"n": 8}, MACHINE)
    )


def test_short_rows_cost_more_and_the_longest_axis_is_the_innermost_one_where_it_is_far_longer() -> None:
    long, short = (cycles_of(WORK, lengths, {}, MACHINE) for lengths in ((8, 256), (128, 16)))
    assert short > long
    apart, dense = (cycles_of(replace(WORK, apart=each), (512, 4), {}, MACHINE) for each in ((1, 0), (0, 1)))
    assert apart > 4 * dense, "the loop over 512 is the innermost one"
    assert cycles_of(replace(WORK, apart=()), (), {}, MACHINE) > 0


def test_the_loop_along_what_is_stored_is_the_innermost_one_where_it_fills_vectors() -> None:
    for work in of(ElementLoop, works_of(placed(True), {})):
        assert work.dense in (None, 1), "columns of the result lie side by side"
    assert any(work.dense == 1 for work in of(ElementLoop, works_of(placed(True), {})))
    cycles = [
        [cycles_of(replace(WORK, apart=(1, 0), dense=dense), (512, width), {}, MACHINE) for dense in (None, 1)]
        for width in (4, 16)
    ]
    (short, same), (apart, along) = cycles
    assert short == same, "the loop over 512 is the innermost one"
    assert apart > 4 * along
