"""Masks of rows of integers, which each kernel makes for itself, where what they are made of is made in the graph."""

from __future__ import annotations

import torch
from torch.nn.functional import one_hot

import weft


def check(function, *args):
    program = weft.optimize(function, args)
    for found, wanted in zip(program(*args), function(*args), strict=True):
        torch.testing.assert_close(found, wanted)
    return program


def test_a_mask_that_is_returned_or_read_by_pytorch_is_stored():
    """Others are made again by each kernel that reads them."""

    def function(ids, x):
        mask, pairs = ids[:, None] == ids, torch.stack((x[0] == x[0], x[1] > 0), -1)
        return (
            mask,
            pairs,
            torch.where(mask, x, 0.0).sum(-1),
            torch.sort(torch.stack((ids == 1, ids == 1), -1), 0).values,
        )

    args = torch.tensor([0, 0, 1, 2, 1]), torch.randn(5, 5)
    check(function, *args)


def test_the_nearest_of_some_points_is_found_before_the_mask_of_it_is_made():
    """Takes steps of k-means: the nearest centre is an integer of each row, and sums over the rows of a centre are masked by it."""

    def step(x, centres):
        nearest = (x[:, None] - centres).pow(2).sum(-1).argmin(1)
        own = one_hot(nearest, 8).float()
        return nearest, own.t() @ x, own.sum(0)

    def by_products(x, centres):
        own = one_hot((x @ centres.t()).argmax(1), 8).float()
        return own.t() @ x, own.sum(0)

    for function in (step, by_products):
        assert not check(function, torch.randn(64, 16), torch.randn(8, 16)).fallbacks
