"""Stores at indices, counts and writes into parts, captured for any sizes: what they are of is checked at others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from weft.tensor.program import Lookup, Opaque


def part(x):
    x = x * 2
    x[:, 2:] = 0
    return x + 1


def rows(x):
    x = x * 2
    x[2:] = x[:1]
    x[-1] = 3
    return x + 1


def moved(x):
    x = x * 2
    x[:, 1:4] = x[:, :3] + 1
    return x


def begun(x):
    made = x.new_empty(x.shape)
    made[:, :2], made[:, 2:] = 1, x[:, :1]
    return made + x


def router(x):
    weights, experts = x.softmax(-1).topk(2)
    return torch.zeros_like(x).scatter(1, experts, weights)


def counted(x):
    return torch.histc((x > 0).to(x.dtype), 2, 0, 1) * 2


def classes(x):
    return functional.one_hot(x.argmax(-1), 8).to(x.dtype) * x[:, :1]


def last(x):
    return torch.select_scatter(x * 2, x[:, 0], 1, -1)


def rotated(x):
    """Both parts of a head side by side, as DeepSeek writes them."""
    made = x.new_empty(*x.shape[:-1], 12)
    made[..., :8].copy_(x * 2)
    made[..., 8:].copy_(x[..., 1:5])
    return made.relu()


def masked(x):
    """Write into a row where a mask holds, as Longformer does into its mask."""
    made = (x * 2).unflatten(1, (2, 4))
    made[:, 0, :][x[:, 4:] > 0] = 3.0
    return made + 1


STORES = (part, rows, begun, router, counted, classes, last, rotated, masked)
FUNCTIONS: dict[str, Any] = {f.__name__: f for f in STORES}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_left_to_pytorch(weft, name, dynamic):
    captured = weft.compare(FUNCTIONS[name], torch.randn(5, 8), dynamic=dynamic)
    assert captured.fallbacks == ()


def test_rows_are_moved_by_a_lookup(weft):
    """Elements that lie side by side are joined with what is on both sides of them."""
    captured = weft.compare(moved, torch.randn(3, 6, 8))
    assert any(isinstance(n, Lookup) for n in captured.program.nodes)
    assert not any(isinstance(n, Opaque) for n in captured.program.nodes)
    assert not weft.compare(moved, torch.randn(3, 6)).fallbacks


def test_a_store_copies_nothing_and_is_no_view(weft):
    """Lists what PyTorch stores, though its result lies where what is stored into did."""

    def inverse(order):
        made = torch.empty_like(order)
        made[order] = torch.arange(order.shape[0])
        return made + 1

    for size in (20, 80):
        assert not weft.compare(inverse, torch.randperm(size)).fallbacks
    captured = weft.compare(inverse, torch.randperm(70_000))
    assert {f.operation for f in captured.fallbacks} == {"aten.empty_like", "aten.index_put"}


@pytest.mark.parametrize(("rows", "left"), [(32, set()), (33, {"aten.index_put"})])
def test_few_of_many_rows_are_put_by_pytorch(weft, rows, left):
    """A kernel would read and write all of them."""

    def put(x, index, y):
        made = torch.relu(x)
        made[index] = y * 2
        return made

    captured = weft.compare(put, torch.randn(rows, 3), torch.tensor([4, 1, 4, 0]), torch.randn(4, 3))
    assert {f.operation for f in captured.fallbacks} == left


def test_of_several_rows_in_one_place_the_last_stays(weft):
    """Up to so many indices that each place may be compared with all of them; rows may be named from the end."""

    def put(x, index):
        made = torch.relu(x)
        made[index - 4] = x[:9] * 2
        return made + 1

    assert not weft.compare(put, torch.randn(12, 5), torch.arange(9) % 7).fallbacks


@pytest.mark.parametrize("shape", [(0, 8), (1, 8), (3, 1)])
@pytest.mark.parametrize("name", ["part", "classes", "router"])
def test_of_none_and_of_one(weft, name, shape):
    if name != "part" and shape[1] == 1:
        pytest.skip("there are no two experts, nor eight classes")
    weft.compare(FUNCTIONS[name], torch.randn(shape))
