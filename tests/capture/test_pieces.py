"""Calls that PyTorch runs as they stand: what they may write into is new for what comes after them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton  # pyright: ignore[reportMissingTypeStubs]
import triton.language as tl  # pyright: ignore[reportMissingTypeStubs]
from torch import fx
from torch._higher_order_ops import triton_kernel_wrap
from torch._subclasses.fake_tensor import FakeTensorMode

import weft
from weft.api.backend import backend
from weft.capture import Effect, capture

wrap: Any = triton_kernel_wrap


@triton.jit
def raise_by(x, y, n, size: tl.constexpr):
    i = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(x + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


def with_a_kernel(*, of_an_input: bool) -> fx.GraphModule:
    """exp(x) or x, to which a Triton kernel of the user's adds something in place; then twice that, and that."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = FakeTensorMode().from_tensor(torch.randn(4, 16))
    target = x if of_an_input else graph.call_function(torch.exp, (x,))
    given = {"x": target, "y": graph.call_function(torch.mul, (x, 2.0))}
    kernel = wrap.kernel_side_table.add_kernel(raise_by)
    numbers = wrap.kernel_side_table.add_constant_args({"n": 64, "size": 64})
    asked = {"kernel_idx": kernel, "constant_args_idx": numbers, "grid": [(1, 1, 1)], "tma_descriptor_metadata": {}}
    graph.call_function(wrap.triton_kernel_wrapper_mutation, kwargs={**asked, "kwargs": given})
    graph.output((graph.call_function(torch.mul, (target, 2.0)),))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("of_an_input", [False, True])
def test_what_a_users_triton_kernel_stores_is_read_after_it(of_an_input, monkeypatch):
    """Without a GPU PyTorch cannot say which of its arguments the kernel stores to: here it says so by hand."""
    monkeypatch.setattr(wrap, "get_mutated_tensors", lambda *_: ["x"])
    with torch.no_grad():
        captured = capture(with_a_kernel(of_an_input=of_an_input), [torch.randn(4, 16)])
    (call,) = captured.calls.values()
    assert isinstance(call.target, Effect)
    (written,) = (result.value for result in call.results if result is not None)
    assert captured.program is not None
    (doubled,) = (node for node in captured.program.nodes if node.name == captured.program.outputs[0])
    assert [use.value for use in getattr(doubled, "args", ())] == [written]
    assert len(captured.writes) == int(of_an_input)


def test_kernels_are_made_beside_a_call_that_writes_into_an_argument(monkeypatch):
    """Asks what PyTorch takes for a call that is no operation, and has no schema."""
    monkeypatch.setattr(wrap, "get_mutated_tensors", lambda *_: ["x"])
    before = weft.stats().kernels
    with torch.no_grad():
        backend(with_a_kernel(of_an_input=True), [torch.randn(4, 16)])
    assert weft.stats().kernels > before
