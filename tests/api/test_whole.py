"""A function as one program: what it returns, the numbers that stand in it, and calls that only move elements."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from weft.api.whole import Whole, whole
from weft.tensor.evaluate import evaluate, returned
from weft.tensor.fp64 import Fp64Domain
from weft.verify.moves import run_moves

A, B = torch.arange(12.0).reshape(3, 4), -torch.arange(12.0).reshape(3, 4)


def ran(of: Whole, *inputs: torch.Tensor) -> list[np.ndarray]:
    domain = Fp64Domain()
    assert of.program is not None, of.reason
    values = {f"argument {i}": x.double().numpy() for i, x in enumerate(inputs)}
    own = {n.name: values[n.name] for n in of.program.inputs}
    found = evaluate(of.program, own, domain, lambda node, used: run_moves(of.calls, node, used, domain))
    return list(returned(of.program, found, domain))


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: torch.cat([a, b + 1], 1) * 2,
        lambda a, b: torch.stack([a, b], 1).sum(0),
        lambda a, b: (a * b).reshape(-1)[2:] + 1,
        lambda a, b: F.pad(a + b, (1, 2, 0, 1)) * 3,
        lambda a, b: F.pad(a + b, (1, 1), value=1.0) + 1,
        lambda a, b: F.pad(a + b, (1, 1), mode="reflect") + 1,
        lambda a, b: (a + 1).repeat(2, 3) - 1,
        lambda a, b: torch.roll(a * 2, 1, 0) + b,
        lambda a, b: (a[:, :3] + 1).diagonal() * 2,
        lambda a, b: a.repeat_interleave(2, 1) + 1,
        lambda a, b: (a.T.reshape(2, 6) + 1, b),
        lambda a, b: torch.cat([a[:1], b[:, :1].T.reshape(1, 3), a[:1]], 1) * 2,
    ],
)
def test_calls_that_move_elements_are_part_of_the_program(fn):
    made = ran(whole(fn, (A, B), "first"), A, B)
    wanted = fn(A, B)
    for found, x in zip(made, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert np.array_equal(found, x.numpy())


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: torch.sort(a, 0).values + b,
        lambda a, b: torch.sort(a)[0] + b,
        lambda a, b: torch.cat([a, a.sort(0).values]) * 2,
    ],
)
def test_other_calls_are_not(fn):
    found = whole(fn, (A, B), "second")
    assert found.program is None
    assert "the second function is not captured whole" in found.reason


def test_repeats_that_are_data_move_nothing():
    times = torch.tensor([1, 2, 1])
    found = whole(lambda a, n: a.repeat_interleave(n, 0) + 1, (A, times), "first")
    assert found.program is None


def test_arguments_may_be_returned_as_they_are():
    found = whole(lambda a, b: (b, a + 1, 3, a), (A, B), "first")
    assert found.returns[1:] == ("a tensor", "a tensor", "constant 3", "a tensor")
    for one, x in zip(ran(found, A, B), (B, A + 1, A), strict=True):
        assert np.array_equal(one, x.numpy())


def test_what_has_no_elements_is_captured_with_some():
    found = whole(lambda a: a * 2, (torch.zeros(0, 4),), "first")
    assert np.array_equal(ran(found, A)[0], (A * 2).numpy())


def test_numbers_are_those_of_the_calls_and_of_the_program():
    found = whole(lambda a: F.softplus(a[:100] * 0.125), (A,), "first")
    assert {100, 0.125, 20} <= set(found.numbers)
    assert not found.writes
    assert whole(lambda a: a.add_(1), (A.clone(),), "first").writes
