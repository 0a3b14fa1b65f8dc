"""Calls on a GPU as programs make them: on streams, from threads, on several devices, with tensors of any layout and size."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

import weft
from weft.errors import TargetError
from weft.lab.workloads import reductions as workloads_reductions
from weft.run.gpu import Assembled, driver

BF16 = torch.bfloat16
several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU here; run on a machine with two or more")


def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w + b)


def shares(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 0.5, -1)


def operands(rows: int = 64, device: Any = "cuda", dtype: torch.dtype = BF16) -> tuple[torch.Tensor, ...]:
    shapes = (rows, 128), (128, 96), (96,)
    return tuple(torch.randn(shape, device=device).mul(0.3).to(dtype) for shape in shapes)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.device == wanted.device
    assert found.dtype == wanted.dtype
    bound = 2e-2 if wanted.dtype in (BF16, torch.float16) else 1e-4
    torch.testing.assert_close(found, wanted, rtol=bound, atol=bound, equal_nan=True)


@contextmanager
def in_kernels() -> Generator[None]:
    """Checks that what is compiled meanwhile has kernels of weft's, and PyTorch is left with nothing."""
    before = weft.stats()
    yield
    after = weft.stats()
    assert after.kernels > before.kernels, "no kernel was compiled"
    assert after.fallbacks == before.fallbacks, "PyTorch was left with something"


@pytest.fixture(autouse=True)
def _inference() -> Generator[None]:
    with torch.no_grad():
        yield


# Streams.


def test_a_call_on_a_side_stream_is_ordered_there() -> None:
    fast, given, side = weft.compile(layer), operands(), torch.cuda.Stream()
    with in_kernels():
        fast(*given)
    torch.cuda.synchronize()
    x = given[0].clone()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        x.fill_(0.25)  # the call must wait for it
        found = fast(x, *given[1:])
    side.synchronize()
    close(found, layer(torch.full_like(x, 0.25), *given[1:]))


def test_a_call_on_a_side_stream_does_not_wait_for_the_default_one() -> None:
    fast, given, side = weft.compile(layer), operands(), torch.cuda.Stream()
    fast(*given)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    with torch.cuda.stream(side):
        found = fast(*given)
    side.synchronize()
    assert not torch.cuda.default_stream().query(), "the side stream waited for the default one"
    torch.cuda.synchronize()
    close(found, layer(*given))


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    """`work` in so many threads at once, with their numbers."""
    begin = threading.Barrier(count)

    def run(number: int) -> None:
        begin.wait()
        with torch.no_grad():
            work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))


@pytest.mark.parametrize("warm", [True, False], ids=["compiled before", "compiled by the first"])
def test_threads_with_streams_of_their_own_call_one_function(*, warm: bool) -> None:
    fast = weft.compile(layer)
    given = {number: operands(48 + 16 * number) for number in range(4)}
    wanted = {number: layer(*each) for number, each in given.items()}
    if warm:
        for each in given.values():
            fast(*each)
    torch.cuda.synchronize()

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            found = [fast(*given[number]) for _ in range(20)]
        stream.synchronize()
        for each in found:
            close(each, wanted[number])

    in_threads(work)


def test_threads_on_one_stream() -> None:
    fast, given = weft.compile(shares), torch.randn(256, 300, device="cuda")
    wanted = shares(given)
    fast(given)

    def work(number: int) -> None:
        for _ in range(50):
            close(fast(given + number * 0), wanted)

    in_threads(work)


# Devices.


@several
def test_one_function_on_two_devices() -> None:
    fast = weft.compile(layer)
    for device in ("cuda:0", "cuda:1", "cuda:0", "cuda:1"):
        given = operands(device=device)
        close(fast(*given), layer(*given))
        assert torch.cuda.current_device() == 0


@several
def test_the_current_device_is_another_one() -> None:
    fast = weft.compile(layer)
    for current, home in [(1, 0), (0, 1), (1, 1)]:
        given = operands(device=f"cuda:{home}")
        with torch.cuda.device(current):
            found = fast(*given)
            assert torch.cuda.current_device() == current
        close(found, layer(*given))


@several
def test_threads_on_two_devices_at_once() -> None:
    fast = weft.compile(layer)
    given = {n: operands(device=f"cuda:{n % 2}") for n in range(4)}
    wanted = {n: layer(*each) for n, each in given.items()}

    def work(number: int) -> None:
        for _ in range(20):
            close(fast(*given[number]), wanted[number])

    in_threads(work)


