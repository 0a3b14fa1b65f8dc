"""Long chains and deep models are planned in parts, each form of part once."""

from __future__ import annotations

import time

import torch
from torch import nn

import weft
from weft.plan.partition import partition as cutting
from weft.plan.partition.partition import Region, partition
from weft.tensor.builder import Builder
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid, uses
from weft.tensor.scalar import Arg, apply


def chain(length: int, wide_at: int | None = None):
    """tanh of tanh of .., over rows alone from `wide_at` on."""
    builder = Builder()
    ref = builder.input("x", (8, 16), DType.float32)
    for number in range(length):
        ref = builder.elementwise(apply("tanh", Arg(0)), [ref])
        if number == wide_at:
            ref = builder.reduce(Monoid.sum, ref, [1])
    return builder.finish([ref])


def test_a_long_chain_is_cut_and_nothing_is_lost():
    program = chain(300)
    stages = [s for s in partition(program) if isinstance(s, Region)]
    assert all(len(s.program.nodes) <= cutting.MOST_NODES for s in stages)
    assert [n.name for s in stages for n in s.program.nodes] == [n.name for n in program.nodes]
    assert all(len(s.results) == 1 for s in stages)
    ready = {n.name for n in program.inputs}
    for stage in stages:
        assert ready.issuperset(stage.uses)
        ready.update(stage.results)


def test_it_is_cut_where_little_goes_across():
    first, second = (s for s in partition(chain(70, wide_at=50)) if isinstance(s, Region))
    (across,) = first.results
    value = next(n for n in first.program.nodes if n.name == across)
    assert len(value.axes) == 1
    assert uses(second.program.nodes[0]) == (across,)


def test_two_hundred_operations_take_seconds_and_are_right():
    def function(x, y):
        for _ in range(66):
            x = torch.sin(x) * 1.01 + y
        return x

    given = torch.randn(9, 7), torch.randn(9, 7)
    begin = time.thread_time()
    program = weft.optimize(function, given)
    assert time.thread_time() - begin < 15  # 100 before it was cut, in this one thread
    assert program.fallbacks == ()
    torch.testing.assert_close(program(*given), function(*given))


def test_a_hundred_layers_are_planned_as_a_few():
    model = nn.Sequential(*[m for _ in range(100) for m in (nn.Linear(8, 8), nn.ReLU())]).eval()
    x = torch.randn(3, 8)
    before = weft.stats()
    begin = time.thread_time()
    program = weft.optimize(model, (x,))
    assert time.thread_time() - begin < 30
    after = weft.stats()
    assert after.binaries_emitted + after.cache_hits - before.binaries_emitted - before.cache_hits < 10
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x))
    assert program.fallbacks == ()
