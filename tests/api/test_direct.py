"""Where PyTorch as it is won every trial, the function itself is called, and only there."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import weft
from weft.plan.measure import trial
from weft.plan.measure.clock import Timed, Timing

PYTORCH, WEFT = (1.0, 0.1), (0.1, 1.0)


@pytest.fixture
def takes(tmp_path, monkeypatch):
    """The times that the trials' two sides "take"; to be changed by a test."""
    found = [PYTORCH]
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("WEFT_MEASURE", "auto")
    monkeypatch.setattr(
        trial, "measure", lambda candidates, _: Timed(tuple(map(Timing, (*found[0], 1.0)[: len(candidates)])))
    )
    torch._dynamo.reset()
    return found


class Noted:
    """A function that says whether Python runs it, or what was compiled of it."""

    def __init__(self, body=lambda x: torch.relu(x) + 1):
        self.direct = []

        def function(x, *more, **named):
            if not torch.compiler.is_compiling():
                self.direct.append(x.shape[0])
            return body(x, *more, **named)

        self.function, self.body = function, body
        self.fast = weft.compile(function)

    def __call__(self, x, *more, **named):
        """Calls both, and tells whether the function itself was called."""
        before = len(self.direct)
        with torch.no_grad():
            torch.testing.assert_close(self.fast(x, *more, **named), self.body(x, *more, **named))
        return len(self.direct) > before


def test_after_a_lost_trial_the_function_itself_is_called(takes):
    noted = Noted()
    assert not noted(torch.randn(8, 4))
    assert noted(torch.randn(8, 4))
    assert not noted(torch.randn(9, 4)), "other sizes are not known yet"
    assert noted(torch.randn(9, 4))
    assert not noted(torch.randn(8, 4, dtype=torch.float64))


def test_where_weft_won_it_is_not(takes):
    takes[0] = WEFT
    noted = Noted()
    assert [noted(torch.randn(8, 4)) for _ in range(3)] == [False] * 3


def test_once_weft_has_won_for_some_sizes_no_more_is_learnt(takes):
    noted = Noted()
    noted(torch.randn(8, 4))
    takes[0] = WEFT
    assert not noted(torch.randn(800, 4))
    takes[0] = PYTORCH
    assert [noted(torch.randn(70, 4)) for _ in range(2)] == [False] * 2
    assert noted(torch.randn(8, 4)), "what is known stays known"


def test_numbers_and_names_are_part_of_what_is_known(takes):
    noted = Noted(lambda x, n=1, *, scale=1.0: x[:n] * scale + 1)
    x = torch.randn(8, 4)
    assert [noted(x, 3) for _ in range(2)] == [False, True]
    assert not noted(x, 4)
    assert not noted(x, 3, scale=2.0)
    assert noted(x, 3, scale=2.0)


def test_arguments_that_hide_tensors_are_not_known(takes):
    noted = Noted(lambda x, more: x + more[0])
    x = torch.randn(8, 4)
    assert [noted(x, [x]) for _ in range(3)] == [False] * 3


def test_what_was_not_tried_is_not_left(takes):
    """Dropout draws: its graph is not tried, and weft keeps the function."""
    noted = []

    def function(x):
        noted.append(torch.compiler.is_compiling())
        return torch.relu(x) + torch.rand_like(x)

    fast = weft.compile(function)
    with torch.no_grad():
        for _ in range(3):
            fast(torch.randn(8, 4))
    assert False not in noted


def test_a_graph_of_which_weft_has_nothing_changes_nothing(takes):
    noted = Noted(lambda x, n=1.0: torch.relu(x) + n if n < 2 else torch.sort(x, 0).values)
    x = torch.randn(8, 4)
    assert [noted(x) for _ in range(2)] == [False, True]
    assert [noted(x, 2.0) for _ in range(2)] == [False, True]


def test_asked_for_gradients_nothing_is_learnt(takes):
    noted = []

    def function(x):
        noted.append(torch.compiler.is_compiling())
        return torch.relu(x) + 1

    fast = weft.compile(function)
    for _ in range(3):
        fast(torch.randn(8, 4, requires_grad=True)).sum().backward()
    assert False not in noted


def test_inside_of_another_graph_the_function_is_traced(takes):
    noted = Noted()
    x = torch.randn(8, 4)
    assert [noted(x), noted(x)] == [False, True]
    outer = torch.compile(lambda x: noted.fast(x) * 2, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(outer(x), (torch.relu(x) + 1) * 2)


def test_modules_their_gradients_copies_and_pickles(takes):
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    fast = weft.compile(module)
    x = torch.randn(8, 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), module(x))
    fast(x).sum().backward()
    assert module[0].weight.grad is not None
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        with torch.no_grad():
            torch.testing.assert_close(other(x), module(x))
