"""argmax, argmin, topk, max and min with indices in kernels, beside eager: ties, NaN, infinities, dimensions, element types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.errors import ShapeError


def hard(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random numbers, half of them equal to others, infinite, NaN, or zeros of either sign; of integers, few different ones."""
    generator = torch.Generator().manual_seed(sum(shape))
    if not dtype.is_floating_point:
        return torch.randint(0, 4, shape, generator=generator).to(dtype)
    pool = torch.tensor([0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan"), 2.0])
    some = pool[torch.randint(0, len(pool), shape, generator=generator)]
    return torch.where(torch.rand(shape, generator=generator) < 0.5, some, torch.randn(shape, generator=generator)).to(
        dtype
    )


def first(x: torch.Tensor, count: int, dim: int, largest: bool, nan_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Ranks by two stable sorts, the lowest index first among equals."""
    along = x.movedim(dim, -1)
    order = torch.argsort(along, dim=-1, descending=largest, stable=True)
    late = along.gather(-1, order).isnan() != nan_first
    order = order.gather(-1, torch.argsort(late.to(torch.int8), dim=-1, stable=True))[..., :count].movedim(-1, dim)
    return x.gather(dim, order), order


def check(
    function: Callable[..., Any], x: torch.Tensor, wanted: tuple[torch.Tensor, ...], kernels: int = 1
) -> weft.Program:
    program = weft.optimize(function, (x,))
    assert not program.fallbacks
    assert len(program.kernels) <= kernels
    assert all(k.verdict.agrees for k in program.kernels)
    for found, right in zip(program(x), wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=0, equal_nan=True)
    return program


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_element_types(dtype: torch.dtype) -> None:
    x = hard(3, 40, dtype=dtype)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*x.topk(5), *x.topk(5, largest=False), *x.max(1), x.argmin(1))

    best, least = first(x, 1, 1, True, True), first(x, 1, 1, False, True)[1]
    wanted = (*first(x, 5, 1, True, True), *first(x, 5, 1, False, False), best[0][:, 0], best[1][:, 0], least[:, 0])
    check(function, x, wanted, 4)
    torch.testing.assert_close(x.topk(5).values, wanted[0], equal_nan=True)  # the reference is eager's
    torch.testing.assert_close(x.max(1).values, wanted[4], equal_nan=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("shape", "dim"), [((5, 40), 0), ((3, 7, 33), 0), ((3, 7, 33), 1), ((2, 3, 4, 50), -2), ((70,), 0)]
)
def test_dimensions(shape: tuple[int, ...], dim: int) -> None:
    x = hard(*shape)
    best = first(x, 1, dim, True, True)
    wanted = (*first(x, 3, dim, True, True), best[1], best[0].squeeze(dim))
    check(lambda x: (*x.topk(3, dim), x.argmax(dim, keepdim=True), x.max(dim).values), x, wanted, 3)


@pytest.mark.parametrize(("count", "length"), [(1, 1), (1, 7), (7, 7), (16, 300), (17, 300), (64, 64), (64, 129)])
def test_how_many(count: int, length: int) -> None:
    x = hard(4, length)
    check(lambda x: tuple(x.topk(count)), x, first(x, count, 1, True, True), 2)


def test_rows_of_one_value() -> None:
    x = torch.stack([torch.full((50,), v) for v in (1.5, 0.0, float("inf"), -float("inf"), float("nan"))])
    wanted = (x[:, :3], torch.arange(3).expand(5, 3), torch.zeros(5, dtype=torch.int64))
    check(lambda x: (*x.topk(3), x.argmin(1)), x, wanted, 2)


def test_one_long_row_is_ranked_in_segments() -> None:
    x = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))
    x[[77_777, 5, 900_000]] = 9.0
    program = check(lambda x: (*x.topk(8), x.argmax()), x, (*first(x, 8, 0, True, True), torch.tensor(5)), 4)
    assert program(x)[1][:3].tolist() == [5, 77_777, 900_000]


def test_routing_is_one_kernel_with_its_product() -> None:
    def route(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        share, expert = torch.softmax(x @ w, -1).topk(4)
        return share / share.sum(-1, keepdim=True), expert

    x, w = torch.randn(33, 24), torch.randn(24, 19)
    program = weft.optimize(route, (x, w))
    assert len(program.kernels) == 1
    assert not program.fallbacks
    assert program.kernels[0].verdict.agrees
    for scale in (1.0, 1e4):
        logits = x.double() @ (scale * w).double()
        share, expert = program(x, scale * w)
        exact = torch.softmax(logits, -1).topk(4)
        torch.testing.assert_close(
            share.double(), exact.values / exact.values.sum(-1, keepdim=True), rtol=2e-2, atol=1e-4
        )
        assert torch.equal(expert[:, 0], exact.indices[:, 0])


def test_what_reads_a_ranking() -> None:
    x = hard(6, 30).nan_to_num(0.5, 3.0, -3.0)
    values, places = first(x, 5, 1, True, True)
    wanted = (values[:, 1:3] * 2, places[:, 0] + 1, values.exp().sum(1))

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        v, p = x.topk(5)
        return v[:, 1:3] * 2, p[:, 0] + 1, v.exp().sum(1)

    program = weft.optimize(function, (x,))
    assert not program.fallbacks
    for found, right in zip(program(x), wanted, strict=True):
        torch.testing.assert_close(found, right)


def test_more_than_there_are_is_eagers_error() -> None:
    fast = weft.compile(lambda x: x.topk(5))
    for length in (9, 12, 5):
        x = torch.randn(3, length)
        assert torch.equal(fast(x).indices, x.topk(5).indices)
    for function in (fast, lambda x: weft.optimize(lambda x: x.topk(5), (x,))):
        with pytest.raises(Exception, match="selected index k out of range"):
            function(torch.randn(3, 4))
    program = weft.optimize(lambda x: x.topk(5), (torch.randn(3, 9),))
    with pytest.raises(ShapeError):
        program(torch.randn(3, 4))


def test_as_many_as_a_tensor_is_long_that_they_meet():
    """The number kept is a number of the call's, also where a slice of three columns or rows has it for its size."""

    def function(a):
        return a.reshape(-1).topk(3, 0).values * a[2:]

    program = weft.optimize(function, (a := torch.randn(5, 3),))
    assert program.kernels
    assert not program.fallbacks
    torch.testing.assert_close(program(a), function(a))
    fast = weft.compile(function, measure="never")
    for rows in (5, 9, 6):
        torch.testing.assert_close(fast(a := torch.randn(rows, 3)), function(a))
