"""The tensor program of a graph after the laws for its target."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.capture import Captured, FromProgram
from weft.pipeline import GRAPH, IN_NUMBERS
from weft.plan.targets import toolchain
from weft.target import Target
from weft.tensor.passes import Rewritten, Step
from weft.tensor.program import TensorProgram


@dataclass(frozen=True, slots=True)
class AfterLaws:
    """A program and the steps that made it.

    Attributes:
        program: after all laws.
        steps: the laws that changed it.
        lawful: the program before the steps that hold of floats alone: over a field it is what was captured.
    """

    program: TensorProgram
    steps: tuple[Step, ...]
    lawful: TensorProgram


def after_laws(captured: Captured, target: Target) -> AfterLaws:
    """Rewrite the program of `captured`, which has one, for `target`'s units, and with eager's order of results in memory."""
    assert captured.program is not None
    ordered = (r for r in captured.results if isinstance(r, FromProgram))
    orders = tuple((r.index, r.order) for r in ordered if r.order is not None)
    setting = replace(toolchain(target).setting(), orders=orders)
    lawful = Rewritten(captured.program).under(GRAPH, setting)
    made = lawful.under(IN_NUMBERS, setting)
    return AfterLaws(made.program, made.steps, lawful.program)
