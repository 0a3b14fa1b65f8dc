"""Products of PyTorch's matrices as eager's units for products round them, for the judge's references."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

# So many terms of a float32 product are added up before they are rounded, as units for products do it; then one such sum after
# another. PyTorch's own product depends on switches of the user's (TF32, autocast), one in float64 on none.
_TERMS = 16
# Elements of sums of so few terms that are made at once: some hundred MiB.
_SUMS = 1 << 24

_torch: Any = torch  # of some of its functions the types are not known


def multiplied(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiplies in float64; of float32 a few terms at a time, whose sums are added in float32."""
    if not left.is_floating_point():
        return NotImplemented
    if left.dtype is torch.float64:
        return torch.matmul(left, right)
    total = torch.zeros((), dtype=torch.float32, device=left.device)
    for sums in _few_at_a_time(left, right):
        for each in sums.unbind(0):
            total = total + each
    return total


def _few_at_a_time(left: torch.Tensor, right: torch.Tensor) -> Iterator[torch.Tensor]:
    """Multiplies `_TERMS` terms at a time, and yields the float32 sums, several of them along the first dimension.

    Several are one product of PyTorch's: launched one by one, thousands of terms would take as many calls.
    """
    terms = left.shape[-1]
    batch = _torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    together = max(1, _SUMS // max(1, math.prod((*batch, left.shape[-2], right.shape[-1])))) * _TERMS
    whole = terms // _TERMS * _TERMS
    for begin in range(0, whole, together):
        part = slice(begin, min(begin + together, whole))
        one: torch.Tensor = _torch.unflatten(left[..., part].double(), -1, (-1, _TERMS)).movedim(-2, 0)
        two: torch.Tensor = _torch.unflatten(right[..., part, :].double(), -2, (-1, _TERMS)).movedim(-3, 0)
        dims = max(one.ndim, two.ndim)  # dimensions of 1 go between that of the sums and the others
        one, two = (v[(slice(None), *(None,) * (dims - v.ndim))] for v in (one, two))
        yield torch.matmul(one, two).float()
    if whole < terms or not whole:
        yield torch.matmul(left[..., whole:].double(), right[..., whole:, :].double()).float().unsqueeze(0)
