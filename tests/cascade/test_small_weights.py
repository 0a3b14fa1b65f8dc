"""Weights whose sum is so small that its reciprocal is infinite: results are divided by it, not multiplied by the reciprocal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import weft
from weft.cascade.algebra import ONE, product, quotient
from weft.tensor.scalar import Arg, apply


def renormalised(scores: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    """Weights of a softmax, some of them kept: their sum is that of all that are left."""
    kept = torch.softmax(scores, -1) * mask
    return (kept / kept.sum(-1, keepdim=True)) @ values


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
@pytest.mark.parametrize("below", [0.0, 80.0, 95.0])
def test_what_is_left_of_a_softmax_is_normalised_again(dtype, below):
    torch.manual_seed(0)
    scores, mask, values = torch.randn(64, 200), torch.rand(64, 200) < 0.5, torch.randn(200, 32)
    mask[:, 0] = False
    scores -= below
    scores[:, 0] = 0.0  # the greatest, and not kept
    inputs = scores, mask.to(dtype), values
    made = weft.optimize(renormalised, inputs)
    assert len(made.kernels) == 1
    assert not made.fallbacks
    exact = renormalised(scores.double(), mask.to(dtype), values.double())
    judgement = weft.judge(made(*inputs), renormalised(*inputs), exact)
    assert judgement.ok, judgement


def test_a_reciprocal_of_a_reciprocal_times_a_number_is_that_number_divided():
    first, second, value = Arg(0), Arg(1), Arg(2)
    twice = quotient(quotient(ONE, first), second)
    wanted = apply("div", apply("div", value, first), second)
    assert product(twice, value) == wanted
    assert product(value, twice) == wanted
    ratio = quotient(first, second)
    assert product(ratio, value) == apply("mul", ratio, value)
