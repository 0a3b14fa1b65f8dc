"""Sums down the columns are as exact as eager's, however many rows there are."""

from __future__ import annotations

import pytest
import torch

import weft


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
