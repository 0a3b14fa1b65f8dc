"""Corners that PyTorch's own database of operations, and special numbers in its samples, led to."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.mean(0),
        lambda x: x.mean(-1, keepdim=True),
        lambda x: x.sum(0, keepdim=True),
        lambda x: x.amax(-1),
        lambda x: x.prod(0),
        lambda x: x.flip(0) + 1,
    ],
)
def test_dimension_of_a_tensor_without_dimensions(weft, function):
    assert weft.compare(function, torch.randn(())).fallbacks == ()


def test_symbolic_sizes_meet_shape_functions_written_in_python(weft):
    """PyTorch's shape functions for these broadcast in Python, which inference mode forbids for symbolic sizes."""
    x, y = torch.randn(5, 6), torch.randn(6)
    weft.compare(lambda x, y: torch.lerp(x, y, 0.3), x, y, dynamic=True)
    captured = weft.compare(lambda x, y: torch.addcmul(x, y, y, value=2), x, y, dynamic=True)
    assert captured.fallbacks == ()
