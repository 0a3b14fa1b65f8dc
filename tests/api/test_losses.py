"""A graph that PyTorch runs, whole or for the most part, is spoken of: once, at the user's line, with what to do."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import weft
from weft.api import losses
from weft.api.backend import backend
from weft.errors import LeftToPyTorchWarning
from weft.plan.measure import trial
from weft.plan.measure.clock import Timed, Timing


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    monkeypatch.setattr(losses, "_said", set())


def said(call: Callable[[], Any]) -> list[warnings.WarningMessage]:
    """Returns the warnings of `call`."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return found


def line_of(fn: Callable[..., Any], text: str) -> int:
    """The number of the line of `fn` that has `text` in it."""
    lines, start = inspect.getsourcelines(fn)
    return start + next(number for number, line in enumerate(lines) if text in line)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def scaled(x):
    return torch.exp(x) * 2


def ordered(x):
    return torch.sort(x, -1)[0]


def folded(x):
    y = torch.special.bessel_j0(x)
    return torch.relu(y).sum((1, 2, 3)) + 1


def convolved(x):
    return torch.relu(F.conv2d(x, x[:1, :, :3, :3])).sum((1, 2, 3)) + 1


@pytest.mark.parametrize(
    ("model", "of", "text"), [(Model, Model.forward, "self.down(torch"), (lambda: scaled, scaled, "torch.exp")]
)
def test_gradients_are_said_once_with_the_line(model, of, text):
    model = model()
    fast = weft.compile(model)

    def train():
        for rows in (4, 5, 7, 4):
            x = torch.randn(rows, 16, requires_grad=True)
            torch.testing.assert_close(fast(x), model(x))

    [found] = said(train)
    assert issubclass(found.category, LeftToPyTorchWarning)
    assert found.filename == __file__
    assert found.lineno == line_of(of, text)
    for part in ("gradients are asked for", text, "torch.no_grad()", "warnings.filterwarnings"):
        assert part in str(found.message)
    assert not said(train)
    with torch.no_grad():
        assert not said(train)


def test_a_module_of_pytorchs_is_named_by_the_line_that_calls_it():
    fast = weft.compile(nn.Sequential(nn.Linear(16, 8), nn.ReLU()))
    [found] = said(lambda: fast(torch.randn(4, 16)))
    assert found.filename == __file__
    assert "fast(torch.randn(4, 16))" in str(found.message)


@pytest.mark.parametrize("compiled", [weft.compile, lambda fn: torch.compile(fn, backend="weft")])
def test_a_refusal_is_said_once_for_each_function(compiled):
    def another(x):
        return torch.sort(x, -1)[0]

    fast, other = compiled(ordered), compiled(another)
    found = said(lambda: [f(torch.randn(rows, 32)) for f in (fast, other) for rows in (40, 50, 60)])
    assert [each.lineno for each in found] == [line_of(ordered, "torch.sort"), line_of(another, "return torch.sort")]
    assert all("aten.sort" in str(each.message) for each in found)
    torch.compiler.reset()
    assert not said(lambda: compiled(ordered)(torch.randn(70, 32)))


def test_the_call_that_takes_most_of_the_time_is_said():
    x = torch.randn(2, 32, 64, 64)
    fast = weft.compile(folded)
    before = weft.stats().kernels
    [found] = said(lambda: fast(x))
    assert weft.stats().kernels > before, "the rest has kernels"
    assert "most of this graph" in str(found.message)
    assert "aten.special_bessel_j0" in str(found.message)
    assert found.lineno == line_of(folded, "bessel")


def test_what_a_library_runs_by_design_is_not_lost():
    x = torch.randn(2, 32, 64, 64)
    before = weft.stats().kernels
    assert not said(lambda: weft.compile(convolved)(x))
    assert weft.stats().kernels > before
    program = weft.optimize(convolved, (x,))
    [left] = program.fallbacks
    assert left.operation == "aten.conv2d"
    assert "library" in left.reason


def beside(x, w):
    """A little of it is PyTorch's."""
    return torch.softmax(x @ w, -1) @ w.mT + torch.sort(x[:1], -1)[0]


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (ordered, (torch.randn(5, 7),)),
        (lambda x: x.mT[2:], (torch.randn(50, 70),)),
        (lambda x: (x.shape[0], x), (torch.randn(50, 70),)),
        (beside, (torch.randn(128, 64), torch.randn(64, 128))),
    ],
    ids=["tiny", "a view", "nothing", "a little"],
)
def test_what_costs_nothing_is_not_said(fn, inputs):
    assert not said(lambda: weft.compile(fn)(*inputs))


def test_where_pytorch_is_faster_nothing_is_lost(monkeypatch, tmp_path):
    monkeypatch.setattr(trial, "measure", lambda *_: Timed((Timing(2.0), Timing(1.0))))
    fast = weft.compile(scaled, measure="auto", cache_dir=tmp_path)
    before = weft.stats().slower
    assert not said(lambda: fast(torch.randn(64, 64)))
    assert weft.stats().slower == before + 1


def test_it_can_be_silenced():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=weft.errors.LeftToPyTorchWarning)
        weft.compile(ordered)(torch.randn(40, 32))
    assert not found


def test_nobody_is_told_twice_what_optimize_says():
    assert not said(lambda: weft.optimize(ordered, (torch.randn(40, 32),)).fallbacks)


def test_what_is_left_is_weighed_without_fixing_sizes() -> None:
    # A call that is left to PyTorch and takes a size: weighing it must not make Dynamo compile for this size alone.
    def grown(keys: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys = torch.cat((keys, row), -2)
        scores = torch.softmax(row @ keys.mT, -1) @ keys
        return scores, torch.arange(keys.shape[1])

    graphs = 0

    def counted(gm: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return backend(gm, inputs)

    fast = torch.compile(grown, backend=counted)
    with torch.no_grad():
        for length in (16, 17, 18, 19, 40):
            given = torch.randn(1, length, 8), torch.randn(1, 1, 8)
            torch.testing.assert_close(fast(*given), grown(*given))
    assert graphs == 2


def test_a_cache_is_not_written_anew_where_a_row_of_it_is():
    """Lets PyTorch write one row of a long cache, which takes no time beside what reads the cache."""

    def function(cache, q, row, place):
        cache.index_copy_(2, place, row)
        return torch.softmax(q @ cache.mT, -1) @ cache

    def write(cache, q, row, place):
        cache.index_copy_(2, place, row)
        return torch.softmax(q @ row.mT, -1)

    row, place = torch.randn(1, 8, 1, 64), torch.tensor([5])
    for each in (function, write):
        found = said(
            lambda each=each: weft.compile(each)(torch.zeros(1, 8, 4096, 64), torch.randn(1, 8, 1, 64), row, place)
        )
        assert not [w for w in found if issubclass(w.category, LeftToPyTorchWarning)]
