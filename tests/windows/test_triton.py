"""Masked loads on a GPU: right in Triton's interpreter on hard inputs; compiled without a GPU, they assert nothing."""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn import functional

import weft
from testkit.processes.running import ran

pytest.importorskip("triton", reason="Triton is not installed: it is in the extras dev and gpu")

_PROGRAM = """
import torch, weft
from torch.nn import functional

def turned(x, c):
    return torch.cat((x[..., :6] * c + 1, x[..., 6:]), -1).sum(-1)

x, y, c = torch.randn(3, 12, 20), torch.randn(3, 5, 20), torch.randn(12, 6)
for function, given in (
    (lambda x, y: torch.cat((x, y), 1) * 2, (x, y)),
    (lambda x, y: torch.cat((x, y), 1).softmax(1), (x, y)),
    (turned, (x, c)),
    (lambda x: functional.pad(x, (3, 0, 1, 2), value=-1.0) * 2, (x,)),
    (lambda x: functional.pad(x, (3, 2), mode="reflect") * 2, (x,)),
    (lambda x: torch.roll(x, (2, -3), (1, 2)) * 2, (x,)),
):
    program = weft.optimize(function, given, target="cuda:90", judge="always")
    assert not program.fallbacks, program.fallbacks
    assert [k.judged for k in program.kernels] == ["right on hard inputs"] * len(program.kernels), program.kernels
    torch.testing.assert_close(program(*given), function(*given))
"""


def test_kernels_are_right_in_the_interpreter() -> None:
    ran(["-W", "ignore", "-c", _PROGRAM], os.environ | {"TRITON_INTERPRET": "1"})


def test_a_compiled_kernel_asserts_nothing() -> None:
    def padded(x: torch.Tensor) -> torch.Tensor:
        return functional.pad(x, (4, 0)) * 2

    (kernel,) = weft.optimize(padded, (torch.randn(50, 64),), target="cuda:90").kernels
    assert kernel.assembly is not None
    assert "__assertfail" not in kernel.assembly
