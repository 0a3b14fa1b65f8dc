"""What `weft bench --device cuda` measures beside weft: eager, Inductor, and PyTorch's own attention where a row is attention."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.api.compile import compile as compiled_by_weft
from weft.api.compile import torch_compile
from weft.lab.workloads.gpu import Workload

OWN = "weft"
_ALWAYS = ("eager", "inductor")
CHOICES = ("best", "all", "eager")
_Function = Callable[..., Any]


def names(row: Workload, peers: str) -> tuple[str, ...]:
    """Name what is measured in `row`: weft, eager, and of the other peers the best of an earlier measurement, all, or none."""
    match peers:
        case "all":
            others = (*_ALWAYS[1:], *row.peers)
        case "best":
            others = tuple(name for name in row.best if name != "eager")
        case _:
            others = ()
    return OWN, "eager", *others


def candidate(row: Workload, name: str) -> _Function:
    """Return the function called `name`, for the operands of `row`; it may compile at its first call."""
    match name:
        case "weft":
            return compiled_by_weft(row.fn)
        case "eager":
            return row.fn
        case "inductor":
            return torch_compile(row.fn, dynamic=False)
        case "flex":
            return _flex()
        case _:
            return _sdpa(name, causal=row.causal)


def _sdpa(name: str, *, causal: bool) -> _Function:
    """Return PyTorch's fused attention by one of its kernels."""
    backend = {"sdpa_cudnn": SDPBackend.CUDNN_ATTENTION, "sdpa_flash": SDPBackend.FLASH_ATTENTION}[name]

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel([backend]):
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
            )

    return call


def _flex() -> _Function:
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch_compile(flex_attention, dynamic=False)

    @functools.wraps(flex_attention)
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return compiled(q, k, v, enable_gqa=q.shape[1] != k.shape[1])

    return call
