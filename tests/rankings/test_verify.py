"""Planted bugs in rankings are refuted; right ones under every schedule are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from testkit.block.rankings import FIRST, ORDERS, every, ranking
from testkit.schedules import fused
from weft.block.program import BlockNode, BlockProgram, Fill, Graph, Index, Map, Pointwise, Rank, State
from weft.block.walk import maps
from weft.lab.fuzz.random_schedules import fitting_schedule
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.field import ExactValue, FieldDomain
from weft.tensor.order import NOTHING
from weft.tensor.scalar import Arg, Lit
from weft.tensor.scalar import apply as apply_
from weft.verify import verify
from weft.verify.sizes import edge_sizes, small_tiles

COUNT = 4


def in_places(*levels: Level) -> BlockProgram:
    program = fused(ranking(COUNT))
    known = {"M": (Level(LevelPlace.grid, 4),), "R": (Level(LevelPlace.whole),), "N": levels}
    return apply(
        program, Schedule(tuple((m.name, LoopSchedule(known[m.axis.space.name])) for m in maps(program.graph)))
    )


LOOP = in_places(Level(LevelPlace.loop, 3))
SEGMENTS = in_places(Level(LevelPlace.split, 3), Level(LevelPlace.loop, 2))
LEVELS = in_places(Level(LevelPlace.loop, 8), Level(LevelPlace.loop, 4))


def states(program: BlockProgram, change: Callable[[State], State]) -> BlockProgram:
    """`program` with the states of its loops changed."""

    def graph(old: Graph) -> Graph:
        return replace(old, nodes=tuple(node(n) for n in old.nodes))

    def node(old: BlockNode) -> BlockNode:
        if not isinstance(old, Map):
            return old
        state = None if old.state is None else change(old.state)
        return replace(old, body=graph(old.body), state=state)

    return replace(program, graph=graph(program.graph))


def other_order(largest: bool, nan_first: bool) -> Callable[[BlockProgram], BlockProgram]:
    order = replace(FIRST, largest=largest, nan_first=nan_first)
    return lambda p: every(p, lambda n: replace(n, order=order) if isinstance(n, Rank) else n)


def padding_that_is_there(program: BlockProgram) -> BlockProgram:
    return every(program, lambda n: replace(n, value=1e6) if isinstance(n, Fill) else n)


def start(values: float, places: float) -> Callable[[BlockProgram], BlockProgram]:
    def started(state: State) -> State:
        first, second = state.components
        return replace(state, components=(replace(first, init=values), replace(second, init=places)))

    return lambda p: states(p, started)


def numbers_from_one_on(program: BlockProgram) -> BlockProgram:
    """Numbers the elements of a block from one on."""

    def from_one(state: State) -> State:
        nodes: list[BlockNode] = []
        for node in state.update.nodes:
            nodes.append(node)
            if isinstance(node, Index):
                made = Pointwise("later", apply_("add", Arg(0), Lit(1)), (node.name,), node.dims, DType.int64)
                nodes.append(made)
        renamed = [replace(n, arg="later") if isinstance(n, Fill) else n for n in nodes]
        return replace(state, update=replace(state.update, nodes=tuple(renamed)))

    return states(program, from_one)


def drops_what_was_first(program: BlockProgram) -> BlockProgram:
    """The update ranks each block anew: places of the last one alone."""

    def anew(state: State) -> State:
        names = tuple(c.name for c in state.components)
        swap = {n.places: names[1] for n in state.update.nodes if isinstance(n, Rank)}
        return replace(state, update=replace(state.update, outputs=tuple(swap.get(o, o) for o in state.update.outputs)))

    return states(program, anew)


BUGS: tuple[tuple[str, BlockProgram, Callable[[BlockProgram], BlockProgram]], ...] = (
    ("the least", LOOP, other_order(False, True)),
    ("padding is there", LOOP, padding_that_is_there),
    ("an element at the start", LOOP, start(float("-inf"), 0.0)),
    ("numbers from 1 on", LOOP, numbers_from_one_on),
    ("places that stay", LOOP, drops_what_was_first),
    ("the least, in segments", SEGMENTS, other_order(False, True)),
    ("an element at the start of each segment", SEGMENTS, start(float("-inf"), 0.0)),
    ("padding is there, on two levels", LEVELS, padding_that_is_there),
)


@pytest.mark.parametrize(("program", "plant"), [b[1:] for b in BUGS], ids=[b[0].replace(" ", "-") for b in BUGS])
def test_planted_bugs_are_refuted(program: BlockProgram, plant: Callable[[BlockProgram], BlockProgram]) -> None:
    tensors = ranking(COUNT)
    assert verify(tensors, program).equal
    wrong = plant(program)
    assert wrong != program
    assert not verify(tensors, wrong).agrees


def test_a_ranking_that_takes_the_last_of_equals_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal elements are among the inputs that are tried."""
    right = FieldDomain.ranked
    calls = 0

    def last_of_equals(self, v, numbers, count, order):
        nonlocal calls
        calls += 1
        if calls % 2:  # the tensor program's turn
            return right(self, v, numbers, count, order)

        def turned(array):
            return np.where(array == NOTHING, NOTHING, -array)

        values, places = right(self, v, self.lift(turned, numbers), count, order)
        return values, self.lift(turned, places)

    monkeypatch.setattr(FieldDomain, "ranked", last_of_equals)
    program = fused(ranking(None))
    whole = tuple((m.name, LoopSchedule((Level(LevelPlace.whole),))) for m in maps(program.graph))
    assert not verify(ranking(None), apply(program, Schedule(whole))).agrees


@pytest.mark.one_in(2)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_right_programs_are_equal_under_any_schedule(order) -> None:
    rng = random.Random(str(order))
    for count in (None, 1, 3, 9):
        for dtype in (DType.float32, DType.int64):
            tensors = ranking(count, order, dtype)
            for _ in range(4):
                schedule, applied = fitting_schedule(fused(tensors), rng)
                assert verify(tensors, applied, trials=1).agrees, schedule


def test_more_elements_than_are_kept_are_tried() -> None:
    sizes = edge_sizes(small_tiles(LOOP))
    assert all(s["N"] > COUNT + 2 for s in (sizes[0], sizes[2]))


def test_equal_elements_of_a_field_keep_their_order() -> None:
    domain = FieldDomain(0)
    x = domain.full((), 1.0, DType.float32)
    rows = domain.lift(lambda array: array.reshape(1, 1).repeat(5, axis=1), x)
    values, places = evaluate(ranking(2), {"x": rows}, domain)
    assert isinstance(places, ExactValue)
    assert places.array.tolist() == [[0, 1]]
    assert domain.equal(values, domain.full((1, 2), 1.0, DType.float32))
