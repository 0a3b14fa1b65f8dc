"""CUDA graphs: those that a user captures a compiled function in, and those that mode="reduce-overhead" replays."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch

import weft
from weft.plan.measure import graphed

BF16 = torch.bfloat16


def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w + b)


def chain(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Kernels of weft's and calls into PyTorch, in turn."""
    for _ in range(4):
        x = torch.sort(torch.tanh(x @ w + b), -1).values * 0.01
    return torch.softmax(x, -1)


def operands(rows: int = 64) -> tuple[torch.Tensor, ...]:
    shapes = (rows, 128), (128, 128), (128,)
    return tuple(torch.randn(shape, device="cuda").mul(0.3).to(BF16) for shape in shapes)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


@pytest.fixture(autouse=True)
def _inference() -> Generator[None]:
    with torch.no_grad():
        yield


def captured(call: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


@pytest.mark.parametrize("function", [layer, chain])
@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}], ids=["default", "reduce-overhead"])
def test_a_users_graph_of_a_compiled_function(function: Callable[..., torch.Tensor], options: dict[str, Any]) -> None:
    fast, given = weft.compile(function, **options), operands()
    graph, result = captured(lambda: fast(*given))
    for _ in range(3):
        new = operands()
        for old, each in zip(given, new, strict=True):
            old.copy_(each)
        graph.replay()
        close(result, function(*new))


by_name = pytest.mark.skipif(
    "weft" not in torch._dynamo.list_backends(),
    reason="torch.compile knows weft by name once it is installed: pip install -e .",
)


@by_name
def test_a_users_graph_of_a_torch_compiled_function() -> None:
    fast, given = torch.compile(chain, backend="weft"), operands()
    graph, result = captured(lambda: fast(*given))
    given[0].mul_(-1)
    graph.replay()
    close(result, chain(*given))


def test_a_class_of_calls_that_is_met_while_a_graph_is_captured() -> None:
    fast, given = weft.compile(layer), operands()
    for rows in (64, 96, 128):  # from the second one on, for all sizes
        fast(*operands(rows))
    x = operands(33)[0]  # no multiple of 16: another binary
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fast(x, *given[1:])
    x.copy_(operands(33)[0])
    graph.replay()
    close(result, layer(x, *given[1:]))


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each capture."""
    made: list[int] = []
    capture = graphed._capture

    def noted(*arguments: Any) -> Any:
        found = capture(*arguments)
        made.append(1)
        return found

    monkeypatch.setattr(graphed, "_capture", noted)
    return made


WAYS: dict[str, Callable[..., Any]] = {
    "weft.compile": lambda f: weft.compile(f, mode="reduce-overhead"),
    "torch.compile": lambda f: torch.compile(f, backend="weft", mode="reduce-overhead"),
}


@pytest.mark.parametrize("function", [layer, chain])
@pytest.mark.parametrize("way", ["weft.compile", pytest.param("torch.compile", marks=by_name)])
def test_reduced_overhead_is_right_and_leaves_results_alone(
    function: Callable[..., torch.Tensor], way: str, captures: list[int]
) -> None:
    fast = WAYS[way](function)
    given = [operands() for _ in range(6)]
    found = [fast(*each) for each in given]
    assert captures, "nothing was captured"
    assert len(captures) <= 3
    for each, result in zip(given, found, strict=True):
        close(result, function(*each))


def test_reduced_overhead_with_sizes_that_change(captures: list[int]) -> None:
    fast = weft.compile(chain, mode="reduce-overhead")
    for _ in range(3):
        for rows in (64, 33, 96, 128):
            given = operands(rows)
            close(fast(*given), chain(*given))
    assert captures


def test_reduced_overhead_reads_weights_where_they_are(captures: list[int]) -> None:
    first = torch.nn.Linear(128, 64)
    model = torch.nn.Sequential(first, torch.nn.GELU(), torch.nn.Linear(64, 32)).cuda().to(BF16)
    fast = weft.compile(model, mode="reduce-overhead")
    for number in range(6):
        x = operands()[0]
        close(fast(x), model(x))
        if number == 3:
            first.weight.mul_(0.5)
    assert 1 <= len(captures) <= 2


def test_reduced_overhead_on_two_streams(captures: list[int]) -> None:
    fast = weft.compile(chain, mode="reduce-overhead")
    given = [operands() for _ in range(8)]
    wanted = [chain(*each) for each in given]
    for each in given[:3]:
        fast(*each)
    torch.cuda.synchronize()
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    found = []
    for number, each in enumerate(given):
        with torch.cuda.stream(streams[number % 2]):
            found.append(fast(*each))
    torch.cuda.synchronize()
    assert captures
    for one, other in zip(found, wanted, strict=True):
        close(one, other)


def test_reduced_overhead_of_an_optimized_program(captures: list[int]) -> None:
    given = operands()
    program = weft.optimize(chain, given, mode="reduce-overhead")
    for _ in range(4):
        given = operands()
        close(program(*given), chain(*given))
    assert captures


def microseconds(call: Callable[..., Any], given: tuple[torch.Tensor, ...], count: int = 200) -> float:
    """Measures the host's microseconds for a call."""
    for _ in range(5):
        call(*given)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call(*given)
    taken = time.perf_counter() - begin
    torch.cuda.synchronize()
    return taken / count * 1e6


def test_reduced_overhead_takes_the_host_less_time() -> None:
    given = operands(16)
    plain = weft.compile(chain)
    fast = weft.compile(chain, mode="reduce-overhead")
    takes = [min(microseconds(call, given) for _ in range(3)) for call in (plain, fast)]
    print(f"host: {takes[0]:.1f} us a call, {takes[1]:.1f} us with mode='reduce-overhead'")
    assert takes[1] < takes[0]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU here; run on a machine with two or more")
def test_reduced_overhead_on_two_devices(captures: list[int]) -> None:
    fast = weft.compile(chain, mode="reduce-overhead")
    for _ in range(4):
        for device in ("cuda:0", "cuda:1"):
            given = tuple(t.to(device) for t in operands())
            found = fast(*given)
            assert found.device == torch.device(device)
            close(found, chain(*given))
    assert len(captures) >= 2
