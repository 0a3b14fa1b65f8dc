"""The check bites: planted bugs are refuted, right programs of every schedule are not."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from testkit.block import paper, programs
from testkit.schedules import fused, random_schedule
from testkit.verify.bugs import (
    BUGS,
    GRID,
    LOOP,
    PROGRAM,
    SPLIT,
    WHOLE_LOOP,
)
from testkit.verify.edges import everywhere
from weft.block.copies import canonical
from weft.block.lower import lower
from weft.block.program import BlockNode, BlockProgram, Collapse, Fill, Load, Pointwise
from weft.block.ranges import Remainder, Segment
from weft.block.walk import maps
from weft.errors import ScheduleError
from weft.pipeline import fuse
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.builder import Builder
from weft.tensor.dtypes import DType
from weft.tensor.field import FieldDomain
from weft.tensor.program import (
    Cast,
    Contraction,
    Elementwise,
    Iota,
    Monoid,
    Node,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar
from weft.tensor.scalar import apply as apply_
from weft.verify import equivalent, field_check, subject, verify
from weft.verify.inputs import numbers_of_interest, turns
from weft.verify.sizes import edge_sizes, iterations, small_tiles


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_refuted(bug):
    right, change = BUGS[bug]
    wrong = everywhere(right, change)
    assert wrong != right, "the bug was not planted"
    assert verify(PROGRAM, right).equal is True
    verdict = verify(PROGRAM, wrong)
    assert verdict.equal is False
    assert verdict.error_probability is None
    assert not verdict.agrees


def test_reading_the_wrong_axis_is_not_called_equal():
    """All axes run over one space, so that only values can tell rows from columns."""
    right = programs.square_product()
    wrong = replace(right, nodes=tuple(_transposed(n) for n in right.nodes))
    assert verify(right, applied_to(right)).equal is True
    assert verify(wrong, applied_to(right)).equal is False


def _transposed(node: Node) -> Node:
    assert isinstance(node, Contraction)
    left, right = node.left, node.right
    return replace(node, left=replace(left, axes=left.axes[::-1]), right=replace(right, axes=right.axes[::-1]))


def applied_to(program: TensorProgram) -> BlockProgram:
    block = fused(program)
    loops = tuple((m.name, LoopSchedule((Level(GRID if m.state is None else LOOP, 2),))) for m in maps(block.graph))
    return apply(block, Schedule(loops))


def test_a_program_that_cannot_run_is_undecided():
    def outside(node: BlockNode) -> BlockNode:
        return replace(node, at=tuple(replace(s, offset=1) for s in node.at)) if isinstance(node, Load) else node

    verdict = verify(PROGRAM, everywhere(WHOLE_LOOP, outside))
    assert verdict.equal is None
    assert "could not be run" in verdict.reason


@pytest.mark.parametrize("name", programs.ALL)
@pytest.mark.parametrize("seed", range(4))
def test_right_programs_are_not_refuted(name, seed):
    rng = random.Random(f"{seed} {name}")
    program = programs.ALL[name]()
    block = fused(program)
    while True:
        try:
            scheduled = apply(block, random_schedule(block, rng))
            break
        except ScheduleError:
            continue
    verdict = verify(program, scheduled, trials=1)
    assert verdict.equal is True, verdict
    assert verdict.agrees


def test_the_rest_after_a_first_block_has_whole_blocks_and_an_edge():
    peeled = canonical(fuse(lower(paper.attention())).alternatives[0].program)
    loops = tuple((m.name, LoopSchedule((Level(LevelPlace.loop, 64),))) for m in maps(peeled.graph))
    applied = small_tiles(apply(peeled, Schedule(loops)))
    rest = next(m for m in maps(applied.graph) if isinstance(m.range, Remainder))
    assert rest.tile is not None
    found = [sizes["L"] for sizes in edge_sizes(applied)]
    assert any(size > 3 * rest.tile and size % rest.tile for size in found)
    assert any(size < rest.tile for size in found)
    assert verify(paper.attention(), applied)


def test_segments_of_single_elements_need_few_whatever_blocks_other_loops_have():
    """Loops side by side over one space: a size for the largest blocks would give the loop by single elements many iterations."""
    program = programs.square_product()
    first, *others = maps(fused(program).graph)
    last = others[-1]
    loops = (
        (first.name, LoopSchedule((Level(GRID, 1),))),
        *((m.name, LoopSchedule((Level(LOOP, 64),))) for m in others[:-1]),
        (last.name, LoopSchedule((Level(SPLIT, 3), Level(LOOP, 1)))),
    )
    applied = small_tiles(apply(fused(program), Schedule(loops)))
    segment = next(m for m in maps(applied.graph) if isinstance(m.range, Segment))
    (size,) = set(edge_sizes(applied)[0].values())
    assert segment.tile == 1
    assert size == 5
    assert verify(program, applied).equal


def test_what_ran_before_does_not_change_what_a_number_is_taken_for():
    """i / 2 is 0.5 at index 1: its place in the order must be that of 0.5 before 0.5 itself is met, and after."""
    (m,) = programs.axes("m")
    halves = apply_("div", Arg(0), Lit(2.0))
    program = TensorProgram(
        (programs.tensor("x", m),),
        (
            Iota("i", (m,), DType.int64),
            Cast("f", (m,), programs.F32, Use("i", (m,)), semantic=True),
            Elementwise("h", (m,), programs.F32, halves, (Use("f", (m,)),)),
            Elementwise("out", (m,), programs.F32, apply_("add", apply_("abs", Arg(0)), Lit(0.5)), (Use("h", (m,)),)),
        ),
        ("out",),
    )
    scheduled = applied_to(program)
    assert all(verify(program, scheduled, seed=seed).agrees for seed in range(8))


def selected(dtype: DType, condition: Scalar) -> TensorProgram:
    """where(condition of i, x, 0), i an input of `dtype`."""
    (m,) = programs.axes("m")
    chosen = apply_("where", condition, Arg(1), Lit(0.0))
    node = Elementwise("out", (m,), programs.F32, chosen, (Use("i", (m,)), Use("x", (m,))))
    return TensorProgram((programs.tensor("i", m, dtype=dtype), programs.tensor("x", m)), (node,), ("out",))


BRANCHES = {
    "an index": (DType.int64, apply_("eq", Arg(0), Lit(50256)), apply_("eq", Arg(0), Lit(50255))),
    "one more": (DType.int64, apply_("gt", Arg(0), Lit(50256)), apply_("ge", Arg(0), Lit(50256))),
    "a large threshold": (programs.F32, apply_("gt", Arg(0), Lit(1.0e6)), apply_("gt", Arg(0), Lit(2.0e6))),
    "never": (programs.F32, apply_("gt", Arg(0), Lit(1.0e6)), Lit(False)),
    "a tie": (programs.F32, apply_("gt", Arg(0), Lit(0.25)), apply_("ge", Arg(0), Lit(0.25))),
    "a tie of int32": (DType.int32, apply_("lt", Arg(0), Lit(-7000)), apply_("le", Arg(0), Lit(-7000))),
}


@pytest.mark.parametrize("branch", BRANCHES)
def test_branches_that_random_inputs_never_take_are_seen(branch):
    dtype, right, wrong = BRANCHES[branch]
    program, other = selected(dtype, right), selected(dtype, wrong)
    for seed in range(3):
        assert verify(program, applied_to(program), seed=seed).agrees
        assert verify(program, applied_to(other), seed=seed).equal is False
        shapes = [{"i": (9,), "x": (9,)}, {"i": (5,), "x": (5,)}]
        assert equivalent(program, other, shapes, seed=seed).equal is False
        assert equivalent(program, program, shapes, seed=seed).agrees


def test_numbers_that_are_only_added_are_not_put_in_for_floats():
    """x - 1 would be 0 where x is 1, and hide what is multiplied by it."""
    program = selected(programs.F32, apply_("gt", apply_("mul", Arg(0), Lit(4.0)), Lit(0.5)))
    found = numbers_of_interest((program,), programs.F32)
    assert (0.5 in found, 4.0 in found, len(found)) == (True, False, 3)
    below, at, above = found
    assert below < at < above
    assert numbers_of_interest((program,), DType.bool) == ()
    assert {0, 1, 4, 5} <= set(numbers_of_interest((program,), DType.uint8))
    assert min(numbers_of_interest((program,), DType.uint8)) == 0


def test_numbers_that_element_numbers_are_compared_with_are_not_put_in_for_floats():
    """A mask made of indices asks nothing of what it masks."""
    (m,) = programs.axes("m")
    masked = apply_("where", apply_("lt", Arg(0), Lit(3)), Arg(1), apply_("maximum", Arg(1), Lit(0.5)))
    nodes = (
        Iota("i", (m,), DType.int64),
        Elementwise("out", (m,), programs.F32, masked, (Use("i", (m,)), Use("x", (m,)))),
    )
    program = TensorProgram((programs.tensor("x", m),), nodes, ("out",))
    assert sorted(map(round, numbers_of_interest((program,), programs.F32))) == [0, 0, 1]  # 0.5, and beside it


def test_programs_of_many_iterations_take_fewer_draws_of_numbers(monkeypatch):
    program = selected(programs.F32, apply_("gt", Arg(0), Lit(1.0e6)))
    applied = applied_to(program)
    place = {"M": 60}
    assert iterations(small_tiles(applied).graph, place) == 20
    assert turns((program,), {"M": 1}) > turns((program,), {"M": 1}, 1) == 1
    taken = list[int]()
    real = subject.with_numbers
    monkeypatch.setattr(subject, "with_numbers", lambda *a: taken.append(a[4]) or real(*a))
    assert verify(program, applied).agrees
    many = len(taken)
    monkeypatch.setattr(field_check, "_ITERATIONS", 1)
    monkeypatch.setattr(field_check, "_FEWEST_TURNS", 1)
    assert verify(program, applied).agrees
    assert len(taken) == many + 1 < 2 * many


def test_where_there_is_time_for_few_draws_of_numbers_each_verdict_makes_others(monkeypatch):
    """One draw, of one element, of the three numbers about 1e6: 30 verdicts try all of them, and one that is repeated the same."""
    program = selected(programs.F32, apply_("gt", Arg(0), Lit(1.0e6)))
    field, numbers = FieldDomain(0), numbers_of_interest((program,), programs.F32)
    real, begun = subject.with_numbers, list[int]()
    monkeypatch.setattr(subject, "with_numbers", lambda *a: begun.append(a[6]) or real(*a))
    monkeypatch.setattr(field_check, "_ITERATIONS", 1)
    monkeypatch.setattr(field_check, "_FEWEST_TURNS", 1)
    verdicts = [verify(program, applied_to(program)) for _ in range(30)]

    def tried(begin: int) -> int:
        values = {n.name: field.full((1,), 0.5, n.dtype) for n in program.inputs}
        rng = np.random.default_rng(0)
        found = real(values, (program,), field, rng, 0, {"M": 1}, begin)["i"]
        return next(i for i, n in enumerate(numbers) if field.equal(found, field.full((1,), n, programs.F32)))

    assert len(begun) == len(verdicts)
    assert set(map(tried, begun)) == {0, 1, 2}
    verify(program, applied_to(program), primes=verdicts[-1].primes)
    assert begun[-1] == begun[-2]


# Small tiles: what is checked in place of what runs.


def padding_of_the_other_extremum(node: BlockNode) -> BlockNode:
    return replace(node, value=-node.value) if isinstance(node, Fill) else node


def other_extremum(node: BlockNode) -> BlockNode:
    return replace(node, monoid=Monoid.max) if isinstance(node, Collapse) else node


def forget_cast(node: BlockNode) -> BlockNode:
    match node:
        case Pointwise(expr=Convert(_, inner)):
            return replace(node, expr=inner)
        case _:
            return node


@pytest.mark.parametrize("of", [DType.bool, DType.float32, DType.uint8], ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_extrema_of_casts_to_integers(of: DType, dim: int) -> None:
    """The check finds right what is padded with the greatest of the type, and wrong what is padded with the least."""
    builder = Builder()
    cast = builder.cast(builder.input("x", (5, 7, 3), of), DType.int32, semantic=True)
    program = builder.finish([builder.reduce(Monoid.min, cast, [dim])])
    block = fused(program)
    loops = tuple((m.name, LoopSchedule((Level(LOOP, 1 if m.unit else 2),))) for m in maps(block.graph))
    right = apply(block, Schedule(loops))
    verdict = verify(program, right)
    assert verdict.agrees, verdict
    for bug in (padding_of_the_other_extremum, other_extremum, *((forget_cast,) if of is not DType.uint8 else ())):
        wrong = everywhere(right, bug)
        assert wrong != right
        # Of two orders of bools either may be drawn: two trials miss a lost cast about once in sixty times.
        assert not verify(program, wrong, trials=12).agrees, bug


@pytest.mark.parametrize("dtype", [d for d in DType if d.kind == "int"], ids=str)
def test_a_lost_wrap_is_refuted(dtype: DType) -> None:
    """x * y of integers, halved: right only where the product wraps before, whatever the type's width."""
    builder = Builder()
    x, y = (builder.input(name, (6, 5), dtype) for name in "xy")
    made = builder.elementwise(apply_("mul", Arg(0), Arg(1)), (x, y), dtype)
    half = builder.elementwise(apply_("floor_divide", Arg(0), Lit(2)), (made,), dtype)
    program = builder.finish([half])
    block = fused(program)
    loops = tuple((m.name, LoopSchedule((Level(LOOP, 3),))) for m in maps(block.graph))
    placed = apply(block, Schedule(loops))
    assert verify(program, placed).agrees
    if dtype is not DType.int64:
        wrong = everywhere(placed, lambda node: unwrapped(node, dtype))
        assert wrong != placed
        assert verify(program, wrong).equal is False
    other = everywhere(placed, doubled_divisor)
    assert verify(program, other).equal is False


