"""Run a mixture of experts: `python examples/mixture.py [--small]`.

A router sends each word to two of the experts. Here every expert computes every word and the weights of those that were not asked
are 0: simple, of fixed shapes, and fast enough for few experts or few words.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor, nn

import weft


class Mixture(nn.Module):
    """Gated feed-forward experts of one size, and a router."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.randn(experts, width, inner) / width**0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Gives words [n, width] after the two best experts of each."""
        normed = self.norm(x)
        chances = torch.softmax(self.router(normed), -1)
        best, which = chances.topk(2, -1)
        best = best / best.sum(-1, keepdim=True)
        weights = torch.zeros_like(chances).scatter(-1, which, best)
        inner = nn.functional.silu(normed @ self.gate) * (normed @ self.up)
        return x + ((inner @ self.down) * weights.T[:, :, None]).sum(0)


def main(small: bool) -> None:
    """Compares a call with eager's, in words and time."""
    torch.manual_seed(0)
    words, width, inner = (32, 64, 96) if small else (256, 512, 1408)
    model = Mixture(width, inner, 8).eval()
    x = torch.randn(words, width)
    fast = weft.compile(model)
    with torch.no_grad():
        fast(x)  # compiles
        begin = time.perf_counter()
        wanted = model(x)
        between = time.perf_counter()
        found = fast(x)
        end = time.perf_counter()
        program = weft.optimize(model, (x,))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    print(f"right; {(end - between) * 1e3:.2f} ms, in eager {(between - begin) * 1e3:.2f}")
    print("kernels:", len(program.kernels))
    print("left to PyTorch:", ", ".join(each.operation for each in program.fallbacks) or "nothing")


if __name__ == "__main__":
    main("--small" in sys.argv[1:])
