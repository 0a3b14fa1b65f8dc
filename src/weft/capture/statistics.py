"""Variances, and layers that normalise by mean and variance, as the calls that they consist of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from weft.capture.sizes import symbolic


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Converts to the type that sums are carried in: rounded once, at the end of a composite operation."""
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor.float() if half else tensor


def dims_of(tensor: torch.Tensor, dim: int | Sequence[int] | None) -> list[int]:
    """Lists the dimensions meant; None and an empty list mean all."""
    listed = [dim] if isinstance(dim, int) else list(dim or ())
    return [d % max(tensor.ndim, 1) for d in listed] or list(range(tensor.ndim))


def _variance(
    wide: torch.Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool, *, spare: bool = False
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Computes the variance and the mean, not rounded; None where PyTorch computes them.

    The sum of the differences, which should be 0, tells how far the mean was rounded and by how much the squares are too
    large; infinite squares are not made NaN by this correction. With digits to `spare`, as in fp64 for fp32 data, no
    correction is needed.
    """
    correction = 1 if correction is None else correction
    if not wide.is_floating_point() or wide.ndim == 0:
        return None
    over = dims_of(wide, dim)
    count = math.prod(wide.shape[d] for d in over)
    if symbolic(count) and correction not in (0, 1):
        return None  # whether it is more than there are elements depends on the size
    mean = wide.mean(over, keepdim=True)
    centred = wide - mean
    total = (centred * centred).sum(over, keepdim=keepdim)
    if not spare:
        off = centred.sum(over, keepdim=keepdim)
        total = torch.where(total == math.inf, total, total - off * off / count)
    if not symbolic(count):
        found = total / max(count - correction, 0)
    elif correction == 0:
        found = total / count
    else:  # of nothing NaN, as 0 / 0 is, where 0 / -1 would be 0
        found = total / count * count / (count - correction)
    return found, mean if keepdim else mean.squeeze(over)


_Moments: TypeAlias = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
"""Of a variance and a mean what a call gives."""


def _of_variance(moments: _Moments, carrier: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Makes a call that gives `moments` of a variance, carried in what `carrier` makes of the tensor, rounded once."""

    def call(
        tensor: torch.Tensor,
        dim: Sequence[int] | None = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Any:
        if not tensor.is_floating_point():
            return NotImplemented
        carried = carrier(tensor)
        found = _variance(
            carried, dim, correction, keepdim, spare=carried.element_size() > max(tensor.element_size(), 4)
        )
        if found is None:
            return NotImplemented
        narrow = widened(tensor).dtype  # to 16 bits from there: a cast between those is one of precision
        made = [part.to(narrow).to(tensor.dtype) for part in moments(*found)]
        return tuple(made) if len(made) > 1 else made[0]

    return call


def _variances(carrier: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Callable[..., Any]]:
    """Lists the calls that give a variance or its root, by overload."""
    return {
        "aten.std.correction": _of_variance(lambda var, _: (var.sqrt(),), carrier),
        "aten.std_mean.correction": _of_variance(lambda var, mean: (var.sqrt(), mean), carrier),
        "aten.var.correction": _of_variance(lambda var, _: (var,), carrier),
        "aten.var_mean.correction": _of_variance(lambda var, mean: (var, mean), carrier),
    }


def _group_norm(
    tensor: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    """Normalises groups: the channels of a group are a dimension beside that of the groups, for as long as it takes."""
    del cudnn_enabled
    batch, channels, *rest = tensor.shape
    groups = (num_groups, channels // num_groups)
    wide = widened(tensor.reshape(batch, *groups, *rest))
    over = list(range(2, wide.ndim))
    centred = wide - wide.mean(over, keepdim=True)
    found = centred / ((centred * centred).mean(over, keepdim=True) + eps).sqrt()
    per_channel = (*groups, *(1 for _ in rest))
    found = found if weight is None else found * weight.reshape(per_channel)
    found = found if bias is None else found + bias.reshape(per_channel)
    return found.to(tensor.dtype).reshape(tensor.shape)


def _batch_norm(  # noqa: PLR0913, PLR0917 - ATen's arguments
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """Normalises with the statistics that training left; in training with those of the batch, which the running ones
    then follow, if there are any.
    """
    del cudnn_enabled
    if running_mean is None or running_var is None:
        alone = training and running_mean is None and running_var is None
        return _batch_norm_of_the_batch(tensor, weight, bias, training, momentum, eps)[0] if alone else NotImplemented
    mean, var = widened(running_mean), widened(running_var)
    if training:
        over = [d for d in range(tensor.ndim) if d != 1]
        found = _variance(widened(tensor), over, 0, keepdim=False)
        if found is None:
            return NotImplemented
        var, mean = found
        count = math.prod(tensor.shape[d] for d in over)
        unbiased = var / (count - 1) * count
        for running, now in ((running_mean, mean), (running_var, unbiased)):
            running.copy_(momentum * now + (1 - momentum) * widened(running))

    def per_channel(vector: torch.Tensor) -> torch.Tensor:
        return widened(vector).reshape(-1, *(1 for _ in tensor.shape[2:]))

    found = (widened(tensor) - per_channel(mean)) / (per_channel(var) + eps).sqrt()
    found = found if weight is None else found * per_channel(weight)
    found = found if bias is None else found + per_channel(bias)
    return found.to(tensor.dtype)


def _instance_norm(  # noqa: PLR0913, PLR0917 - ATen's arguments
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    """Normalises each channel as a group of its own; with the statistics that training left, as a batch norm."""
    if not use_input_stats:
        given = running_mean, running_var, False, momentum, eps, cudnn_enabled
        return _batch_norm(tensor, weight, bias, *given)
    if running_mean is not None or running_var is not None:
        return NotImplemented
    return _group_norm(tensor, tensor.shape[1], weight, bias, eps)


def _moments(tensor: torch.Tensor, over: Sequence[int], eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes what the norms of core ATen give beside their result: the mean, and one over the root of the variance."""
    wide = widened(tensor)
    mean = wide.mean(list(over), keepdim=True)
    centred = wide - mean
    return mean, ((centred * centred).mean(list(over), keepdim=True) + eps).rsqrt()


def _native_layer_norm(
    tensor: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Any:
    found = torch.layer_norm(tensor, list(normalized_shape), weight, bias, eps)
    mean, inverse = _moments(tensor, range(tensor.ndim - len(normalized_shape), tensor.ndim), eps)
    return found, mean.to(tensor.dtype), inverse.to(tensor.dtype)


def _native_group_norm(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    count: int,
    channels: int,
    each: int,
    groups: int,
    eps: float,
) -> Any:
    found = _group_norm(tensor, groups, weight, bias, eps)
    mean, inverse = _moments(tensor.reshape(count, groups, channels // groups * each), [2], eps)
    return found, mean.squeeze(2).to(tensor.dtype), inverse.squeeze(2).to(tensor.dtype)


def _native_batch_norm(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> Any:
    """Normalises with the statistics that training left; the other two results are empty, as on a CPU."""
    found = _batch_norm(tensor, weight, bias, running_mean, running_var, False, momentum, eps, False)
    return found, running_mean[:0].clone(), running_mean[:0].clone()


def _batch_norm_of_the_batch(
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Normalises each channel over the batch and all places; an instance norm is one of a batch of one."""
    del momentum
    if not training:
        return NotImplemented
    mean, inverse = _moments(tensor, [d for d in range(tensor.ndim) if d != 1], eps)
    found = (widened(tensor) - mean) * inverse
    shape = -1, *(1 for _ in tensor.shape[2:])
    found = found if weight is None else found * widened(weight).reshape(shape)
    found = found if bias is None else found + widened(bias).reshape(shape)
    return found.to(tensor.dtype), mean.reshape(-1), inverse.reshape(-1)


STATISTICS: dict[str, Callable[..., Any]] = {
    "aten._native_batch_norm_legit.no_stats": _batch_norm_of_the_batch,
    "aten._native_batch_norm_legit_no_training.default": _native_batch_norm,
    "aten.native_group_norm.default": _native_group_norm,
    "aten.native_layer_norm.default": _native_layer_norm,
    "aten.batch_norm.default": _batch_norm,
    "aten.group_norm.default": _group_norm,
    "aten.instance_norm.default": _instance_norm,
    **_variances(widened),
}
"""By overload; NotImplemented leaves the call whole."""

IN_DOUBLE: dict[str, Callable[..., Any]] = _variances(torch.Tensor.double)
"""Those that PyTorch carries in float64 on a CPU, whatever the tensor's type is, for targets that compute in it: squares of fp32
are in its range, and overflow as `STATISTICS` has them."""
