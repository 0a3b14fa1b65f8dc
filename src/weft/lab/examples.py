"""What an example is: a function in plain PyTorch, its sizes and random operands; and the functions of the demonstration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

Sizes: TypeAlias = tuple[int, ...]
"""What the lengths of an example mean, its `operands` say."""


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """A random tensor.

    Attributes:
        shape: its sizes.
        deviation: of its normally distributed numbers.
        about: their mean.
        below: where it is not 0, the tensor holds int64 indices from 0 to below this.
        kept: its element type where that is always the same one; int8 holds whole steps up to 127.
    """

    shape: tuple[int, ...]
    deviation: float = 1.0
    about: float = 0.0
    below: int = 0
    kept: torch.dtype | None = None

    def draw(self, random: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        """Draw one such tensor, on the device of `random`; indices are int64 whatever `dtype` is."""
        if self.below:
            return torch.randint(self.below, self.shape, generator=random, device=random.device)
        drawn = torch.randn(self.shape, generator=random, device=random.device) * self.deviation + self.about
        return (
            drawn.round().clamp(-127, 127).to(torch.int8) if self.kept is torch.int8 else drawn.to(self.kept or dtype)
        )


@dataclass(frozen=True, slots=True)
class ExampleFunction:
    """A function to compile.

    Attributes:
        title: its name, or as one would write it.
        make: the function, or a new module, for these sizes.
        operands: what it is called with.
        full: sizes to measure at.
        quick: sizes at which it is quickly seen to work.
        peers: what else computes the same in PyTorch, by name, to be measured beside it.
        formula: as one would write it, where the title does not say it.
        dtypes: of its floating operands, in which it is measured.
        gaps: for a function with index outputs, what `weft.judge` must know of near-ties at these operands.
    """

    title: str
    make: Callable[[Sizes], Callable[..., Any]]
    operands: Callable[[Sizes], tuple[OperandSpec, ...]]
    full: Sizes = (512, 1024, 1024)
    quick: Sizes = (32, 64, 48)
    peers: Mapping[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    formula: str = ""
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    gaps: Callable[..., object] | None = None

    def inputs(
        self, sizes: Sizes, dtype: torch.dtype, number: int, device: torch.device | str = "cpu"
    ) -> tuple[torch.Tensor, ...]:
        """Draw the random operands with this number on `device`; each device has its own."""
        random = torch.Generator(device).manual_seed(number)
        return tuple(operand.draw(random, dtype) for operand in self.operands(sizes))


def relu_linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute a matmul, a bias and a relu."""
    return torch.relu(x @ w + b)


def gated(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute two matmuls of the same rows, one gating the other."""
    return functional.silu(x @ w) * (x @ v)


def sum_of_squares(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Compute a matmul of which only a sum along each row is wanted."""
    return ((x @ w) ** 2).sum(-1)


class TwoLayers(nn.Module):
    """A multi-layer perceptron: inner → columns → inner."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        _, inner, columns = sizes
        self.first = nn.Linear(inner, columns)
        self.second = nn.Linear(columns, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply both layers to x: rows × inner, as the result."""
        return self.second(torch.relu(self.first(x)))


# Operands. Sizes are rows, inner, columns.


def weight(inner: int, columns: int) -> OperandSpec:
    """Describe a matrix such that its matmuls with rows of variance 1 have variance 1 again."""
    return OperandSpec((inner, columns), inner**-0.5)


def _linear(sizes: Sizes) -> tuple[OperandSpec, ...]:
    rows, inner, columns = sizes
    return OperandSpec((rows, inner)), weight(inner, columns), OperandSpec((columns,))


def one_matmul(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describe rows, and a matrix."""
    return _linear(sizes)[:2]


def two_matmuls(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describe rows, and two matrices."""
    rows, inner, columns = sizes
    return OperandSpec((rows, inner)), weight(inner, columns), weight(inner, columns)


def _rows(sizes: Sizes) -> tuple[OperandSpec, ...]:
    return _linear(sizes)[:1]


EXAMPLES = (
    ExampleFunction("relu(x @ w + b)", lambda _: relu_linear, _linear),
    ExampleFunction("silu(x @ w) * (x @ v)", lambda _: gated, two_matmuls),
    ExampleFunction("((x @ w) ** 2).sum(-1)", lambda _: sum_of_squares, one_matmul),
    ExampleFunction("two-layer MLP module", TwoLayers, _rows),
)
"""What `weft demo` compiles."""