@several
def test_an_optimized_program_runs_on_the_device_of_its_arguments() -> None:
    given = operands(device="cuda:1")
    program = weft.optimize(layer, given)
    close(program(*given), layer(*given))


def test_a_number_on_the_cpu_is_what_eager_takes_too() -> None:
    def scaled(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) * by

    fast, x = weft.compile(scaled), torch.randn(64, 64, device="cuda")
    for number in (2.0, 3.0):
        by = torch.tensor(number)
        close(fast(x, by), scaled(x, by))


@pytest.mark.parametrize("order", ["GPU first", "CPU first"])
def test_tensors_on_two_devices_are_an_error_that_names_the_line(order: str) -> None:
    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hot = torch.relu(x)
        return hot + y

    given = [torch.randn(8, 8, device="cuda"), torch.randn(8, 8)]
    given = given if order == "GPU first" else given[::-1]
    with pytest.raises(RuntimeError) as eager:
        added(*given)
    with pytest.raises(RuntimeError) as caught:
        weft.compile(added)(*given)
    assert "cpu" in str(caught.value)
    assert type(eager.value) in type(caught.value).__mro__
    assert "return hot + y" in str(caught.value) or "added" in str(caught.traceback[-1])


# Layouts, sizes, numbers.

LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.randn(128, 64, device="cuda").to(BF16).T,
    "every other column": lambda: torch.randn(64, 256, device="cuda").to(BF16)[:, ::2],
    "every other row": lambda: torch.randn(128, 128, device="cuda").to(BF16)[::2],
    "not aligned to 16 bytes": lambda: torch.randn(64 * 128 + 1, device="cuda").to(BF16)[1:].view(64, 128),
    "rows not aligned": lambda: torch.randn(64, 131, device="cuda").to(BF16)[:, 3:],
    "expanded": lambda: torch.randn(1, 128, device="cuda").to(BF16).expand(64, 128),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    fast = weft.compile(layer)
    _, w, b = operands()
    x = LAYOUTS[layout]()
    close(fast(x, w, b), layer(x, w, b))


def test_layouts_met_after_one_another() -> None:
    fast = weft.compile(shares)
    for make in (*LAYOUTS.values(), *LAYOUTS.values()):
        x = make()
        close(fast(x), shares(x))


def test_sizes_after_one_another() -> None:
    fast = weft.compile(layer)
    for rows in (64, 33, 1, 2, 17, 128, 1000, 64):
        given = operands(rows)
        close(fast(*given), layer(*given))


@pytest.mark.parametrize("shape", [(0, 128), (64, 0)])
def test_empty_tensors(shape: tuple[int, int]) -> None:
    fast = weft.compile(layer)
    given = operands()
    fast(*given)
    x = torch.randn(shape, device="cuda").to(BF16)
    w = torch.randn(shape[1], 96, device="cuda").to(BF16)
    close(fast(x, w, given[2]), layer(x, w, given[2]))


def bend(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.mem_get_info()[0] < 20 << 30, reason="needs 20 GiB of a GPU's free memory"
)
@pytest.mark.parametrize("shape", [(65537, 32768), (2**31 + 16,)], ids=["two dimensions", "one dimension"])
def test_more_than_2_to_the_31_elements(shape: tuple[int, ...]) -> None:
    x = torch.randint(-3, 4, shape, dtype=torch.int8, device="cuda").to(BF16)
    with warnings.catch_warnings(record=True):  # one dimension is too long for a kernel's numbers: PyTorch runs it
        warnings.simplefilter("always")
        found = weft.compile(bend)(x)
    for one, other in zip(found.view(-1).split(1 << 28), x.view(-1).split(1 << 28), strict=True):
        assert torch.equal(one, bend(other))


def test_strides_beyond_2_to_the_31() -> None:
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GiB of a GPU's free memory")
    whole = torch.zeros(3, 2**30 + 64, dtype=BF16, device="cuda")
    x = whole[:, :64]
    x.copy_(torch.randn(3, 64))
    close(weft.compile(shares)(x), shares(x))


NUMBERS = {"relu": bend, "softmax": shares, "max": lambda x: (x * 2).amax(-1), "sum": lambda x: torch.exp(x).sum(-1)}


