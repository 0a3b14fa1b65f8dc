"""Pooling and resampling in kernels, beside eager: windows, paddings, factors, sizes, infinities, NaN, sizes read at each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import weft

X = torch.randn(2, 3, 10, 12)
norm: Any = torch.ops.aten._weight_norm
FUNCTIONS: dict[str, Any] = {
    "largest of overlapping windows": lambda x: functional.max_pool2d(x, 3, 2, 1) * 2,
    "largest of a chain": lambda x: functional.max_pool2d(torch.relu(x * 2), 2),
    "largest of a row": lambda x: functional.max_pool1d(x[0], 4, 3, 2),
    "largest of a sample": lambda x: functional.max_pool2d(x[0], 2),
    "largest, spread": lambda x: functional.max_pool2d(x, (3, 2), (1, 2), (1, 0), (2, 1)),
    "means of what is there": lambda x: functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - x,
    "means with padding": lambda x: functional.avg_pool2d(x, 3, 2, 1),
    "shares": lambda x: functional.avg_pool2d(x, 2, divisor_override=3),
    "means of a row": lambda x: functional.avg_pool1d(x[0], 2),
    "doubled": lambda x: functional.interpolate(torch.relu(x), scale_factor=2) + 1,
    "one and a half": lambda x: functional.interpolate(x, scale_factor=1.5) + 1,
    "by size": lambda x: functional.interpolate(x, size=(7, 29)) + 1,
    "by size, a multiple": lambda x: functional.interpolate(x, size=(20, 36)),
    "three dimensions": lambda x: functional.interpolate(x[None], scale_factor=(1, 2, 3)),
    "one dimension": lambda x: functional.interpolate(x[0], scale_factor=4),
    "bilinear": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear") * 2,
    "bilinear, corners": lambda x: functional.interpolate(x, size=(7, 33), mode="bilinear", align_corners=True),
    "bilinear, to one row": lambda x: functional.interpolate(x, size=(1, 5), mode="bilinear", align_corners=True),
    "bilinear, smaller": lambda x: functional.interpolate(x, scale_factor=0.7, mode="bilinear"),
    "bilinear, as many rows": lambda x: functional.interpolate(x, size=(10, 6), mode="bilinear") + 1,
    "bilinear, as many of both": lambda x: functional.interpolate(x, size=(10, 12), mode="bilinear") + 1,
    "bilinear, as many, corners": lambda x: functional.interpolate(x, size=(10, 12), mode="bilinear", align_corners=True) + 1,
    "linear": lambda x: functional.interpolate(x[0], size=31, mode="linear") + 1,
    "linear, corners": lambda x: functional.interpolate(x[0], scale_factor=2, mode="linear", align_corners=True) + 1,
    "linear, smaller": lambda x: functional.interpolate(x[0], scale_factor=0.7, mode="linear"),
    "by 41, which eager rounds": lambda x: functional.interpolate(x[0], scale_factor=41) + 1,
    "normalised weights": lambda x: norm(x, x[:1, :1, :1] * 2, 2),
    "normalised filters": lambda x: norm(x, x[:, :1, :1, :1] * 2, 0),
}  # fmt: skip


def check(name: str, x: torch.Tensor, **options: Any) -> weft.Program:
    function = FUNCTIONS[name]
    program = weft.optimize(function, (x,), judge="always", **options)
    assert not program.fallbacks
    assert {kernel.judged for kernel in program.kernels} == {"right on hard inputs"}
    assert weft.judge(program(x), function(x), function(x.double())).ok
    assert program(x).stride() == function(x).stride()
    return program


@pytest.mark.one_in(7)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_eager_gives(name, dtype):
    check(name, X.to(dtype), dynamic=False)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if "normalised" not in n])
def test_infinities_and_nan_are_where_eager_has_them(name):
    x = X.clone()
    for number, each in enumerate((float("inf"), -float("inf"), float("nan"))):
        x[:, number, 3 + number, 2 + 3 * number] = each
    program = weft.optimize(FUNCTIONS[name], (x,), dynamic=False)
    assert not program.fallbacks
    torch.testing.assert_close(program(x), FUNCTIONS[name](x), equal_nan=True)


def test_a_whole_factor_serves_any_size():
    program = check("doubled", X, dynamic=True)
    for size in (3, 7):
        x = torch.randn(2, 3, size, size + 2)
        torch.testing.assert_close(program(x), FUNCTIONS["doubled"](x))


def test_large_windows_are_pytorchs():
    for function in (
        lambda x: functional.max_pool2d(x, 5, 1, 2),
        lambda x: functional.max_pool2d(x, 3, 2, ceil_mode=True),
    ):
        program = weft.optimize(function, (X,))
        assert [f.operation for f in program.fallbacks] == ["aten.max_pool2d"]
        torch.testing.assert_close(program(X), function(X))


def test_windows_of_other_sizes():
    function = FUNCTIONS["largest of a chain"]
    fast = weft.compile(function)
    with torch.inference_mode():
        for size in (9, 14, 5, 2):
            x = torch.randn(2, 3, size, size + 3)
            torch.testing.assert_close(fast(x), function(x))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "linear"])
@pytest.mark.parametrize("factor", [1.05, 2.05, 0.51])
def test_factors_that_give_as_many_elements_or_twice_as_many(factor, mode):
    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x, scale_factor=(factor, 1.0)[: x.ndim - 2], mode=mode) + 1

    for dtype in (torch.float32, torch.float64):
        x = X[0].to(dtype) if mode == "linear" else X.to(dtype)
        torch.testing.assert_close(weft.optimize(function, (x,), dynamic=False)(x), function(x))
