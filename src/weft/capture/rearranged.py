"""Calls that put elements elsewhere, compare them or count with them, recorded as the views and sums that they consist of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from weft.capture.sizes import symbolic

_WIDE = (torch.float32, torch.float64)
_FEW = 64
"""Elements are compared with so many others one by one; with more, PyTorch sorts."""


def _pixel_shuffle(tensor: torch.Tensor, factor: int) -> torch.Tensor:
    """Gives each channel's block of `factor` x `factor` pixels: from (.., C r r, H, W) to (.., C, H r, W r)."""
    *batch, channels, height, width = tensor.shape
    apart = tensor.reshape(*batch, channels // factor**2, factor, factor, height, width)
    moved = apart.movedim((-4, -3), (-3, -1))
    return moved.reshape(*batch, channels // factor**2, height * factor, width * factor).clone()


def _pixel_unshuffle(tensor: torch.Tensor, factor: int) -> torch.Tensor:
    """Makes channels of the pixels of blocks: from (.., C, H r, W r) to (.., C r r, H, W)."""
    *batch, channels, height, width = tensor.shape
    apart = tensor.reshape(*batch, channels, height // factor, factor, width // factor, factor)
    moved = apart.movedim((-3, -1), (-4, -3))
    return moved.reshape(*batch, channels * factor**2, height // factor, width // factor).clone()


def _channel_shuffle(tensor: torch.Tensor, groups: int) -> torch.Tensor:
    batch, channels, *rest = tensor.shape
    return tensor.reshape(batch, groups, channels // groups, *rest).transpose(1, 2).reshape(tensor.shape)


def _rot90(tensor: torch.Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> torch.Tensor:
    """Turns by quarters, from the first of two dimensions to the second."""
    first, second = dims
    match k % 4:
        case 1:
            return tensor.flip(second).transpose(first, second)
        case 2:
            return tensor.flip(first, second)
        case 3:
            return tensor.flip(first).transpose(first, second)
        case _:
            return tensor.clone()


def _trace(tensor: torch.Tensor) -> torch.Tensor:
    return torch.diagonal(tensor).sum()


def _cross(one: torch.Tensor, other: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """Computes the cross products of vectors of three elements along a dimension."""
    a, b, c = one.unbind(dim)
    d, e, f = other.unbind(dim)
    return torch.stack((b * f - c * e, c * d - a * f, a * e - b * d), dim if dim < 0 else dim - one.ndim)


def _adaptive_avg_pool2d(tensor: torch.Tensor, size: Sequence[int]) -> Any:
    """Averages over windows, which are of one size where the result's size divides the tensor's."""
    *batch, height, width = tensor.shape
    if any(map(symbolic, (height, width, *size))) or 0 in size or height % size[0] or width % size[1]:
        return NotImplemented
    windows = tensor.reshape(*batch, size[0], height // size[0], size[1], width // size[1])
    return windows.mean((-3, -1))


def _isin(tensor: torch.Tensor, among: torch.Tensor, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Tells which elements are among some others, in no order."""
    del assume_unique
    if symbolic(among.numel()) or not 0 < among.numel() <= _FEW:
        return NotImplemented
    found = (tensor.unsqueeze(-1) == among.reshape(-1)).any(-1)
    return ~found if invert else found


def _heaviside(tensor: torch.Tensor, at_zero: torch.Tensor) -> torch.Tensor:
    return torch.where(tensor == 0, at_zero, (tensor > 0).to(tensor.dtype))


def _diag_embed(tensor: torch.Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> torch.Tensor:
    """Puts the last dimension on a diagonal of matrices that are 0 elsewhere, [.., n, n] before these are moved."""
    count = tensor.shape[-1] + abs(offset)
    place = torch.arange(count, device=tensor.device)
    columns = torch.nn.functional.pad(tensor, (max(offset, 0), max(-offset, 0))).unsqueeze(-2)
    made = columns.expand(*tensor.shape[:-1], count, count).masked_fill(place - place.unsqueeze(-1) != offset, 0)
    return made.movedim((-2, -1), (dim1, dim2))


def _diag(tensor: torch.Tensor, diagonal: int = 0) -> Any:
    return _diag_embed(tensor, diagonal) if tensor.ndim == 1 else NotImplemented


def _take(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    aten: Any = torch.ops.aten
    return aten.index.Tensor(tensor.reshape(-1), [index])  # `tensor[index]` is a view where the index has no dimensions


def _unfold(tensor: torch.Tensor, dimension: int, size: int, step: int) -> Any:
    """Splits a dimension into windows that lie side by side; of those that overlap PyTorch's view is read, by its strides."""
    if tensor.ndim == 0 or any(map(symbolic, (tensor.shape[dimension], size, step))) or size != step:
        return NotImplemented
    dim = dimension % tensor.ndim
    count = tensor.shape[dim] // size
    whole = tensor.narrow(dim, 0, count * size)
    return whole.reshape(*tensor.shape[:dim], count, size, *tensor.shape[dim + 1 :]).movedim(dim + 1, -1)


def _times(factor: float) -> Callable[[torch.Tensor], Any]:
    def times(tensor: torch.Tensor) -> Any:
        return tensor * factor if tensor.is_floating_point() else NotImplemented

    return times


def _sinc(tensor: torch.Tensor) -> Any:
    """Divides the sine of pi x by pi x; types of 16 bits PyTorch computes in more than they hold."""
    if tensor.dtype not in _WIDE:
        return NotImplemented
    angle = tensor * math.pi
    return torch.where(tensor == 0, 1.0, torch.sin(angle) / angle)


def _linspace(start: Any, end: Any, steps: int, **kind: Any) -> Any:
    """Counts from both ends to the middle, as PyTorch does, in the type of the result."""
    dtype = kind.get("dtype") or torch.get_default_dtype()
    if (
        dtype not in _WIDE
        or symbolic(steps)
        or steps < 2
        or not all(type(each) in (int, float) for each in (start, end))
    ):
        return NotImplemented
    carried = np.float32 if dtype is torch.float32 else np.float64
    with np.errstate(all="ignore"):
        first, last = carried(start), carried(end)
        step = float((last - first) / carried(steps - 1))
    place = torch.arange(steps, device=kind.get("device"))
    behind = steps - 1 - place
    return torch.where(place < steps // 2, float(first) + step * place.to(dtype), float(last) - step * behind.to(dtype))


REARRANGED: dict[str, Callable[..., Any]] = {
    "aten.adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
    "aten.channel_shuffle.default": _channel_shuffle,
    "aten.deg2rad.default": _times(math.pi / 180),
    "aten.diag.default": _diag,
    "aten.diag_embed.default": _diag_embed,
    "aten.heaviside.default": _heaviside,
    "aten.isin.Tensor_Tensor": _isin,
    "aten.linalg_cross.default": _cross,
    "aten.linspace.default": _linspace,
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.pixel_unshuffle.default": _pixel_unshuffle,
    "aten.rad2deg.default": _times(180 / math.pi),
    "aten.rot90.default": _rot90,
    "aten.sinc.default": _sinc,
    "aten.take.default": _take,
    "aten.trace.default": _trace,
    "aten.unfold.default": _unfold,
}
"""By overload; NotImplemented leaves the call whole."""
