"""Draws of the check over finite fields: what each of them has to itself, and what some have together."""

from __future__ import annotations

import random

import numpy as np
import pytest

from testkit.block import programs
from testkit.schedules import fused
from weft.block.program import BlockProgram
from weft.lab.fuzz.random_schedules import fitting_schedule
from weft.tensor.dtypes import DType
from weft.tensor.field import FieldDomain
from weft.tensor.program import Elementwise, TensorProgram, Use
from weft.tensor.scalar import Arg, Convert, Lit, Scalar, apply
from weft.verify import field_check, verify
from weft.verify.sizes import freed

ADDED = apply("add", Arg(0), Arg(1))
TWICE_HALF = apply("mul", apply("add", Arg(0), Arg(0)), Lit(0.5))
HALF = apply("div", Arg(0), apply("add", Arg(0), Arg(0)))


def elementwise(inputs: dict[str, DType], **nodes: tuple[Scalar, tuple[str, ...]]) -> TensorProgram:
    """Make a program over one axis, whose outputs are all its nodes."""
    (m,) = programs.axes("m")
    made = [
        Elementwise(name, (m,), programs.F32, expr, tuple(Use(of, (m,)) for of in args))
        for name, (expr, args) in nodes.items()
    ]
    tensors = tuple(programs.tensor(name, m, dtype=dtype) for name, dtype in inputs.items())
    return TensorProgram(tensors, tuple(made), tuple(nodes))


def scheduled(program: TensorProgram) -> BlockProgram:
    return fitting_schedule(fused(program), random.Random(0))[1]


@pytest.mark.parametrize("number_first", [False, True])
def test_a_number_that_only_the_schedule_has_is_known_from_the_start(*, number_first: bool) -> None:
    """The field learns a number where it first meets it, and takes an element that is that number for it from then on."""
    floats = dict.fromkeys("xyz", DType.float32)
    compared = apply("where", apply("gt", HALF, Arg(1)), Arg(0), Arg(2)), ("x", "y", "z")

    def made(rewritten: bool) -> TensorProgram:
        own = TWICE_HALF if rewritten else Arg(0)
        if number_first:
            return elementwise(floats, first=(own, ("z",)), chosen=compared)
        return elementwise(floats, chosen=compared, last=(apply("add", own, Arg(1)), ("z", "chosen")))

    program, applied = made(False), scheduled(made(True))
    assert all(verify(program, applied, seed=seed).agrees for seed in range(10))


def test_integers_are_compared_in_many_orders() -> None:
    """Draws that are run at once have one field, and one order of what is no number: integers do not make up for it."""

    def made(of: float) -> TensorProgram:
        above = apply("gt", Convert(DType.float32, Arg(0)), apply("sqrt", Lit(of)))
        chosen = apply("where", above, Arg(1), Arg(2)), ("i", "x", "y")
        return elementwise({"i": DType.int64, "x": DType.float32, "y": DType.float32}, out=chosen)

    wrong = scheduled(made(6.0))
    assert all(verify(made(5.0), wrong, seed=seed).equal is False for seed in range(20))


def test_inputs_that_are_known_in_some_draws_alone_stay_known() -> None:
    program = elementwise({"i": DType.int64}, out=(Convert(DType.float32, apply("add", Arg(0), Lit(1))), ("i",)))
    subject = field_check._Scheduled(freed(program, scheduled(program)))
    domain, place = FieldDomain(3), subject.places[0]
    shape = tuple(a.space.size(subject.sizes_at(place)) for a in program.inputs[0].axes)
    exact = subject.inputs(place, domain, np.random.default_rng(0))
    unknown = {"i": domain.random(shape, DType.float32, np.random.default_rng(1))}
    draws = [exact, unknown]
    for inputs, (found,) in zip(draws, subject.all_found(place, draws, domain), strict=True):
        assert domain.equal(found, subject.wanted(place, inputs, domain)[0])
