"""Tensors that a graph itself holds are inputs of its program; a number that nothing writes into is a literal."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from weft.capture import capture
from weft.tensor.program import Constant, Input, Opaque


def scaled(x):
    torch.tensor([])  # asked for its element type, as caches of keys are
    return torch.softmax(x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), -1) + 1


def test_a_constant_is_an_input(weft):
    captured = weft.compare(scaled, torch.randn(4, 6))
    assert not captured.calls
    assert [c.tolist() for c in captured.constants] == [[], [1, 2, 3, 4, 5, 6]]
    assert captured.arguments == (0, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_number_is_a_literal(weft, dtype):
    captured = weft.compare(lambda x: torch.where(x > 0, x, torch.tensor(1, dtype=dtype)), torch.randn(4, 6))
    assert not captured.constants
    assert any(isinstance(node, Constant) and node.value == 1 for node in captured.program.nodes)


def test_a_constant_is_new_at_each_call(weft):
    def function(x):
        total = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        total.add_(x[0])
        total[1] = 7
        return total * x, total

    torch.compiler.reset()
    compiled = torch.compile(function, backend=weft)
    x = torch.randn(4, 6)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), function(x), check_dtype=False)
    assert not weft.only.writes


def test_a_constant_that_is_returned_is_a_copy(weft):
    captured = weft.compare(lambda x: (torch.tensor([[1, 2], [3, 4]]), torch.exp(x)), torch.randn(4, 6))
    assert captured.program.outputs[0] not in {node.name for node in captured.program.inputs}


def held(function, buffer):
    """The graph of `function`, which holds `buffer`, on a matrix."""
    mode = torch._subclasses.FakeTensorMode()
    graph = fx.Graph()
    x, own = graph.placeholder("x"), graph.get_attr("own")
    x.meta["example_value"] = mode.from_tensor(torch.randn(4, 6))
    made = function(graph, x, own)
    graph.output(made).meta["example_value"] = ()
    return fx.GraphModule({"own": buffer}, graph)


def test_an_attribute_that_is_written_into_keeps_what_was_written(weft):
    def function(graph, x, own):
        graph.call_method("add_", (own, 1))
        return (graph.call_function(torch.mul, (x, own)), own)

    buffer, x = torch.zeros(6), torch.randn(4, 6)
    with torch.no_grad():
        run = weft(held(function, buffer), [x])
        for count in (1, 2):
            product, own = run(x)
            torch.testing.assert_close(product, x * count, check_dtype=False)
            assert own is buffer
            assert buffer.tolist() == [count] * 6
    assert weft.only.writes == ((1, 1),)


def test_an_attribute_that_shares_memory_with_an_argument(weft):
    def function(graph, x, own):
        graph.call_method("add_", (own, 1))
        return (graph.call_function(torch.mul, (x, own)),)

    x = torch.randn(4, 6)
    captured = capture(held(function, x[0]), [x])
    assert captured.program is None
    assert captured.refused is not None
    assert "shares memory" in captured.refused.reason


# Tensors without elements.


def beside(x):
    return torch.exp(x[..., 6:]).sum(-1) + torch.exp(x).sum(-1)


def no_columns(x):
    return x[:, 6:] @ x[:, 6:].T + torch.exp(x @ x.T)


def joined(x):
    return torch.cat([torch.exp(x), torch.tanh(x[..., 6:]), torch.tensor([])], -1) * 2


def written(x):
    y = torch.exp(x)
    y[4:] = 5
    y[:, 6:].add_(1)
    return y + 1


@pytest.mark.parametrize(
    ("function", "left"),
    [(beside, ["aten.exp", "aten.sum"]), (no_columns, ["aten.matmul"]), (joined, []), (written, [])],
)
def test_only_what_touches_no_elements_is_left(weft, function, left):
    captured = weft.compare(function, torch.randn(4, 6))
    assert [fallback.operation for fallback in captured.fallbacks] == left
    assert all(fallback.reason == "a tensor has no elements" for fallback in captured.fallbacks)
    kept = {type(node) for node in captured.program.nodes} - {Opaque, Input}
    assert kept


def test_an_argument_without_elements(weft):
    captured = weft.compare(lambda x, w: (x @ w, torch.exp(w)), torch.randn(0, 6), torch.randn(6, 3))
    assert [fallback.operation for fallback in captured.fallbacks] == ["aten.matmul"]


def test_a_size_that_is_one_or_nothing_at_some_lengths(weft):
    def function(x):
        return torch.exp(x[2:]).sum(0) + torch.relu(x[: x.shape[0] // 4]).sum(0)

    torch.compiler.reset()
    compiled = torch.compile(function, backend=weft, dynamic=True)
    with torch.no_grad():
        for rows in (5, 3, 2, 9):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(compiled(x), function(x), check_dtype=False)
    assert all(captured.refused is None for captured in weft.graphs)
