"""Operations of core ATen, which exported programs consist of: norms that give their moments, and places of the largest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import weft

ATEN: Any = torch.ops.aten
Given = tuple[Tensor, Tensor, Tensor]

NORMS: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]] = {
    "layer": lambda x, w, b: ATEN.native_layer_norm(x, [11], None, None, 1e-5),
    "layer, of two dimensions": lambda x, w, b: ATEN.native_layer_norm(x, [9, 11], None, None, 1e-5),
    "group": lambda x, w, b: ATEN.native_group_norm(x, w, b, 2, 6, 99, 3, 1e-5),
    "batch, as trained": lambda x, w, b: ATEN._native_batch_norm_legit_no_training(x, w, b, b, w.abs(), 0.1, 1e-3)[:1],
    "batch, of the batch": lambda x, w, b: ATEN._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5),
}
POOLS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "side by side": lambda x: ATEN.max_pool2d_with_indices(x, [2, 3]),
    "padded": lambda x: ATEN.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1]),
    "far apart": lambda x: ATEN.max_pool2d_with_indices(x, [2, 2], [1, 2], [1, 1], [3, 2]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_norms_with_their_moments(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = NORMS[name]
    given = tuple(torch.randn(n).to(dtype) + 1 for n in ((2, 6, 9, 11), (6,), (6,)))
    program = weft.optimize(norm, given)
    assert not program.fallbacks
    found, wanted, exact = program(*given), norm(*given), norm(*(each.double() for each in given))
    weft.judge([*found], [*wanted], [*exact]).check()
    assert [each.stride() for each in found] == [each.stride() for each in wanted]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_the_largest_and_its_place(name: str, dtype: torch.dtype, order: torch.memory_format) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 9, 11)
    x[0, 0], x[0, 3, :2], x[1, 1, 3:6, 2:5] = -math.inf, math.inf, math.nan
    x[1, 2] = x[1, 2].round()
    x = x.to(dtype).contiguous(memory_format=order)
    program = weft.optimize(POOLS[name], (x,))
    assert not program.fallbacks
    for mine, theirs in zip(program(x), POOLS[name](x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
