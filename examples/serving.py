"""Serve a model whose batches grow: `python examples/serving.py [--small]`.

With `compile="background"` no call waits for the compiler: PyTorch runs them until kernels are built and checked. One kernel serves
all batches and lengths of a size class, so batches that grow compile nothing new.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor, nn

import weft


class Encoder(nn.Module):
    """Words to one vector a text: attention without a mask, feed-forward, mean."""

    def __init__(self, words: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.words = nn.Embedding(words, width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, words: Tensor) -> Tensor:
        """Gives vectors [batch, width] of length 1 for `words` [batch, n]."""
        x = self.words(words)
        q, k, v = (e.unflatten(-1, (self.heads, -1)).transpose(1, 2) for e in self.mixed(self.norm(x)).chunk(3, -1))
        attended = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        mean = (x + self.feed(self.norm_after(x))).mean(1)
        return mean / mean.norm(dim=-1, keepdim=True)


def main(small: bool) -> None:
    """Answers requests of growing batches; says what ran where."""
    torch.manual_seed(0)
    width, batches = (64, (2, 3, 5, 8)) if small else (512, (2, 3, 5, 8, 12, 16, 24, 32))
    model = Encoder(1000, width, 4).eval()
    fast = weft.compile(model, compile="background")
    with torch.no_grad():
        fast(torch.randint(1000, (2, 24)))  # at once: PyTorch runs it
        print("calls that PyTorch ran meanwhile:", weft.stats().meanwhile)
        fast(torch.randint(1000, (3, 25)))  # sizes that change: asks for kernels for all of them
        weft.ready(fast)  # a server need not wait
        before = weft.stats().compiles
        for batch in batches:
            words = torch.randint(1000, (batch, 16 + batch))
            begin = time.perf_counter()
            found = fast(words)
            seconds = time.perf_counter() - begin
            torch.testing.assert_close(found, model(words))
            print(f"batch {batch:3}: {seconds * 1e3:.2f} ms")
    print("binaries compiled while serving:", weft.stats().compiles - before)


if __name__ == "__main__":
    main("--small" in sys.argv[1:])
