"""Graphs in which PyTorch runs a part on a GPU: Triton kernels that users wrote, between kernels of weft's."""

from __future__ import annotations

import pytest
import torch
import triton  # pyright: ignore[reportMissingTypeStubs]
import triton.language as tl  # pyright: ignore[reportMissingTypeStubs]

import weft


@triton.jit
def raise_by(x, y, n, size: tl.constexpr):
    i = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(x + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


def raised(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x + y, in x's memory."""
    n = x.numel()
    raise_by[(triton.cdiv(n, 256),)](x, y, n, size=256)  # pyright: ignore[reportArgumentType] - Triton makes it a constexpr
    return x


def of_a_result(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(raised(torch.exp(x * 0.5), y * 2.0), -1)


def of_an_input(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    before = torch.softmax(x, -1)
    return before + torch.tanh(raised(x, y * 2.0))


def of_a_new_tensor(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(raised(torch.zeros_like(x), x * y), -1)


def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    once = raised(torch.relu(x), y)
    return torch.softmax(raised(once * 2.0, once + y), -1)


@pytest.mark.parametrize("function", [of_a_result, of_an_input, of_a_new_tensor, twice])
@pytest.mark.parametrize("rows", [33, 4])
def test_a_users_triton_kernel_between_kernels_of_wefts(function, rows) -> None:
    x, y = torch.randn(rows, 96, device="cuda"), torch.randn(rows, 96, device="cuda")
    given, wanted_x = x.clone(), x.clone()
    before = weft.stats().kernels
    with torch.no_grad():
        wanted = function(wanted_x, y)
        found = weft.compile(function)(given, y)
    assert weft.stats().kernels > before
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(given, wanted_x, rtol=1e-6, atol=1e-6)
