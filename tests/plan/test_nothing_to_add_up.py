"""Loops over nothing: what is left of a sum without terms is 0, whatever it would have been divided by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft

config: Any = torch._dynamo.config


def attention(q, k):
    return torch.softmax(q @ k.mT / 8, -1) @ k


def shares(a):
    return (a.abs() / a.abs().sum(0)).sum(0)


def normalised(a, w):
    return F.rms_norm(a, a.shape[-1:]) @ w, a * 2


@pytest.mark.filterwarnings("ignore:std:UserWarning")
@pytest.mark.parametrize(
    ("fn", "lengths"),
    [
        (lambda q, k, n: (attention(q, k[3 : 3 + n]), shares(k[n:]), k[n:].std(0), q + 1), (3, 9, 0, 4)),
        (lambda q, k, n: normalised(q[:, 2 : 2 + n], k[2 : 2 + n]), (3, 0)),
    ],
)
def test_a_slice_that_is_empty_at_a_later_call(fn, lengths):
    program = weft.optimize(fn, (torch.randn(4, 9), torch.randn(9, 9), 4))
    assert program.kernels
    for n in lengths:
        q, k = torch.randn(4, 9), torch.randn(9, 9)
        torch.testing.assert_close(program(q, k, n), fn(q, k, n), equal_nan=True)


def test_a_walk_to_length_0():
    fast = weft.compile(attention)
    with torch.no_grad():
        for rows, keys in ((5, 5), (6, 7), (1, 0), (5, 0), (0, 1), (0, 0)):
            q, k = torch.randn(rows, 8), torch.randn(keys, 8)
            torch.testing.assert_close(fast(q, k), attention(q, k))


def test_a_mask_that_leaves_nothing():
    def fn(q, k, mask):
        kept = k[mask]
        return attention(q, kept), (kept.float().mean() * 4).nan_to_num().to(torch.int32), kept.sum(0)

    q, k = torch.randn(4, 8), torch.randn(9, 8)
    with config.patch(capture_dynamic_output_shape_ops=True):
        program = weft.optimize(fn, (q, k, torch.arange(9) < 5))
    assert program.kernels
    for chosen in (4, 0, 1):
        mask = torch.arange(9) < chosen
        torch.testing.assert_close(program(q, k, mask), fn(q, k, mask))


def test_means_about_an_element_of_no_row():
    def fn(a):
        return a - a.mean(), a.sum() / a.numel()

    fast = weft.compile(fn, defects="raise")
    with torch.no_grad():
        for rows in (5, 7, 0):
            a = torch.randn(rows, 4)
            torch.testing.assert_close(fast(a), fn(a), equal_nan=True)
