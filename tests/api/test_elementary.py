"""Functions of one and two numbers that are series and quotients of others: right at their edges, and to a few last places."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import weft

_EDGES = [
    *(0.0, 1.0, 0.5, 2.0, 0.41421, 2.4142, 0.7, 0.99999994, 1.0000001, 10.0, 20.0),
    *(2.0**-149, 3 * 2.0**-149, 1e-30, 1e-38, 1e5, 1e19, 3e38, 88.7, 95.0, math.inf),
]
_UNITS = 4  # the last place of a number of float32 is at most so much of it: 2^-23
ONE = [torch.sinh, torch.cosh, torch.asin, torch.acos, torch.atan, torch.asinh, torch.acosh, torch.atanh, torch.erfc]
TWO = [torch.atan2, torch.hypot]


def _edges() -> Tensor:
    return torch.tensor([s * e for e in _EDGES for s in (1.0, -1.0)] + [math.nan])


def _arguments(count: int) -> list[Tensor]:
    """Give numbers at edges, around 1, in the range of inverses and of many magnitudes; of two, each edge with each."""
    torch.manual_seed(0)
    magnitudes = 10 ** (torch.rand(2000, count) * 12 - 6) * torch.randn(2000, count)
    drawn = torch.cat([torch.randn(2000, count) * 3, torch.rand(2000, count) * 2 - 1, magnitudes])
    edges = torch.cartesian_prod(*[_edges()] * count).reshape(-1, count)
    return [column.contiguous() for column in torch.cat([edges, drawn]).unbind(-1)]


@pytest.mark.parametrize("function", ONE + TWO, ids=lambda f: f.__name__)
def test_a_function_is_right_to_a_few_units_and_at_its_edges(function: Callable[..., Tensor]) -> None:
    arguments = _arguments(2 if function in TWO else 1)
    program = weft.optimize(function, arguments)
    assert not program.fallbacks
    found, exact = program(*arguments), function(*[a.double() for a in arguments])
    nearest = exact.float()  # of what eager overflows in, as sinh(89), too
    torch.testing.assert_close(found.isnan(), nearest.isnan())
    torch.testing.assert_close(found.isinf(), nearest.isinf())
    zero = (nearest == 0) & (found == 0)
    torch.testing.assert_close(found.signbit() & zero, nearest.signbit() & zero)
    normal = nearest.isfinite() & (nearest.abs() >= torch.finfo(torch.float32).tiny)
    apart = ((found.double() - exact) / exact).abs()[normal]
    assert float(apart.max()) <= _UNITS * 2.0**-23, float(apart.max())


def test_parts_of_a_formula_are_made_once() -> None:
    """Written out in each place, the series of an angle and its quotients are thousands of operations."""
    program = weft.optimize(torch.acos, (torch.rand(8, 8),))
    (kernel,) = program.kernels
    assert kernel.source.count("sqrt") <= 3
