"""The closed form against what the interpreter counts when it really moves the blocks."""

from __future__ import annotations

import importlib
import random
from collections import Counter
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.block import programs, scans
from testkit.masks.limited import band
from weft.block.check import check
from weft.block.copies import canonical
from weft.block.interpret import interpret
from weft.block.lower import lower
from weft.block.places import Place
from weft.block.program import (
    BlockProgram,
    BlockType,
    Broadcast,
    Collapse,
    Dot,
    Feed,
    Fill,
    Final,
    Graph,
    Iterate,
    Map,
    Stacked,
    Stage,
    State,
    sealed,
)
from weft.block.transfers import with_transfers
from weft.block.walk import maps
from weft.cost import alike, on_chip_bytes
from weft.cost.traffic import Traffic, by_kernel, traffic
from weft.errors import ScheduleError
from weft.pipeline import RULES_IN_PLANS, fuse
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Monoid

# The package exports a function of this name.
counting = importlib.import_module("weft.cost.traffic")
FUSED = {name: canonical(fuse(lower(make()), RULES_IN_PLANS, ()).last) for name, make in programs.ALL.items()}


def levels(rng: random.Random, node: Map, *, may_split: bool) -> tuple[Level, ...]:
    """Random levels that suit the loop: grid first where it is parallel, a split only where it may."""
    if node.unit:
        return (Level(LevelPlace.grid if node.state is None else LevelPlace.loop, 1),)
    found: list[Level] = []
    if may_split and rng.random() < 0.5:
        found.append(Level(LevelPlace.split, rng.choice([1, 2, 3])))
    if rng.random() < 0.15:
        return (*found, Level(LevelPlace.whole))
    sizes = sorted(rng.sample([1, 2, 3, 4, 5, 8, 16], rng.choice([1, 1, 2])), reverse=True)
    outer = LevelPlace.grid if node.state is None and rng.random() < 0.8 else LevelPlace.loop
    found += [Level(outer if i == 0 else LevelPlace.loop, size) for i, size in enumerate(sizes)]
    return tuple(found)


def scheduled(rng: random.Random, program: BlockProgram) -> BlockProgram:
    """`program` under a random schedule that fits it."""
    while True:
        loops: list[tuple[str, LoopSchedule]] = []
        split_at = rng.choice([m.name for m in maps(program.graph)])
        for node in maps(program.graph):
            may_split = node.state is not None and node.name == split_at
            chosen = levels(rng, node, may_split=may_split)
            peel = node.state is not None and chosen[-1].place is LevelPlace.loop
            loops.append((node.name, LoopSchedule(chosen, peel=peel and rng.random() < 0.5)))
        dots = [n.name for m in maps(program.graph) for n in m.body.nodes if isinstance(n, Dot)]
        rows, panels = ({d for d in dots if rng.random() < 0.5} for _ in range(2))
        try:
            schedule = Schedule(tuple(loops), frozenset(rows), frozenset(panels))
            return apply(program, schedule)
        except ScheduleError:
            continue


def moved(program: BlockProgram, sizes: dict[str, int]):
    """Returns what the interpreter counts."""
    inputs = {n: np.ones([a.space.size(sizes) for a in k.lists]) for n, k in program.inputs}
    return interpret(program, inputs, sizes, Fp64Domain(), on_chip=True)[1]


def same(found: Traffic, program: BlockProgram, sizes: dict[str, int]) -> None:
    counted = moved(program, sizes)
    assert dict(found.loaded) == dict(+counted.loaded)
    assert dict(found.stored) == dict(+counted.stored)
    assert dict(found.operations) == dict(+counted.operations)
    assert dict(found.starts) == dict(+counted.starts)
    assert on_chip_bytes(program, sizes) == counted.on_chip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FUSED)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_traffic_is_what_the_interpreter_counts(name: str, seed: int, data: st.DataObject) -> None:
    program = scheduled(random.Random(seed), FUSED[name])
    sizes = {s: data.draw(st.integers(1, 9), s) for s in "BMKNP"}
    same(traffic(program, sizes), program, sizes)


def at(program: BlockProgram, **tiles: int) -> BlockProgram:
    """`program` with each loop in tiles of its space's size, on the grid where parallel; staged."""
    chosen: list[tuple[str, LoopSchedule]] = []
    for node in maps(program.graph):
        place = LevelPlace.grid if node.state is None else LevelPlace.loop
        size = 1 if node.unit else tiles[node.axis.space.name]
        chosen.append((node.name, LoopSchedule((Level(place, size),))))
    dots = [n.name for m in maps(program.graph) for n in m.body.nodes if isinstance(n, Dot)]
    return apply(program, Schedule(tuple(chosen), frozenset(), frozenset(dots)))


SIZES = {"M": 5, "K": 7, "N": 6}


