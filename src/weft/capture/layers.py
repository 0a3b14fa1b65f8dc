"""Whole layers that PyTorch runs as one call in inference, replaced by the calls that the layer consists of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional


def _heads(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Turns (batch, length, width) into (batch, heads, length, width of a head)."""
    batch, length, width = tensor.shape
    return tensor.reshape(batch, length, count, width // count).transpose(1, 2)


def _spread(mask: torch.Tensor, kind: int | None) -> torch.Tensor | None:
    """Puts a mask into the dimensions of the scores (batch, heads, rows, keys); None where PyTorch decides what it means."""
    match kind:
        case 0 if mask.ndim == 2:
            return mask[None, None]
        case 1 if mask.ndim == 2:
            return mask[:, None, None]
        case 2 if mask.ndim == 4:
            return mask
        case _:
            return None


def _attention_layer(  # noqa: PLR0913, PLR0917 - ATen's arguments
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """Computes projections, scores, softmax, the matmul with the values, the last projection. Where the mask is true,
    nothing is read.
    """
    if query.is_nested or query.ndim != 3 or embed_dim % num_head:
        return NotImplemented
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    projected = [functional.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]
    queries, keys, values = (_heads(x, num_head) for x in projected)
    scores = (queries / math.sqrt(embed_dim // num_head)) @ keys.transpose(-2, -1)
    if mask is not None:
        spread = _spread(mask.to(torch.bool), mask_type)
        if spread is None:
            return NotImplemented
        scores = torch.where(spread, -math.inf, scores)
    shares = torch.softmax(scores, -1)
    found = functional.linear((shares @ values).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return found, None
    return found, shares.sum(1) / num_head if average_attn_weights else shares


def _encoder_layer(  # noqa: PLR0913, PLR0917 - ATen's arguments
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """Computes attention and two linear layers, each added to what it reads, and normalised before or after."""

    def first(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    read = first(src) if norm_first else src
    projections = qkv_weight, qkv_bias, proj_weight, proj_bias
    made = _attention_layer(read, read, read, embed_dim, num_heads, *projections, mask, False, mask_type=mask_type)
    if made is NotImplemented:
        return NotImplemented
    x = made[0] + src
    x = x if norm_first else first(x)
    read = second(x) if norm_first else x
    inner = functional.linear(read, ffn_weight_1, ffn_bias_1)
    x = functional.linear(functional.gelu(inner) if use_gelu else torch.relu(inner), ffn_weight_2, ffn_bias_2) + x
    return x if norm_first else second(x)


def _gru_cell(
    x: torch.Tensor,
    state: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    ours, theirs = functional.linear(x, w_ih, b_ih).chunk(3, -1), functional.linear(state, w_hh, b_hh).chunk(3, -1)
    reset, update = (torch.sigmoid(a + b) for a, b in zip(ours[:2], theirs[:2], strict=True))
    new = torch.tanh(ours[2] + reset * theirs[2])
    return (state - new) * update + new


def _lstm_cell(
    x: torch.Tensor,
    state: Sequence[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    shown, kept = state
    gates = (functional.linear(shown, w_hh, b_hh) + functional.linear(x, w_ih, b_ih)).chunk(4, -1)
    taken, remembered, given = (torch.sigmoid(gates[i]) for i in (0, 1, 3))
    cell = remembered * kept + taken * torch.tanh(gates[2])
    return given * torch.tanh(cell), cell


LAYERS: dict[str, Callable[..., Any]] = {
    "aten._native_multi_head_attention.default": _attention_layer,
    "aten._transformer_encoder_layer_fwd.default": _encoder_layer,
    "aten.gru_cell.default": _gru_cell,
    "aten.lstm_cell.default": _lstm_cell,
}
"""By overload; NotImplemented leaves the call whole."""
