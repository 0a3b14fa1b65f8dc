"""Reductions down columns, short axes and transposed operands: blocks lie along memory, and results stay right."""

from __future__ import annotations

import re

import pytest
import torch

import weft
from testkit.api.judged import judged


def inertia(m, r):
    centre = (m[..., None] * r).sum(1) / m.sum(-1, keepdim=True)
    return (m * ((r - centre[:, None]) ** 2).sum(-1)).sum(-1)


def gap_softmax(x):
    return torch.softmax(x / 11.3, 0)


CASES = {
    "columns": (lambda x: x.sum(0), ((700, 130),)),
    "the middle": (lambda x: x.exp().amax(1), ((3, 70, 40),)),
    "softmax down columns": (gap_softmax, ((130, 70),)),
    "points": (inertia, ((2, 3000), (2, 3000, 3))),
    "lengths of points": (lambda x: (x * x).sum(-1).sqrt(), ((5000, 3),)),
    "points by coordinate": (lambda x: x - x.mean(0), ((5000, 3),)),
    "transposed and not": (lambda x, y: x.T + y, ((150, 200), (200, 150))),
    "transposed": (lambda x: torch.tanh(x.mT) * 2, ((3, 40, 50),)),
    "rows of a transpose": (lambda x: (x.T + 1).sum(-1), ((300, 200),)),
}


def random(shapes, dtype):
    return tuple((torch.randn(shape) + (1 if i == 0 else 0)).to(dtype) for i, shape in enumerate(shapes))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_keep_the_error_rule_and_eagers_strides(case, dtype):
    fn, shapes = CASES[case]
    draws = [random(shapes, dtype) for _ in range(4)]
    program = weft.optimize(fn, draws[0])
    assert program.fallbacks == ()
    assert program.kernels
    assert judged(fn, program, draws).ok
    assert program(*draws[0]).stride() == fn(*draws[0]).stride()


def sizes_of(fn, *shapes):
    """The size of each loop's innermost level, by the loop's name, and the kernel's source."""
    program = weft.optimize(fn, random(shapes, torch.float32))
    (kernel,) = program.kernels
    return {name: loop.levels[-1].size for name, loop in kernel.schedule.loops}, kernel.source


def test_blocks_lie_along_memory_whatever_the_loops_are():
    down, source = sizes_of(lambda x: x.sum(0), (4096, 4096))
    across, _ = sizes_of(lambda x: x.sum(1), (4096, 4096))
    assert sorted(down.values()) == [16, 2048]  # rows are added up a few at a time
    assert sorted(across.values()) == [4, 4096]
    assert re.search(r"i < m\d*_len; \+\+i\) \{\n#pragma omp simd\n *for \(i64 j = 0; j < k_len", source)


def test_the_axis_over_points_is_the_innermost_not_the_one_over_coordinates():
    sizes, source = sizes_of(inertia, (64, 8192), (64, 8192, 3))
    assert {4096, 4} <= set(sizes.values())
    assert "in_chains(k" in source
    assert not re.search(r"in_(lanes|chains)\(n", source.split("in_chains(k")[-2])  # where there are points


def test_a_square_block_where_memory_lies_both_ways():
    sizes, _ = sizes_of(lambda x, y: x.T + y, (2048, 2048), (2048, 2048))
    assert set(sizes.values()) == {128}


def test_a_result_is_written_in_eagers_order_not_copied_into_it():
    x = torch.randn(64, 48)
    program = weft.optimize(lambda x: torch.relu(x.T), (x,))
    (kernel,) = program.kernels
    assert program(x).stride() == x.T.stride()
    assert torch.equal(program(x), torch.relu(x.T))
    (made,) = kernel.launch(x)
    assert made.shape == x.shape  # dimensions in the order of memory


def everywhere(step: int) -> torch.Tensor:
    """Floats of every exponent but the smallest, with zeros, infinities and NaN."""
    bits = torch.arange(-(2**31), 2**31, step, dtype=torch.int64).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")])])
    return x[(x.abs() >= 2.0**-100) | (x == 0) | x.isnan()]


def equal_where_normal(got: torch.Tensor, expected: torch.Tensor) -> bool:
    normal = (expected.abs() >= torch.finfo(torch.float32).tiny) | (expected == 0) | expected.isnan()
    same = ((got == expected) & (got.signbit() == expected.signbit())) | (got.isnan() & expected.isnan())
    close = (got - expected).abs() <= 2.0**-148  # below the normal numbers: the last bit
    return bool(torch.where(normal, same, close).all())


@pytest.mark.parametrize("by", [11.3, -3.0, 1e-5, 6e23])
def test_a_quotient_by_a_number_is_eagers_to_the_last_bit(by):
    x, number = everywhere(40009), torch.tensor(by)
    quotient = weft.optimize(lambda x: x / by, (x,))
    assert "weft::over" in quotient.kernels[0].source
    assert equal_where_normal(quotient(x), x / number)


def test_quotients_by_each_rows_number_are_eagers_for_every_number():
    rows = torch.tensor([1.0, 3.0, -7.1, 0.0, 1e-40, 1e-45, 1e38, 3e38, float("inf"), float("nan"), 1e-30, 1e-38])
    many = everywhere(4000037).expand(len(rows), -1).contiguous()
    fn = weft.optimize(lambda x, c: x / c[:, None], (many, rows))
    assert "weft::over" in fn.kernels[0].source
    assert equal_where_normal(fn(many, rows), many / rows[:, None])


@pytest.mark.parametrize("fn", [torch.nn.functional.hardswish, lambda x: x / x.sum(-1, keepdim=True)])
def test_a_quotient_of_zero_has_eagers_sign(fn):
    x = torch.randn(23, 41)
    x[:, ::3], x[:, 1::5] = -0.0, 0.0
    assert equal_where_normal(weft.optimize(fn, (x,))(x)[x == 0], fn(x)[x == 0])


def test_a_power_of_tiny_numbers_is_right_as_eagers_is():
    """Eager rounds the exponent to the type of the numbers."""
    x = torch.randn(64, 64) * 1e-25
    program = weft.optimize(lambda x: x.abs() ** 1.3, (x,), judge="always")
    assert weft.judge(program(x), x.abs() ** 1.3, x.double().abs() ** 1.3).ok


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_few_rows_by_many_of_any_length(dtype):
    def scores(q, k):
        return q @ k.T

    for rows, keys, width in ((1, 40, 33), (1, 16, 64), (2, 35, 80), (1, 7, 100), (1, 64, 1), (2, 17, 31)):
        draws = [random(((rows, width), (keys, width)), dtype) for _ in range(4)]
        program = weft.optimize(scores, draws[0])
        assert program.fallbacks == ()
        assert judged(scores, program, draws).ok, (rows, keys, width)


def test_parts_that_are_the_same_along_a_row_are_computed_once_for_it():
    def shifted(x, m):
        return torch.exp(x * torch.exp(m)[:, None])

    program = weft.optimize(shifted, (torch.randn(5, 7), torch.randn(5)))
    (kernel,) = program.kernels
    assert kernel.source.count("weft::exp") == 2
    *_, inner = kernel.source.split("#pragma omp simd")
    assert inner.count("weft::exp") == 1
