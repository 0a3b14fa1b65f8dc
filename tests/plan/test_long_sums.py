"""Sums are as exact as eager's at lengths that their kernels were not compiled for, and of elements that all round one way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import weft
from weft.verify import Draws

LONG = 65537
Inputs = tuple[torch.Tensor, ...]
Make = Callable[[int, Callable[..., torch.Tensor]], Inputs]


def rows(length: int, make: Callable[..., torch.Tensor]) -> Inputs:
    return (make(9, length),)


def columns(length: int, make: Callable[..., torch.Tensor]) -> Inputs:
    return (make(length, 9),)


def masked_rows(length: int, make: Callable[..., torch.Tensor]) -> Inputs:
    return make(9, length), torch.ones(9, length)


def masked_columns(length: int, make: Callable[..., torch.Tensor]) -> Inputs:
    return make(length, 9), torch.ones(length, 9)


def keys(length: int, make: Callable[..., torch.Tensor]) -> Inputs:
    return make(65, 16), make(length, 16), make(length, 16)


def images(length: int, make: Callable[..., torch.Tensor]) -> Inputs:
    return (make(3, length, 5),)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / 4, -1) @ v


def masked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    all_true = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
    return functional.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], attn_mask=all_true)


def softmax_of_columns(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, 0)


TABLE: dict[str, tuple[Callable[..., torch.Tensor], Make, int]] = {
    "sum": (lambda x: x.sum(-1), rows, LONG),
    "sum of columns": (lambda x: x.sum(0), columns, LONG),
    "mean": (lambda x: x.mean(-1), rows, LONG),
    "masked mean": (lambda x, m: (x * m).sum(-1) / m.sum(-1), masked_rows, LONG),
    "masked sum of columns": (lambda x, m: (x * m).sum(0), masked_columns, LONG),
    "sum in the middle": (lambda x: (x * 2).sum(1), images, LONG),
    "sum of all": (lambda x: (x * x).sum(), columns, LONG),
    "variance": (lambda x: x.var(-1), rows, LONG),
    "variance of columns": (lambda x: x.var(0), columns, LONG),
    "softmax": (lambda x: torch.softmax(x, -1), rows, LONG),
    "softmax of columns": (softmax_of_columns, columns, LONG),
    "layer_norm": (lambda x: functional.layer_norm(x, x.shape[-1:]), rows, LONG),
    "rms_norm": (lambda x: functional.rms_norm(x, x.shape[-1:]), rows, LONG),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), rows, LONG),
    "running maximum and sum": (lambda x: torch.exp(x - x.amax(-1, True)).sum(-1), rows, LONG),
    "attention": (attention, keys, 4099),
    "masked attention": (masked_attention, keys, 4099),
    "two matmuls": (lambda q, k, v: (q @ k.mT) @ v, keys, 4099),
}
# Of one number alone eager's error may be next to none by luck.
CONSTANTS = (0.1, 0.3, 0.7, 1.1, 3.3)


@pytest.mark.parametrize("name", TABLE)
def test_a_long_call_after_a_short_one_keeps_the_error_rule(name: str) -> None:
    f, make, long = TABLE[name]
    torch.manual_seed(0)
    program = weft.optimize(f, make(130, torch.randn))
    program(*make(7, torch.randn))
    assert program.fallbacks == ()
    constant = [make(long, lambda *shape, c=c: torch.full(shape, c)) for c in CONSTANTS]
    random = [make(long, torch.rand) for _ in range(4)]
    far = [make(long, lambda *shape: 1e4 + torch.randn(shape)) for _ in range(4)]
    for draws in (constant, random, far):
        got, eager = [program(*x) for x in draws], [f(*x) for x in draws]
        exact = [f(*(t.double() for t in x)) for x in draws]
        found = weft.judge(Draws(got), Draws(eager), Draws(exact))
        assert found.ok, found
