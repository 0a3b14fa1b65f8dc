"""Masks as they are drawn for candidates that are timed: some of their blocks are empty, as many as is expected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import torch

from weft.block.program import BlockProgram
from weft.masks import EDGES, Question, Sparsity, questions, typical

_DOCUMENTS = 8
"""Stretches of equal numbers in integers that a mask is made of."""


def as_masks(
    inputs: Mapping[str, torch.Tensor], programs: Iterable[BlockProgram], classes: Mapping[str, Sparsity]
) -> None:
    """Exchanges elements of those of `inputs`, by name, that say whether iterations of loops of `programs` have anything to do.

    Random elements leave no block empty: loops that leave empty blocks out would never be found to be the faster ones.

    Args:
        inputs: random tensors, which are written to; others, as those that say where to read, are left as they are.
        programs: with places.
        classes: of inputs, by name; others are taken to be what is typical.
    """
    asked: dict[str, tuple[Question, float | bool | None]] = {}
    for program in programs:
        for question in questions(program):
            asked |= {name: (question, idle) for name, idle in question.inputs.items() if name in inputs}
    for name, (question, idle) in asked.items():
        made = inputs[name]
        if not made.numel() or not made.dim():
            continue
        if idle is None:
            _put_documents(made)
            continue
        length = made.shape[-1]
        shares = classes.get(name, typical(length)).of(idle)
        if question.of_columns:
            busy = _to_some_length(made, 2.0 ** (-shares[0] / 2) if name in classes else 1.0)
        else:
            busy = in_blocks(made.shape, [2.0 ** (-n / 2) for n in shares], made.device)
        if made.dtype is torch.bool:
            made.copy_(busy != idle)
        else:
            made.masked_fill_(~busy, idle)


def in_blocks(shape: Sequence[int], shares: Sequence[float], device: torch.device) -> torch.Tensor:
    """Draws bools, such that about these `shares` of the blocks of `EDGES` have a True one; a dimension is taken for a row."""
    *around, rows, columns = (1, *shape) if len(shape) == 1 else shape
    edge = EDGES[-1]
    busy = torch.rand(*around, -(-rows // edge), -(-columns // edge), device=device) < shares[-1]
    for (before, edge), (share_before, share) in zip(
        pairwise(reversed(EDGES)), pairwise(reversed(shares)), strict=True
    ):
        times = before // edge
        busy = busy.repeat_interleave(times, -2).repeat_interleave(times, -1)[
            ..., : -(-rows // edge), : -(-columns // edge)
        ]
        # One of each busy block's own stays busy, so that it is one; others make up the rest of the share.
        rest = max(0.0, share / max(share_before, share) * times**2 - 1) / max(1, times**2 - 1)
        kept = torch.rand(busy.shape, device=device) < rest
        kept[..., ::times, ::times] = True
        busy = busy & kept
    return busy.reshape(tuple(shape))


def _to_some_length(made: torch.Tensor, share: float) -> torch.Tensor:
    """Draws bools like `made`, of which so many in a row are True, as where sequences are padded."""
    return (torch.arange(made.shape[-1], device=made.device) < math.ceil(share * made.shape[-1])).expand(made.shape)


def _put_documents(made: torch.Tensor) -> None:
    """Makes integers ascend in a few stretches, as numbers of documents do; leaves floats."""
    if not made.is_floating_point() and made.dtype is not torch.bool:
        length = made.shape[-1]
        made.copy_(torch.arange(length, device=made.device) * _DOCUMENTS // length)
