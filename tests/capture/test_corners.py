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


@pytest.mark.parametrize("number", [10, 0, -1, 0.5, float("nan")])
def test_numbers_among_masks_are_masks(weft, number):
    x, mask = torch.rand(4, 6) > 0.5, torch.rand(4, 6) > 0.5
    captured = weft.compare(lambda x, mask: x.masked_fill(mask, number), x, mask)
    assert captured.fallbacks == ()
    assert str(captured.program).count(str(number != 0)) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.squeeze_(1),
        lambda y: y.unsqueeze_(0),
        lambda y: y.lerp_(y * 2, 0.25).squeeze_(1).exp_(),
    ],
)
def test_in_place_changes_of_shape(weft, change):
    """The values before such a change keep their shapes: what they were recorded with is not what the tensor is later."""
    captured = weft.compare(lambda x: change(x * 2), torch.randn(4, 1, 6))
    assert captured.refused is None
    assert captured.fallbacks == ()


def test_interpolation_is_left_to_pytorchs_own_kernel(weft):
    """Traced, it is products with weights, of which 0 times infinity is NaN; PyTorch's kernel gives infinity."""
    x = torch.tensor([[[1.0, float("inf"), 2.0, 3.0]]])
    x = x[..., None].expand(1, 1, 4, 3)
    found = weft.run(lambda x: torch.nn.functional.interpolate(x, size=(7, 3), mode="bicubic") + 1, x)
    wanted = torch.nn.functional.interpolate(x, size=(7, 3), mode="bicubic") + 1
    torch.testing.assert_close(found, wanted, equal_nan=True, check_dtype=False)
    assert [f.operation for f in weft.only.fallbacks] == ["aten.upsample_bicubic2d"]