def unwrapped(node: BlockNode, dtype: DType) -> BlockNode:
    """The first cast of the product is left out, the one of the quotient stays."""

    def without(expr: Scalar) -> Scalar:
        match expr:
            case Apply("floor_divide", (Convert(_, inner), divisor)):
                return Apply("floor_divide", (inner, divisor))
            case Apply(op, args):
                return Apply(op, tuple(map(without, args)))
            case Convert(to, inner) if to is dtype:
                return Convert(to, without(inner))
            case _:
                return expr

    return replace(node, expr=without(node.expr)) if isinstance(node, Pointwise) else node


def doubled_divisor(node: BlockNode) -> BlockNode:
    def doubled(expr: Scalar) -> Scalar:
        match expr:
            case Apply("floor_divide", (left, Lit(2))):
                return Apply("floor_divide", (left, Lit(4)))
            case Apply(op, args):
                return Apply(op, tuple(map(doubled, args)))
            case Convert(to, inner):
                return Convert(to, doubled(inner))
            case _:
                return expr

    return replace(node, expr=doubled(node.expr)) if isinstance(node, Pointwise) else node


def test_a_claim_that_cannot_be_worked_out_costs_no_licence(monkeypatch):
    def fails(*_: object) -> None:
        raise OverflowError("a degree beyond all numbers")

    monkeypatch.setattr(subject.Subject, "held", fails)
    verdict = verify(PROGRAM, WHOLE_LOOP)
    assert verdict.agrees
    assert verdict.equal is None
    assert "a degree beyond all numbers" in verdict.reason


def test_programs_of_any_length():
    """The probability is still a number for thousands of operations, as models of many layers have."""
    builder = Builder()
    ref = builder.input("x", [3], DType.float32)
    for _ in range(1100):
        ref = builder.elementwise(apply_("add", Arg(0), Arg(1)), [ref, ref])
    program = builder.finish([ref])
    assert equivalent(program, program, [{"x": (3,)}], trials=1).equal is True
