"""Quantisation row by row into a product: one kernel, eager's rounding, NaN and infinities where eager has them."""

from __future__ import annotations

import math

import pytest
import torch

import weft
from testkit.api.quantised import (
    E4,
    E5,
    FUNCTIONS,
    exact,
    float8_scaled,
    operands,
    to_bytes,
    to_float8,
)
from testkit.walk import share
from weft.api.program import Program
from weft.verify.judge import Draws

NARROW = ("int8", "int8_both", "float8", "float8_both", "float8_scaled", "there_and_back")
"""Those that are tried in bfloat16, too."""
SPECIAL = ("int8", "int8_in_integers", "float8_both", "float8_wide_range", "float8_without_zeros", "there_and_back")
CASES = [
    *((n, (33, 257, 130), torch.float32) for n in FUNCTIONS),
    *((n, (3, 7, 5), torch.float32) for n in NARROW),
    *((n, (5, 70, 40), torch.bfloat16) for n in NARROW),
    ("int8_both", (1, 64, 48), torch.float32),
]


def compiled(name: str, inputs: tuple[torch.Tensor, ...]) -> Program:
    """One kernel, shown to be the function, and nothing else."""
    program = weft.optimize(FUNCTIONS[name], inputs)
    assert program.fallbacks == ()
    (kernel,) = program.kernels
    assert kernel.verdict.agrees
    return program


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "sizes", "dtype"), share(CASES, 3), ids=str)
def test_one_kernel_as_exact_as_eager(name, sizes, dtype):
    torch.manual_seed(0)
    rows, inner, columns = sizes
    draws = [operands(name, rows, inner, columns, dtype) for _ in range(4)]
    program = compiled(name, draws[0])
    found, eager = ([f(*d) for d in draws] for f in (program, FUNCTIONS[name]))
    weft.judge(Draws(found), Draws(eager), Draws([exact(name, d) for d in draws])).check()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", share(SPECIAL, 2))
def test_rows_of_zeros_infinities_and_nan_are_eagers(name):
    """0 / 0 is NaN, which is 0 as int8 and NaN in 8 bits of float; inf / inf too."""
    torch.manual_seed(0)
    x, *rest = operands(name, 6, 40, 24, torch.float32)
    x[1] = 0.0
    x[2, 3], x[3, 4], x[4, 5] = math.inf, -math.inf, math.nan
    x[5] *= 1e-38
    found, eager = compiled(name, (x, *rest))(x, *rest), FUNCTIONS[name](x, *rest)
    torch.testing.assert_close(found, eager, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert not eager[2].isfinite().all()


@pytest.mark.parametrize("kind", [E4, E5, torch.int8], ids=str)
def test_what_is_quantised_is_eagers_to_the_last_bit(kind):
    torch.manual_seed(0)

    def quantised(x):
        return to_bytes(x) if kind is torch.int8 else to_float8(x, kind, torch.finfo(kind).max)

    x = torch.randn(33, 300) * torch.logspace(-20, 20, 33)[:, None]
    x[3] = 0.0
    (q, scale), (wanted, wide) = weft.optimize(quantised, (x,))(x), quantised(x)
    assert q.dtype is kind
    assert torch.equal(q.view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(scale, wide)
    weft.judge(q, wanted, wanted.double()) if kind is not torch.int8 else weft.judge(q, wanted, wanted)


def test_what_eager_does_with_floats_of_8_bits_is_pytorchs():
    x = torch.randn(5, 8)
    q = x.to(E4)

    def functions(x, q):
        return (
            (q * q).float(),
            q == q,
            q.abs().to(E5),
            torch.cat((q, q)).float() @ x.t(),
            q.t().contiguous(),
            q[1:, ::2],
        )

    program = weft.optimize(functions, (x, q))
    assert {f.operation for f in program.fallbacks} == {"aten.mul", "aten.eq", "aten.abs", "aten.cat"}
    assert all("only casts and moves" in f.reason for f in program.fallbacks)
    for found, wanted in zip(program(x, q), functions(x, q), strict=True):
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-6, equal_nan=True)
    for refused in (lambda x, q: q + q, lambda x, q: q + x):
        with pytest.raises(weft.errors.ShapeError, match=r"Float8"):
            weft.optimize(refused, (x, q))


def test_other_floats_of_8_bits_pass_through():
    x = torch.randn(5, 8)

    def function(x):
        return torch.relu(x.to(torch.float8_e4m3fnuz).float() * 2) + x

    program = weft.optimize(function, (x,))
    assert program.kernels
    assert {f.operation for f in program.fallbacks} == {"aten.to"}
    assert torch.equal(program(x), function(x))


def test_bytes_are_multiplied_exactly_at_any_length():
    """Beyond what 24 or 32 bits hold."""
    x = torch.full((3, 70001), -128, dtype=torch.int8)
    program = weft.optimize(torch.ops.aten._int_mm, (x, x.t()))
    assert program.fallbacks == ()
    assert torch.equal(program(x, x.t()), torch.ops.aten._int_mm(x, x.t()))


def test_a_library_product_is_left_whole():
    """Its own parts multiply in float32, which is not what a library is there for."""
    x, w, columns = operands("float8_scaled", 256, 512, 512, torch.bfloat16)
    program = weft.optimize(float8_scaled, (x, w, columns))
    made = program.plans[0].with_library
    assert made is not None
    captured = made()
    assert captured is not None
    assert [str(c.target) for c in captured.calls.values()] == ["aten._scaled_mm.default"]
    assert "_to_copy" not in str(captured.fallbacks)
