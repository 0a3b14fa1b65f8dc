"""fp64 and integers through the whole of weft: kernels, not fallbacks; eager's bits for integers, the error rule for fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import weft
from weft.verify.judge import Draws

WHOLE = (torch.int8, torch.uint8, torch.int64)
"""tests/emit/test_rows.py walks all."""


def integers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Draws integers of the whole range, its ends among them."""
    info = torch.iinfo(dtype)
    drawn = torch.from_numpy(
        np.random.default_rng(0).integers(info.min, info.max, shape, dtype=np.int64, endpoint=True)
    )
    drawn.view(-1)[:3] = torch.tensor([info.min, info.max, 0])
    return drawn.to(dtype)


ON_INTEGERS = {
    "arithmetic": lambda x, y: (x * y + x) * y - 3 * x,
    "what is read wide and narrow": lambda x, y: (x + y, (x + y) // 2, (x * y).abs() > 5),
    "bits": lambda x, y: ((x & y) | (x ^ 3)) & ~y,
    "shifts": lambda x, y: ((x << 3) >> 1) + (y >> 100),
    "quotients": lambda x, y: (x // 7, x % 5, torch.div(y, 3, rounding_mode="trunc"), torch.fmod(x, 7)),
    "choices": lambda x, y: (torch.maximum(x, y), x.clamp(3, 50), torch.where(x > y, x, y), -x, x.abs(), x.sign()),
    "powers": lambda x, y: (x**2, x**7, 3 ** x.abs()),
    "sums": lambda x, y: (x.sum(0), x.sum(), x.prod(1), x.amax(1), x.amin(), (x - y).sum(dtype=torch.int32)),
    "tests": lambda x, y: (x.any(1), (x > 3).all(0), (x > y).amax(0), (x > y).amin(1), (x > y).min(), (x == y).sum()),
    "products": lambda x, y: (x @ y.t(), F.linear(x, y, y[:, 0]), torch.addmm(x[:, :40], x, y.t(), beta=3, alpha=2)),
    "casts": lambda x, y: (x.to(torch.int8), x.long() * y, x.float() / 3, x.bool(), (x > y).to(torch.uint8) + x),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_integers_are_eagers_to_the_last_bit(dtype: torch.dtype) -> None:
    x, y = integers(dtype, 33, 65), integers(dtype, 40, 65)

    def everything(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        made = []
        for name, function in ON_INTEGERS.items():
            found = function(x, y if name == "products" else y[:33])
            made += found if isinstance(found, tuple) else (found,)
        return made

    program = weft.optimize(everything, (x, y))
    assert program.fallbacks == ()
    assert program.kernels
    for number, (found, wanted) in enumerate(zip(program(x, y), everything(x, y), strict=True)):
        assert found.dtype is wanted.dtype
        if wanted.is_floating_point():
            torch.testing.assert_close(found, wanted)
        else:
            assert torch.equal(found, wanted), number


@pytest.mark.parametrize("of", [torch.bool, torch.float32], ids=str)
def test_reductions_of_casts_have_kernels(of: torch.dtype) -> None:
    """To integers and bools, along each dimension, at sizes that blocks do not divide."""
    x = (torch.randn(5, 33, 3) * 40).abs().to(of)

    def everything(x: torch.Tensor) -> list[torch.Tensor]:
        short, whole, count = x.to(torch.uint8), x.int(), x.bool().sum(1)
        extrema = [short.amin(0), short.amax(1), whole.amin(2, keepdim=True), x.long().amax(0), count.amin(0)]
        return [
            *extrema,
            whole.argmin(1),
            (whole // 3).amin(1),
            whole.any(0),
            short.all(1),
            whole.prod(2),
            short.sum(0),
        ]

    program = weft.optimize(everything, (x,))
    assert program.fallbacks == ()
    for number, (found, wanted) in enumerate(zip(program(x), everything(x), strict=True)):
        assert found.dtype is wanted.dtype
        assert torch.equal(found, wanted), number


ROUNDED_ONCE = {
    "add": lambda x, y: torch.add(x, y, alpha=-0.9990234375),
    "add a number": lambda x, y: torch.add(x, 1.1, alpha=-0.7),
    "sub": lambda x, y: torch.sub(x, y, alpha=0.9990234375),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=0.9990234375),
    "addcmul": lambda x, y: torch.addcmul(-x * x, y, y),
    "addcmul of a value": lambda x, y: torch.addcmul(x * x, x, y, value=-0.9990234375),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_pytorch_rounds_once_is_rounded_once(dtype: torch.dtype) -> None:
    """A product and a sum that nearly cancel: bit for bit, since a quotient by what is left shows every bit."""
    x = torch.linspace(-3, 3, 999, dtype=dtype)
    y = x * (1 + 1e-3 * torch.sin(9 * x))

    def everything(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [function(x, y) for function in ROUNDED_ONCE.values()]

    program = weft.optimize(everything, (x, y))
    assert program.fallbacks == ()
    for name, found, wanted in zip(ROUNDED_ONCE, program(x, y), everything(x, y), strict=True):
        assert torch.equal(found, wanted), name


def precise(name: str, *given: torch.Tensor) -> torch.Tensor:
    """In numbers of 64 bits of fraction or more, rounded to fp64."""
    x, y, z = (t.numpy().astype(np.longdouble) for t in given)

    def softmax(s: np.ndarray) -> np.ndarray:
        e = np.exp(s - s.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    made = {
        "elementwise": lambda: np.tanh(x * y[:33] + np.exp(x)),
        "attention": lambda: softmax(x @ y.T / 8) @ z,
        "linear": lambda: np.maximum(x @ y.T + z[:, 0], 0),
        "layer norm": lambda: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + np.longdouble(1e-5)),
        "sums": lambda: np.log1p(x * x).sum(-1),
        "a part": lambda: x.astype(np.float32).astype(np.longdouble) @ y.T,
    }[name]()
    return torch.from_numpy(made.astype(np.float64))


ON_FP64 = {
    "elementwise": lambda x, y, z: torch.tanh(x * y[:33] + x.exp()),
    "attention": lambda x, y, z: torch.softmax(x @ y.t() / 8, -1) @ z,
    "linear": lambda x, y, z: F.linear(x, y, z[:, 0]).relu(),
    "layer norm": lambda x, y, z: F.layer_norm(x, (65,)),
    "sums": lambda x, y, z: torch.log1p(x * x).sum(-1),
    "a part": lambda x, y, z: x.float().double() @ y.t(),
}


@pytest.mark.skipif(float(np.finfo(np.longdouble).eps) >= 2.0**-52, reason="no type more precise than fp64 here")
@pytest.mark.parametrize("name", ON_FP64)
def test_fp64_is_as_exact_as_eagers(name: str) -> None:
    torch.manual_seed(0)
    draws = [tuple(torch.randn(*s, dtype=torch.float64) for s in ((33, 65), (40, 65), (40, 65))) for _ in range(4)]
    program = weft.optimize(ON_FP64[name], draws[0])
    assert program.fallbacks == ()
    assert program.kernels
    found, eager = Draws([program(*d) for d in draws]), Draws([ON_FP64[name](*d) for d in draws])
    weft.judge(found, eager, Draws([precise(name, *d) for d in draws])).check()


def test_fp64_is_kept_where_it_is_asked_for() -> None:
    """1 + 1e-12 is 1 in fp32; the difference survives a cast to fp64 and is gone after one to fp32."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = x.double() + 1e-12
        return (wide - 1) * 1e12, (wide.float() - 1) * 1e12, (wide - x.double()).float() * 1e12

    x = torch.ones(300)
    program = weft.optimize(function, (x,))
    assert program.fallbacks == ()
    for found, wanted in zip(program(x), function(x), strict=True):
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_products_of_bytes_are_eagers_to_the_last_bit(dtype: torch.dtype) -> None:
    """Four rows at a time, and what is left of them, of parts of 64 rows and 128 columns; along memory and across it."""
    x, w = integers(dtype, 65, 131), integers(dtype, 131, 133)
    operands = (x, w) if dtype is torch.int8 else (x.t().contiguous().t(), w.t().contiguous().t())
    program = weft.optimize(torch.matmul, operands)
    assert program.fallbacks == ()
    assert torch.equal(program(*operands), torch.matmul(*operands))


def test_sums_of_bytes_do_not_overflow_what_they_are_summed_in() -> None:
    x = torch.full((5, 70000), 255, dtype=torch.uint8)
    program = weft.optimize(lambda x: x @ x.t(), (x,))
    assert program.fallbacks == ()
    assert torch.equal(program(x), x @ x.t())


def rotated(x, turns, w):
    y = torch.view_as_complex(torch.relu(x @ w).unflatten(-1, (-1, 2)))
    return torch.softmax(torch.view_as_real(y * turns).flatten(-2) @ w, -1)


def complex_in_and_out(x, turns, w):
    turns.mul_(2)
    size = torch.exp(-turns.abs())
    return turns.T, torch.complex(size, size + 1), (size * 3).sum(-1), turns.real * 2


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [rotated, complex_in_and_out])
def test_what_stands_around_complex_numbers_is_compiled(function, kind):
    x, w = torch.randn(9, 16, dtype=kind), torch.randn(16, 16, dtype=kind)
    turns = torch.polar(torch.ones(9, 8, dtype=kind), torch.randn(9, 8, dtype=kind))
    mine, theirs = turns.clone(), turns.clone()
    program = weft.optimize(function, (x, turns.clone(), w))
    torch.testing.assert_close(program(x, mine, w), function(x, theirs, w))
    assert torch.equal(mine, theirs)
    assert program.kernels
    assert {f.operation for f in program.fallbacks} < {
        f"aten.{n}" for n in ("view_as_complex", "mul", "flatten", "complex", "abs", "real")
    }
    for rows in (5, 7):  # other lengths of the same program
        x, turns = torch.randn(rows, 16, dtype=kind), torch.randn(rows, 8, dtype=theirs.dtype)
        torch.testing.assert_close(program(x, turns.clone(), w), function(x, turns.clone(), w))


def test_what_tracing_takes_for_another_type_runs_in_pytorch():
    """PyTorch's tracing has float64 for these draws; eager gives float32, which no kernel must read as something else."""

    def drawn(x):
        return torch.normal(x, (x.abs() + 1).double()) + 1

    x, fast = torch.randn(8, 5), weft.compile(drawn, measure="never")
    with torch.no_grad():
        torch.manual_seed(0)
        wanted = drawn(x)
        torch.manual_seed(0)
        found = fast(x)
    assert found.dtype is wanted.dtype
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16], ids=str)
@pytest.mark.parametrize("value", [-1, 127])
def test_a_number_that_fills_wraps_to_its_type(dtype, value):
    """Sums are of what the filled tensor holds."""
    x = torch.randint(0, 100, (4, 9), dtype=dtype)

    def filled(x):
        made = torch.full_like(x, value)
        return made.sum(-1), made.float(), (x.clone().fill_(value) > x), made.to(torch.int64).cumsum(0)

    for mine, eager in zip(weft.optimize(filled, (x,))(x), filled(x), strict=True):
        assert torch.equal(mine, eager)


def test_rows_of_half_precision_lose_no_digit_of_float32():
    """Nothing narrow is made: exponents need no headroom, which cost 4 times eager's error."""

    def shares(x):
        return torch.softmax(x.float() * 1e-3, -1)

    x = torch.randn(500, 3).half()
    found = weft.compile(shares, measure="never")(x)
    exact = torch.softmax((x.float() * 1e-3).double(), -1)
    assert (found - exact).abs().max() <= 1e-7


def test_numbers_that_only_a_mask_meets_are_doubles():
    """Checks that none is printed as a float32."""

    def function(mask, x):
        chosen = torch.where(mask, torch.full((), 0.1, dtype=torch.float64), torch.full((), 0.2, dtype=torch.float64))
        return chosen, mask.double() * 0.1, (chosen > 0.1).double() / 3, x * mask * 0.1

    mask, x = torch.tensor([True, False, True]), torch.randn(3, dtype=torch.float64)
    for found, wanted in zip(weft.optimize(function, (mask, x))(mask, x), function(mask, x), strict=True):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=1e-15, atol=0)
