"""Calls that are recorded as the calls they consist of, as if the user had typed those."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from string import ascii_letters
from typing import Any

import torch

from weft.capture.convolutions import CONVOLUTIONS
from weft.capture.grouped import GROUPED
from weft.capture.layers import LAYERS
from weft.capture.losses import LOSSES
from weft.capture.rearranged import REARRANGED
from weft.capture.resampled import RESAMPLED
from weft.capture.sizes import symbolic
from weft.capture.statistics import STATISTICS, dims_of, widened
from weft.capture.stores import COUNTS, STORES


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Computes the two matmuls, the scale, the mask and the softmax; a row that a mask excludes whole is 0, as in eager.

    Heads that share keys and values are a dimension of their own beside that of the keys' heads.
    """
    if dropout_p != 0.0 or (attn_mask is not None and attn_mask.ndim > query.ndim):  # the latter is an error
        return NotImplemented
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        if key.shape[-3] != value.shape[-3] or query.shape[-3] % key.shape[-3]:
            return NotImplemented
        heads = (key.shape[-3], query.shape[-3] // key.shape[-3])
        if attn_mask is not None and attn_mask.ndim > 2:
            attn_mask = attn_mask.unsqueeze(-3) if attn_mask.shape[-3] == 1 else _unflat(attn_mask, heads)
        grouped = _unflat(query, heads)
        made = _attention(grouped, key.unsqueeze(-3), value.unsqueeze(-3), attn_mask, is_causal=is_causal, scale=scale)
        return made.flatten(-4, -3)
    scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        below = torch.ones_like(scores, dtype=torch.bool).tril()
        scores = torch.where(below, scores, -math.inf)
    if attn_mask is None:
        return torch.softmax(scores, -1) @ value
    if attn_mask.dtype == torch.bool:
        scores, kept = torch.where(attn_mask, scores, -math.inf), attn_mask
    else:
        scores, kept = scores + attn_mask, attn_mask != -math.inf
    found = torch.softmax(scores, -1) @ value
    return torch.where(kept.any(-1, keepdim=True), found, 0.0)


def _unflat(tensor: torch.Tensor, heads: tuple[int, int]) -> torch.Tensor:
    """Splits dimension -3 into two dimensions."""
    return tensor.reshape(*tensor.shape[:-3], *heads, *tensor.shape[-2:])


def _split(tensor: torch.Tensor, split_size: int, dim: int = 0) -> list[torch.Tensor]:
    """Cuts slices of one size, the last what is left."""
    size = tensor.shape[dim]
    if split_size == 0:
        return NotImplemented
    return [tensor.narrow(dim, start, min(split_size, size - start)) for start in range(0, max(size, 1), split_size)]


def _split_with_sizes(tensor: torch.Tensor, split_sizes: Sequence[int], dim: int = 0) -> list[torch.Tensor]:
    """Cuts slices of these sizes."""
    starts = accumulate(split_sizes, initial=0)
    return [tensor.narrow(dim, start, size) for start, size in zip(starts, split_sizes, strict=False)]


def _unbind(tensor: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    """Lists the slices at each index of a dimension."""
    return [tensor.select(dim, index) for index in range(tensor.shape[dim])]


def _power(tensor: torch.Tensor, exponent: float) -> torch.Tensor:
    """Raises to a power; by 1 / x, if x to the power of the negative exponent would be infinite before its inverse is 0."""
    if exponent < 0 and float(exponent).is_integer():
        return tensor.reciprocal().pow(-exponent)
    return tensor.pow(exponent)


def _vector_norm(  # p, as PyTorch's documentation defines each
    tensor: torch.Tensor,
    ord: float = 2,  # noqa: A002 - ATen's name
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    if not tensor.is_floating_point():
        return NotImplemented
    result = tensor.dtype if dtype is None else dtype
    wide, over = widened(tensor.to(result)), dims_of(tensor, dim)
    if ord != 0 and all(not symbolic(tensor.shape[d]) and tensor.shape[d] == 1 for d in over):
        found = wide.abs().sum(over, keepdim)  # one element, which no power of it need be in range for
    elif ord == math.inf:
        found = wide.abs().amax(over, keepdim)
    elif ord == -math.inf:
        found = wide.abs().amin(over, keepdim)
    elif ord == 0:
        found = (wide != 0).to(wide.dtype).sum(over, keepdim)
    elif ord == 1:
        found = wide.abs().sum(over, keepdim)
    elif ord == 2:
        found = (wide * wide).sum(over, keepdim).sqrt()
    else:
        found = _power(_power(wide.abs(), ord).sum(over, keepdim), 1.0 / ord)
    return found.to(result)


def _norm(
    tensor: torch.Tensor,
    p: float | None = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    return _vector_norm(tensor, 2 if p is None else p, dim, keepdim, dtype=dtype)


def _logsumexp(tensor: torch.Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
    """Computes log(sum(exp(x))), shifted by the row's largest where that is finite."""
    if not tensor.is_floating_point() or tensor.ndim == 0:
        return NotImplemented
    wide, over = widened(tensor), dims_of(tensor, dim)
    top = wide.amax(over, keepdim=True)
    top = torch.where(top.abs() == math.inf, 0.0, top)
    total = (wide - top).exp().sum(over, keepdim)
    return (total.log() + (top if keepdim else top.squeeze(over))).to(tensor.dtype)


def _nansum(
    tensor: torch.Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    if not tensor.is_floating_point():
        return NotImplemented
    return torch.where(tensor.isnan(), 0.0, tensor).sum(dims_of(tensor, dim), keepdim, dtype=dtype)


def _aminmax(tensor: torch.Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    if tensor.ndim == 0:
        return NotImplemented
    over = dims_of(tensor, dim)
    return tensor.amin(over, keepdim), tensor.amax(over, keepdim)


def _repeat(tensor: torch.Tensor, repeats: Sequence[int]) -> Any:
    """Repeats a tensor along a dimension before each of its own, and merges the two: where memory repeats, a copy."""
    sizes = [1] * (len(repeats) - tensor.ndim) + list(tensor.shape)
    pairs = list(zip(repeats, sizes, strict=True))
    wide = tensor.reshape([n for size in sizes for n in (1, size)]).expand([n for pair in pairs for n in pair])
    return wide.clone(memory_format=torch.contiguous_format).reshape([count * size for count, size in pairs])


def _repeat_interleave(
    tensor: torch.Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None
) -> Any:
    """Repeats each element of a dimension as a dimension of its own, and merges the two: where memory repeats, a copy."""
    del output_size
    if dim is None or tensor.ndim == 0:
        return NotImplemented
    dim %= tensor.ndim
    sizes = [repeats if d == dim + 1 else -1 for d in range(tensor.ndim + 1)]
    return tensor.unsqueeze(dim + 1).expand(sizes).clone(memory_format=torch.contiguous_format).flatten(dim, dim + 1)


def _glu(tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
    value, gate = tensor.chunk(2, dim)
    return value * gate.sigmoid()


def _scaled_sum(bias: torch.Tensor, matmul: torch.Tensor, beta: float, alpha: float) -> Any:
    """Computes beta * bias + alpha * matmul; beta = 0 ignores bias, NaN and all. Among integers PyTorch truncates both."""
    if not matmul.is_floating_point() and not (isinstance(beta, int) and isinstance(alpha, int)):
        return NotImplemented
    scaled = matmul if alpha == 1 else matmul * alpha
    if beta == 0:
        return scaled
    return scaled + (bias if beta == 1 else bias * beta)


def _addmv(bias: torch.Tensor, matrix: torch.Tensor, vector: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    return _scaled_sum(bias, matrix.mv(vector), beta, alpha)


def _addr(bias: torch.Tensor, one: torch.Tensor, other: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    return _scaled_sum(bias, one.unsqueeze(-1) * other, beta, alpha)


def _addbmm(bias: torch.Tensor, one: torch.Tensor, other: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    return _scaled_sum(bias, torch.einsum("bij,bjk->ik", one, other), beta, alpha)


def _tensordot(
    one: torch.Tensor, other: torch.Tensor, dims_self: Sequence[int], dims_other: Sequence[int]
) -> torch.Tensor:
    letters = iter(ascii_letters)
    first, second = [next(letters) for _ in one.shape], [next(letters) for _ in other.shape]
    for left, right in zip(dims_self, dims_other, strict=True):
        second[right] = first[left]
    kept = [c for c in (*first, *second) if (c in first) != (c in second)]
    return torch.einsum(f"{''.join(first)},{''.join(second)}->{''.join(kept)}", one, other)


def _scaled_mm(
    one: torch.Tensor,
    other: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Any:
    """Multiplies fp8 numbers in float32, with one scale for each operand, or one for each row and each column."""
    del use_fast_accum
    whole = scale_a.numel() == 1 and scale_b.numel() == 1
    each = scale_a.shape == (one.shape[0], 1) and scale_b.shape == (1, other.shape[1])
    kept = out_dtype not in (torch.float32, torch.bfloat16, torch.float16)  # an overflow of 8 bits is PyTorch's own
    if kept or scale_result is not None or not (whole or each) or one.element_size() != 1 or other.element_size() != 1:
        return NotImplemented
    scales = (scale_a.reshape(()), scale_b.reshape(())) if whole else (scale_a, scale_b)
    found = one.float() @ other.float() * scales[0].float() * scales[1].float()
    return (found if bias is None else found + bias.float()).to(out_dtype)


def _count_nonzero(tensor: torch.Tensor, dim: Sequence[int] | None = None) -> torch.Tensor:
    return (tensor != 0).sum(dims_of(tensor, dim))


def _clamp(
    tensor: torch.Tensor,
    min: torch.Tensor | None = None,  # noqa: A002 - ATen's name
    max: torch.Tensor | None = None,  # noqa: A002 - ATen's name
) -> torch.Tensor:
    above = tensor if min is None else torch.maximum(tensor, min)
    return above if max is None else torch.minimum(above, max)


def _nan_to_num(
    tensor: torch.Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Any:
    if not tensor.is_floating_point():
        return NotImplemented
    limits = torch.finfo(tensor.dtype)
    low, high = limits.min if neginf is None else neginf, limits.max if posinf is None else posinf
    bounded = torch.where(tensor == math.inf, high, torch.where(tensor == -math.inf, low, tensor))
    return torch.where(tensor.isnan(), nan or 0.0, bounded)


def _logit(tensor: torch.Tensor, eps: float | None = None) -> Any:
    if not tensor.is_floating_point():
        return NotImplemented
    inside = widened(tensor) if eps is None else widened(tensor).clamp(eps, 1 - eps)
    return (inside / (1 - inside)).log().to(tensor.dtype)


def _isfinite(tensor: torch.Tensor) -> Any:
    if not tensor.is_floating_point():
        return NotImplemented
    return tensor.abs() < math.inf  # false of NaN


def _isposinf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor == math.inf


def _isneginf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor == -math.inf


def _weight_norm(direction: torch.Tensor, length: torch.Tensor, dim: int = 0) -> Any:
    """Scales what lies at each index of a dimension to a length; all of it, where `dim` is -1."""
    over = [d for d in range(direction.ndim) if d != dim % direction.ndim or dim == -1]
    if not direction.is_floating_point() or not over:
        return NotImplemented
    wide = widened(direction)
    return (wide * (widened(length) / (wide * wide).sum(over, keepdim=True).sqrt())).to(direction.dtype)


def _prelu(tensor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    per_channel = weight.reshape(-1, *(1 for _ in tensor.shape[2:])) if tensor.ndim > 1 else weight.reshape(())
    return torch.where(tensor > 0, tensor, per_channel * tensor)


LIBRARY = frozenset({"aten._scaled_mm.default", *GROUPED})
"""Of `PARTS` those that PyTorch has a library's kernel for, which a matmul among the parts would not find."""

PARTS: dict[str, Callable[..., Any]] = {
    **LAYERS,
    "aten._scaled_mm.default": _scaled_mm,
    "aten._weight_norm.default": _weight_norm,
    "aten.addbmm.default": _addbmm,
    "aten.addmv.default": _addmv,
    "aten.addr.default": _addr,
    "aten.aminmax.default": _aminmax,
    "aten.clamp.Tensor": _clamp,
    "aten.clamp_max.Tensor": torch.minimum,
    "aten.clamp_min.Tensor": torch.maximum,
    "aten.count_nonzero.default": _count_nonzero,
    "aten.count_nonzero.dim_IntList": _count_nonzero,
    "aten.glu.default": _glu,
    "aten.linalg_vector_norm.default": _vector_norm,
    "aten.logsumexp.default": _logsumexp,
    "aten.isfinite.default": _isfinite,
    "aten.isneginf.default": _isneginf,
    "aten.isposinf.default": _isposinf,
    "aten.logit.default": _logit,
    "aten.nan_to_num.default": _nan_to_num,
    "aten.nansum.default": _nansum,
    "aten.norm.Scalar": _norm,
    "aten.norm.ScalarOpt_dim": _norm,
    "aten.norm.ScalarOpt_dim_dtype": _norm,
    "aten.norm.ScalarOpt_dtype": _norm,
    "aten.prelu.default": _prelu,
    "aten.repeat.default": _repeat,
    "aten.repeat_interleave.self_int": _repeat_interleave,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split_with_sizes,
    "aten.tensordot.default": _tensordot,
    "aten.unbind.int": _unbind,
    "aten.unsafe_split.Tensor": _split,
    "aten.unsafe_split_with_sizes.default": _split_with_sizes,
    "aten.vdot.default": torch.dot,
    **CONVOLUTIONS,
    **GROUPED,
    **LOSSES,
    **REARRANGED,
    **RESAMPLED,
    **STATISTICS,
    **COUNTS,
    **STORES,
}
"""By overload; NotImplemented leaves the call whole."""

TAKEN_APART = frozenset(overload.rpartition(".")[0] for overload in PARTS.keys() - CONVOLUTIONS.keys())
"""By the names of their packets, operations that are recorded as others, at least for some arguments; convolutions stay calls."""
