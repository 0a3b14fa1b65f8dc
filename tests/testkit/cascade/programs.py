"""Functions in PyTorch as the tensor programs that the analysis of chains is given."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from _pytest.mark import ParameterSet

from weft.block.check import check
from weft.block.copies import canonical
from weft.block.fold import Fold
from weft.block.lower import lower
from weft.block.program import BlockProgram
from weft.block.ranges import Segment
from weft.block.walk import maps
from weft.capture import capture
from weft.cascade import FoundChains, chains, folds
from weft.errors import ScheduleError
from weft.lab.fuzz.random_schedules import random_schedule
from weft.pipeline import normalize
from weft.schedule import apply
from weft.tensor.program import TensorProgram


def captured(function: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]], *args: torch.Tensor) -> TensorProgram:
    """The tensor program of `function`, after the laws."""
    found: list[TensorProgram] = []

    def backend(gm, example_inputs):
        program = capture(gm, example_inputs).program
        assert program is not None
        found.append(program)
        return gm.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(function, backend=backend)(*args)
    (program,) = found
    return normalize(program)


def prepared(program: TensorProgram) -> TensorProgram:
    """`program` as the plan prepares it for the analysis."""
    return chains(program).program


def analysed(function: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]], *args: torch.Tensor) -> FoundChains:
    """The chains of `function`."""
    return folds(prepared(captured(function, *args)))


def scheduled(
    program: TensorProgram, rng: random.Random, loops: Sequence[Fold] | None = None, *, segments: bool = False
) -> BlockProgram:
    """The loops of `program`'s chains, lowered, with a schedule of any kind that fits.

    Args:
        loops: instead of those that are found.
        segments: whether it is to have segments, which are merged.
    """
    lowered = lower(program, folds(program).folds if loops is None else loops)
    check(lowered)
    block = canonical(lowered)
    for _ in range(200):
        try:
            made = apply(block, random_schedule(block, rng))
        except ScheduleError:
            continue
        if not segments or any(isinstance(m.range, Segment) for m in maps(made.graph)):
            return made
    raise AssertionError("no schedule fits")


def wrong(*what: object, reason: str) -> ParameterSet:
    """A parameter for which the analysis is found wrong now: the test says when it is right."""
    return pytest.param(*what, marks=pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True))
