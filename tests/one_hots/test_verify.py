"""Planted mistakes in one-hot reductions are refuted; right ones under every schedule are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from testkit.block.one_hots import ALL
from testkit.block.rankings import every
from testkit.schedules import fused
from weft.block.program import BlockNode, BlockProgram, Collapse, Index, Pointwise
from weft.block.walk import maps
from weft.lab.fuzz.random_schedules import fitting_schedule
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.merge import Monoid
from weft.tensor.scalar import Apply, Lit, Scalar
from weft.tensor.scalar import apply as apply_
from weft.verify import verify


def in_blocks(name: str) -> BlockProgram:
    made = fused(ALL[name]())
    loops = tuple((m.name, LoopSchedule((Level(LevelPlace.loop, 1 if m.unit else 3),))) for m in maps(made.graph))
    return apply(made, Schedule(loops))


def compared(change: Callable[[Scalar, Scalar], Scalar]) -> Callable[[BlockNode], BlockNode]:
    """Exchange each comparison of an index with the number of a row."""

    def changed(expr: Scalar) -> Scalar:
        match expr:
            case Apply("eq", (left, right)):
                return change(left, right)
            case Apply(op, args):
                return Apply(op, tuple(map(changed, args)))
            case _:
                return expr

    return lambda node: replace(node, expr=changed(node.expr)) if isinstance(node, Pointwise) else node


next_row = compared(lambda left, right: apply_("eq", apply_("add", left, Lit(1)), right))
first_row = compared(lambda left, right: apply_("eq", left, apply_("mul", right, Lit(0))))
from_this_row_on = compared(lambda left, right: apply_("le", left, right))


def all_rows(node: BlockNode) -> BlockNode:
    match node:
        case Pointwise(expr=Apply("where", (_, first, Lit()))):
            return replace(node, expr=first)
        case _:
            return node


def other_combination(node: BlockNode) -> BlockNode:
    if isinstance(node, Collapse):
        return replace(node, monoid=Monoid.min if node.monoid is Monoid.max else Monoid.max)
    return node


@pytest.mark.parametrize("plant", [next_row, first_row, from_this_row_on, all_rows, other_combination])
@pytest.mark.parametrize("name", ALL)
def test_planted_mistakes_are_refuted(name: str, plant: Callable[[BlockNode], BlockNode]) -> None:
    right = in_blocks(name)
    assert any(isinstance(n, Index) for m in maps(right.graph) for n in m.body.nodes)
    assert verify(ALL[name](), right).agrees
    wrong = every(right, plant)
    assert wrong != right
    assert not verify(ALL[name](), wrong).agrees


@pytest.mark.parametrize("name", ALL)
def test_right_programs_agree_under_any_schedule(name: str) -> None:
    rng = random.Random(name)
    for _ in range(6):
        schedule, applied = fitting_schedule(fused(ALL[name]()), rng)
        assert verify(ALL[name](), applied, trials=1).agrees, schedule
