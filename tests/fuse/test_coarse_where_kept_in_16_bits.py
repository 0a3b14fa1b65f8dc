"""Which exponentials and quotients are computed as exactly as 16 bits show, and that results keep the error rule."""

from __future__ import annotations

import math

import pytest
import torch

import weft

Q, K, V = (64, 32), (96, 32), (96, 16)


def attention(q, k, v):
    return torch.softmax(q @ k.T / math.sqrt(q.shape[-1]), -1) @ v


def tensors(dtype, scale=1.0, seed=0):
    random = torch.Generator().manual_seed(seed)
    return tuple((torch.randn(size, generator=random) * scale).to(dtype) for size in (Q, K, V))


def source(fn, arguments):
    return "".join(kernel.source for kernel in weft.optimize(fn, arguments).kernels)


def test_in_16_bits_the_exponentials_of_a_product_are_coarse_and_its_quotient_a_product():
    text = source(attention, tensors(torch.bfloat16))
    assert "weft::coarse_decay" in text
    assert "(1.0f / 5.656854" in text


@pytest.mark.parametrize(
    ("fn", "dtype"),
    [
        (attention, torch.float32),
        (lambda q, k, v: attention(q, k, v).float(), torch.bfloat16),
        (lambda q, k, v: attention(q.float(), k.float(), v.float()), torch.bfloat16),
    ],
    ids=["fp32", "result in fp32", "computed in fp32"],
)
def test_not_where_a_result_has_more_bits(fn, dtype):
    text = source(fn, tensors(dtype))
    assert "weft::coarse" not in text
    assert "(1.0f / " not in text


def test_the_sum_of_a_row_may_be_a_result_only_if_it_has_16_bits():
    def with_sum(q, k, v):
        scores = (q @ k.T).float()
        e = torch.exp(scores - scores.amax(-1, keepdim=True))
        return (e.to(q.dtype) @ v), e.sum(-1)

    assert "weft::coarse" not in source(with_sum, tensors(torch.bfloat16))


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.bfloat16, 1.0), (torch.bfloat16, 60.0), (torch.float16, 1.0), (torch.float16, 20.0)]
)
def test_results_keep_the_error_rule(dtype, scale):
    arguments = tensors(dtype, scale)
    exact = attention(*(a.double() for a in arguments))
    verdict = weft.judge(weft.optimize(attention, arguments)(*arguments), attention(*arguments), exact)
    assert verdict.ok, verdict.reason


def test_a_row_whose_keys_are_all_masked_but_one_is_that_ones_value():
    def masked(q, k, v):
        scores = (q @ k.T) / 3.0
        keys = torch.arange(k.shape[0])
        return torch.softmax(scores.masked_fill(keys != 95, -math.inf), -1) @ v

    q, k, v = tensors(torch.bfloat16)
    assert torch.equal(weft.optimize(masked, (q, k, v))(q, k, v), v[-1:].expand(64, 16))
