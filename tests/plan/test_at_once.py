"""Matmuls that the library is clearly faster at are left to it before the graph is cut, and nothing is said to be lost."""

from __future__ import annotations

import warnings

import pytest
import torch

import weft
from weft.api.backend import compile_graph
from weft.capture import FASTER_IN_LIBRARY
from weft.errors import LeftToPyTorchWarning
from weft.plan.execute import at_once, tried
from weft.plan.execute.made import Plan
from weft.plan.measure.measured import Measured
from weft.tensor.program import Contraction


def layer(x, up, down):
    """Two matmuls, and what is done beside them."""
    return (torch.nn.functional.gelu(x @ up) @ down + x,)


def only_matmuls(x, up, down):
    """Nothing beside two matmuls."""
    return ((x @ up) @ down,)


def operands() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) for shape in ((64, 96), (96, 160), (160, 96)))


@pytest.fixture
def timed(tmp_path, monkeypatch):
    """A library that is faster at every matmul, where it is asked; returns how often that was."""
    asked: list[int] = []

    def every(captured, program, regions, known, times):
        del program, regions, known, times
        asked.append(1)
        return [captured.made_by[n.name] for n in captured.program.nodes if isinstance(n, Contraction)]

    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tried, "times", lambda _: True)  # as on a GPU
    monkeypatch.setattr(at_once, "surely_for_the_library", every)
    return asked


def planned(function=layer, *, tried: bool = True, measure: str = "auto", **options: str) -> Plan:
    found: list[Plan] = []

    def compiled(gm, example):
        with weft.options(measure=measure, **options):
            found.append(compile_graph(gm, example, tried=tried))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=compiled, dynamic=False)(*operands())
    return found[0]


def test_the_plan_has_the_library_s_matmuls_and_kernels_between(timed):
    made = planned()
    assert [f.reason for f in made.fallbacks] == [FASTER_IN_LIBRARY] * 2
    assert len(made.kernels) == 2  # GELU, and the sum
    assert made.captured.lacking == ()
    torch.testing.assert_close(made.run(*operands())[0], layer(*operands())[0], rtol=1e-4, atol=1e-4)


def test_another_process_does_not_time_the_library_again(timed):
    first = planned()
    assert planned().fallbacks == first.fallbacks
    assert timed == [1]


@pytest.mark.parametrize("options", [{"measure": "never"}, {"compile": "first"}])
def test_nothing_is_left_without_a_trial(timed, options):
    assert planned(**options).fallbacks == ()
    assert planned(tried=False).fallbacks == ()
    assert timed == []


def test_what_fails_in_asking_loses_no_kernel(timed, monkeypatch):
    def fails(*_):
        raise RuntimeError("no")

    monkeypatch.setattr(at_once, "surely_for_the_library", fails)
    made = planned(defects="warn")
    assert made.fallbacks == ()
    assert made.kernels


def test_a_graph_that_cannot_be_tried_keeps_its_matmuls(timed):
    """Each run of it draws other numbers: no trial would say whether the library's matmuls are faster."""

    def random(x, up, down):
        return (torch.nn.functional.dropout(torch.nn.functional.gelu(x @ up) @ down, 0.5) + x,)

    made = planned(random)
    assert not any(fallback.is_faster for fallback in made.fallbacks)
    assert timed == []


@pytest.mark.parametrize(("function", "runs"), [(layer, "weft"), (layer, "PyTorch"), (only_matmuls, "PyTorch")])
def test_nothing_is_lost_and_the_choice_is_counted(timed, monkeypatch, function, runs):
    monkeypatch.setattr(Measured, "chosen", runs)
    torch._dynamo.reset()
    before = weft.stats()
    with warnings.catch_warnings(), torch.no_grad(), weft.options(measure="auto"):
        warnings.simplefilter("error", LeftToPyTorchWarning)
        found = torch.compile(function, backend="weft", dynamic=False)(*operands())
    torch.testing.assert_close(found, function(*operands()), rtol=1e-4, atol=1e-4)
    after = weft.stats()
    assert after.fallbacks == before.fallbacks
    counted = after.library - before.library, after.slower - before.slower
    assert counted == ((1, 0) if runs == "weft" else (0, 1))
