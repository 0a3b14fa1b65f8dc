"""Calls at which a loop has nothing to add up: kernels are not valid for these, so the program runs as written.

They move factors and divisors behind sums, so that (sum over n of p[n] / l) becomes (sum over n of p[n]) / l. Where n runs over
nothing, the first is 0, and the second what 0 / l is: NaN, where l is a sum over n too. Sizes become 0 at any call, since a
program holds for all sizes; the kernel is not launched then, and the region is computed as it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from weft.tensor.axes import Space
from weft.tensor.program import Contraction, Elementwise, Reduction, TensorProgram

if TYPE_CHECKING:
    from weft.tensor.domain import Array


def added_up(program: TensorProgram) -> tuple[Space, ...]:
    """Lists the spaces that `program` adds up over and that may be empty at a call; none where nothing else is computed."""
    if not any(isinstance(node, Elementwise) for node in program.nodes):
        return ()
    sums = (node for node in program.nodes if isinstance(node, Reduction | Contraction))
    found = (axis.space for node in sums for axis in node.over)
    return tuple(dict.fromkeys(space for space in found if space.fixed is None))


def as_written(
    program: TensorProgram, values: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> tuple[torch.Tensor, ...]:
    """Computes the outputs of `program` node by node, in fp64 on the CPU.

    Args:
        program: of a region.
        values: a tensor for each of its inputs, by name.
        sizes: of spaces that no input shows, by name.
    """
    from weft.tensor import Fp64Domain, evaluate

    device = next((t.device for t in values.values()), torch.device("cpu"))
    arrays = {name: _array(tensor) for name, tensor in values.items()}
    results = evaluate(program, arrays, Fp64Domain(), sizes=sizes)
    shown = {a.space.name: n for i in program.inputs for a, n in zip(i.axes, values[i.name].shape, strict=True)}
    known = program.sizes({**sizes, **shown})
    found: list[torch.Tensor] = []
    for name, result in zip(program.outputs, results, strict=True):
        node = program.values()[name]
        whole = np.broadcast_to(result, [axis.space.size(known) for axis in node.axes])
        found.append(torch.tensor(whole, dtype=getattr(torch, node.dtype.name), device=device))
    return tuple(found)


def _array(tensor: torch.Tensor) -> Array:
    """Returns the elements of `tensor` as the evaluator carries them."""
    plain = tensor.detach().cpu()
    if plain.dtype is torch.bool:
        return plain.numpy()
    return plain.to(torch.float64 if plain.dtype.is_floating_point else torch.int64).numpy()
