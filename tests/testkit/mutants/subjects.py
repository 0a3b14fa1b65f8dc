"""Placed programs to mutate: those that weft chooses for the benchmark list, and random ones under random schedules."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any
from unittest import mock

import torch

import weft
from testkit.mutants.fates import Subject
from testkit.schedules import fused
from weft.block.program import BlockProgram
from weft.errors import ScheduleError, UnsupportedError
from weft.lab.fuzz.random_programs import random_program
from weft.lab.fuzz.random_schedules import fitting_schedule
from weft.lab.workloads.cpu import SUITE
from weft.plan.execute import plan as executable
from weft.plan.execute import regions, selections
from weft.plan.targets.candidates import Selection
from weft.tensor.program import TensorProgram


class _PlannedError(BaseException):
    """What is to be built was seen: nothing is compiled. Nothing catches it on the way."""


def of_the_benchmark(only: tuple[str, ...] = ()) -> Iterator[Subject]:
    """Yields what weft would build for each row of `weft bench` on a CPU at its full size, in float32, each program once."""
    known: set[str] = set()
    for example in SUITE:
        if only and example.title not in only:
            continue
        dtype = example.dtypes[0]
        function = example.make(example.full)
        if isinstance(function, torch.nn.Module):
            function = function.to(dtype).eval()
        for number, (program, applied) in enumerate(_applied(function, example.inputs(example.full, dtype, 0))):
            if str(applied) not in known:
                known.add(str(applied))
                yield Subject(f"{example.title}, region {number}", program, applied)


def _applied(function: Any, inputs: tuple[torch.Tensor, ...]) -> list[tuple[TensorProgram, BlockProgram]]:
    """Returns what `function` is cut into, and how each region is placed."""
    found: list[tuple[TensorProgram, BlockProgram]] = []

    def noted(selection: Selection, *_: Any) -> Any:
        if selection.chosen.approximation is None:
            found.append((selection.program, selection.chosen.applied))
        raise UnsupportedError("nothing is built here")

    selections._remembered.clear()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(mock.patch.object(regions, "build_region", noted))
        stack.enter_context(mock.patch.object(executable, "running", side_effect=_PlannedError))
        stack.enter_context(suppress(_PlannedError))
        stack.enter_context(torch.no_grad())
        weft.optimize(function, inputs, cache_dir=folder, judge="off")
    return found


def random_subjects(seeds: range) -> Iterator[Subject]:
    """Yields a random program under a random schedule for each seed that has one."""
    for seed in seeds:
        rng = random.Random(seed)
        program = random_program(rng)
        with suppress(ScheduleError, UnsupportedError):
            _, applied = fitting_schedule(fused(program), rng)
            yield Subject(f"random {seed}", program, applied)
