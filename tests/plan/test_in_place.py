"""Results that lie where an operand does which nothing reads any more: right in every case, and never over what is still needed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import weft
from testkit.numpy_target import NumPy
from weft.capture import OpaqueCall, Operand
from weft.plan import targets
from weft.plan.execute.lifetimes import lifetimes
from weft.plan.execute.region_text import RegionText
from weft.plan.execute.steps import CallStep, RegionStep

ROWS = 300
"""Rows of 64 numbers in 4 bytes are more than lie beside other small results."""


@pytest.fixture(autouse=True)
def _listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "TOOLCHAINS", [*targets.TOOLCHAINS, NumPy])


def read_once(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu((torch.relu(x.renorm(2, 0, 10.0)) + y).renorm(2, 1, 10.0) * 2) + 1


def returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    found = x.renorm(2, 0, 10.0)
    return torch.relu(found) + y, found


def returned_turned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    found = x.renorm(2, 0, 10.0)
    return torch.relu(found) + y, found.T


def read_later(x: Tensor, y: Tensor) -> Tensor:
    found = x.renorm(2, 0, 10.0)
    return (torch.relu(found) + y).renorm(2, 1, 10.0) + found.sort(-1).values


def read_turned(x: Tensor, y: Tensor) -> Tensor:
    found = x.renorm(2, 0, 10.0)
    return torch.relu(found) + found.flip(0) + found.roll(1, 1) + y


def an_argument(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x) + y


def of_a_view(x: Tensor, y: Tensor) -> Tensor:
    part = x.renorm(2, 0, 10.0)[:, ::2]
    return torch.relu(part) + y[:, ::2] + part.sort(-1).values


def given_back(x: Tensor, y: Tensor) -> Tensor:
    """Call what PyTorch composes, and what gives its argument back: `contiguous` of what is contiguous."""
    found = torch.special.expit(x).contiguous()
    return torch.relu(found.contiguous()) + y.type_as(found)


def lifted(x: Tensor, y: Tensor) -> Tensor:
    """Call what gives its argument back though its schema does not say so."""
    return torch.relu(torch.ops.aten.lift(x)) + y


def lifted_and_read_later(x: Tensor, y: Tensor) -> Tensor:
    found = x.renorm(2, 0, 10.0)
    again = torch.ops.aten.lift(found)
    return (torch.relu(again) + y).renorm(2, 1, 9.0) + found.renorm(2, 1, 5.0)


def lifted_and_returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    found = x.renorm(2, 0, 10.0)
    return torch.relu(torch.ops.aten.lift(found)) + y, found


def turned(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x.renorm(2, 0, 10.0).T) + y.T


def repeated(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x[:1].renorm(2, 0, 10.0)) + y


def summed(x: Tensor, y: Tensor) -> Tensor:
    found = x.renorm(2, 0, 10.0)
    return torch.softmax(found, -1) + y


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(read_once, returned, returned_turned, read_later, read_turned, an_argument, of_a_view, given_back, turned),
    *(repeated, summed, lifted, lifted_and_read_later, lifted_and_returned),
)


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_are_right_and_arguments_stay(function: Callable[..., Any], target: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, 64), torch.randn(ROWS, 64)
    program = weft.optimize(function, (x, y), target=target)
    for rows in (ROWS, 2 * ROWS):
        x, y = torch.randn(rows, 64), torch.randn(rows, 64)
        before, wanted = (x.clone(), y.clone()), function(x, y)
        for _ in range(2):
            torch.testing.assert_close(program(x, y), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close((x, y), before, rtol=0, atol=0)


def allocations(call: Callable[[], Any]) -> int:
    """Counts the tensors that kernels' results are allocated as."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        call()
    return sum(event.count for event in seen.key_averages() if event.key == "aten::empty_strided")


@pytest.mark.parametrize(
    ("function", "allocated"),
    [(read_once, 0), (read_later, 1), (returned, 1), (returned_turned, 1), (an_argument, 1), (read_turned, 2)],
)
def test_what_is_read_for_the_last_time_is_overwritten(function: Callable[..., Any], allocated: int) -> None:
    x, y = torch.randn(ROWS, 64), torch.randn(ROWS, 64)
    program = weft.optimize(function, (x, y))
    program(x, y)
    assert allocations(lambda: program(x, y)) == allocated


