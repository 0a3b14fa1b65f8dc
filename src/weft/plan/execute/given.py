"""What is known of the tensors that a graph is called with: how they lie in memory, and what masks among them leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weft.capture import Captured, without_units
from weft.masks import Sparsity
from weft.plan.execute.regions import Regions
from weft.plan.execute.runner import kept_dims
from weft.plan.execute.writes import written_over
from weft.plan.targets.lying import Lying
from weft.tensor.program import TensorProgram


def begin(
    known: Regions,
    captured: Captured,
    program: TensorProgram,
    inputs: Mapping[str, torch.Tensor],
    masks: Mapping[str, Sparsity],
) -> None:
    """Tell what is known of the regions of a graph what it is called with: `inputs`, and the classes of those that are `masks`."""
    layouts = {name: _layout(t) for name, t in inputs.items()}
    constant = frozenset(space.name for space, number in captured.sizes.items() if not number.symbols)
    lying = {name: lies for name, t in inputs.items() if (lies := Lying.of(t)) is not None}
    known.begin(layouts, constant, written_over(captured, program), masks, lying)


def inputs_of(captured: Captured, program: TensorProgram, arguments: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of the program's inputs, as its values are held: without dimensions of size 1."""
    given = (*arguments, *captured.constants)
    return {
        node.name: without_units(given[index], kept_dims(node))
        for node, index in zip(program.inputs, captured.arguments, strict=True)
    }


def _layout(tensor: torch.Tensor) -> int | None:
    """Return the dimension of `tensor` that has stride 1: the last such; None where there is none."""
    if tensor.layout != torch.strided:
        return None
    return next((d for d in reversed(range(tensor.ndim)) if tensor.stride(d) == 1), None)
