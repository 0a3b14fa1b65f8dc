"""Iterations in whose block a mask that is a tensor leaves nothing are left out, and all that is computed is as written."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from testkit.emit.comparing import compare, scheduled
from testkit.masks.guarded import KEPT, MASKED, sums
from testkit.masks.limited import fused
from weft.block.check import check
from weft.block.copies import canonical
from weft.block.guard import Guard
from weft.block.listing import listing
from weft.block.program import BlockProgram, Broadcast, Graph, Map, sealed
from weft.block.walk import maps
from weft.errors import InvalidProgramError, ScheduleError
from weft.masks import guard
from weft.plan.targets.triton.masks import told_beforehand
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels
from weft.tensor.dtypes import DType
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Arg, Lit
from weft.tensor.scalar import apply as expression
from weft.verify import verify

EVERY = pytest.mark.parametrize("name", MASKED)


def guards(program: BlockProgram) -> list[Guard]:
    return [m.guard for m in maps(program.graph) if m.guard is not None]


def with_guards(program: BlockProgram, change: Callable[[Guard], Guard]) -> BlockProgram:
    """`program` with every guard changed."""

    def changed(graph: Graph) -> Graph:
        nodes = (
            replace(n, body=changed(n.body), guard=None if n.guard is None else change(n.guard))
            if isinstance(n, Map)
            else n
            for n in graph.nodes
        )
        return replace(graph, nodes=tuple(nodes))

    return replace(program, graph=changed(program.graph))


def plainly(program: BlockProgram, tile: int) -> BlockProgram:
    """`program` with every loop in steps of `tile`."""
    loops = ((m.name, LoopSchedule((Level(LevelPlace.loop, 1 if m.unit else tile),))) for m in maps(program.graph))
    return apply(program, Schedule(tuple(loops)))


@EVERY
def test_the_loop_is_guarded(name: str) -> None:
    make, idle = MASKED[name]
    found = guard(fused(make()))
    check(found)
    assert {g.idle for g in guards(found)} == {idle}
    assert "everywhere" in listing(found)
    assert guard(found) == found


@pytest.mark.one_in(2)
@EVERY
def test_any_schedule_computes_what_was_written(name: str) -> None:
    program = MASKED[name][0]()
    guarded, rng = guard(fused(program)), random.Random(name)
    for _ in range(4):
        verdict = verify(program, scheduled(guarded, rng), seed=rng.randrange(1000))
        assert verdict.agrees, verdict


@pytest.mark.one_in(2)
@EVERY
def test_a_launch_before_says_the_same(name: str) -> None:
    program = MASKED[name][0]()
    guarded = canonical(guard(fused(program)))
    first, *_ = maps(guarded.graph)
    asking = frozenset(m.name for m in maps(guarded.graph) if m.guard is not None)
    loops = tuple(
        (m.name, LoopSchedule((Level(LevelPlace.grid if m is first else LevelPlace.loop, 3),)))
        for m in maps(guarded.graph)
    )
    applied = apply(guarded, Schedule(loops, beforehand=asking))
    assert len(kernels(applied)) == 2
    assert verify(program, applied).agrees
    wrong = with_guards(applied, lambda g: replace(g, idle=True))
    assert verify(program, wrong).equal is False


@pytest.mark.parametrize("name", ["sums", "weighted", "biased"])
def test_a_launch_before_says_so_for_segments(name: str) -> None:
    program = MASKED[name][0]()
    guarded = canonical(guard(fused(program)))
    first, *_ = maps(guarded.graph)
    asking = frozenset(m.name for m in maps(guarded.graph) if m.guard is not None)

    def levels(node: Map) -> tuple[Level, ...]:
        if node.name in asking:
            return Level(LevelPlace.split, 3), Level(LevelPlace.loop, 3)
        return (Level(LevelPlace.grid if node is first else LevelPlace.loop, 3),)

    loops = tuple((m.name, LoopSchedule(levels(m))) for m in maps(guarded.graph))
    applied = apply(guarded, Schedule(loops, beforehand=asking))
    assert any(m.guard is not None and m.range.segment is not None for m in maps(applied.graph))
    assert verify(program, applied).agrees
    assert verify(program, with_guards(applied, lambda g: replace(g, idle=True))).equal is False


@pytest.mark.parametrize(
    ("name", "length", "told"), [("documents", 4096, 1), ("documents", 1 << 17, 0), ("weighted", 1 << 17, 1)]
)
def test_what_is_said_beforehand_takes_no_more_memory_than_there_is_for_a_mask(
    name: str, length: int, told: int
) -> None:
    """A mask that two rows of integers make is in no memory, whatever their length is."""
    guarded = canonical(guard(fused(MASKED[name][0]())))
    first, *_ = maps(guarded.graph)
    levels = {m.name: (Level(LevelPlace.grid if m is first else LevelPlace.loop, 64),) for m in maps(guarded.graph)}
    sizes = {m.axis.space.name: length for m in maps(guarded.graph)}
    wanted = Schedule(tuple((loop, LoopSchedule(each)) for loop, each in levels.items()))
    assert len(told_beforehand(guarded, wanted, sizes).beforehand) == told


def test_what_has_no_guard_is_not_found_out() -> None:
    program = canonical(fused(sums(KEPT)))
    loops = tuple((m.name, LoopSchedule((Level(LevelPlace.loop, 3),))) for m in maps(program.graph))
    with pytest.raises(ScheduleError, match="no guard"):
        apply(program, Schedule(loops, beforehand=frozenset((loops[-1][0],))))


@pytest.mark.one_in(2)
@EVERY
def test_kernels_compute_what_the_interpreter_computes(name: str, tmp_path: Path) -> None:
    rng, program = random.Random(name), MASKED[name][0]()
    guarded = guard(fused(program))
    blocks = [scheduled(guarded, rng), plainly(guarded, 2), plainly(guarded, 3)]
    compare(blocks, [s.name for s in program.spaces()], tmp_path, rng, DType.float32, quickly=True)


@EVERY
def test_a_guard_that_leaves_out_what_counts_is_refuted(name: str) -> None:
    program = MASKED[name][0]()
    wrong = with_guards(
        guard(fused(program)), lambda g: replace(g, idle=not g.idle if isinstance(g.idle, bool) else 0.0)
    )
    for _ in range(4):  # each verdict draws other primes, and with them other numbers
        assert verify(program, plainly(wrong, 2)).equal is False


@pytest.mark.parametrize(
    "kept",
    [
        expression("where", Arg(0), Arg(1), Lit(1.0)),  # adds 1 where the mask is false
        expression("where", expression("gt", Arg(1), Lit(0.0)), Arg(1), Lit(0.0)),  # no mask, but the data itself
    ],
)
def test_what_is_no_mask_guards_nothing(kept: object) -> None:
    program = fused(sums(kept))  # type: ignore[arg-type]
    assert guard(program) == program


def test_numbers_are_no_mask() -> None:
    program = fused(sums(expression("mul", Arg(0), Arg(1)), DType.float32))
    assert guard(program) == program


def test_what_something_is_subtracted_from_is_no_mask_of_it() -> None:
    """-inf - x is NaN where x is -inf; a mask is added, or selects."""
    difference = expression("exp", expression("sub", Arg(0), Arg(1)))
    program = fused(sums(difference, DType.float32))
    assert guard(program) == program
    added = fused(sums(expression("exp", expression("add", Arg(0), Arg(1))), DType.float32))
    assert guards(guard(added))


def test_a_loop_without_a_state_is_not_guarded() -> None:
    found = guard(fused(sums(KEPT)))
    (loop,) = (m for m in maps(found.graph) if m.guard is not None)

    def changed(graph: Graph) -> Graph:
        plain = (sealed(replace(loop, outputs=(), state=None)) if n is loop else n for n in graph.nodes)
        nodes = (replace(n, body=changed(n.body)) if isinstance(n, Map) else n for n in plain)
        return replace(graph, nodes=tuple(nodes))

    with pytest.raises(InvalidProgramError) as refused:
        check(replace(found, graph=changed(found.graph)))
    assert refused.value.condition == "a loop that leaves iterations out has nothing but a state"


def test_a_guard_asks_an_item_of_the_body() -> None:
    found = guard(fused(MASKED["weighted"][0]()))
    (loop,) = (m for m in maps(found.graph) if m.guard is not None)
    inner = next(m for m in maps(loop.body) if m.state is not None)
    given = {f.outer for f in inner.inputs if not isinstance(f.access, Broadcast)}

    def changed(graph: Graph) -> Graph:
        asking = sealed(replace(loop, guard=Guard(min(given), idle=False)))
        nodes = (
            asking if n is loop else replace(n, body=changed(n.body)) if isinstance(n, Map) else n for n in graph.nodes
        )
        return replace(graph, nodes=tuple(nodes))

    with pytest.raises(InvalidProgramError) as refused:
        check(replace(found, graph=changed(found.graph)))
    assert refused.value.condition == "what says that it is idle is an item of the body"


def test_a_loop_inside_a_guarded_one_is_not_split() -> None:
    program: TensorProgram = MASKED["weighted"][0]()
    guarded = guard(fused(program))
    (outer,) = (m for m in maps(guarded.graph) if m.guard is not None)
    inner = next(m.name for m in maps(outer.body) if m.state is not None)
    loops = {m.name: LoopSchedule((Level(LevelPlace.loop, 1 if m.unit else 3),)) for m in maps(guarded.graph)}
    loops[inner] = LoopSchedule((Level(LevelPlace.split, 2), Level(LevelPlace.loop, 2)))
    with pytest.raises(ScheduleError, match="leaves idle iterations out"):
        apply(guarded, Schedule(tuple(loops.items())))
