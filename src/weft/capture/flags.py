"""Flags that change what a tensor's memory means: conjugates, negatives, zeros that have no memory.

PyTorch marks a tensor as the conjugate or the negative of what its memory holds, or as zeros without memory, and computes the
elements once an operation reads them. A kernel reads memory: what it is given must have no such flag.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.autograd import forward_ad

from weft.errors import UnsupportedError


def flagged(tensor: torch.Tensor) -> bool:
    """Tells whether the elements of `tensor` are others than those in its memory."""
    return tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor()  # noqa: SLF001 - no public name


def forward_derivatives() -> bool:
    """Tells whether forward-mode derivatives may be asked for here."""
    return cast("Any", forward_ad)._current_level >= 0  # noqa: SLF001 - no public name


def carries_derivative(tensor: torch.Tensor) -> bool:
    """Tells whether `tensor` has a forward-mode derivative beside its elements."""
    return forward_derivatives() and cast("Any", forward_ad).unpack_dual(tensor).tangent is not None


def as_read(tensor: torch.Tensor, dtype: torch.dtype, origin: str) -> torch.Tensor:
    """Gives `tensor`, which PyTorch computed, as kernels read it: its elements in memory as they are.

    Args:
        tensor: as it came.
        dtype: the element type that was recorded.
        origin: the call that gave it, for an error.

    Raises:
        UnsupportedError: it is of another type or layout than was recorded.
    """
    if tensor.dtype is not dtype or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        kind = f"{tensor.layout} tensor of {tensor.dtype}"
        raise UnsupportedError(f"{origin} gave a {kind} where PyTorch's tracing has a plain one of {dtype}")
    return tensor.clone() if flagged(tensor) else tensor
