"""Matmuls of groups of rows, each group with a matrix of its own, as for a mixture of experts.

    out[s, n] = sum over k of x[s, k] * w[e[s], k, n]          e[s]: the groups that end at or before row s

So a group is an index, and its matrix is read where it lies (`weft.block.unlisted`). Each row reads the whole of one, so of many
rows a library, which multiplies the rows of a group by it at once, does better.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.capture.sizes import symbolic

FEW_ROWS = 16
"""So many rows at most are multiplied one by one: as decoding has, where few of them share a matrix."""


def _grouped_mm(
    one: torch.Tensor,
    other: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Multiplies a few rows (S, K) by matrices (G, K, N), where `offs` (G) says after how many rows each group ends.

    Rows after the last group are 0.
    """
    if offs is None or bias is not None or out_dtype not in (None, one.dtype) or (one.ndim, other.ndim) != (2, 3):
        return NotImplemented
    if symbolic(one.shape[0]) or one.shape[0] > FEW_ROWS:
        return NotImplemented
    ended = torch.arange(one.shape[0]).unsqueeze(1) >= offs
    group, last = ended.sum(1), other.shape[0] - 1
    found = torch.bmm(one.unsqueeze(1), other.index_select(0, group.clamp(max=last))).squeeze(1)
    return torch.where((group <= last).unsqueeze(1), found, 0.0)


GROUPED: dict[str, Callable[..., Any]] = {
    "aten._grouped_mm.default": _grouped_mm,
    "transformers.grouped_mm_fallback.default": _grouped_mm,
}
"""By overload; NotImplemented leaves the call whole. The second is the loop that transformers has where PyTorch lacks the first."""
