"""Autocast regions: eager's element types, and numbers within the error rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import weft
from weft.verify.judge import Draws


def region(function: Callable[..., object], dtype: torch.dtype = torch.bfloat16) -> Callable[..., object]:
    def inside(*given: torch.Tensor) -> object:
        with torch.autocast("cpu", dtype=dtype):
            return function(*given)

    return inside


def nested(x, w, b, v):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = F.linear(x, w, b)
        with torch.autocast("cpu", enabled=False):
            total = y.float().square().mean(-1, keepdim=True)
        with torch.autocast("cpu", dtype=torch.float16):
            other = x @ v
        return torch.softmax(y, -1), y * total, other, F.layer_norm(y, (48,))


def without_gradients(x, w, b, v):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        return F.gelu(F.linear(x, w, b)), x @ v + 1


FUNCTIONS = {
    "linear": region(lambda x, w, b, v: F.gelu(F.linear(x, w, b))),
    "linear in fp16": region(lambda x, w, b, v: F.linear(x, w, b).relu(), torch.float16),
    "a loss": region(lambda x, w, b, v: torch.log_softmax(F.linear(x, w, b), -1).sum()),
    "attention": region(lambda x, w, b, v: torch.softmax(x @ x.T / 8, -1) @ x),
    "nested": nested,
    "without gradients": without_gradients,
    "decorated": torch.autocast("cpu", dtype=torch.bfloat16)(lambda x, w, b, v: F.linear(x, w, b) + 1),
}


def inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(*s, dtype=dtype) / 4 for s in ((33, 64), (48, 64), (48,), (64, 32)))


def flat(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_regions_have_eagers_types_and_keep_the_error_rule(name: str) -> None:
    torch.manual_seed(0)
    function, draws = FUNCTIONS[name], [inputs() for _ in range(4)]
    with torch.no_grad():
        program = weft.optimize(function, draws[0])
        found, eager = [flat(program(*d)) for d in draws], [flat(function(*d)) for d in draws]
        reference = [flat(exact(name, *(t.double() for t in d))) for d in draws]
    assert program.kernels
    assert [t.dtype for t in found[0]] == [t.dtype for t in eager[0]]
    weft.judge(Draws(found), Draws(eager), Draws(reference)).check()


def exact(name: str, x, w, b, v) -> object:
    """Computes the functions without casts."""
    y = F.linear(x, w, b)
    return {
        "linear": lambda: F.gelu(y),
        "linear in fp16": y.relu,
        "a loss": lambda: torch.log_softmax(y, -1).sum(),
        "attention": lambda: torch.softmax(x @ x.T / 8, -1) @ x,
        "nested": lambda: (
            torch.softmax(y, -1),
            y * y.square().mean(-1, keepdim=True),
            x @ v,
            F.layer_norm(y, (48,)),
        ),
        "without gradients": lambda: (F.gelu(y), x @ v + 1),
        "decorated": lambda: y + 1,
    }[name]()


def test_a_compiled_module_follows_the_region_it_is_called_in() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)).eval()
    fast, x = weft.compile(module), torch.randn(5, 64)
    with torch.no_grad():
        before = fast(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside, wanted = fast(x), module(x)
        after = fast(x)
    assert before.dtype is after.dtype is torch.float32
    assert inside.dtype is wanted.dtype is torch.bfloat16
    assert torch.equal(before, after)
    torch.testing.assert_close(inside, wanted, rtol=2e-2, atol=2e-2)
