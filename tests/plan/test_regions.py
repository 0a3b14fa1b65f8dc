"""What is known of a region is not worked out again: in another trace of a graph, or another plan of it."""

from __future__ import annotations

import gc

import pytest
import torch

import weft
from weft.plan import regions


def chained(x, w, v):
    return torch.relu(torch.softmax(x @ w, -1) @ v) + 1


def reordered(x, w, v):
    return torch.relu(torch.softmax(x @ w, -2) @ v) + 1


@pytest.fixture
def selections(monkeypatch):
    """The sizes of every selection that is made; nothing is remembered from before."""
    made = []

    def counted(program, example, options):
        assert not gc.isenabled()
        made.append(tuple(example.sizes.values()))
        return select(program, example, options)

    select = regions.select
    monkeypatch.setattr(regions, "select", counted)
    monkeypatch.setattr(regions, "_remembered", {})
    torch._dynamo.reset()
    return made


def called(fast, function, rows, width=24):
    given = torch.randn(rows, width), torch.randn(width, 40), torch.randn(40, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(*given), function(*given))


def test_a_second_trace_selects_nothing_and_other_magnitudes_do(selections):
    fast = weft.compile(chained)
    called(fast, chained, 96)
    known = len(selections)
    assert known > 0
    called(fast, chained, 97)
    assert len(selections) == known
    assert gc.isenabled()
    torch._dynamo.reset()
    called(weft.compile(chained), chained, 700)
    assert len(selections) > known


def test_costs_are_those_of_the_sizes_asked_for(selections):
    shapes = [((rows, 24), (24, 40), (40, 16)) for rows in (70, 128)]
    first, second = (weft.optimize(chained, [torch.randn(s) for s in each]) for each in shapes)
    assert len(set(selections)) == len(selections)
    assert sum(k.cost.flops for k in second.kernels) > 1.5 * sum(k.cost.flops for k in first.kernels)
    assert [k.key for k in first.kernels] == [k.key for k in second.kernels]


def test_another_program_and_other_options_are_selected_for(selections):
    called(weft.compile(chained), chained, 96)
    known = len(selections)
    torch._dynamo.reset()
    called(weft.compile(reordered), reordered, 96)
    other = len(selections)
    assert other > known
    torch._dynamo.reset()
    called(weft.compile(chained, threads=1, seed=7), chained, 96)
    assert len(selections) == other + known


def test_only_so_many_are_remembered(selections, monkeypatch):
    monkeypatch.setattr(regions, "_MOST_REMEMBERED", 1)
    made = [0]
    for function in (chained, reordered, chained):
        torch._dynamo.reset()
        called(weft.compile(function), function, 96)
        made.append(len(selections))
        assert len(regions._remembered) == 1
    assert made == sorted(set(made)), "each time anew"