@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_a_result_keeps_no_more_memory_than_it_has(target: str) -> None:
    def last(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x.renorm(2, 0, 10.0)[-1:]) + y[:1]

    x, y = torch.randn(ROWS, 64), torch.randn(ROWS, 64)
    found: Any = weft.optimize(last, (x, y), target=target)(x, y)
    torch.testing.assert_close(found, last(x, y), rtol=1e-4, atol=1e-5)
    assert found.untyped_storage().nbytes() == found.nbytes


def test_a_convolutions_result_is_overwritten_as_it_lies() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(16, 16, 3, padding=1).bfloat16().eval() for _ in range(3)]

    def net(x: Tensor) -> Tensor:
        for layer in layers:
            x = F.relu(layer(x)) + x
        return x

    x = torch.randn(2, 16, 40, 40, dtype=torch.bfloat16)
    run: Any = torch.compile(net, backend="weft", options={"measure": "never"})
    with torch.no_grad():
        for given in (x, x.to(memory_format=torch.channels_last), torch.randn(3, 16, 24, 40, dtype=torch.bfloat16)):
            before = given.clone()
            for _ in range(2):
                torch.testing.assert_close(run(given), net(given), atol=0.1, rtol=0.05)
            assert torch.equal(given, before)
        stays = 1 + len(layers)  # the picture and the weights, turned
        assert allocations(lambda: run(x)) <= stays + 1


def test_gradients_are_not_asked_of_what_is_overwritten() -> None:
    w = torch.randn(64, 64, requires_grad=True)

    def fn(x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.relu((x @ w).renorm(2, 0, 10.0)) + 1

    run: Any = torch.compile(fn, backend="weft", options={"measure": "never"})
    x = torch.randn(ROWS, 64)
    found = run(x)
    torch.testing.assert_close(found, fn(x), rtol=1e-4, atol=1e-4)
    assert not found.requires_grad


def kernel(reads: tuple[str, ...], writes: tuple[str, ...], over: tuple[tuple[int, int], ...] = ()) -> Any:
    def launch() -> None: ...

    return SimpleNamespace(reads=reads, writes=writes, over=over, launch=launch, made=SimpleNamespace(launch=launch))


@pytest.mark.parametrize(
    ("target", "apart", "own"),
    [
        (torch.ops.aten.renorm.default, True, {"y"}),
        (torch.ops.aten.renorm.default, False, set()),
        (torch.ops.aten.conv2d.default, True, {"y"}),
        (torch.ops.aten.lift.default, True, set()),
        (torch.ops.aten.contiguous.default, True, set()),
    ],
)
def test_what_may_be_an_operand_is_not_the_runs_own(target: Any, apart: bool, own: set[str]) -> None:
    x, y, z = (Operand(name, (True,)) for name in ("x", "y", "z"))
    call = OpaqueCall("call", target, (x,), {}, (y,), apart=apart)
    reader = OpaqueCall("reader", torch.ops.aten.renorm.default, (y,), {}, (z,), apart=True)
    found = lifetimes(["z"], [CallStep(call, {}), CallStep(reader, {})])
    assert found.own == own
    assert found.last["y"] == 1


def test_what_a_later_kernel_of_the_region_reads_stays() -> None:
    """The values of a region's own kernels are overwritten too, once no other one of these reads them."""
    first, over = kernel(("x", "y"), ("a",), ((0, 0), (0, 1))), ((0, 0),)
    reads = (("x", "outer x"), ("y", "outer y"))
    cases = {
        ("a",): {0: "x"},  # nothing else reads x
        ("a", "x"): {0: "y"},
        ("x", "y"): {},
    }
    for later, found in cases.items():
        made = [first, kernel(later, ("b",), over)]
        region: Any = SimpleNamespace(kernels=made, program=SimpleNamespace(outputs=("b",)))
        step = RegionStep(region, reads, (("b", "outer b"),), {})
        read = lifetimes(["outer b"], [step])
        assert RegionText([], {}, cast("Any", None), frozenset(), read).overwritten(step, 0) == {}, "arguments stay"
        read.own.update(("outer x", "outer y"))
        text = RegionText([], {}, cast("Any", None), frozenset(), read)
        assert text.overwritten(step, 0) == found
        assert text.overwritten(step, 1) == {0: later[0]}
    given: Any = SimpleNamespace(kernels=[first], program=SimpleNamespace(outputs=("a", "x")))
    step = RegionStep(given, reads, (("a", "outer b"), ("x", "outer x")), {})
    read = lifetimes(["outer b"], [step])
    read.own.update(("outer x", "outer y"))
    assert RegionText([], {}, cast("Any", None), frozenset(), read).overwritten(step, 0) == {0: "y"}
