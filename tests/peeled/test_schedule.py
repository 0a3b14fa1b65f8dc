"""Schedules of peeled loops: the first block and the rest are cut at one place, and lists of blocks are shared."""

from __future__ import annotations

import pytest

from testkit.block import paper
from testkit.fuse import peelable
from weft.block.copies import canonical
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.block.ranges import First, Remainder
from weft.block.walk import maps
from weft.errors import ScheduleError
from weft.fuse.safety import make_safe
from weft.pipeline import fuse
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, kernels, tied


def alternative(make, beside: int = 1) -> BlockProgram:
    (found,) = (a.program for a in fuse(lower(make())).alternatives if a.beside == beside)
    return canonical(found)


ATTENTION, ADDING = alternative(paper.attention), alternative(paper.rmsnorm, 2)


def loop(*sizes: int, peel: bool = False) -> LoopSchedule:
    return LoopSchedule(tuple(Level(LevelPlace.loop, size) for size in sizes), peel)


WHOLE = LoopSchedule((Level(LevelPlace.whole),))
SPLIT = LoopSchedule((Level(LevelPlace.split, 2), Level(LevelPlace.loop, 4)))


def scheduled(program: BlockProgram, **loops: LoopSchedule) -> BlockProgram:
    """`program` in blocks of 4, but for the given loops; `first` and `rest` stand for those with these ranges."""
    chosen: list[tuple[str, LoopSchedule]] = []
    for node in maps(program.graph):
        role = "first" if isinstance(node.range, First) else "rest" if isinstance(node.range, Remainder) else node.name
        chosen.append((node.name, loops.get(role, loop(4))))
    return apply(program, Schedule(tuple(chosen)))


def test_the_rest_may_have_levels_of_its_own() -> None:
    text = listing(scheduled(ATTENTION, rest=loop(4, 2)))
    assert "forall l in first(L):  # loop, 4 a block" in text
    assert "forall l in rest(L):  # loop, 4 a block" in text
    assert "forall l1 in range(L within l):  # loop, 2 a block" in text
    text = listing(scheduled(ADDING, rest=loop(4, 2)))
    assert "for k1 in range(K within k):" in text


def test_an_edge_is_peeled_off_the_rest_alone() -> None:
    text = listing(scheduled(ADDING, rest=loop(4, peel=True)))
    assert [text.count(f"in {r}:") for r in ("first(K)", "rest(K, full)", "rest(K, edge)")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("program", "loops", "why"),
    [
        (ATTENTION, {"rest": loop(8)}, "begins where its first block ends"),
        (ATTENTION, {"rest": loop(8, 4)}, "begins where its first block ends"),
        (ATTENTION, {"rest": WHOLE}, "begins where its first block ends"),
        (ATTENTION, {"first": WHOLE}, "begins where its first block ends"),
        (ATTENTION, {"first": loop(4, 2)}, "takes one level"),
        (ADDING, {"first": loop(4, peel=True)}, "takes one level, and is not peeled"),
        (ADDING, {"rest": SPLIT}, "does not run over its whole range"),
        (ADDING, {"d": SPLIT}, "in or beside a first iteration"),
        (ADDING, {"d1": SPLIT}, "in or beside a first iteration"),
    ],
)
def test_what_does_not_fit(program: BlockProgram, loops: dict[str, LoopSchedule], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        scheduled(program, **loops)


def test_both_may_be_the_whole() -> None:
    text = listing(scheduled(ATTENTION, first=WHOLE, rest=WHOLE))
    assert "forall l in first(L):  # whole" in text


def test_loops_that_share_a_list_of_blocks_go_by_the_same() -> None:
    """On pairs, the rows of each block of scores have an exponent: as many as there are blocks."""
    safe = canonical(make_safe(ATTENTION).program)
    axes = {m.axis: m.name for m in maps(safe.graph)}
    pairs = [(axes[a], axes[b]) for a, b in tied(safe)]
    assert pairs == [("n", "n1")]
    assert not list(tied(ATTENTION))
    scheduled(safe)
    scheduled(safe, n=loop(2), n1=loop(2))
    for other in (loop(2), loop(8, 4), WHOLE):
        with pytest.raises(ScheduleError, match="share a list of blocks"):
            scheduled(safe, n1=other)


def test_levels_of_a_loop_on_pairs() -> None:
    """The levels' states are merged by a graph that has names of its own, some of them those of components."""
    fused = canonical(make_safe(fuse(lower(paper.attention())).last).program)
    text = listing(scheduled(fused, n=loop(8, 4)))
    assert "for n1 in range(N within n):  # loop, 4 a block" in text


def test_a_launch_each_at_the_top_and_none_for_the_list() -> None:
    program = alternative(peelable.one_query)
    grid = LoopSchedule((Level(LevelPlace.grid, 4),))
    applied = scheduled(program, first=grid, rest=grid)
    one, two = kernels(applied)
    (whole,) = applied.graph.outputs
    assert whole in one.writes
    assert len(one.writes) > 1
    assert one.begun == ()
    assert two.writes == two.begun == (whole,)


def test_one_launch_where_neither_is_on_the_grid() -> None:
    applied = scheduled(alternative(peelable.one_query))
    (only,) = kernels(applied)
    assert only.writes == applied.graph.outputs
    assert only.begun == ()
