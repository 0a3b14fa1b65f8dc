"""Attention in one kernel at any shape, normalised and gated layers in at most two, right by the error rule and for infinities.

A share of the shapes; with WALK_ALL=1 in the environment all.
"""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch.nn import functional as F

import weft
from testkit.api.judged import judged
from testkit.api.masked import masked
from testkit.walk import share

DTYPES = (torch.float32, torch.bfloat16)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# Queries, keys, head size: no batch.
FLAT = (
    (1, 1, 64), (1, 7, 3), (2, 1, 40), (1, 513, 128), (513, 1, 64), (2, 2, 1), (2, 7, 3), (7, 2, 40), (7, 7, 64), (7, 513, 40),
    (64, 64, 64), (64, 65, 40), (65, 64, 80), (65, 65, 3), (64, 1, 1), (65, 7, 1), (130, 130, 80), (130, 65, 128), (64, 130, 256),
    (513, 513, 64), (513, 130, 256), (130, 513, 128), (513, 64, 40), (513, 7, 3), (65, 513, 1),
)  # fmt: skip
# Batch, heads, queries, keys, head size.
BATCHED = (
    (1, 1, 7, 7, 64), (1, 1, 64, 130, 40), (1, 3, 65, 65, 3), (2, 1, 2, 64, 128), (3, 5, 64, 64, 80), (1, 8, 130, 130, 64),
    (3, 1, 1, 65, 64), (2, 3, 65, 7, 1), (5, 2, 7, 513, 40), (1, 2, 513, 130, 256), (3, 3, 1, 1, 3), (1, 7, 2, 2, 40),
    (2, 2, 130, 64, 128), (1, 3, 64, 1, 64), (3, 1, 65, 513, 80),
)  # fmt: skip
SHAPES = (*FLAT, *BATCHED)


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


def attention_by_hand(q, k, v):
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ v


FUNCTIONS = (attention, attention_by_hand)


def tensors(shape: tuple[int, ...], dtype: torch.dtype, layout: int) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values; by `layout` dense, with heads behind the length as models have them, or transposed."""
    *batch, queries, keys, size = shape
    found: list[torch.Tensor] = []
    for length in (queries, keys, keys):
        if layout == 0 or (layout == 1 and not batch):
            made = torch.randn(*batch, length, size)
        elif layout == 1:
            made = torch.randn(batch[0], length, batch[1], size).transpose(1, 2)
        else:
            made = torch.randn(*batch, size, length).transpose(-1, -2)
        found.append(made.to(dtype))
    return tuple(found)


def checked(fn, draws, kernels):
    program = weft.optimize(fn, draws[0])
    shapes = [tuple(t.shape) for t in draws[0]]
    assert program.fallbacks == (), shapes
    assert 1 <= len(program.kernels) <= kernels, (shapes, len(program.kernels))
    assert all(k.verdict.equal is True for k in program.kernels)
    judgement = judged(fn, program, draws)
    assert judgement.ok, (shapes, draws[0][0].dtype, str(judgement))
    return program


def test_there_are_forty_shapes_with_the_sizes_that_hurt():
    assert len(set(SHAPES)) == 40
    assert {1, 2, 7, 64, 65, 130, 513} <= {s for *_, q, k, _ in SHAPES for s in (q, k)}
    assert {s[-1] for s in SHAPES} == {1, 3, 40, 64, 80, 128, 256}
    assert {q < k for *_, q, k, _ in SHAPES} == {q > k for *_, q, k, _ in SHAPES} == {True, False}


@pytest.mark.as_shipped
@pytest.mark.one_in(4)
@EVERY_DTYPE
@pytest.mark.parametrize("part", range(4))
def test_attention_is_one_kernel_and_right(part, dtype):
    for index, shape in share(list(enumerate(SHAPES))[part::4], 5, part + DTYPES.index(dtype)):
        torch.manual_seed(index)  # a share has the numbers that the whole has
        fn = FUNCTIONS[index // 4 % 2]
        draws = [tensors(shape, dtype, (0, 0, 1, 0, 2)[index % 5]) for _ in range(4)]
        checked(fn, draws, 1)


@EVERY_DTYPE
def test_attention_by_either_softmax_is_one_kernel(dtype):
    draws = [tensors((2, 3, 130, 65, 64), dtype, 0)]
    one, other = (_code(checked(f, draws, 1).kernels[0].source) for f in FUNCTIONS)
    assert one == other
    assert "decay" in one


def _code(source: str) -> str:
    """`source` without the user's lines in its comments."""
    return re.sub(r"//.*", "", source)


# Normalisations.


def rms(x, epsilon=1e-6):
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def llama(x, gate, up, down):
    h = rms(x)
    return F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def llama_with_a_weight(x, weight, gate, up, down):
    h = weight * rms(x)
    return F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def llama_of_torch(x, weight, gate, up, down):
    h = F.rms_norm(x, (x.shape[-1],), weight, 1e-6)
    return F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


