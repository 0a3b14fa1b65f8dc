"""Write attention as you like: `python examples/attention.py [--small]`.

Each variant is a few lines of PyTorch. weft derives one kernel for each that never writes the scores to memory, shows it equal to
what is written, and skips blocks that a mask of indices excludes. Nothing in weft knows attention by name.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

import weft


def attention(q: Tensor, k: Tensor, v: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Attends with scores [batch, heads, n, n] that `change` makes others of."""
    return torch.softmax(change(q @ k.mT / math.sqrt(q.shape[-1])), -1) @ v


def distance(scores: Tensor) -> Tensor:
    """Gives how far before each query each key lies: [n, n]."""
    return torch.arange(scores.shape[-2])[:, None] - torch.arange(scores.shape[-1])


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Sees no key after a query."""
    return attention(q, k, v, lambda s: s.masked_fill(distance(s) < 0, -math.inf))


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Sees the last 64 keys."""
    return attention(q, k, v, lambda s: s.masked_fill((distance(s) < 0) | (distance(s) >= 64), -math.inf))


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keeps scores between -30 and 30, softly."""
    return attention(q, k, v, lambda s: 30 * torch.tanh(s / 30))


def alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Counts far keys less, each head with a slope of its own."""
    slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1)
    return attention(q, k, v, lambda s: s - slopes[:, None, None] * distance(s).abs())


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Lets pairs of heads share the keys and values of one."""
    groups = q.unflatten(1, (-1, 2))
    return attention(groups, k[:, ::2, None], v[:, ::2, None], lambda s: s).flatten(1, 2)


def sink(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Lets a query attend to nothing: a score of 0 more in each softmax."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    most = scores.amax(-1, keepdim=True).clamp(min=0)
    weights = torch.exp(scores - most)
    return (weights / (weights.sum(-1, keepdim=True) + torch.exp(-most))) @ v


def main(small: bool) -> None:
    """Compiles each variant; prints kernels, verdicts and times."""
    torch.manual_seed(0)
    length = 96 if small else 1024
    q, k, v = (torch.randn(1, 8, length, 64) for _ in range(3))
    for variant in (causal, window, capped, alibi, grouped, sink):
        program = weft.optimize(variant, (q, k, v))
        torch.testing.assert_close(program(q, k, v), variant(q, k, v), rtol=1e-4, atol=1e-4)
        times = [_seconds(call, q, k, v) for call in (program, variant)]
        print(
            f"{variant.__name__:8} kernels: {len(program.kernels)}; {times[0] * 1e3:.2f} ms, in eager {times[1] * 1e3:.2f}; "
            f"{program.kernels[0].verdict}"
        )


def _seconds(call: Callable[..., Tensor], *inputs: Tensor) -> float:
    """Returns the least time of five calls."""
    taken = list[float]()
    for _ in range(5):
        begin = time.perf_counter()
        call(*inputs)
        taken.append(time.perf_counter() - begin)
    return min(taken)


if __name__ == "__main__":
    main("--small" in sys.argv[1:])
