"""What Python's own code decides is part of a function, though no graph holds it."""

from __future__ import annotations

import time

import pytest
import torch

import weft

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
BOUND, ONES = 23, torch.ones(6, 2)


class Branches(torch.nn.Module):
    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, x):
        return x if x.shape[0] < self.most else x * 2


def same(x):
    return x


def raises(x):
    if x.sum() > 1e3:
        raise ValueError("too much")
    return x * 1


UNEQUAL = {
    "a number of rows": (lambda x: x + 1 if x.shape[0] > 17 else x, same),
    "a number of elements": (lambda x: x + 1 if x.numel() > 1000 else x, same),
    "a length": (lambda x: x * 2 if len(x) > 50 else x, same),
    "a size no larger than": (lambda x: x[:, : min(x.shape[1], 50)].sum(1), lambda x: x.sum(1)),
    "a quotient of a size": (lambda x: x.sum(1) + x.shape[-1] // 50, lambda x: x.sum(1)),
    "a global": (lambda x: x if x.shape[1] <= BOUND else -x, same),
    "what a module holds": (Branches(40), same),
    "not a number": (lambda x: x.nan_to_num() if x.isnan().any() else x, same),
    "a sum": (lambda x: x + 1 if x.sum() > 1e6 else x, same),
    "behind an even bound": (lambda x: x.masked_fill(torch.arange(x.shape[1]) > 64, 0.0), same),
    "a diagonal": (lambda x: x.tril(64), same),
    "a window": (lambda x: _window(x, 8), same),
    "two numbers added": (lambda x: x.masked_fill(torch.arange(x.shape[1]) - 7 > 63, 0.0), same),
    "a block": (lambda x: x.masked_fill(torch.arange(x.shape[1]) // 30 == 2, 0.0), same),
    "halves and thirds": (
        lambda x: x.reshape(x.shape[0], -1, 2).sum(-1),
        lambda x: x.reshape(x.shape[0], 3, -1).sum(-1),
    ),
    "held weights": (lambda x, w=ONES: x @ w, lambda x, w=ONES: x @ w + 1),
}


def _window(x, width):
    i, j = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])
    return x.masked_fill(i - j > width, 0.0)


@pytest.mark.parametrize("name", UNEQUAL)
def test_what_python_decides_tells_functions_apart(name):
    assert weft.equivalent(*UNEQUAL[name], (X,)).equal is False


def test_a_number_is_a_number_whatever_was_traced_before():
    def first(k):
        return lambda x: x[:, :k].sum(1)

    assert [weft.equivalent(first(k), lambda x: x.sum(1), (X,)).equal for k in (8, 40)] == [False, False]


def test_weights_in_closures_are_compared_in_numbers():
    linear = torch.nn.Linear(6, 3)
    w, other = torch.randn(6, 3), torch.randn(6, 3)
    assert weft.equivalent(lambda x: x @ w, lambda x: x @ other, (X,)).equal is False
    assert weft.equivalent(linear, lambda x: x @ linear.weight.T, (X,)).equal is False
    assert weft.equivalent(linear, lambda x: x @ linear.weight.T + linear.bias, (X,)).equal is None


def test_outcomes_that_must_all_hold_are_not_shown_by_random_ones():
    def never(x):
        return torch.where((x[0] == 5).all() & (x[1] == 2).all(), x * 0, x)

    assert weft.equivalent(never, same, (X,)).equal is not True


@pytest.mark.parametrize("fn", [raises, lambda x: x * (1 if time.time() > 0 else 0)])
def test_what_no_graph_holds_is_not_called_equal(fn):
    assert weft.equivalent(fn, lambda x: x * 1, (X,)).equal is not True


def test_results_that_are_no_tensors():
    assert weft.equivalent(lambda x: x.sum().item(), lambda x: x.sum().item(), (X,)).equal is None
    assert weft.equivalent(lambda x: x.sum().item(), lambda x: x.sum().item() + 1, (X,)).equal is False
    assert weft.equivalent(lambda x: x.numpy() + 1, lambda x: x.numpy() + 1, (X,)).equal is None
    assert weft.equivalent(lambda x: (x, "a|b"), lambda x: (x, "a | c"), (X,)).equal is False


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e5m2])
def test_types_that_have_no_numbers_here(dtype):
    x = X.to(dtype)
    assert weft.equivalent(lambda x: x.clone(), lambda x: x.clone(), (x,)).equal is not False


@pytest.mark.parametrize("inputs", [(), (X, X)])
def test_more_or_fewer_arguments_than_a_function_takes(inputs):
    with pytest.raises(weft.errors.ArgumentError, match="cannot be called with"):
        weft.equivalent(same, same, inputs)
    with pytest.raises(weft.errors.ArgumentError, match="cannot be called with"):
        weft.optimize(same, inputs)


def test_a_function_that_never_ends_its_closures():
    def outer(x):
        return outer(x[1:]) if x.shape[0] > 2 else x * 2

    assert weft.equivalent(outer, outer, (X,)).equal is not False


def test_arguments_that_are_no_tensors_are_said_to_stay_as_they_are():
    verdict = weft.equivalent(lambda x, n: x * n, lambda x, n: x + x + x, (X, 3))
    assert verdict.equal is True
    assert verdict.reason.endswith("; where argument 1 = 3, as given")
