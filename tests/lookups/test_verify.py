"""Planted bugs in loads by indices are refuted; right ones under every schedule are not; what is claimed of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from testkit.block.lookups import ALL, elements, several, stored, table
from testkit.block.rankings import every
from testkit.schedules import fused
from weft.block.program import BlockProgram, Bounded, Load, Pointwise
from weft.block.walk import maps
from weft.lab.fuzz.random_schedules import fitting_schedule
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply
from weft.tensor.dtypes import DType
from weft.tensor.field import ExactValue, FieldDomain
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Arg, Lit
from weft.tensor.scalar import apply as apply_
from weft.verify import verify
from weft.verify.cases import cases
from weft.verify.inputs import deciding, with_indices
from weft.verify.verdict import Aspect

MINUS_ONE = apply_("sub", Arg(0), Lit(1))


def in_blocks(program: TensorProgram) -> BlockProgram:
    made = fused(program)
    loops = tuple((m.name, LoopSchedule((Level(LevelPlace.loop, 3),))) for m in maps(made.graph) if not m.unit)
    loops += tuple((m.name, LoopSchedule((Level(LevelPlace.loop, 1),))) for m in maps(made.graph) if m.unit)
    return apply(made, Schedule(loops))


def exchanged(program: BlockProgram) -> BlockProgram:
    """Each index where the other belongs."""
    return every(program, lambda n: replace(n, indices=n.indices[::-1]) if isinstance(n, Load) else n)


def not_from_the_end(program: BlockProgram) -> BlockProgram:
    return every(program, lambda n: replace(n, expr=Arg(0), args=n.args[:1]) if isinstance(n, Pointwise) else n)


def one_too_far_from_the_end(program: BlockProgram) -> BlockProgram:
    shifted = apply_(
        "where", apply_("lt", Arg(0), Lit(0)), apply_("add", Arg(1), apply_("sub", Arg(0), Lit(1))), Arg(0)
    )

    def changed(node):
        return replace(node, expr=shifted) if isinstance(node, Pointwise) and len(node.args) == 2 else node

    return every(program, changed)


def unchecked_neighbour(program: BlockProgram) -> BlockProgram:
    """Indices of a dimension with one element less."""

    def changed(node):
        return (
            Pointwise(node.name, MINUS_ONE, (node.arg,), node.dims, DType.int64) if isinstance(node, Bounded) else node
        )

    return every(program, changed)


BUGS: tuple[tuple[TensorProgram, Callable[[BlockProgram], BlockProgram]], ...] = (
    (several(), exchanged),
    (elements(), not_from_the_end),
    (elements(), one_too_far_from_the_end),
    (stored(), unchecked_neighbour),
)


@pytest.mark.parametrize(("program", "plant"), BUGS, ids=[p.__name__ for _, p in BUGS])
def test_planted_bugs_are_refuted(program: TensorProgram, plant: Callable[[BlockProgram], BlockProgram]) -> None:
    right = in_blocks(program)
    assert verify(program, right).agrees
    assert plant(right) != right
    assert not verify(program, plant(right)).agrees


def read_by(change: Callable[[np.ndarray, int], np.ndarray]) -> Callable[..., object]:
    """A lookup of the domain that every other time, the block program's, reads where `change` says."""
    right, calls = FieldDomain.lookup, [0]

    def lookup(self, source, index):
        calls[0] += 1
        if calls[0] % 2 == 0:
            sizes = self.shape(source)
            index = [
                self.lift(lambda i, n=n: change(i, n), each) if hasattr(each, "array") else each
                for each, n in zip(index, sizes, strict=True)
            ]
        return right(self, source, index)

    return lookup


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda i, n: np.minimum(i, n - 2), id="never-the-last"),
        pytest.param(lambda i, n: np.maximum(i, min(1, n - 1)), id="never-the-first"),
        pytest.param(lambda i, n: np.where(i == 2, 0, i), id="not-the-third"),
    ],
)
def test_each_index_is_tried(change, monkeypatch: pytest.MonkeyPatch) -> None:
    program = replace(table(), nodes=table().nodes[:1], outputs=("r",))
    made = fused(program)
    whole = Schedule(tuple((m.name, LoopSchedule((Level(LevelPlace.whole),))) for m in maps(made.graph)))
    assert verify(program, apply(made, whole)).agrees
    monkeypatch.setattr(FieldDomain, "lookup", read_by(change))
    assert not verify(program, apply(made, whole)).agrees


@pytest.mark.parametrize("name", ALL)
def test_right_programs_agree_under_any_schedule(name: str) -> None:
    rng = random.Random(name)
    for _ in range(6):
        schedule, applied = fitting_schedule(fused(ALL[name]()), rng)
        assert verify(ALL[name](), applied, trials=1).agrees, schedule


def test_that_indices_are_random_is_said() -> None:
    verdict = verify(table(), in_blocks(table()))
    assert verdict.agrees
    assert verdict.equal is None
    assert verdict.error_probability is None
    assert {each.kind for each in verdict.classes} == {Aspect.rational, Aspect.integers, Aspect.lookups}


def test_inputs_that_say_where_are_found() -> None:
    found = deciding((table(), elements(), several()))
    assert {name: {s.name for s in spaces} for name, spaces in found.items()} == {"i": {"V"}, "j": {"U"}}


def test_indices_are_drawn_from_the_whole_dimension_and_from_its_end() -> None:
    domain, sizes = FieldDomain(0), {"M": 40, "N": 40, "V": 5}
    given = {"w": domain.full((40, 5), 0.0, elements().inputs[0].dtype)}
    given["i"] = domain.full((40, 40), 99, elements().inputs[1].dtype)
    found = with_indices(given, (elements(),), domain, np.random.default_rng(0), sizes)
    assert isinstance(found["i"], ExactValue)
    assert set(np.unique(found["i"].array)) == set(range(-5, 5))
    for case in cases(table(), [], [{"M": 200, "D": 3, "V": 7}], 0):
        assert set(np.unique(case.inputs["i"])) == set(range(7))


@pytest.mark.parametrize("rows", [6, 0])
def test_of_a_long_dimension_only_the_indices_that_are_drawn_are_made(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain, sizes = FieldDomain(0), {"M": rows, "N": 2, "V": 100_000}
    given = {"i": domain.full((rows, 2), 99, DType.int64)}
    made: list[float | int] = []
    whole = FieldDomain.full

    def full(self: FieldDomain, shape: tuple[int, ...], value: float, dtype: DType) -> object:
        made.append(value)
        return whole(self, shape, value, dtype)

    monkeypatch.setattr(FieldDomain, "full", full)
    found = with_indices(given, (elements(),), domain, np.random.default_rng(0), sizes)
    assert isinstance(found["i"], ExactValue)
    assert set(np.unique(found["i"].array)) == set(made)
    assert len(made) <= 2 * rows
