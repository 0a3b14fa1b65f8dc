"""Rows of few elements: the pieces that are left after whole vectors, and blocks that are copied transposed."""

from __future__ import annotations

import pytest
import torch

import weft

ROWS = 300
WIDTHS = (*range(1, 38), 47, 48, 49, 63, 64, 67, 100)


def sums(x):
    return x.sum(-1), x.amax(-1), torch.logsumexp(x, -1)


def kept(x):
    return torch.softmax(x, -1), x - x.mean(-1, keepdim=True)


def plan_of(fn, x):
    """Returns the plan made for `x`: a program would make others for other sizes."""
    (plan,) = weft.optimize(fn, x).plans
    assert plan.kernels
    assert not plan.fallbacks
    return plan


@pytest.mark.parametrize("fn", [sums, kept], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_any_width(fn, dtype):
    """Numbers far from 0, so that an element left out, or read of a neighbour, shows; one plan serves all widths but 1."""
    torch.manual_seed(0)
    plans = [plan_of(fn, torch.randn(ROWS, width, dtype=dtype)) for width in (24, 96)]
    for width in WIDTHS[1:]:
        x = (torch.randn(ROWS, width) * torch.rand(width) * 9 + 100).to(dtype)
        wanted = fn(x.double())
        for plan in plans:
            for found, exact in zip(plan.run(x), wanted, strict=True):
                eps = torch.finfo(dtype).eps
                torch.testing.assert_close(found.double(), exact, rtol=4 * eps, atol=200 * eps)


@pytest.mark.parametrize("width", [12, 24, 31])
def test_narrow_rows_apart_in_memory_are_read_within_their_tensor(width):
    """A tile of the last columns reads on to the next rows; behind the last row there is none."""
    plan = plan_of(sums, torch.randn(ROWS, width))
    whole = torch.full((ROWS * 2, width + 5), float("nan"))
    for rows in (2, 15, 16, 17, 255, 256, 257, ROWS):
        for x in (whole[:rows, :width], whole[: 2 * rows : 2, 3 : width + 3], whole.T[:width, :rows].T):
            x.normal_()
            for found, wanted in zip(plan.run(x), sums(x), strict=True):
                torch.testing.assert_close(found, wanted)
            x.fill_(float("nan"))


def test_narrow_rows_that_are_reduced_are_copied_transposed_and_others_are_not():
    def schedule(fn, *shape):
        (kernel,) = weft.optimize(fn, torch.randn(shape)).kernels
        return kernel.schedule

    assert schedule(lambda x: x.sum(-1), 4096, 24).transposed
    assert not schedule(lambda x: x.sum(-1), 4096, 64).transposed
    assert not schedule(lambda x: x.sum(-1), 100, 24).transposed
    assert not schedule(lambda x: x.argmax(-1), 4096, 24).transposed
    assert not schedule(lambda x: torch.softmax(x, -1), 4096, 24).transposed
