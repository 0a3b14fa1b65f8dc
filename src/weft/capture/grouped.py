"""Matmuls of groups of rows, each group with a matrix of its own, as for a mixture of experts.

    out[s, n] = sum over e of where(begin[e] <= s < end[e], sum over k of x[s, k] * w[e, k, n], 0)

What says which rows a group has is a mask, of comparisons of indices with integers in memory: the loop over groups leaves out those
that have no row of a block, as any loop does by its mask (`weft.masks.guards`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

from weft.capture.sizes import symbolic

_FEW_ROWS = 16
"""On a GPU the library's call stays for more rows than that: kernels were not timed beside it there."""


def _grouped_mm(
    one: torch.Tensor,
    other: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Multiplies rows (S, K) by matrices (G, K, N), where `offs` (G) says before which row each group ends: (S, N).

    Rows after the last group are 0.
    """
    if offs is None or bias is not None or out_dtype not in (None, one.dtype) or (one.ndim, other.ndim) != (2, 3):
        return NotImplemented
    if one.is_cuda and (symbolic(one.shape[0]) or one.shape[0] > _FEW_ROWS):
        return NotImplemented
    row, ends = torch.arange(one.shape[0], device=one.device), offs.unsqueeze(1)
    within = (row >= pad(offs, (1, 0))[:-1].unsqueeze(1)) & (row < ends)
    return torch.where(within.unsqueeze(-1), torch.matmul(one, other), 0.0).sum(0)


GROUPED: dict[str, Callable[..., Any]] = {
    "aten._grouped_mm.default": _grouped_mm,
    "transformers.grouped_mm_fallback.default": _grouped_mm,
}
"""By overload; NotImplemented leaves the call whole. The second is the loop that transformers has where PyTorch lacks the first."""
