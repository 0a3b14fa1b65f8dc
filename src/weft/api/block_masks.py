"""Masks as FlexAttention has them, in lists of blocks, and as tensors of bools, as weft reads them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

from weft.errors import ArgumentError, named


@named("weft.block_mask")
def block_mask(mask: torch.Tensor, block_size: int = 128) -> Any:
    """Make of a mask the `BlockMask` that `flex_attention` takes: which blocks are empty, partial or full.

    The blocks are found where the mask lies, without waiting for it, so that this can be called at each decoding step.

    Args:
        mask: bools, True for what counts: [rows, columns], [batch, rows, columns] or [batch, heads, rows, columns]; a batch or
            head of size 1 is for all. It is read by the result, so it must not be written to meanwhile.
        block_size: rows and columns of a block.

    Returns:
        A `torch.nn.attention.flex_attention.BlockMask`.

    Raises:
        ArgumentError: `mask` is no tensor of bools with 2 to 4 dimensions and elements, or `block_size` is no number of at least 1.
    """
    _demand_size(block_size)
    if not _is_mask(mask):
        raise ArgumentError(
            f"{_said(mask)} has no blocks",
            todo="give a tensor of bools: [rows, columns], with batch and heads before, if any",
        )
    wide = _with_heads(mask)
    batch, heads, rows, columns = wide.shape
    # What lies beyond the edges does not count, so that blocks there are partial, as PyTorch has them.
    whole = pad(wide, (0, -columns % block_size, 0, -rows % block_size))
    some, full = _blocks(whole, block_size), ~_blocks(~whole, block_size)

    def kept(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return wide[b if batch > 1 else 0, h if heads > 1 else 0, i, j]

    lists = (*_listed(some & ~full), *_listed(full))
    return _flex().BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=block_size, mask_mod=kept, seq_lengths=(rows, columns))


def _demand_size(block_size: object) -> None:
    if not isinstance(block_size, int) or isinstance(block_size, bool) or block_size < 1:
        raise ArgumentError(
            f"{block_size!r} is no size of a block", todo="give one integer of at least 1, for rows and columns alike"
        )


def _is_mask(mask: object) -> bool:
    return isinstance(mask, torch.Tensor) and mask.dtype is torch.bool and 2 <= mask.dim() <= 4 and bool(mask.numel())


def _said(mask: object) -> str:
    if isinstance(mask, torch.Tensor):
        return f"a mask of {mask.dtype} with shape {tuple(mask.shape)}"
    return f"a mask that is a {type(mask).__name__}"


@named("weft.dense_mask")
def dense_mask(mask: Any) -> torch.Tensor:
    """Make of FlexAttention's `BlockMask` the mask that it means, built where its lists lie.

    So a function that is written with a `BlockMask` can be compiled: what `flex_attention(q, k, v, block_mask=mask)` computes is
    `scaled_dot_product_attention(q, k, v, attn_mask=dense_mask(mask))`, whose empty blocks are left out as well.

    Args:
        mask: a `torch.nn.attention.flex_attention.BlockMask`.

    Returns:
        Bools, [batch, heads, rows, columns], True for what counts: in full blocks all, in partial ones what `mask_mod` says. It
        takes a byte for each element.

    Raises:
        ArgumentError: `mask` is none.
    """
    flex = _flex()
    if not isinstance(mask, flex.BlockMask):
        raise ArgumentError(f"a {type(mask).__name__} is no BlockMask", todo="give what create_block_mask returns")
    known: Any = mask
    batch, heads, listed = known.kv_num_blocks.shape
    # Some rows of blocks of a mask, as `mask[:, :, blocks]` gives them, have the lengths of the whole.
    rows, columns = min(known.seq_lengths[0], listed * known.BLOCK_SIZE[0]), known.seq_lengths[1]
    said = flex.create_mask(known.mask_mod, batch, heads, rows, columns, device=known.kv_indices.device)
    found = _elements(known.kv_num_blocks, known.kv_indices, known.BLOCK_SIZE)[..., :rows, :columns] & said
    if known.full_kv_num_blocks is None:
        return found
    return found | _elements(known.full_kv_num_blocks, known.full_kv_indices, known.BLOCK_SIZE)[..., :rows, :columns]


def _flex() -> Any:
    from torch.nn.attention import flex_attention  # it imports a compiler

    return flex_attention


def _with_heads(mask: torch.Tensor) -> torch.Tensor:
    """View a mask as [batch, heads, rows, columns]."""
    return mask.unsqueeze(1) if mask.dim() == 3 else mask.view(*(1,) * (4 - mask.dim()), *mask.shape)


def _blocks(mask: torch.Tensor, size: int) -> torch.Tensor:
    """Tell of each block whether any element is True."""
    batch, heads, rows, columns = mask.shape
    return mask.reshape(batch, heads, rows // size, size, columns // size, size).any(-1).any(-2)


def _listed(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """List for each row of blocks how many are True, and their numbers, those first."""
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.to(torch.int32)


def _elements(counts: torch.Tensor, listed: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Spread listed blocks, so many in each row of blocks, over the elements of a matrix.

    `BlockMask.to_dense` gives the same blocks, and some of its operations stay PyTorch's calls where this is compiled.
    """
    count = listed.shape[-1]
    # What a list has no number for goes into a column more.
    last = torch.where(torch.arange(count, device=listed.device) < counts.unsqueeze(-1), listed, count).long()
    blocks = torch.zeros(*listed.shape[:-1], count + 1, dtype=torch.bool, device=listed.device)
    blocks = blocks.scatter(-1, last, value=True)[..., :count]
    return blocks.repeat_interleave(size[0], -2).repeat_interleave(size[1], -1)
