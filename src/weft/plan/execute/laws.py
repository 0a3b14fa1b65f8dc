"""The tensor program of a graph after the laws for its target."""

from __future__ import annotations

from dataclasses import replace

from weft.capture import Captured, FromProgram
from weft.pipeline import GRAPH
from weft.plan.targets import toolchain
from weft.target import Target
from weft.tensor.passes import Rewritten
from weft.tensor.program import TensorProgram


def after_laws(captured: Captured, target: Target) -> Rewritten[TensorProgram]:
    """Rewrite the program of `captured`, which has one, for `target`'s units, and with eager's order of results in memory."""
    assert captured.program is not None
    ordered = (r for r in captured.results if isinstance(r, FromProgram))
    orders = tuple((r.index, r.order) for r in ordered if r.order is not None)
    return Rewritten(captured.program).under(GRAPH, replace(toolchain(target).setting(), orders=orders))
