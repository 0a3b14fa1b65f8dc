"""A few mutants of placed programs; `testkit.mutants.campaign` is the campaign, and says how."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from testkit.block import programs
from testkit.mutants.campaign import Tally, drawn, examine
from testkit.mutants.fates import Fate, Subject
from testkit.mutants.operators import OPERATORS, Mutant, mutants
from testkit.mutants.subjects import random_subjects
from testkit.schedules import fused
from testkit.walk import WALK_ALL, share
from weft.block.program import BlockProgram
from weft.lab.fuzz.random_schedules import fitting_schedule

EACH = 60 if WALK_ALL else 6


def of_the_tests(name: str) -> Subject:
    """A program of the tests' own under a random schedule."""
    program = programs.ALL[name](programs.F32)
    _, applied = fitting_schedule(fused(program), random.Random(name))
    return Subject(name, program, applied)


@pytest.mark.parametrize("name", share(programs.ALL, 4))
def test_a_mutant_that_changes_a_result_is_stopped(name: str) -> None:
    tally = Tally()
    examine(of_the_tests(name), EACH, random.Random(0), tally)
    assert tally.formed >= EACH
    assert tally.survivors == []
    assert sum(count for (_, fate), count in tally.fates.items() if fate is Fate.refuted) > 0


@pytest.mark.parametrize("seed", share(range(3, 9), 6))
def test_mutants_of_random_programs_are_stopped(seed: int) -> None:
    tally = Tally()
    for subject in random_subjects(range(seed, seed + 1)):
        examine(subject, EACH, random.Random(seed), tally)
    assert tally.survivors == []


def test_operators_take_turns_and_each_finds_a_place_somewhere() -> None:
    found: list[Mutant] = []
    for name in programs.ALL:
        subject = of_the_tests(name)
        found += mutants(subject.applied)
    # These programs compare nothing and take no maximum of a row; random ones do.
    assert {m.operator for m in found} == set(OPERATORS) - {"mask one off", "block exponent"}
    first = [m.operator for _, m in zip(range(6), drawn(of_the_tests("linear_relu"), random.Random(0)), strict=False)]
    assert len(set(first)) == len(first)


@pytest.mark.parametrize("name", ["linear_relu", "two_layers"])
def test_a_mutant_is_another_program_than_the_right_one_and_than_each_other(name: str) -> None:
    subject = of_the_tests(name)
    every: Sequence[BlockProgram] = [m.program for m in mutants(subject.applied)]
    assert subject.applied not in every
    assert len(every) > 100