def test_a_tiled_product_by_hand() -> None:
    """5x7 times 7x6 in blocks of 4: two blocks along each axis, four programs of the grid."""
    program = at(FUSED["linear_relu"], M=4, K=4, N=4)
    found = traffic(program, SIZES)
    assert dict(found.loaded) == {"x": 2 * 5 * 7 * 4, "w": 2 * 7 * 6 * 4, "b": 2 * 6 * 4}
    assert dict(found.stored) == {"out": 5 * 6 * 4}
    assert found.matrix_flops == {DType.float32: 2 * 5 * 6 * 7}
    assert sum(found.flops.values()) == 2 * 5 * 6 * 7 + 2 * 5 * 6  # add and relu
    staged = 2 * 7 * 6 * 4  # w as panels, for each of two blocks of rows
    filled = 2 * 5 * 7 * 4 + 2 * 7 * 6 * 4  # the padding along k of both operands
    copies = {n.name for m in maps(program.graph) for n in m.body.nodes if isinstance(n, Stage | Fill)}
    assert (
        sum(4 * often * prod(lengths) for (name, lengths), often in found.operations.items() if name in copies)
        == staged + filled
    )
    assert found.iterations == 4
    assert found.shared == {"x", "w", "b", "out"}
    assert not found.local
    assert found.lists == {"x": 5 * 7 * 4, "w": 7 * 6 * 4, "b": 6 * 4, "out": 5 * 6 * 4}


def test_a_collapse_reads_each_valid_element_once() -> None:
    program = at(FUSED["row_sum_of_squares"], M=4, K=4, N=4)
    found = traffic(program, SIZES)
    collapses = [n.name for m in maps(program.graph) for n in m.body.nodes if isinstance(n, Collapse)]
    assert len(collapses) == 1
    assert found.flops[collapses[0]] == 5 * 6


PRODUCTS = {
    "linear_relu": lambda s: s["M"] * s["K"] * s["N"],
    "gated": lambda s: 2 * s["M"] * s["K"] * s["N"],
    "row_sum_of_squares": lambda s: s["M"] * s["K"] * s["N"],
    "batched": lambda s: s["B"] * s["M"] * s["K"] * s["N"],
}


@pytest.mark.parametrize("name", PRODUCTS)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_no_schedule_changes_the_products_work(name: str, seed: int, data: st.DataObject) -> None:
    program = scheduled(random.Random(seed), FUSED[name])
    sizes = {s: data.draw(st.integers(1, 9), s) for s in "BMKN"}
    assert sum(traffic(program, sizes).matrix_flops.values()) == 2 * PRODUCTS[name](sizes)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FUSED)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_the_kernels_add_up(name: str, seed: int, data: st.DataObject) -> None:
    program = scheduled(random.Random(seed), FUSED[name])
    sizes = {s: data.draw(st.integers(1, 9), s) for s in "BMKNP"}
    whole, parts = traffic(program, sizes), by_kernel(program, sizes)
    assert len(parts) == len(kernels(program))
    assert sum(sum(p.loaded.values()) for p in parts) == sum(whole.loaded.values())
    assert sum(sum(p.flops.values()) for p in parts) == sum(whole.flops.values())
    for part, kernel in zip(parts, kernels(program), strict=True):
        assert part.shared <= {*kernel.reads, *kernel.writes}
        assert not part.local & {*kernel.reads, *kernel.writes}


def test_a_split_passes_its_parts_through_global_memory() -> None:
    program = FUSED["linear_relu"]
    loops = {
        "M": LoopSchedule((Level(LevelPlace.grid, 4),)),
        "N": LoopSchedule((Level(LevelPlace.grid, 4),)),
        "K": LoopSchedule((Level(LevelPlace.split, 3), Level(LevelPlace.loop, 2))),
    }
    chosen = tuple((m.name, loops[m.axis.space.name]) for m in maps(program.graph))
    found = by_kernel(apply(program, Schedule(chosen)), SIZES)
    assert len(found) == 2
    (parts,) = found[0].shared & found[1].shared
    assert found[0].stored[parts] == found[1].loaded[parts] == 3 * 5 * 6 * 4
    assert found[1].lists[parts] == 3 * 5 * 6 * 4
    assert [f.iterations for f in found] == [12, 4]


def test_a_list_inside_an_iteration_of_the_grid_is_local() -> None:
    """Unfused, a product lists its partial products over k before it adds them up."""
    program = canonical(lower(programs.ALL["batched"]()))
    loops = tuple(
        (m.name, LoopSchedule((Level(LevelPlace.grid if m.axis.space.name in "BMN" else LevelPlace.loop,
                                     1 if m.unit else 3),)))
        for m in maps(program.graph)
    )  # fmt: skip
    applied = apply(program, Schedule(loops))
    sizes = {"B": 2, "M": 5, "K": 7, "N": 6}
    (found,) = by_kernel(applied, sizes)
    same(found, applied, sizes)
    (partial,) = found.local
    assert found.shared == {"x", "y", "out"}
    assert found.stored[partial] == found.loaded[partial] == 3 * 2 * 5 * 6 * 4
    assert found.iterations == 2 * 2 * 2


