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
        kind = classes.get(name, typical(made.shape[-1]))
        if question.of_columns:
            busy = _to_some_length(made, kind.busy(idle)[0] if name in classes else 1.0)
        else:
            busy = in_blocks(made.shape, kind.busy(idle), kind.full(idle), made.device)
        if made.dtype is torch.bool:
            made.copy_(busy != idle)
        else:
            made.masked_fill_(~busy, idle)


def in_blocks(
    shape: Sequence[int], some: Sequence[float], every: Sequence[float], device: torch.device
) -> torch.Tensor:
    """Draws bools, such that about these shares of the blocks of `EDGES` have a True one; a dimension is taken for a row.

    Args:
        shape: of what is drawn.
        some, every: shares of blocks that have a True element, and that have no False one.
        device: where it lies.
    """
    rows, columns = (1, *shape)[-2:]
    matrices = math.prod(shape) // max(1, rows * columns)
    shares = [(busy, min(full, busy)) for busy, full in zip(some, every, strict=True)]
    edge, (busy_share, full_share) = EDGES[-1], shares[-1]
    first = torch.rand(matrices, -(-rows // edge), -(-columns // edge), device=device)
    # Of the largest blocks, which are few, as near to as many as can be.
    place = (first.flatten().argsort().argsort().view(first.shape) + 0.5) / first.numel()
    busy, full = place < busy_share, place < full_share
    for (before, edge), (share_before, share) in zip(
        pairwise(reversed(EDGES)), pairwise(reversed(shares)), strict=True
    ):
        size, times = (-(-rows // edge), -(-columns // edge)), before // edge
        # Of a block that is busy and not full, one of its own stays busy, and another one not full; others make up the shares.
        within = share_before[0] - share_before[1]
        kept, whole = (max(0.0, min(1.0, (each - share_before[1]) / within)) if within > 0 else 1.0 for each in share)
        more = max(0.0, kept * times**2 - 1) / max(1, times**2 - 1)
        one = _one_of_each(busy, times, size)
        open_ = _one_of_each(busy & ~full, times, size) & ~one
        inner = one | (torch.rand(matrices, *size, device=device) < more)
        inner_full = (torch.rand(matrices, *size, device=device) < whole / max(kept, 1e-9)) & ~open_
        if edge == EDGES[0]:  # an element that is True is a full block
            inner &= ~open_
        busy, full = _repeated(busy, times, size) & inner, _repeated(full, times, size)
        busy, full = busy | full, full | (busy & inner_full)
    return busy.reshape(tuple(shape))


def _repeated(blocks: torch.Tensor, times: int, size: tuple[int, int]) -> torch.Tensor:
    """Makes of each of the blocks [matrices, rows, columns] so many rows and columns of smaller ones, cut at the edges."""
    return blocks.repeat_interleave(times, -2).repeat_interleave(times, -1)[..., : size[0], : size[1]]


def _one_of_each(blocks: torch.Tensor, times: int, size: tuple[int, int]) -> torch.Tensor:
    """Chooses one smaller block of each of the blocks [matrices, rows, columns], anywhere in it."""
    at = list[torch.Tensor]()
    for dim, most in zip((1, 2), size, strict=True):
        within = (torch.rand(blocks.shape, device=blocks.device) * times).long()
        first = times * torch.arange(blocks.shape[dim], device=blocks.device)
        at.append((within + (first[:, None] if dim == 1 else first)).clamp(max=most - 1))
    chosen = torch.zeros(blocks.shape[0], *size, dtype=torch.bool, device=blocks.device)
    chosen[torch.arange(blocks.shape[0], device=blocks.device)[:, None, None], at[0], at[1]] = True
    return chosen


def _to_some_length(made: torch.Tensor, share: float) -> torch.Tensor:
    """Draws bools like `made`, of which so many in a row are True, as where sequences are padded."""
    busy = max(1, math.ceil(share * made.shape[-1]))  # with none nothing would be timed
    return (torch.arange(made.shape[-1], device=made.device) < busy).expand(made.shape)


def _put_documents(made: torch.Tensor) -> None:
    """Makes integers ascend in a few stretches, as numbers of documents do; leaves floats."""
    if not made.is_floating_point() and made.dtype is not torch.bool:
        length = made.shape[-1]
        made.copy_(torch.arange(length, device=made.device) * _DOCUMENTS // length)
