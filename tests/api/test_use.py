"""weft in a user's program: what calls cost, threads and processes, and everything that may be an argument or a result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import weft

TASKS = Path("/proc/self/task")


def relu_linear(x, w, b):
    return torch.relu(x @ w + b)


def operands(rows: int = 8, inner: int = 8, columns: int = 8) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(columns)


@pytest.mark.skipif(not TASKS.is_dir(), reason="needs /proc")
def test_small_work_wakes_no_thread():
    many = threads_alive() + 8
    fast = weft.compile(relu_linear, threads=many)
    fast(*operands())
    assert threads_alive() < many
    fast(*operands(512, 256, 256))
    assert threads_alive() >= many


def threads_alive() -> int:
    return len(list(TASKS.iterdir()))
