"""Planted bugs in masked loads are refuted, also those that show far from the beginning; right ones are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from testkit.block.rankings import every
from testkit.block.windows import ALL, joined, padded, read_at, rolled
from testkit.schedules import fused
from weft.block.program import BlockProgram, Load, Pointwise
from weft.block.walk import maps
from weft.lab.fuzz.random_schedules import fitting_schedule
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.dtypes import DType
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Apply, Arg, Lit
from weft.tensor.scalar import apply as apply_
from weft.verify import verify
from weft.verify.inputs import reads_inside


def in_blocks(program: TensorProgram) -> BlockProgram:
    made = fused(program)
    places = tuple((m.name, LoopSchedule((Level(LevelPlace.loop, 1 if m.unit else 3),))) for m in maps(made.graph))
    return apply(made, Schedule(places))


def not_masked(program: BlockProgram) -> BlockProgram:
    return every(program, lambda n: replace(n, masked=False) if isinstance(n, Load) else n)


def one_further(program: BlockProgram) -> BlockProgram:
    """Each index that is computed is one more."""

    def changed(node):
        whole = isinstance(node, Pointwise) and node.dtype is DType.int64
        return replace(node, expr=apply_("add", node.expr, Lit(1))) if whole else node

    return every(program, changed)


def the_other_way(program: BlockProgram) -> BlockProgram:
    """Comparisons come out the other way where both sides are equal."""

    def changed(node):
        if not isinstance(node, Pointwise) or not isinstance(node.expr, Apply) or node.expr.op != "where":
            return node
        condition, first, second = node.expr.args
        assert isinstance(condition, Apply)
        return replace(node, expr=Apply("where", (Apply("le", condition.args), first, second)))

    return every(program, changed)


def far(dtype: DType = DType.float32) -> TensorProgram:
    """Three hundred elements that are not there come first."""
    return read_at(apply_("sub", Arg(0), Lit(300)), dtype)


BUGS: tuple[tuple[Callable[[], TensorProgram], Callable[[BlockProgram], BlockProgram]], ...] = (
    (padded, not_masked),
    (padded, one_further),
    (joined, one_further),
    (joined, the_other_way),
    (rolled, the_other_way),
    (far, not_masked),
    (far, one_further),
)


@pytest.mark.parametrize(("program", "plant"), BUGS, ids=[f"{m.__name__}-{p.__name__}" for m, p in BUGS])
def test_planted_bugs_are_refuted(program: Callable[[], TensorProgram], plant) -> None:
    right = in_blocks(program())
    assert verify(program(), right).agrees
    assert plant(right) != right
    assert not verify(program(), plant(right)).agrees


@pytest.mark.parametrize("name", ALL)
def test_right_programs_agree_under_any_schedule(name: str) -> None:
    rng = random.Random(name)
    for _ in range(4):
        schedule, applied = fitting_schedule(fused(ALL[name]()), rng)
        assert verify(ALL[name](), applied, trials=1).agrees, schedule


def test_what_masks_is_inside_by_its_nature() -> None:
    assert reads_inside(padded(), {}, {"M": 2, "N": 3, "L": 9})
