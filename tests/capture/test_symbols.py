"""Recording asks no symbolic size for its number: a graph that PyTorch makes once for all lengths stays one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from weft.capture import capture

f: Any = torch.nn.functional
untyped: Any = torch
dynamo: Any = torch._dynamo
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "products of four dimensions": lambda x: x @ x.mT,
    "attention": lambda x: f.scaled_dot_product_attention(x, x, x),
    "attention whose query is one row": lambda x: f.scaled_dot_product_attention(x[..., -1:, :], x, x),
    "attention after a cache": lambda x: f.scaled_dot_product_attention(x, *(2 * (torch.cat((x, x), -2),))),
    "causal attention": lambda x: f.scaled_dot_product_attention(x, x, x, is_causal=True),
    "einsum": lambda x: torch.einsum("bhid,bhjd->bhij", x, x),
    "tensordot": lambda x: untyped.tensordot(x, x, dims=([1, 3], [1, 3])),
    "linear": lambda x: f.linear(x, x[0, 0]),
    "layer_norm over a symbol": lambda x: f.layer_norm(x, x.shape[-2:]),
    "group_norm": lambda x: f.group_norm(x, 2),
    "softmax": lambda x: torch.softmax(x.flatten(1, 2), -1),
    "interpolate": lambda x: f.interpolate(x, size=(x.shape[-2] * 2, 7), mode="bilinear"),
    "pad": lambda x: f.pad(x, (1, 2, x.shape[-2], 0)),
    "convolution": lambda x: f.conv2d(x, x[:, :, :3, :3]),
    "pooling": lambda x: f.avg_pool2d(x, 2) + f.max_pool2d(x, 2),
    "split": lambda x: torch.split(x, [1, x.shape[-2] - 1], dim=-2),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 2),
    "tril": lambda x: (x @ x.mT).tril(-1),
    "cosine": lambda x: f.cosine_similarity(x.unsqueeze(-2), x.unsqueeze(-3), dim=-1),
    "unfold": lambda x: x.unfold(-2, 3, 2),
    "roll, flip and sort": lambda x: x.roll(2, -2).flip(-2).sort(-2).values,
}


def graphs(function: Any, sees: Callable[[torch.fx.GraphModule, list[Any]], object]) -> int:
    """Counts the graphs that Dynamo makes of `function` for three lengths, where `sees` looks at each."""
    made = 0

    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        nonlocal made
        made += 1
        sees(gm, examples)
        return gm.forward

    torch.compiler.reset()
    compiled: Any = torch.compile(function, backend=backend, dynamic=False)
    with torch.no_grad():
        for length in (6, 9, 14):
            x = torch.randn(2, 4, length, 8)
            dynamo.mark_dynamic(x, 2)
            compiled(x)
    return made


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_as_many_graphs_as_pytorch_makes(name: str) -> None:
    assert graphs(FUNCTIONS[name], capture) == graphs(FUNCTIONS[name], lambda *_: None)


def test_a_size_that_guards_say_is_one_is_one() -> None:
    """Steps of a scan halve what is left, until PyTorch stacks it with something of size 1, and keeps a guard."""
    left = list[str]()

    def pairs(x: torch.Tensor) -> torch.Tensor:
        return x[:-1:2] * x[1::2]

    def function(x: torch.Tensor) -> torch.Tensor:
        halves = pairs(torch.tanh(x))
        return torch.stack([halves[:1], pairs(halves)], 1)

    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        left.extend(str(each) for each in capture(gm, examples).fallbacks)
        return gm.forward

    torch.compiler.reset()
    compiled: Any = torch.compile(function, backend=backend)
    with torch.no_grad():
        for length in (4, 5):
            compiled(torch.randn(length, 3))
    assert not left
