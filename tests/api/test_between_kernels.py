"""Graphs in bfloat16 of several kernels: what goes from one to the next has eager's type, and the results eager's error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import weft


class Layer(nn.Module):
    """A layer with a residual, which more than one kernel reads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the layer makes of `x`."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_layers_hand_on_what_eager_would(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(*(Layer(64) for _ in range(3))).to(dtype).eval()
    x = torch.randn(5, 33, 64, dtype=dtype)
    with torch.no_grad(), weft.options(defects="raise"):
        program = weft.optimize(layers, (x,), judge="always")
        found, eager = program(x), layers(x)
        exact = layers.double()(x.double())
    assert not program.fallbacks
    assert len(program.kernels) > 3
    assert weft.judge(found, eager, exact).ok
