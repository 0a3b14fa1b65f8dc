"""Sums down the columns are as exact as eager's, however many rows there are."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.block.program import Map


def columns(x):
    return (x * 2).sum(0)


def columns_of_products(x, y):
    return (x @ y).sum(0)


def columns_below_the_diagonal(x, y):
    return (x @ y).tril().sum(-2)


@pytest.mark.parametrize("f", [columns, columns_of_products, columns_below_the_diagonal], ids=lambda f: f.__name__)
def test_a_long_sum_down_the_columns_keeps_the_error_rule(f):
    given = (torch.rand(5000, 40), torch.rand(40, 70))[: f.__code__.co_argcount]
    program = weft.optimize(f, given)
    assert program.kernels
    found = weft.judge(program(*given), f(*given), f(*(t.double() for t in given)))
    assert found.ok, found


def exponentials(x):
    return torch.exp(x).sum(0)


def standardised(x):
    return (x - x.mean(0)) / (x.std(0) + 1e-5)


def running(x):
    return torch.cumsum(x * 2, 0)


def with_what_is_added(x):
    y = torch.relu(x)
    return y, y.sum(0)


@pytest.mark.parametrize(
    "f", [columns, exponentials, standardised, running, with_what_is_added], ids=lambda f: f.__name__
)
def test_what_is_added_down_the_columns_is_made_in_their_loop(f):
    """No tensor of rows and columns lies between two nests of loops: the outermost one goes over columns."""
    x = torch.randn(300, 70)
    (kernel,) = weft.optimize(f, (x,)).kernels
    nests = [node for node in kernel.block_program.graph.nodes if isinstance(node, Map)]
    assert [node.axis.space.size({"M": 300, "K": 70}) for node in nests] == [70]
