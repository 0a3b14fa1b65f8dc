"""Traces: the steps that made a program, applied again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from weft.pipeline.order import PASSES
from weft.tensor.laws import part
from weft.tensor.passes import Change, Step


def replayed(program: Any, steps: Iterable[Step]) -> Iterator[Change[Any]]:
    """Apply `steps` again, beginning with `program`, and yield each with the programs before and after it.

    A step that takes a part of a graph begins with what the graph was when the first part was taken.
    """
    whole = None
    for step in steps:
        if step.rule == part.name:
            whole = program if whole is None else whole
            program = whole
        before, program = program, PASSES[step.rule].again(program, step)
        yield Change(step.rule, step.place, step.arguments, before=before, after=program)
