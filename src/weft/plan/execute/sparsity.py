"""The classes of masks among example arguments, where their elements are at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import pad

from weft.masks import EDGES, Sparsity, classed

# Elements that are looked at: of more, the first matrices.
_MOST_ELEMENTS = 1 << 24


def classes_of(inputs: Mapping[str, torch.Tensor]) -> dict[str, Sparsity]:
    """Finds the classes of those of `inputs` that are tensors of bools with elements, by name; the host waits for each."""
    return {
        name: class_of(each)
        for name, each in inputs.items()
        if each.dtype is torch.bool
        and each.dim()
        and each.numel()
        and not isinstance(each, FakeTensor)
        and not each.is_meta
    }


def class_of(mask: torch.Tensor) -> Sparsity:
    """Finds the class of a tensor of bools that has elements; of one with one dimension, as of a matrix with one row."""
    rows, columns = (1, *mask.shape)[-2:]
    matrices = mask.reshape(-1, rows, columns)[: max(1, _MOST_ELEMENTS // (rows * columns))]
    both = torch.stack([_shares(matrices), _shares(~matrices)])
    every: Any = torch.cat([both, 1 - both.flip(0)])
    return Sparsity(*(tuple(map(classed, each)) for each in every.tolist()))


def _shares(matrices: torch.Tensor) -> torch.Tensor:
    """Computes which share of the blocks of `EDGES` has a True element."""
    found, before, blocks = list[torch.Tensor](), 1, matrices
    for edge in EDGES:
        times = edge // before
        rows, columns = (-(-n // times) for n in blocks.shape[-2:])
        whole = pad(blocks, (0, columns * times - blocks.shape[-1], 0, rows * times - blocks.shape[-2]))
        blocks, before = whole.view(-1, rows, times, columns, times).any(-1).any(2), edge
        found.append(blocks.float().mean())
    return torch.stack(found)
