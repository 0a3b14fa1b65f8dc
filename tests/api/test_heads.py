"""Heads that share keys and values, written as users write them: nothing is repeated in memory, one kernel, right, any size."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import weft
from testkit.api.judged import judged
from testkit.walk import share
from weft.block.ranges import Spans
from weft.block.walk import maps

# Batch, heads of queries, heads of keys, queries, keys, head size: the ratio of heads 4, 1 and 8, one head of keys, one batch.
SHAPES = (
    (2, 8, 2, 65, 65, 40),
    (1, 8, 2, 7, 7, 64),
    (3, 4, 1, 33, 33, 16),
    (2, 3, 3, 20, 20, 8),
    (1, 16, 2, 1, 70, 64),
)


def repeat_kv(x, times):
    """Repeats keys and values as Hugging Face's models do."""
    batch, heads, length, size = x.shape
    if times == 1:
        return x
    return x[:, :, None, :, :].expand(batch, heads, times, length, size).reshape(batch, heads * times, length, size)


def expanded(times):
    return lambda q, k, v: attend(q, repeat_kv(k, times), repeat_kv(v, times))


def interleaved(times):
    return lambda q, k, v: attend(q, k.repeat_interleave(times, dim=1), torch.repeat_interleave(v, times, 1))


def attend(q, k, v):
    """Each query sees the keys up to its own, which are the last ones."""
    queries, keys = q.shape[-2], k.shape[-2]
    seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    scores = (q @ k.mT * (1 / math.sqrt(q.shape[-1]))).masked_fill(~seen, -torch.inf)
    return torch.softmax(scores, -1) @ v


def tensors(shape, dtype, *, behind=False):
    """Queries, keys and values; `behind`: with the heads behind the length in memory, as a projection leaves them."""
    batch, heads, shared, queries, keys, size = shape
    sizes = ((heads, queries), (shared, keys), (shared, keys))
    if behind:
        return tuple(torch.randn(batch, n, h, size).to(dtype).transpose(1, 2) for h, n in sizes)
    return tuple(torch.randn(batch, h, n, size).to(dtype) for h, n in sizes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("dtype", "behind"), [(torch.float32, False), (torch.bfloat16, True)], ids=str)
def test_repeated_keys_are_no_copies_and_right(dtype, behind):
    for number, shape in share(enumerate(SHAPES), 2, int(behind)):
        torch.compiler.reset()
        fn = (expanded, interleaved)[number % 2](shape[1] // shape[2])
        draws = [tensors(shape, dtype, behind=behind) for _ in range(4)]
        program = weft.optimize(fn, draws[0])
        assert program.fallbacks == (), shape
        assert all(kernel.verdict.equal is True for kernel in program.kernels)
        assert len(program.kernels) == 1 or shape[3] == 1, shape
        judgement = judged(fn, program, draws)
        assert judgement.ok, (shape, str(judgement))


def test_the_kernel_reads_the_keys_themselves_and_skips_what_the_mask_excludes():
    q, k, v = tensors((2, 8, 2, 65, 65, 40), torch.float32)
    (kernel,) = weft.optimize(expanded(4), (q, k, v)).kernels
    assert kernel.cost.unique_bytes == 4 * (2 * q.numel() + k.numel() + v.numel())
    assert any(isinstance(loop.range, Spans) for loop in maps(kernel.block_program.graph))


class Layer(nn.Module):
    """Projections, heads, attention and the way back."""

    def __init__(self, heads, shared, size):
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, size
        self.q, self.k, self.v = (nn.Linear(24, h * size, bias=False) for h in (heads, shared, shared))
        self.out = nn.Linear(heads * size, 24, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            project(x).view(batch, length, heads, self.size).transpose(1, 2)
            for project, heads in ((self.q, self.heads), (self.k, self.shared), (self.v, self.shared))
        )
        times = self.heads // self.shared
        mixed = attend(q, repeat_kv(k, times), repeat_kv(v, times))
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


def test_a_layer_keeps_its_reshapes_and_repeats_nothing():
    layer = Layer(6, 2, 16).eval()
    draws = [(torch.randn(2, 33, 24),) for _ in range(4)]
    with torch.no_grad():
        program = weft.optimize(layer, draws[0])
        # What merges the results' heads and splits the projections' columns is a view of memory as it lies.
        assert {f.operation for f in program.fallbacks} <= {"aten.view", "aten.reshape"}
        assert not any("repeat_kv" in str(f) or "expand" in str(f) for f in program.fallbacks)
        assert judged(layer, program, draws).ok


def test_one_binary_for_all_lengths_and_batches(tmp_path):
    def function(q, k, v):
        scores = q @ repeat_kv(k, 4).mT
        return torch.softmax(scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf), -1) @ repeat_kv(v, 4)

    torch.compiler.reset()
    fast = weft.compile(function, cache_dir=str(tmp_path))
    emitted = []
    for batch, length in ((2, 64), (3, 65), (2, 97), (4, 3), (5, 47), (2, 250)):
        given = tensors((batch, 8, 2, length, length, 16), torch.float32)
        before = weft.stats().binaries_emitted
        with torch.no_grad():
            torch.testing.assert_close(fast(*given), function(*given), rtol=1e-4, atol=1e-5)
        emitted.append(weft.stats().binaries_emitted - before)
    # For the second call Dynamo makes the sizes symbolic: that example's schedule may be another one.
    assert emitted[0] == 1
    assert emitted[1] <= 1
    assert not any(emitted[2:]), emitted


def test_heads_beside_what_pytorch_runs():
    def function(q, k):
        return torch.sort(repeat_kv(k, 4), 1).values, q * repeat_kv(torch.sort(k, -1).values, 4)

    q, k = torch.randn(2, 8, 5, 6), torch.randn(2, 2, 5, 6)
    program = weft.optimize(function, (q, k))
    assert {f.operation for f in program.fallbacks} == {"aten.sort"}
    torch.testing.assert_close(program(q, k), function(q, k))


def test_equal_results_share_no_memory():
    def function(q, k):
        k = repeat_kv(k, 4)
        return q * k, q * k, (q * k).mT

    q, k = torch.randn(2, 8, 5, 6), torch.randn(2, 2, 5, 6)
    program = weft.optimize(function, (q, k))
    assert len(program.kernels) == 1
    one, other, turned = program(q, k)
    one.zero_()
    torch.testing.assert_close((other, turned), function(q, k)[1:])


def test_writes_into_arguments():
    def function(q, k):
        q.mul_(repeat_kv(k, 4))
        k.add_(1)
        return repeat_kv(k, 4) - q

    q, k = torch.randn(2, 8, 5, 6), torch.randn(2, 2, 5, 6)
    program = weft.optimize(function, (q.clone(), k.clone()))
    given, wanted = (q.clone(), k.clone()), (q.clone(), k.clone())
    torch.testing.assert_close((program(*given), *given), (function(*wanted), *wanted))
