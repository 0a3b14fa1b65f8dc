"""Sums down the columns are as exact as along the rows: numbers far from 0, of any number of rows."""

from __future__ import annotations

import pytest
import torch

import weft
from testkit.cascade.forcing import derived, derived_loops
from weft.verify.judge import Draws


def by_torch(x):
    return x.var(0)


def by_hand(x):
    return ((x - x.mean(0)) ** 2).mean(0)


def covariance(x):
    apart = x - x.mean(0)
    return apart.T @ apart / (x.shape[0] - 1)


def mean_beside_another(x):
    return x.mean(0) + 0 * x.amax(0)


def moments(masses, places):
    """A tensor of inertia: three coordinates, as rows and as columns of a product."""
    centre = (masses[..., None] * places).sum(-2, keepdim=True) / masses.sum(-1)[..., None, None]
    apart = places - centre
    return torch.einsum("bn,bni,bnj->bij", masses, apart, apart)


def judged(function, draw) -> weft.Judgement:
    draws = [draw() for _ in range(4)]
    program = weft.optimize(function, draws[0])
    assert program.fallbacks == ()
    found = [(program(*d), function(*d), function(*(t.double() for t in d))) for d in draws]
    return weft.judge(*(Draws(side) for side in zip(*found, strict=True)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("function", [by_torch, by_hand, covariance, mean_beside_another])
@pytest.mark.parametrize("shape", [(64, 128), (5000, 64), (20000, 24)], ids=str)
def test_columns_far_from_0(function, shape):
    judgement = judged(function, lambda: (torch.randn(shape) + 1e4,))
    assert judgement.ok, str(judgement)


def test_points_far_from_the_origin():
    judgement = judged(moments, lambda: (torch.rand(8, 1000), torch.randn(8, 1000, 3) + 1e4))
    assert judgement.ok, str(judgement)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shape", [(64, 128), (5000, 64), (20000, 24)], ids=str)
def test_covariance_in_one_loop_is_no_worse_than_eager(shape):
    """A mean of numbers far from 0 is off by what its sum is rounded by, and a covariance about it by the square of that."""
    with derived_loops():
        program = weft.optimize(covariance, (torch.randn(shape),))
    assert derived(program)
    worst = {"weft": 0.0, "eager": 0.0}
    for _ in range(8):
        x = torch.randn(shape) + 1e4
        exact = covariance(x.double())
        for name, function in (("weft", program), ("eager", covariance)):
            worst[name] = max(worst[name], (function(x) - exact).abs().max().item())
    assert worst["weft"] <= 1.2 * worst["eager"]
