"""cumsum, cumprod, cummax, cummin and logcumsumexp beside eager: dimensions, element types, lengths, what stands around them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft


def check(function: Callable[..., torch.Tensor], *given: torch.Tensor, kernels: int = 1) -> weft.Program:
    """Integers are eager's; floats are no further from fp64 than eager's are, or than a few roundings of other operations."""
    program = weft.optimize(function, given)
    assert not program.fallbacks
    assert len(program.kernels) <= kernels
    assert all(k.verdict.agrees for k in program.kernels)
    found, eager = program(*given), function(*given)
    assert (found.dtype, found.shape) == (eager.dtype, eager.shape)
    if not eager.is_floating_point():
        assert torch.equal(found, eager)
        return program
    wide = function(*(t.double() if t.is_floating_point() else t for t in given))
    assert weft.judge(found, eager, wide).ok
    return program


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_dimensions_and_element_types(dim: int, dtype: torch.dtype) -> None:
    x = (torch.randn(5, 20, 33, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    check(lambda x: x.cumsum(dim), x)


@pytest.mark.parametrize("name", ["cumprod", "cummax", "cummin"])
def test_products_and_extrema(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        made = getattr(torch, name)(x, 1)
        return made if isinstance(made, torch.Tensor) else made.values

    for x in (torch.randn(5, 70), torch.randint(-2, 3, (5, 70)), torch.randn(5, 1), torch.randn(5, 17).half()):
        check(function, x)


def test_a_type_that_is_asked_for() -> None:
    x = torch.randint(-(2**30), 2**30, (3, 50), dtype=torch.int32)
    check(lambda x: x.cumsum(1, dtype=torch.int32), x)  # wraps
    check(lambda x: x.cumsum(1, dtype=torch.float64), x.float())
    small = x % 1000
    assert torch.equal(
        weft.optimize(lambda x: x.cumsum(1, dtype=torch.float32), (small,))(small), small.cumsum(1).float()
    )
    check(lambda x: (x > 0).cumsum(1), x)
    check(lambda x: (x > 0).cumsum(1, dtype=torch.int32), x)


def test_a_kernel_has_what_is_done_before_and_after() -> None:
    x, bias = torch.randn(40, 300), torch.randn(300)
    check(lambda x, bias: (x * 2).cumsum(1) + bias, x, bias)
    check(lambda x: torch.softmax(x, -1).cumsum(-1), x)
    check(lambda x: x.cumsum(1) / (x * x).cumsum(1), x + 1e4)
    check(lambda x: x.cumsum(1).cumsum(1), x)


def test_several_dimensions_are_scanned_one_after_the_other() -> None:
    check(lambda x: x.cumsum(0).cumsum(1), torch.randn(30, 40), kernels=2)


def test_merged_and_expanded_dimensions() -> None:
    check(lambda x: x.flatten().cumsum(0), torch.randn(12, 20))
    check(lambda x: x.reshape(3, 4, 20).cumsum(1), torch.randn(12, 20))
    check(lambda x: x.reshape(3, 4, 20).transpose(0, 1).flatten(1).cumsum(0), torch.randn(12, 20), kernels=2)
    check(lambda x: x[:, None].expand(7, 9).cumsum(1), torch.randn(7))
    check(lambda x: x[::2, 1:].t().cumsum(1), torch.randn(12, 20))


def test_a_packed_sequences_mask() -> None:
    """Number sequences as transformers does those that a row is packed of: a new one begins where positions do not go on."""
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 0, 1]])
    check(lambda p: (p[:, 1:] - p[:, :-1] != 1).cumsum(-1), positions)


def test_other_lengths_need_no_other_kernel() -> None:
    program = check(lambda x: (x + 1).cumsum(1), torch.randn(6, 500))
    for shape in ((6, 1), (2, 3), (1, 4097), (9, 2048)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), (x + 1).cumsum(1), rtol=1e-6, atol=1e-6)
    compiled = weft.compile(lambda x: x.cumsum(0) * 2, dynamic=True)
    for length in (5, 8, 1, 0, 300):
        x = torch.randn(length, 4)
        torch.testing.assert_close(compiled(x), x.cumsum(0) * 2)


def test_numbers_without_dimensions() -> None:
    check(lambda x: x.cumsum(0) + 1, torch.tensor(3.0))
    check(lambda x: x.cumprod(0) + 1, torch.tensor(3))


def test_the_cost_counts_each_element_once_in_and_once_out() -> None:
    program = check(lambda x: x.cumsum(1), torch.randn(64, 4096))
    assert program.kernels[0].cost.unique_bytes == 2 * 4 * 64 * 4096


def test_what_is_finite_in_eagers_order_is_finite() -> None:
    """Products that overflow after a 0, in rows that are cut in segments or windows; sums near the end of the range."""
    x = torch.full((200_000,), 2.0)
    x[0] = 0.0
    with weft.options(threads=2):
        program = weft.optimize(lambda x: x.cumprod(0), (x,))
    assert len(program.kernels) == 1, "segments would multiply 0 by infinity"
    assert torch.equal(program(x), x.cumprod(0))
    large = torch.zeros(2, 70, dtype=torch.float64)
    large[:, 0], large[:, 1:3] = -1e308, 1e308
    large[:, 12:], large[0, 20:28] = 2.0**1000, 1e308
    assert torch.equal(weft.optimize(lambda x: x.cumsum(1), (large,))(large), large.cumsum(1))


def test_a_product_that_falls_below_the_range_stays_zero_as_in_eagers_order() -> None:
    """Go below the range before a window, where the next element makes 0 of it, or within the window alone."""
    before, after = torch.full((16,), 1e-20), torch.full((40,), 1e30)
    x = torch.cat([before, torch.tensor([1e-10]), after])[None]
    program = weft.optimize(lambda x: x.cumprod(1), (x,))
    assert torch.equal(program(x), x.cumprod(1))
    for place in range(32):
        x = torch.ones(1, 57)
        x[0, place : place + 8], x[0, place + 8 : place + 16] = 1e-38, 1e38
        x[0, place + 7] = 3e-40
        torch.testing.assert_close(program(x), x.cumprod(1))


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_of_two_zeros_the_later_stays(name: str) -> None:
    x = torch.tensor([[0.0, -0.0, 1.0, -3.0, 0.0, -0.0]] * 3)
    found = weft.optimize(lambda x: getattr(torch, name)(x, 1).values, (x,))(x)
    assert torch.equal(torch.signbit(found), torch.signbit(getattr(torch, name)(x, 1).values))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"), [((5, 70), 1), ((5, 70), 0), ((3, 20, 33), 1), ((4, 1), 1), ((), 0)], ids=str
)
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_where_the_extrema_are(name: str, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    """Compare places with eager's: of equal ones the last, and NaN is an extremum from the first on."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(getattr(torch, name)(x, dim))

    x = (torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 2).round().to(dtype)
    if shape == (5, 70) and dtype.is_floating_point:
        x[1, 3] = x[0, 10] = x[0, 12] = torch.nan
        x[2, 5], x[3, :2] = torch.inf, -torch.inf
    program = weft.optimize(function, (x,))
    assert not program.fallbacks
    for mine, eager in zip(program(x), function(x), strict=True):
        torch.testing.assert_close(mine, eager, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("length", [1, 2, 4097, 1_000_003])
def test_where_the_extrema_of_rows_of_any_length_are(length: int) -> None:
    x = torch.randn(2, length)
    program = weft.optimize(lambda x: torch.cummax(x * 2, -1)[1] + 1, (x,))
    assert not program.fallbacks
    assert torch.equal(program(x), torch.cummax(x * 2, -1)[1] + 1)


@pytest.mark.parametrize("length", [1, 33, 1000])
def test_a_linear_recurrence_by_sums_and_products(length: int) -> None:
    """Compute h[t] = a[t] h[t - 1] + b[t], as the cumulative product times a cumulative sum."""

    def recurrence(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        factor = a.cumprod(-1)
        return factor * (b / factor).cumsum(-1)

    a, b = 1 + torch.randn(4, length) * 0.01, torch.randn(4, length)
    check(recurrence, a, b)
    state, steps = torch.zeros(4, dtype=torch.float64), list[torch.Tensor]()
    for one, more in zip(a.double().unbind(-1), b.double().unbind(-1), strict=True):
        state = one * state + more
        steps.append(state)
    wanted = torch.stack(steps, -1)
    torch.testing.assert_close(recurrence(a, b).double(), wanted, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(weft.optimize(recurrence, (a, b))(a, b).double(), wanted, rtol=1e-3, atol=1e-3)


# Logarithms of sums of exponentials.


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_log_sums_along_any_dimension(dim: int, dtype: torch.dtype) -> None:
    x = (torch.randn(5, 20, 33, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    check(lambda x: torch.logcumsumexp(x, dim), x)


def test_log_sums_of_doubles() -> None:
    x = torch.randn(5, 700, dtype=torch.float64)
    program = weft.optimize(lambda x: torch.logcumsumexp(x, 1), (x,))
    assert not program.fallbacks
    torch.testing.assert_close(program(x), x.logcumsumexp(1), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 1e4), (1e4, 0.0), (30.0, -1e4), (1e-3, 0.0)])
@pytest.mark.parametrize("length", [1, 2, 127, 4099])
def test_log_sums_of_any_magnitude(length: int, scale: float, shift: float) -> None:
    x = torch.randn(3, length, generator=torch.Generator().manual_seed(length)) * scale + shift
    check(lambda x: torch.logcumsumexp(x, -1), x)


def test_log_sums_whose_greatest_grows_with_each_element() -> None:
    """Multiplies what came before in each step, by factors next to 1: in fp32 their roundings would add up."""
    x = torch.linspace(0, 1, 100_000)
    check(lambda x: torch.logcumsumexp(x, 0), x)
    check(lambda x: torch.logcumsumexp(x, 0), x.flip(0))


def test_infinities_and_nan_in_log_sums() -> None:
    inf, nan = torch.inf, torch.nan
    x = torch.randn(7, 70)
    x[0], x[1, :30] = -inf, -inf
    x[2, 3], x[3, 5] = inf, nan
    x[4, 2], x[4, 4], x[4, 7], x[4, 9] = -inf, inf, -inf, inf
    x[5, 0], x[5, 30] = inf, nan
    x[6, 0], x[6, 1] = nan, -inf
    for dim in (0, 1):
        found = check(lambda x, dim=dim: torch.logcumsumexp(x, dim), torch.randn(7, 70))(x)
        torch.testing.assert_close(found, x.logcumsumexp(dim), equal_nan=True)


def test_log_sums_with_what_is_done_before_and_after() -> None:
    x, bias = torch.randn(40, 300), torch.randn(300)
    check(lambda x, bias: torch.logcumsumexp(x * 2, 1) + bias, x, bias)
    check(lambda x: torch.exp(x - torch.logcumsumexp(x, -1)), x)
    check(lambda x: torch.logcumsumexp(x.masked_fill(x < 0, -torch.inf), -1).exp(), x)
    check(lambda x: torch.logcumsumexp(x, 0).sum(0), x, kernels=2)
    check(lambda x: torch.logcumsumexp(torch.log_softmax(x, -1), -1), x)


def test_log_sums_of_other_lengths_need_no_other_kernel() -> None:
    program = check(lambda x: torch.logcumsumexp(x, 1), torch.randn(6, 500))
    for shape in ((6, 1), (2, 3), (1, 4097), (9, 2048)):
        x = torch.randn(shape)
        torch.testing.assert_close(program(x), x.logcumsumexp(1), rtol=1e-6, atol=1e-6)
    compiled = weft.compile(lambda x: torch.logcumsumexp(x, 0) * 2, dynamic=True)
    for length in (5, 8, 1, 0, 300):
        x = torch.randn(length, 4)
        torch.testing.assert_close(compiled(x), x.logcumsumexp(0) * 2)


def test_log_sums_without_dimensions_and_of_merged_ones() -> None:
    check(lambda x: x.logcumsumexp(0) + 1, torch.tensor(3.0))
    check(lambda x: x.flatten().logcumsumexp(0), torch.randn(12, 20))
    check(lambda x: x[:, None].expand(7, 9).logcumsumexp(1), torch.randn(7))


def test_gradients_of_log_sums() -> None:
    x = torch.randn(5, 40, dtype=torch.float32, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    compiled = weft.compile(lambda x: (torch.logcumsumexp(x, 1) * 2).sum())
    compiled(x).backward()
    (torch.logcumsumexp(y, 1) * 2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_log_sums_that_are_read_elsewhere() -> None:
    """A kernel stores both components of the states: each is judged by itself, also where the first element is NaN."""
    x = torch.randn(6, 5)
    x[1, 0] = x[2, 3] = torch.nan
    x[3] = -torch.inf
    program = weft.optimize(lambda x: torch.logcumsumexp(x, 1).roll(1, -1), (x,))
    assert program.fallbacks == ()
    torch.testing.assert_close(program(x), torch.logcumsumexp(x, 1).roll(1, -1), equal_nan=True)
