"""The Python that runs a plan: it lets go of what is no longer read, and finds sizes and views at each call."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import weft


class Alive(TorchDispatchMode):
    """How many results of PyTorch's calls there were at once."""

    def __init__(self):
        super().__init__()
        self.made: list[weakref.ref[torch.Tensor]] = []
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.made.append(weakref.ref(out))
        self.most = max(self.most, sum(each() is not None for each in self.made))
        return out


def test_it_lets_go_of_each_result_after_its_last_reader():
    def fn(x):
        y = torch.exp(x) * 2
        for dim in (0, 1, 0, 1, 0, 1):
            y = y.renorm(2, dim, 1.0)
        return y

    x = torch.randn(4, 5)
    (plan,) = weft.optimize(fn, x).plans
    assert plan.kernels
    with Alive() as alive:
        (found,) = plan.run(x)
    assert len(alive.made) >= 6
    assert alive.most <= 3
    torch.testing.assert_close(found, fn(x))


def test_views_sizes_and_units_are_found_at_each_call():
    def fn(x, w, row):
        flipped = x.flip(0)[1:-1:2]
        return torch.relu(flipped @ w) + row, x[2:].sum(0) / x.shape[0], (x[:, :1] * 2).expand(-1, 3)

    for rows in (9, 14):
        given = torch.randn(rows, 6), torch.randn(6, 4), torch.randn(1, 4)
        program = weft.optimize(fn, given)
        assert program.kernels
        for found, wanted in zip(program(*given), fn(*given), strict=True):
            torch.testing.assert_close(found, wanted)


def entropy(x):
    rows = x.flatten()
    return -(torch.softmax(rows, 0) * torch.log_softmax(rows, 0)).sum()


def weighted(x):
    e = (x - x.amax()).exp()
    return (e / e.sum() * x).sum()


@pytest.mark.parametrize("fn", [weighted, entropy, lambda x: (weighted(x), weighted(x + x.mean()))])
def test_numbers_that_are_made_after_all_loops_keep_their_names(fn):
    x = torch.randn(6, 5)
    program = weft.optimize(fn, x)
    assert not program.fallbacks
    assert program.kernels
    torch.testing.assert_close(program(x), fn(x))


def test_one_plan_serves_other_sizes_and_strides():
    def fn(x, w):
        return torch.relu(x[1:, ::2] @ w) * x.shape[0]

    program = weft.optimize(fn, (torch.randn(9, 8), torch.randn(4, 5)))
    for rows in (9, 12, 33):
        for x in (torch.randn(rows, 8), torch.randn(8, rows).T, torch.randn(2 * rows, 8)[::2]):
            w = torch.randn(4, 5)
            torch.testing.assert_close(program(x, w), fn(x, w))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_number_that_is_another_one_in_the_next_function_of_its_kind_is_a_number_of_the_run(dtype):
    """PyTorch traces the second function of one code with the number as a tensor that holds it."""

    def of(fill: float):
        def fn(x):
            kept = torch.where(x > 0.5, x, fill) * (fill * 2 + 1e8 - 1e8)
            return torch.softmax(kept.masked_fill(x < 0, fill / 3), -1).sum(-1), torch.full((3,), fill), fill * 2

        return fn

    x = torch.randn(16, 64, dtype=dtype)
    for fill in (-0.55, -0.73, -0.95):
        program = weft.optimize(of(fill), x)
        assert program.kernels
        assert {f.operation for f in program.fallbacks} <= {"aten.full", "aten.scalar_tensor"}
        found, wanted = program(x), of(fill)(x)
        assert found[0].dtype is dtype
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("rows_first", [True, False], ids=["after the view", "before it"])
@pytest.mark.parametrize("reduced", [torch.sum, torch.amax, torch.mean], ids=lambda fn: fn.__name__)
def test_a_sum_over_one_row_is_not_the_memory_that_a_view_beside_it_shows(reduced, rows_first):
    """Laws make a sum over one element that element; in eager its result is a tensor of its own."""

    def fn(x):
        y = x * 2
        results = y.as_strided((2,), (1,)), reduced(y, 0)
        return results if rows_first else results[::-1]

    x = torch.randn(1, 3).half()
    found = weft.optimize(fn, x)(x)
    for one, other in (found, found[::-1]):
        before = other.clone()
        one.zero_()
        assert torch.equal(other, before)


def test_a_view_still_shows_the_tensor_that_it_is_of():
    def fn(x):
        y = x * 2
        return y.as_strided((2,), (1,)), y.sum(0), y

    x = torch.randn(1, 3).half()
    view, total, whole = weft.optimize(fn, x)(x)
    whole.zero_()
    assert not view.any()
    assert total.any()
