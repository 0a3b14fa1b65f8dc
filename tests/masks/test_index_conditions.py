"""Whatever a program compares indices with, its laws keep what is computed, and its kernels compute it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import weft
from testkit.capture.collector import Collector, run
from testkit.masks.index_conditions import IndexConditions, of_source
from testkit.walk import share
from weft.pipeline import normalize
from weft.plan.partition.laws_check import laws_refuted
from weft.tensor.dtypes import DType
from weft.tensor.program import Elementwise
from weft.tensor.scalar import Apply

CHOSEN = (
    "torch.where(j < torch.where(j % 2 == 0, 100, 5), x, 0)",
    "torch.where(torch.where(j % 2 == 0, 100, 5) > j, x, 0).sum(-1)",
    "torch.where(j + 0.5 < torch.where(j % 3 == 0, 2.5, 7), x, 0)",
    "torch.where(torch.where(j % 3 == 0, x > 0, 5) < 3, x, 0)",
    "torch.where(x * 4 < torch.where(j % 2 == 0, 3.5, torch.where(j > 4, 100, 5)), x, 0)",
    "torch.where(torch.logical_and(torch.where(j % 2 == 0, 100, 0), i > 1), x, 0)",
)
"""Conditions in which literals are chosen and compared: the type of the choice is its own, not the comparison's."""


@pytest.mark.parametrize("said", CHOSEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_that_are_chosen_and_compared_keep_their_type(said: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, 101, generator=torch.Generator().manual_seed(0)).to(dtype)
    program = weft.optimize(of_source(said), (x,))
    assert program.fallbacks == ()
    torch.testing.assert_close(program(x), of_source(said)(x))


def test_each_part_of_a_condition_has_a_type_that_holds_it() -> None:
    collector = Collector()
    collector.run(of_source(CHOSEN[0]), torch.randn(3, 101))
    assert collector.only.program is not None
    chosen = [
        n.dtype
        for n in normalize(collector.only.program).nodes
        if isinstance(n, Elementwise) and isinstance(n.expr, Apply) and n.expr.op == "where" and not n.dtype.is_float
    ]
    assert chosen == [DType.int64]


@pytest.mark.parametrize("seed", share(range(240), 8))
def test_laws_keep_random_conditions(seed: int) -> None:
    """Compared over finite fields, as before each kernel, and with eager in fp64."""
    said, function = IndexConditions(random.Random(seed)).function()
    x = torch.randn(*random.Random(seed).choice(((5, 9), (7, 7), (3, 12), (1, 13))))
    collector = Collector()
    collector.run(function, x)
    written = collector.only
    assert written.program is not None
    lawful = normalize(written.program)
    assert laws_refuted(written.program, lawful) is None, said
    numbers = dict(zip((n.name for n in written.program.inputs), written.arguments, strict=True))
    kept = replace(written, program=lawful, arguments=tuple(numbers[n.name] for n in lawful.inputs))
    torch.testing.assert_close(run(kept, (x,))[0], function(x.double()), equal_nan=True, check_dtype=False)


@pytest.mark.parametrize("seed", share(range(1000, 1064), 16))
def test_kernels_compute_random_conditions(seed: int) -> None:
    said, function = IndexConditions(random.Random(seed)).function()
    x = torch.randn(*random.Random(seed).choice(((5, 9), (16, 33), (13, 101))))
    program = weft.optimize(function, (x,))
    assert program.fallbacks == (), said
    torch.testing.assert_close(program(x), function(x), equal_nan=True, msg=lambda m: f"{said}: {m}")


@pytest.mark.parametrize("seed", share(range(2000, 2032), 16))
def test_kernels_compute_random_conditions_over_sizes_that_change(seed: int) -> None:
    said, function = IndexConditions(random.Random(seed)).function()
    compiled = torch.compile(function, backend="weft", dynamic=True)
    for shape in ((5, 9), (16, 33), (13, 101), (2, 3)):
        x = torch.randn(*shape)
        found = compiled(x)  # a fallback would warn, which is an error here
        torch.testing.assert_close(found, function(x), equal_nan=True, msg=lambda m: f"{said}: {m}")
