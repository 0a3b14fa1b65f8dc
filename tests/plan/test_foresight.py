"""What a trial may ask for is chosen in a child meanwhile: the graph with the library's matmuls is cut and selected for."""

from __future__ import annotations

import os

import pytest
import torch

import weft
from weft.api.backend import compile_graph
from weft.plan.execute import foresight, selections, tried
from weft.plan.execute.made import Plan
from weft.plan.execute.plan import plan
from weft.run import spread
from weft.run.child import can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system has no children of that kind")


def layer(x, norm, up, down):
    """A norm, two matmuls and what is done beside them."""
    hidden = torch.nn.functional.rms_norm(x, (x.shape[-1],), norm) @ up
    return (torch.nn.functional.gelu(hidden) @ down + x,)


def operands() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (64, 96), (96,), (96, 160), (160, 96)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Caches of its own, and as many processors as it takes to have children."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(selections, "_remembered", {})
    monkeypatch.setattr(spread, "processors", lambda: 4)
    monkeypatch.setattr(tried, "times", lambda _: True)  # as on a GPU


def planned(**options: str) -> Plan:
    """Plan the layer, for a trial to ask for its other plan."""
    found: list[Plan] = []

    def compiled(gm, example):
        with weft.options(**options):
            found.append(compile_graph(gm, example))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(layer, backend=compiled, dynamic=False)(*operands())
    return found[0]


def counted(monkeypatch) -> list[int]:
    """Note for each region that this process selects for how many operations it has."""
    made: list[int] = []
    select, own = selections.select, os.getpid()

    def noted(program, example, **given):
        if os.getpid() == own:
            made.append(len(program.nodes))
        return select(program, example, **given)

    monkeypatch.setattr(selections, "select", noted)
    return made


def with_library(made: Plan) -> Plan:
    assert made.with_library is not None
    captured = made.with_library()
    assert captured is not None
    return plan(captured, operands(), layer)


def test_the_plan_with_the_librarys_matmuls_was_chosen_for_meanwhile(alone, monkeypatch):
    made = planned(measure="auto")
    here = counted(monkeypatch)
    found = with_library(made)
    assert here == []
    assert len(found.captured.calls) == 2
    (result,), (wanted,) = found.run(*operands()), layer(*operands())
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "why", ["no trial", "few processors", "nothing is timed", "a child that fails", "an error here"]
)
def test_without_a_child_this_process_chooses(alone, monkeypatch, why):
    if why == "few processors":
        monkeypatch.setattr(spread, "processors", lambda: 2)
    if why == "nothing is timed":
        monkeypatch.setattr(tried, "times", lambda _: False)
    if why == "an error here":
        monkeypatch.setattr(foresight, "Meanwhile", lambda *_: 1 / 0)
    if why == "a child that fails":
        monkeypatch.setattr(foresight, "for_the_library", lambda *_: 1 / 0)
    made = planned(measure="never" if why == "no trial" else "auto", defects="warn")
    assert made.kernels
    here = counted(monkeypatch)
    found = with_library(made)
    assert here
    assert len(found.captured.calls) == 2
