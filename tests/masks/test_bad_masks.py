"""Masks that fit nothing raise what eager raises; masks that are written to between calls are read anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft

Tensor = torch.Tensor


def filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT * 0.25).masked_fill(~mask, -math.inf), -1) @ v


def added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * 0.25 + mask, -1) @ v


def of_pytorch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 40, 16), torch.randn(2, 70, 16), torch.randn(2, 70, 16)


GOOD = {
    filled: torch.ones(40, 70, dtype=torch.bool),
    added: torch.zeros(40, 70),
    of_pytorch: torch.ones(40, 70, dtype=torch.bool),
}
BAD = {
    "too few columns": torch.ones(40, 69, dtype=torch.bool),
    "too many rows": torch.ones(41, 70, dtype=torch.bool),
    "a batch that is none": torch.ones(3, 40, 70, dtype=torch.bool),
    "numbers for bools": torch.ones(40, 70),
    "complex numbers": torch.ones(40, 70, dtype=torch.complex64),
    "on another device": torch.ones(40, 70, dtype=torch.bool, device="meta"),
}


def raised(f: Callable[..., Any], *inputs: Tensor) -> BaseException | None:
    try:
        f(*inputs)
    except (RuntimeError, TypeError, ValueError) as error:
        return error
    return None


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("f", GOOD, ids=lambda f: f.__name__)
def test_a_mask_that_does_not_fit_raises_what_eager_raises(f: Callable[..., Tensor], bad: str) -> None:
    """At the first call, and at one after calls with masks that fit."""
    q, k, v = drawn()
    wanted = raised(f, q, k, v, BAD[bad])
    for before in (False, True):
        compiled: Any = weft.compile(f)
        if before:
            compiled(q, k, v, GOOD[f])
        found = raised(compiled, q, k, v, BAD[bad])
        assert (found is None) == (wanted is None), (found, wanted)
        if wanted is None:
            torch.testing.assert_close(compiled(q, k, v, BAD[bad]), f(q, k, v, BAD[bad]))
        torch.testing.assert_close(compiled(q, k, v, GOOD[f]), f(q, k, v, GOOD[f]))


@pytest.mark.parametrize("f", [filled, of_pytorch], ids=lambda f: f.__name__)
def test_a_mask_that_is_written_to_is_read_anew(f: Callable[..., Tensor]) -> None:
    q, k, v = drawn()
    mask, compiled = torch.ones(40, 70, dtype=torch.bool), weft.compile(f)
    for change in (slice(0, 0), slice(0, 30), slice(50, 70)):
        mask[:, change] = False
        torch.testing.assert_close(compiled(q, k, v, mask), f(q, k, v, mask))
    before = weft.stats()
    mask.logical_not_()
    torch.testing.assert_close(compiled(q, k, v, mask), f(q, k, v, mask), equal_nan=True)
    assert weft.stats().compiles == before.compiles
