"""Losses of elements, recorded as the calls they consist of: between numbers, and between logits and labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from weft.capture.statistics import widened

_MEAN = 1
"""Of PyTorch's numbers of reductions: 0 is none, 1 the mean, 2 the sum."""


def _reduced(loss: torch.Tensor, reduction: int) -> torch.Tensor:
    """Returns the loss of each element, their mean or their sum."""
    return loss if reduction == 0 else loss.mean() if reduction == _MEAN else loss.sum()


def _mse_loss(tensor: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN) -> torch.Tensor:
    difference = tensor - target
    return _reduced(difference * difference, reduction)


def _smooth_l1_loss(tensor: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN, beta: float = 1.0) -> Any:
    """Squares differences below `beta`, and takes half of it from the others."""
    if beta <= 0 or not (tensor.is_floating_point() and tensor.dtype == target.dtype):
        return NotImplemented
    far = widened(tensor - target).abs()
    return _reduced(torch.where(far < beta, 0.5 * far * far / beta, far - 0.5 * beta).to(tensor.dtype), reduction)


def _huber_loss(tensor: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN, delta: float = 1.0) -> Any:
    """Squares differences up to `delta`; of others it counts `delta` times what they are beyond half of it."""
    if delta <= 0 or not (tensor.is_floating_point() and tensor.dtype == target.dtype):
        return NotImplemented
    far = widened(tensor - target).abs()
    return _reduced(torch.where(far <= delta, 0.5 * far * far, delta * (far - 0.5 * delta)).to(tensor.dtype), reduction)


def _bce_with_logits(
    tensor: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
    reduction: int = _MEAN,
) -> Any:
    """Computes (1 - target) x - weight of the label times log(sigmoid(x)), of logits x."""
    if not tensor.is_floating_point() or tensor.shape != target.shape:
        return NotImplemented
    positive = logsigmoid(tensor)
    if pos_weight is not None:
        positive = positive * ((pos_weight - 1) * target + 1)
    loss = (1 - target) * tensor - positive
    return _reduced(loss if weight is None else loss * weight, reduction)


def _soft_margin_loss(tensor: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN) -> torch.Tensor:
    return _reduced((-target * tensor).exp().log1p(), reduction)


LOSSES: dict[str, Callable[..., Any]] = {
    "aten.binary_cross_entropy_with_logits.default": _bce_with_logits,
    "aten.huber_loss.default": _huber_loss,
    "aten.mse_loss.default": _mse_loss,
    "aten.smooth_l1_loss.default": _smooth_l1_loss,
    "aten.soft_margin_loss.default": _soft_margin_loss,
}
"""By overload; NotImplemented leaves the call whole."""