@pytest.mark.parametrize("name", NUMBERS)
def test_nan_and_infinity_come_out_where_eager_gives_them(name: str) -> None:
    function = NUMBERS[name]
    x = torch.randn(16, 200, device="cuda")
    x[1, 3], x[2, 5], x[3, 7], x[4] = torch.nan, torch.inf, -torch.inf, -torch.inf
    x[5, 1], x[5, 2], x[6] = torch.inf, -torch.inf, torch.nan
    for dtype in (torch.float32, BF16):
        given = x.to(dtype)
        close(weft.compile(function)(given), function(given))


def test_products_of_nan_and_infinity() -> None:
    x, w, b = operands()
    x[3, 5], x[9, 0], w[7, 11] = torch.nan, torch.inf, -torch.inf
    close(weft.compile(layer)(x, w, b), layer(x, w, b))


# Contexts.


def test_autocast() -> None:
    fast, given = weft.compile(layer), operands(dtype=torch.float32)
    for dtype in (BF16, torch.float16):
        with torch.autocast("cuda", dtype=dtype):
            found, wanted = fast(*given), layer(*given)
            assert found.dtype == wanted.dtype == torch.float32  # the sum's; the product rounds to 16 bits in eager
            torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    close(fast(*given), layer(*given))


def test_gradients_are_eagers() -> None:
    fast = weft.compile(layer)
    found, wanted = operands(dtype=torch.float32), None
    fast(*found)
    with torch.enable_grad():
        leaves = [t.clone().requires_grad_() for t in found]
        fast(*leaves).sum().backward()
        wanted = [t.clone().requires_grad_() for t in found]
        layer(*wanted).sum().backward()
    for one, other in zip(leaves, wanted, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_inference_mode() -> None:
    fast, given = weft.compile(layer), operands()
    with torch.inference_mode():
        close(fast(*given), layer(*given))
    close(fast(*given), layer(*given))


# What is measured, and what cannot be.


def test_tuned_and_tried_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EFFORT", "quick")
    monkeypatch.setenv("WEFT_MEASURE", "auto")
    fast, given = weft.compile(layer), operands(256)
    for _ in range(3):
        close(fast(*given), layer(*given))


def test_a_compiled_function_s_first_call_with_little_memory_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EFFORT", "quick")
    monkeypatch.setenv("WEFT_MEASURE", "auto")
    x = torch.randn(1 << 15, 1 << 14, device="cuda").to(BF16)  # 1 GiB
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    room = torch.cuda.memory_reserved() + (5 << 28)  # the result, and a quarter of it
    torch.cuda.set_per_process_memory_fraction(room / total)
    try:
        found = weft.compile(bend)(x)
        assert found.shape == x.shape
        assert torch.equal(found[:64], bend(x[:64]))
        assert torch.equal(found[-64:], bend(x[-64:]))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_binaries_that_the_driver_does_not_take() -> None:
    if torch.cuda.get_device_capability()[0] == 10:
        pytest.skip("this GPU runs kernels for cuda:100; others show what is tested")
    (kernel,) = weft.optimize(bend, (torch.randn(64, 64),), target="cuda:100").kernels
    assert kernel.assembled is not None
    found = kernel.assembled()
    assert isinstance(found, Assembled)
    with pytest.raises(TargetError, match="does not"):
        driver.load(found, 0)
    with pytest.raises(TargetError, match="rejects"):
        driver.load(replace(found, binary=b"this is no binary\0"), 0)
    x = torch.randn(64, 64, device="cuda")
    close(weft.compile(bend)(x), bend(x))


# What Triton makes of loops.


@pytest.mark.parametrize("function", [workloads_reductions.weighted_variance, workloads_reductions.inertia])
def test_sums_that_the_iterations_of_their_loop_read(function: Callable[..., torch.Tensor]) -> None:
    """Triton would give iterations one thread's part of a sum (triton-lang/triton#11836): far from 0 the variance was wrong."""
    weights = torch.rand(64, 8192, device="cuda") + 0.5
    x = torch.randn(64, 8192, 3, device="cuda") * 100 + 1e4
    given = (weights, x) if function is workloads_reductions.inertia else (x[..., 0].contiguous(), weights)
    with weft.options(judge="off"):
        kernels = weft.optimize(function, given)
    assert kernels.kernels
    wanted = function(*(each.double() for each in given))
    own, eager = ((each.double() - wanted).abs().max() for each in (kernels(*given), function(*given)))
    assert own <= 2 * eager + 1e-6 * wanted.abs().max()
