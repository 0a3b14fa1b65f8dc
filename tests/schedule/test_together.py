"""Which merges of a state can be made merges of a block of parts, and what becomes of those that cannot."""

from __future__ import annotations

import pytest

from testkit.block import handmade, paper, programs
from testkit.block.programs import F32
from testkit.block.rankings import ranking
from testkit.cascade.chains import CHAINS, one_loop
from testkit.schedules import fused
from weft.block.copies import canonical
from weft.block.lower import lower
from weft.block.program import BlockProgram, Component, Graph, Map, Pointwise, State
from weft.block.walk import maps
from weft.fuse.safety import make_safe
from weft.pipeline import fuse
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, merging_together
from weft.tensor.program import Elementwise, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, Scalar
from weft.tensor.scalar import apply as apply_scalar
from weft.verify import verify

LEFT, RIGHT = Arg(0), Arg(1)


@pytest.mark.parametrize("name", CHAINS)
def test_every_chain_of_the_cascades_has_one(name):
    _, fold = one_loop(name)
    assert merging_together(fold.state, fold.over[-1]) is not None


def state(*nodes: tuple[str, Scalar, tuple[str, ...]], carried: tuple[str, ...]) -> State:
    """A state of numbers for each row, merged by these operators."""
    made = tuple(Pointwise(name, expr, args, (handmade.M,), F32) for name, expr, args in nodes)
    inputs = (*(f"{n}_left" for n in carried), *(f"{n}_right" for n in carried))
    merge = Graph(inputs, made, tuple(f"{n}_whole" for n in carried))
    components = tuple(Component(n, (handmade.M,), F32, 0.0) for n in carried)
    return State(components, carried, merge, merge, Graph(carried, (), carried))


ADD, SUB, MUL = (apply_scalar(op, LEFT, RIGHT) for op in ("add", "sub", "mul"))
REFUSED = {
    "a linear recurrence": state(
        ("a_whole", MUL, ("a_left", "a_right")),
        ("moved", MUL, ("b_left", "a_right")),
        ("b_whole", ADD, ("moved", "b_right")),
        carried=("a", "b"),
    ),
    "one of two that are not exclusive": state(
        ("sum", ADD, ("x_left", "x_right")),
        ("both", MUL, ("x_left", "x_right")),
        ("x_whole", SUB, ("sum", "both")),
        carried=("x",),
    ),
    "a difference": state(("x_whole", SUB, ("x_left", "x_right")), carried=("x",)),
    "the right part alone": state(("x_whole", apply_scalar("add", LEFT, Lit(1.0)), ("x_right",)), carried=("x",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_operation_of_two_sides_has_none(name):
    assert merging_together(REFUSED[name], handmade.K) is None


def split(program: BlockProgram, loop: str, together: int) -> Map:
    """The merge of `loop` in three segments."""
    loops = {m.name: LoopSchedule((Level(LevelPlace.whole),)) for m in maps(program.graph)}
    loops[loop] = LoopSchedule((Level(LevelPlace.split, 3), Level(LevelPlace.loop, 4)))
    applied = apply(program, Schedule(tuple(loops.items()), together=together))
    (merge,) = (m for m in maps(applied.graph) if m.state is not None and m.axis.space.fixed == 3)
    return merge


def test_attention_takes_parts_at_once_and_a_ranking_one_by_one():
    safe = canonical(make_safe(canonical(fuse(lower(paper.attention())).last)).program)
    (loop,) = (m.name for m in maps(safe.graph) if m.axis.space.name == "N")
    assert (split(safe, loop, 4).tile, split(safe, loop, 4).unit) == (4, False)
    assert (split(safe, loop, 1).tile, split(safe, loop, 1).unit) == (1, True)
    ranked = fused(ranking(5))
    (loop,) = (m.name for m in maps(ranked.graph) if m.axis.space.name == "N")
    assert (split(ranked, loop, 4).tile, split(ranked, loop, 4).unit) == (1, True)


@pytest.mark.parametrize("name", ["x", "s", "s_alone", "s_part", "parts"])
def test_names_of_parts_are_those_of_nothing_else(name):
    """An argument of the user's may be called what a part would be."""
    (n,) = programs.axes("n")
    x, v, e, f = (Use(value, (n,)) for value in (name, "v", "e", "f"))
    program = TensorProgram((programs.tensor(name, n), programs.tensor("v", n)), (
        Elementwise("e", (n,), F32, apply_scalar("exp", Arg(0)), (x,)),
        Reduction("z", (), F32, Monoid.sum, e, (n,)),
        Elementwise("f", (n,), F32, MUL, (e, v)),
        Reduction("t", (), F32, Monoid.sum, f, (n,)),
        Elementwise("y", (), F32, apply_scalar("div", LEFT, RIGHT), (Use("t", ()), Use("z", ()))),
    ), ("y",))  # fmt: skip
    safe = canonical(make_safe(canonical(fuse(lower(program)).last)).program)
    (loop,) = (m.name for m in maps(safe.graph))
    levels = LoopSchedule((Level(LevelPlace.split, 3), Level(LevelPlace.loop, 4)))
    applied = apply(safe, Schedule(((loop, levels),), together=4))
    assert any(m.tile == 4 and not m.unit and m.axis.space.fixed == 3 for m in maps(applied.graph))
    assert verify(program, applied, trials=1).equal is True
