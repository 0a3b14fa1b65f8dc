"""Calls that read a computed tensor at one place per row: as a sum over the row of which one term is not 0.

PyTorch reads such a place at no cost, but it has to find the whole tensor in memory. Among weft's operations the sum runs in
the loop that computes the row, and the row is never written. Of a tensor that is in memory anyway, the call stays whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true  # no public name


def checked(index: torch.Tensor, size: int, dim: int, ignored: int | None = None) -> torch.Tensor:
    """Returns `index`, which fails where eager does: no place is equal to an index that does not exist."""
    return torch.ops.weft.in_range(index, size, dim, ignored)


def _places(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Numbers the places along `dim`, to be compared with what has the dimensions of `tensor`."""
    return torch.arange(tensor.shape[dim]).reshape(-1, *(1 for _ in tensor.shape[dim + 1 :]))


def _gather(tensor: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> Any:
    del sparse_grad
    if tensor.ndim == 0 or tensor.ndim != index.ndim or tensor.dtype == torch.bool:
        return NotImplemented
    dim %= tensor.ndim
    wanted = [1 if d == dim else size for d, size in enumerate(tensor.shape)]
    if not all(statically_known_true(n == m) for n, m in zip(index.shape, wanted, strict=True)):
        return NotImplemented
    here = _places(tensor, dim) == checked(index.long(), tensor.shape[dim], dim)
    return torch.where(here, tensor, 0).sum(dim, keepdim=True, dtype=tensor.dtype)


def _nll_loss(
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
) -> Any:
    """Returns minus the score of each row's class; the mean is over the rows whose class is not the ignored one, by weight."""
    dim = 1 if scores.ndim > 1 else 0
    one_each = target.ndim == scores.ndim - 1  # PyTorch takes some others too, and reads of them what it likes
    if not scores.is_floating_point() or target.is_floating_point() or not one_each:
        return NotImplemented
    if weight is not None and not statically_known_true(weight.numel() == scores.shape[dim]):
        return NotImplemented  # the product below would repeat a single weight
    kept = target != ignore_index
    named = checked(target.long(), scores.shape[dim], dim, ignore_index)
    here = _places(scores, dim) == torch.where(kept, named, -1).unsqueeze(dim)
    wide = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
    if weight is None:
        share = kept.to(wide.dtype)
    else:
        per_class = weight.to(wide.dtype).reshape(-1, *(1 for _ in scores.shape[dim + 1 :]))
        share = torch.where(here, per_class, 0.0).sum(dim)
        wide = wide * per_class
    lost = torch.where(here, -wide, 0.0).sum(dim)  # 0 of an ignored one, not -0
    if reduction == 0:
        return lost.to(scores.dtype)
    return (lost.sum() if reduction == 2 else lost.sum() / share.sum()).to(scores.dtype)


PICKS: dict[str, Callable[..., Any]] = {
    "aten.gather.default": _gather,
    "aten.nll_loss.default": _nll_loss,
    "aten.nll_loss2d.default": _nll_loss,
    "aten.nll_loss_nd.default": _nll_loss,
}
"""By overload, of whose first argument they pick; NotImplemented leaves the call whole."""
