"""Long reductions: sums of sums, and a segment for each thread where the grid has not a block for each."""

from __future__ import annotations

import pytest
import torch

import weft
from weft.schedule import LevelPlace


@pytest.fixture
def threads():
    """Compile for so many."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def variance(x):
    return x.var(-1)


def kinds(program):
    """The places of the levels of each loop with more than one."""
    levels = [loop.levels for kernel in program.kernels for _, loop in kernel.schedule.loops]
    return {tuple(v.place for v in own) for own in levels if len(own) > 1}


SPLIT, LOOP = LevelPlace.split, LevelPlace.loop


def test_one_row_is_reduced_in_segments_and_many_rows_are_not(threads):
    threads(2)
    one = weft.optimize(variance, (torch.randn(1, 400_000),))
    assert len(one.kernels) == 2, "segments and their merge: the mean and the variance are one loop"
    assert kinds(one) == {(SPLIT, LOOP)}
    many = weft.optimize(variance, (torch.randn(8, 400_000),))
    assert len(many.kernels) == 1
    assert kinds(many) == set()
    threads(1)
    assert len(weft.optimize(variance, (torch.randn(1, 400_000),)).kernels) == 1


def test_a_row_too_short_to_share_is_one_threads(threads):
    threads(2)
    program = weft.optimize(variance, (torch.randn(1, 3000),))
    assert len(program.kernels) == 1
    assert kinds(program) == set()


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "fn",
    [
        variance,
        lambda x: torch.softmax(x, -1),
        lambda x: torch.logsumexp(x, -1),
        lambda x: x.amax(-1),
        lambda x: (x * x).sum(-1),
    ],
    ids=["variance", "softmax", "logsumexp", "amax", "sum of squares"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_results_keep_the_error_rule_at_any_length(fn, count, threads):
    threads(count)
    with weft.options(threads=count):
        program = weft.optimize(fn, (torch.randn(1, 400_000),))
    assert not program.fallbacks
    for length in (400_000, 399_999, 131_073, 4096, 5, 1):
        if fn is variance and length == 1:
            continue
        draws = [torch.randn(1, length) + 3 for _ in range(4)]
        verdict = weft.judge(*(weft.Draws([f(x) for x in draws]) for f in (program, fn, lambda x: fn(x.double()))))
        assert verdict.ok, f"{length}: {verdict.reason}"
