"""Softmaxes of logits that lie far apart, compiled: of products of a tensor with itself, of powers, at the ends of the range."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.verify.judge import reference

INF = float("inf")


def by_hand(a: torch.Tensor) -> torch.Tensor:
    s = a @ a
    e = torch.exp(s - s.amax(0, keepdim=True))
    return e / e.sum(0, keepdim=True)


WITH_ITSELF = {
    "softmax(a @ a)": lambda a: torch.softmax(a @ a, 0),
    "softmax(a @ a - a.mT)": lambda a: torch.softmax(a @ a - a.mT, 0),
    "softmax(a @ a) @ a": lambda a: torch.softmax(a @ a, 0) @ a,
    "softmax(a @ a) @ softmax(a @ a)": lambda a: torch.softmax(a @ a, -1) @ torch.softmax(a @ a, -1),
    "by hand": by_hand,
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("threads", [2, 1])
@pytest.mark.parametrize("shape", [(33, 31, 31), (1000, 4, 4), (64, 64, 64)])
@pytest.mark.parametrize("name", WITH_ITSELF)
def test_logits_of_a_tensor_with_itself(name, shape, threads):
    fn = WITH_ITSELF[name]
    draws = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3 for seed in range(4)]
    program = weft.optimize(fn, (draws[0],), threads=threads)
    assert program.kernels
    found = ([program(a) for a in draws], [fn(a) for a in draws], [reference(fn, (a,)) for a in draws])
    weft.judge(*(weft.Draws(results) for results in found)).check()


PRODUCTS = {
    "a square": lambda x, y: torch.softmax(x, -1) ** 2,
    "a product": lambda x, y: torch.softmax(x, -1) * torch.softmax(y, -1),
    "a cube": lambda x, y: torch.softmax(x, -1) ** 3 + torch.softmax(y, -1),
    "a product, normalised": lambda x, y: (p := torch.softmax(x, -1) * torch.softmax(y, -1)) / p.sum(-1, keepdim=True),
    "along both axes": lambda x, y: torch.softmax(x, -1) * torch.softmax(x, -2),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_products_at_the_end_of_the_range(name, dtype):
    x = torch.full((3, 4), torch.finfo(dtype).min, dtype=dtype)
    program = weft.optimize(PRODUCTS[name], (x, x))
    assert program.kernels
    for sign in (1, -1):
        torch.testing.assert_close(program(sign * x, sign * x), PRODUCTS[name](sign * x, sign * x))


SMALL = {
    "logarithms": lambda x: torch.softmax(x, -1).log(),
    "an entropy": lambda x: (p := torch.softmax(x, -1)) * p.log(),
    "quotients": lambda x: (p := torch.softmax(x, -1)) / p.flip(-1),
    "by hand": lambda x: torch.exp(x - x.amax(-1, keepdim=True)).log(),
}


@pytest.mark.parametrize("name", SMALL)
def test_probabilities_below_the_normal_numbers(name):
    x = torch.tensor([[0.0, -90.0, -95.0, -100.0, -50.0], [0.0, 1.0, 2.0, 3.0, -87.5]]).repeat(3, 4)
    found, wanted = weft.optimize(SMALL[name], (x,))(x), SMALL[name](x)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=0.0)


def test_gpu_kernels_without_products_keep_subnormal_probabilities():
    """Triton's exp2 makes them 0 in one instruction, which kernels with products need; its exp does not."""
    x = torch.randn(64, 32)
    (plain,) = weft.optimize(lambda x: torch.softmax(x, -1).log(), (x,), target="cuda:90").kernels
    (products,) = weft.optimize(lambda x: torch.softmax(x @ x.mT, -1) @ x, (x,), target="cuda:90").kernels
    assert ("tl.exp(" in plain.source, "tl.exp2(" in plain.source) == (True, False)
    assert "tl.exp2(" in products.source


@pytest.mark.parametrize("hidden", [float("nan"), INF, -INF])
@pytest.mark.parametrize("shape", [(3, 4), (2, 5, 7)])
def test_what_a_mask_excludes_leaves_no_nan_in_rows_and_columns(shape, hidden):
    def fn(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.softmax(x, -2).masked_fill(mask, -INF), -1)

    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x[..., 1, 2] = hidden
    mask = torch.zeros(shape[-2:], dtype=torch.bool)
    mask[:, 2:] = True
    torch.testing.assert_close(weft.optimize(fn, (x, mask))(x, mask), fn(x, mask), equal_nan=True)
    mask[0, 2] = False  # seen in one row
    torch.testing.assert_close(weft.optimize(fn, (x, mask))(x, mask), fn(x, mask), equal_nan=True)
