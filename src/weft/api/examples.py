"""The example functions, in plain PyTorch, with their sizes and random operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

Sizes: TypeAlias = tuple[int, ...]
"""What the lengths of an example mean, its `operands` say."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of normally distributed numbers: of this shape and deviation."""

    shape: tuple[int, ...]
    deviation: float = 1.0


@dataclass(frozen=True, slots=True)
class Example:
    """A function to compile.

    Attributes:
        title: its name, or as one would write it.
        make: the function, or a new module, for these sizes.
        operands: what it is called with.
        full: sizes to measure at.
        quick: sizes at which it is quickly seen to work.
        peers: what else computes the same in PyTorch, by name, to be measured beside it.
        formula: as one would write it, where the title does not say it.
    """

    title: str
    make: Callable[[Sizes], Callable[..., Any]]
    operands: Callable[[Sizes], tuple[Operand, ...]]
    full: Sizes = (512, 1024, 1024)
    quick: Sizes = (32, 64, 48)
    peers: Mapping[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    formula: str = ""

    def inputs(self, sizes: Sizes, dtype: torch.dtype, number: int) -> tuple[torch.Tensor, ...]:
        """The random operands with this number."""
        random = torch.Generator().manual_seed(number)
        made = ((torch.randn(o.shape, generator=random), o.deviation) for o in self.operands(sizes))
        return tuple((tensor * deviation).to(dtype) for tensor, deviation in made)


def relu_linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A product, a bias and a relu."""
    return torch.relu(x @ w + b)


def gated(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Two products of the same rows, one gating the other."""
    return functional.silu(x @ w) * (x @ v)


def sum_of_squares(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product of which only a sum along each row is wanted."""
    return ((x @ w) ** 2).sum(-1)


class TwoLayers(nn.Module):
    """A multi-layer perceptron: inner → columns → inner."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        _, inner, columns = sizes
        self.first = nn.Linear(inner, columns)
        self.second = nn.Linear(columns, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: rows × inner, as the result."""
        return self.second(torch.relu(self.first(x)))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Softmax attention, of matrices or of any number of heads."""
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def layernorm_matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Rows that are centred and scaled to variance 1, times a matrix."""
    return functional.layer_norm(x, (x.shape[-1],)) @ w


def rmsnorm_swiglu(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The feed-forward part of a Llama layer, with its normalisation."""
    h = functional.rms_norm(x, (x.shape[-1],))
    return (functional.silu(h @ w) * (h @ v)) @ u


# Operands. Sizes are rows, inner, columns, but for attention's: of each of its operands. Weights are such that products have
# variance 1 again.


def _weight(inner: int, columns: int) -> Operand:
    return Operand((inner, columns), inner**-0.5)


def _linear(sizes: Sizes) -> tuple[Operand, ...]:
    rows, inner, columns = sizes
    return Operand((rows, inner)), _weight(inner, columns), Operand((columns,))


def _one_product(sizes: Sizes) -> tuple[Operand, ...]:
    return _linear(sizes)[:2]


def _two_products(sizes: Sizes) -> tuple[Operand, ...]:
    rows, inner, columns = sizes
    return Operand((rows, inner)), _weight(inner, columns), _weight(inner, columns)


def _three_products(sizes: Sizes) -> tuple[Operand, ...]:
    _, inner, columns = sizes
    return *_two_products(sizes), _weight(columns, inner)


def _rows(sizes: Sizes) -> tuple[Operand, ...]:
    return _linear(sizes)[:1]


def _heads(sizes: Sizes) -> tuple[Operand, ...]:
    return (Operand(sizes),) * 3


EXAMPLES = (
    Example("relu(x @ w + b)", lambda _: relu_linear, _linear),
    Example("silu(x @ w) * (x @ v)", lambda _: gated, _two_products),
    Example("((x @ w) ** 2).sum(-1)", lambda _: sum_of_squares, _one_product),
    Example("two-layer MLP module", TwoLayers, _rows),
)
"""What `weft demo` compiles."""

ATTENTION = Example(
    "attention",
    lambda _: attention,
    _heads,
    (1, 8, 2048, 64),
    (1, 2, 256, 64),
    {"SDPA": functional.scaled_dot_product_attention},
    "softmax(q @ k.T / sqrt(d)) @ v",
)
LAYERNORM = Example(
    "LayerNorm + matmul", lambda _: layernorm_matmul, _one_product, formula="layer_norm(x, (x.shape[-1],)) @ w"
)
RMSNORM = Example(
    "RMSNorm + SwiGLU",
    lambda _: rmsnorm_swiglu,
    _three_products,
    (512, 512, 1408),
    formula="h = rms_norm(x, (x.shape[-1],)); (silu(h @ w) * (h @ v)) @ u",
)

SUITE = (*EXAMPLES, ATTENTION, LAYERNORM, RMSNORM)
"""What `weft bench` measures."""
