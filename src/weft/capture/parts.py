"""Calls that are recorded as the calls that they consist of, as if the user had typed those."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch


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
    """The two products, the scale, the mask and the softmax; a row that a mask excludes whole is 0, as in eager.

    Heads that share keys and values are a dimension of their own beside that of the keys' heads.
    """
    if dropout_p != 0.0:
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
    """Dimension -3 as two dimensions."""
    return tensor.reshape(*tensor.shape[:-3], *heads, *tensor.shape[-2:])


PARTS: dict[str, Callable[..., Any]] = {"aten.scaled_dot_product_attention": _attention}
"""By overload packet; NotImplemented leaves the call whole."""