def causal(outer_tile: int, inner_tile: int) -> BlockProgram:
    """For each block of rows, the sum of all elements up to its last: a loop whose length varies."""
    space = Space("M")
    m, k, own = Axis("m", space), Axis("k", space), Axis("x.m", space)
    f32 = DType.float32
    state = State.of_monoid(Monoid.sum, "part", (), f32, "s")
    inner = sealed(
        Map("k", k, (Feed("x1", "x2", Iterate(own)),),
            Graph((), (Fill("whole", "x2", 0.0), Collapse("part", Monoid.sum, "whole", k)), ()),
            (Final("total", "s"),), state, band(m, high=0), place=Place.loop, tile=inner_tile)
    )  # fmt: skip
    outer = sealed(
        Map("m", m, (Feed("x", "x1", Broadcast()),), Graph((), (inner,), ()),
            (Stacked("out", "total"),), place=Place.grid, tile=outer_tile)
    )  # fmt: skip
    graph = Graph(("x",), (outer,), ("out",))
    return with_transfers(BlockProgram((("x", BlockType((own,), (own,), f32)),), graph, ((m,),)))


@given(st.integers(1, 20), st.integers(1, 6), st.integers(1, 6))
def test_a_causal_loop_is_counted_block_by_block(size: int, outer: int, inner: int) -> None:
    program = causal(outer, inner)
    check(program)
    found = traffic(program, {"M": size})
    same(found, program, {"M": size})
    read = sum(min(size, base + outer) for base in range(0, size, outer))
    assert found.loaded == {"x": 4 * read}
    assert found.flops["part"] == read


@pytest.mark.parametrize(
    ("size", "outer", "inner"),
    [(129, 1, 1), (200, 1, 7), (500, 1, 1), (2065, 16, 16), (5000, 1, 64), (70001, 16, 64), (4097, 2, 4096)],
)
def test_thousands_of_lengths_are_walked_in_few_groups(
    size: int, outer: int, inner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a causal loop each have a length of their own: a walk of all of them took half a second for every schedule."""
    walks = Counter[str]()
    walked = counting._Walk.loop

    def loop(walk: Any, node: Map, *rest: Any) -> Any:
        walks[node.name] += 1
        return walked(walk, node, *rest)

    monkeypatch.setattr(counting._Walk, "loop", loop)
    counting._of_kernel.cache_clear()
    found = traffic(causal(outer, inner), {"M": size})
    read = sum(min(size, base + outer) for base in range(0, size, outer))
    assert (found.loaded["x"], found.flops["part"]) == (4 * read, read), "lengths that grow evenly are added up exactly"
    assert found.runs["m"] == -(-size // outer)
    assert 1 < max(walks.values()) <= 132
    before = walks.total()
    assert traffic(causal(outer, inner), {"M": size}) == found
    assert walks.total() == before, "the same kernel in another schedule is walked again"


@pytest.mark.parametrize("parts", [129, 200, 301])
@pytest.mark.parametrize("down", [False, True])
def test_many_segments_that_merge_those_before_them_are_counted_in_few_groups(
    parts: int, down: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = (Level(LevelPlace.split, parts), Level(LevelPlace.loop, 1))
    rows = LoopSchedule((Level(LevelPlace.grid, 2),))
    loops = tuple((n, LoopSchedule(split) if n == ("m" if down else "n") else rows) for n in "mn")
    tensors = scans.scan(over=scans.M if down else scans.N)
    program = apply(scans.fused(tensors, doubles=False), Schedule(loops, together=2))
    sizes = {"M": 1200, "N": 3} if down else {"M": 3, "N": 1200}
    few = traffic(program, sizes)
    counting._of_kernel.cache_clear()
    monkeypatch.setattr(alike, "_MOST_APART", 1 << 30)
    every = traffic(program, sizes)
    assert few.starts == every.starts, "where states begin"
    # 301 segments of 1,200 elements are not all of one length.
    assert few.loaded == pytest.approx(every.loaded, rel=5e-3)
    assert few.flops == pytest.approx(every.flops, rel=5e-3)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(2, 4), st.booleans())
def test_segments_that_merge_those_before_them_are_counted_one_by_one(
    size: int, parts: int, many: int, down: bool
) -> None:
    """Segment number i reads i parts; the rest is what segments of equal length do."""
    split = (Level(LevelPlace.split, parts), Level(LevelPlace.loop, 4))
    rows = LoopSchedule((Level(LevelPlace.grid, 2),))
    loops = tuple((n, LoopSchedule(split) if n == ("m" if down else "n") else rows) for n in "mn")
    tensors = scans.scan(over=scans.M if down else scans.N)
    program = apply(scans.fused(tensors, doubles=False), Schedule(loops, together=many))
    sizes = {"M": size if down else 3, "N": 3 if down else size}
    found = traffic(program, sizes)
    same(found, program, sizes)
    assert len(kernels(program)) == 2
    parts_read = [read for name, read in found.loaded.items() if name != "x"]
    assert sum(parts_read) == 4 * 3 * parts * (parts - 1) // 2


def test_a_large_program_is_counted_without_running_it() -> None:
    sizes = {"M": 1 << 20, "K": 1 << 14, "N": 1 << 14}
    found = traffic(at(FUSED["linear_relu"], M=3, K=5, N=7), sizes)
    assert found.matrix_flops[DType.float32] == 2 << 48
    assert found.loaded["x"] == -(-sizes["N"] // 7) * sizes["M"] * sizes["K"] * 4
