"""Regions marked with `torch.compiler.nested_compile_region`: compiled as if they were written out, each kernel once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.capture import every_node
from weft.errors import LeftToPyTorchWarning

nested: Any = torch.compiler.nested_compile_region


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    @nested
    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Network(nn.Module):
    def __init__(self, layers: int, width: int = 16):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * 2


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


def counted(before):
    now = weft.stats()
    return {name: getattr(now, name) - getattr(before, name) for name in ("compiles", "fallbacks", "kernels", "failed")}


def test_equal_regions_share_their_kernels() -> None:
    model, x = Network(8).eval(), torch.randn(6, 16)
    with torch.no_grad():
        program = weft.optimize(model, x)
        torch.testing.assert_close(program(x), model(x))
    assert not program.fallbacks
    keys = [kernel.key for kernel in program.kernels]
    assert len(keys) >= 8
    assert len(set(keys)) <= 3  # those of the first layer, of the last, and of all between


@pytest.mark.parametrize("how", ["blocking", "background"])
def test_sizes_change(how) -> None:
    model, before = Network(2).eval(), weft.stats()
    with torch.no_grad():
        compiled = weft.compile(model, measure="never", compile=how)
        for length in (6, 9, 40, 1, 300):
            x = torch.randn(length, 16)
            for _ in range(2):
                torch.testing.assert_close(compiled(x), model(x))
                assert weft.ready(compiled, 300)
    found = counted(before)
    assert (found["fallbacks"], found["failed"]) == (0, 0)
    assert found["kernels"] > 0


def test_a_region_within_a_region_and_several_results() -> None:
    @nested
    def inner(x, n):
        return torch.softmax(x * n, -1), x.sum(-1)

    @nested
    def outer(x, n):
        soft, total = inner(x, n)
        return soft + inner(soft, n)[0], total

    def f(x, n):
        first, total = outer(x, n)
        second, _ = outer(first, n)
        return second, total

    for length, n in ((4, 2), (5, 3), (6, 4)):
        x = torch.randn(length, 8)
        for got, wanted in zip(weft.compile(f, measure="never")(x, n), f(x, n), strict=True):
            torch.testing.assert_close(got, wanted)
    assert not weft.optimize(f, (torch.randn(4, 8), 2)).fallbacks


def test_what_weft_cannot_record_in_a_region_is_left_alone_and_nothing_else() -> None:
    """A node of the graph has the name of that in the region which is PyTorch's: "cond"."""

    @nested
    def region(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).sigmoid()

    def f(x):
        cond = torch.relu(x)
        return region(cond * 2) + region(torch.tanh(cond))

    x = torch.randn(5, 5) / 4
    program = weft.optimize(f, x)
    torch.testing.assert_close(program(x), f(x))
    assert [str(fallback).partition(":")[0] for fallback in program.fallbacks] == ["cond", "cond"]
    assert program.kernels


def test_training_is_left_to_pytorch_with_a_reason() -> None:
    model, x = Network(2), torch.randn(6, 16)
    with pytest.warns(LeftToPyTorchWarning, match="gradients are asked for"):
        result = weft.compile(model)(x)
    result.sum().backward()
    found = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    model(x).sum().backward()
    for got, wanted in zip(found, [p.grad for p in model.parameters()], strict=True):
        torch.testing.assert_close(got, wanted)


def test_nodes_of_regions_are_among_those_of_the_graph() -> None:
    """Each region once, however often it is called."""
    found: list[str] = []

    def collect(gm, example):
        found.extend(getattr(node.target, "__name__", "") for node in every_node(gm))
        return gm.forward

    with torch.no_grad():
        torch.compile(Network(3), backend=collect)(torch.randn(4, 16))
    assert (found.count("invoke_subgraph"), found.count("gelu")) == (3, 1)


def test_functions_with_regions_are_compared() -> None:
    @nested
    def region(x, scale):
        return torch.relu(x * scale)

    x = torch.randn(4, 8)
    assert weft.equivalent(
        lambda x: region(region(x, 2.0), 3.0), lambda x: torch.relu(torch.relu(x * 2.0) * 3.0), x
    ).equal
    assert weft.equivalent(lambda x: region(region(x, 2.0), 3.0), lambda x: torch.relu(x) * 7.0, x).equal is False
