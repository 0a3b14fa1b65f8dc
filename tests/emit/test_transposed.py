"""Points in space: items that lie in memory along a short axis are copied, so that loops go along the long one."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.lab.workloads.reductions import inertia
from weft.verify.judge import Draws


def plain(masses, places):
    """One pass, no chain."""
    return (masses[..., None] * places * places).sum((-1, -2))


def drawn(size: int, dtype: torch.dtype, padded: int) -> tuple[torch.Tensor, torch.Tensor]:
    return (torch.rand(3, 700) + 0.25).to(dtype), torch.randn(3, 700, size + padded).to(dtype)[..., :size]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("function", [inertia, plain])
@pytest.mark.parametrize(
    ("size", "padded", "dtype"),
    [
        *((n, 0, torch.float32) for n in (1, 2, 3, 4, 5, 8, 9)),
        (3, 2, torch.float32),
        *((3, 0, d) for d in (torch.bfloat16, torch.float64)),
    ],
    ids=str,
)
def test_points_of_a_few_coordinates(function, size, padded, dtype):
    draws = [drawn(size, dtype, padded) for _ in range(3)]
    program = weft.optimize(function, draws[0])
    assert program.fallbacks == ()
    found = [(program(*d), function(*d), function(*(t.double() for t in d))) for d in draws]
    judgement = weft.judge(*(Draws(side) for side in zip(*found, strict=True)))
    assert judgement.ok, str(judgement)
    assert ("stage_rows" in program.kernels[0].source) == (2 <= size <= 8)