GATED = ((1, 64, 130), (2, 3, 7), (7, 65, 64), (64, 64, 176), (65, 130, 7), (130, 40, 513), (33, 513, 65), (128, 256, 704),
         (3, 1, 40), (257, 31, 63))  # fmt: skip


def gated(fn, shape, dtype):
    rows, width, hidden = shape
    matrices = [torch.randn(*s) * s[1] ** -0.5 for s in ((hidden, width), (hidden, width), (width, hidden))]
    weight = [] if fn is llama else [1 + 0.1 * torch.randn(width)]
    return tuple(t.to(dtype) for t in (torch.randn(rows, width), *weight, *matrices))


@pytest.mark.one_in(2)
@EVERY_DTYPE
def test_a_gated_layer_after_a_norm_is_at_most_two_kernels(dtype):
    for index, shape in share(enumerate(GATED), 4, DTYPES.index(dtype)):
        fn = (llama, llama_with_a_weight, llama_of_torch)[index % 3]
        checked(fn, [gated(fn, shape, dtype) for _ in range(4)], 2)


def layernorm(x, w):
    return F.layer_norm(x, (x.shape[-1],)) @ w


@pytest.mark.one_in(3)
@EVERY_DTYPE
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_layernorm_and_a_product_are_at_most_two_kernels_and_keep_the_variance(mean, dtype):
    for rows, width, columns in ((1, 64, 7), (65, 130, 64), (64, 513, 130)):
        draws = [
            ((torch.randn(rows, width) + mean).to(dtype), (torch.randn(width, columns) * width**-0.5).to(dtype))
            for _ in range(4)
        ]
        checked(layernorm, draws, 2)


# Infinities, and numbers as large as they come.


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_large_logits(fn):
    draws: list[tuple[torch.Tensor, ...]] = []
    for _ in range(4):
        q, k, v = tensors((65, 130, 64), torch.float32, 0)
        draws.append((q * 100 / 8, k * 100, v))
    assert (draws[0][0] @ draws[0][1].T / 8).abs().max() > 1e3
    checked(fn, draws, 1)
    q, k, v = tensors((7, 65, 64), torch.float32, 0)
    q[:], k[:] = 0.0, 0.0
    q[:, 0], k[:, 0] = 1e4 * 8, torch.where(torch.arange(65) % 2 == 0, 1.0, -1.0)
    checked(fn, [(q, k, v)] * 4, 1)


def ruined(mask: torch.Tensor) -> torch.Tensor:
    """`mask` with rows that begin masked, end masked, are masked whole, and hold +inf or NaN."""
    keys = mask.shape[-1]
    mask[..., 0, : keys - 3] = -math.inf
    mask[..., 1, 5:] = -math.inf
    mask[..., 2, :] = -math.inf
    mask[..., 3, keys // 2] = math.inf
    mask[..., 4, keys - 1] = math.nan
    return mask


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=["flat", "batched"])
def test_masked_rows_and_what_is_no_number_come_out_as_eager_gives_them(batch, dtype):
    compiled = weft.compile(masked)
    for queries, keys in ((64, 1030), (7, 65)):
        q, k, v = tensors((*batch, queries, keys, 64), dtype, 0)
        mask = ruined(torch.zeros(queries, keys).to(dtype))
        found, eager = compiled(q, k, v, mask), masked(q, k, v, mask)
        reference = masked(*(t.double() for t in (q, k, v, mask)))
        if dtype is torch.float32:
            assert torch.equal(found.isnan(), eager.isnan())
        # In bfloat16 the product of some libraries lets the NaN of one row into the next.
        assert torch.equal(found.isnan(), reference.isnan())
        assert found.isnan().all(-1).sum() == 3 * math.prod(batch)
        assert found[..., 2:5, :].isnan().all()
        eager = torch.where(eager.isnan(), reference.to(dtype), eager)
        assert weft.judge(*(t.nan_to_num(nan=0.0) for t in (found, eager, reference))).ok
    program = weft.optimize(masked, (q, k, v, mask))
    assert (len(program.kernels), program.fallbacks) == (1, ())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_for_each_row_cancels_only_where_it_is_finite(dtype):
    """Softmax does not change by a number that is added to a row, but by an infinity: the row is no number then."""

    def fn(q, k, v, bias):
        return torch.softmax(q @ k.mT * 0.125 + bias[:, None], -1) @ v

    q, k, v = (torch.randn(2, 2, 128, 64, dtype=dtype) for _ in range(3))
    bias = torch.randn(128, dtype=dtype)
    with torch.no_grad():
        program = weft.optimize(fn, (q, k, v, bias))
        assert not program.fallbacks
        bias[[3, 70]] = torch.tensor([-math.inf, math.nan], dtype=dtype)
        assert torch.equal(program(q, k, v, bias).isnan(), fn(q, k, v, bias).isnan())
