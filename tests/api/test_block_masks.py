"""FlexAttention's block masks from masks and back, masks that documents make, and masks that change at each step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import weft
from weft.errors import ArgumentError

Tensor = torch.Tensor
SHAPES = ((300, 517), (1, 1), (64, 128), (3, 129, 40), (2, 3, 70, 200), (2, 1, 64, 64), (1, 4, 33, 65))


def mask_of(shape: tuple[int, ...]) -> Tensor:
    """Whole blocks that are empty or full, and elements at random in others."""
    torch.manual_seed(0)
    cells = torch.randint(0, 3, (*shape[:-2], -(-shape[-2] // 16), -(-shape[-1] // 16)))
    wide = cells.repeat_interleave(16, -2).repeat_interleave(16, -1)[..., : shape[-2], : shape[-1]]
    return torch.where(wide == 2, torch.rand(shape) < 0.5, wide == 1)


@pytest.mark.parametrize("size", [16, 128])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_block_mask_has_the_blocks_that_pytorch_finds(shape: tuple[int, ...], size: int) -> None:
    mask = mask_of(shape)
    wide = mask.unsqueeze(1) if mask.dim() == 3 else mask.view(*(1,) * (4 - mask.dim()), *shape)
    batch, heads, rows, columns = wide.shape
    made: Any = weft.block_mask(mask, size)

    def kept(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return wide[b, h, i, j]

    known: Any = create_block_mask(kept, batch, heads, rows, columns, device="cpu", BLOCK_SIZE=size)
    assert torch.equal(made.to_dense(), known.to_dense())
    assert torch.equal(made.kv_num_blocks, known.kv_num_blocks)
    assert torch.equal(made.full_kv_num_blocks, known.full_kv_num_blocks)
    assert torch.equal(weft.dense_mask(made), wide)
    assert torch.equal(weft.dense_mask(known), wide)


@pytest.mark.parametrize("size", [(32, 64), (128, 16), 24, 100])
@pytest.mark.parametrize(("batch", "heads"), [(None, None), (2, None), (None, 3), (2, 3)])
def test_a_mask_is_handed_over_whatever_its_blocks_and_batches_are(
    batch: int | None, heads: int | None, size: int | tuple[int, int]
) -> None:
    torch.manual_seed(0)
    wide = mask_of((2, 3, 130, 217))
    wide[..., 0] = True

    def kept(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return wide[b if batch else 0, h if heads else 0, i, j]

    known: Any = create_block_mask(kept, batch, heads, 130, 217, device="cpu", BLOCK_SIZE=size)
    mask = weft.dense_mask(known)
    assert torch.equal(mask, wide[: batch or 1, : heads or 1])
    q, k, v = torch.randn(2, 3, 130, 16), torch.randn(2, 3, 217, 16), torch.randn(2, 3, 217, 16)
    exact = masked(q.double(), k.double(), v.double(), mask)
    assert weft.judge(weft.optimize(masked, (q, k, v, mask))(q, k, v, mask), masked(q, k, v, mask), exact).ok


def test_what_lies_in_no_listed_block_does_not_count_whatever_the_function_says() -> None:
    known = create_block_mask(lambda b, h, i, j: i >= j, None, None, 64, 64, device="cpu", BLOCK_SIZE=16)
    every: Any = BlockMask.from_kv_blocks(
        known.kv_num_blocks, known.kv_indices, BLOCK_SIZE=16, mask_mod=lambda b, h, i, j: i == i, seq_lengths=(64, 64)
    )
    i, j = torch.arange(64)[:, None] // 16, torch.arange(64) // 16
    assert torch.equal(weft.dense_mask(every)[0, 0], i == j), "full blocks are not among those that are listed"


@pytest.mark.parametrize(
    ("index", "first", "rows"),
    [
        ((slice(None), slice(None), torch.tensor([3])), 96, 32),
        ((slice(None), slice(None), slice(2, 5)), 64, 96),
        ((slice(None), slice(1, 2)), 0, 130),
        ((1,), 0, 130),
    ],
)
def test_a_part_of_a_block_mask_has_its_rows(index: tuple[Any, ...], first: int, rows: int) -> None:
    """Takes some rows of blocks, as decoding does, with a function that counts from the first of them."""

    def kept(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i >= j) & (i - j < 100)

    part: Any = create_block_mask(kept, 2, 3, 130, 217, device="cpu", BLOCK_SIZE=32)[index]
    with pytest.raises(RuntimeError, match="sliced BlockMask"):
        weft.dense_mask(part)
    part.mask_mod = lambda b, h, i, j: kept(b, h, i + first, j)
    i, j = torch.arange(first, first + rows)[:, None], torch.arange(217)
    whole = (i >= j) & (i - j < 100)
    assert torch.equal(weft.dense_mask(part), whole.expand(*part.kv_num_blocks.shape[:2], *whole.shape))
    part.seq_lengths = (1, 217)
    assert torch.equal(weft.dense_mask(part)[0, 0], whole[:1])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_the_same_with_it() -> None:
    q, k, v = torch.randn(2, 2, 70, 16), torch.randn(2, 2, 200, 16), torch.randn(2, 2, 200, 16)
    mask = mask_of((2, 1, 70, 200))
    mask[..., 0] = True
    program = weft.optimize(scaled_dot_product_attention, (q, k, v, mask))
    found: Any = flex_attention(q, k, v, block_mask=weft.block_mask(mask, 16))
    torch.testing.assert_close(found, program(q, k, v, mask))


@pytest.mark.parametrize(
    "wrong", [torch.ones(4, 4), torch.ones(4, dtype=torch.bool), torch.ones(0, 4, dtype=torch.bool)]
)
def test_what_is_no_mask_has_no_blocks(wrong: Tensor) -> None:
    with pytest.raises(ArgumentError, match="has no blocks"):
        weft.block_mask(wrong)
    with pytest.raises(ArgumentError, match="is no BlockMask"):
        weft.dense_mask(wrong)


def test_what_is_no_tensor_or_no_number_is_said_to_be_none() -> None:
    block_mask: Any = weft.block_mask
    for other in ([[True]], None):
        with pytest.raises(ArgumentError, match="has no blocks"):
            block_mask(other)
    with pytest.raises(ArgumentError, match="is no size of a block"):
        block_mask(torch.ones(8, 8, dtype=torch.bool), (4, 4))


def test_blocks_have_elements() -> None:
    with pytest.raises(ArgumentError, match="0 is no size of a block"):
        weft.block_mask(torch.ones(4, 4, dtype=torch.bool), 0)


# Documents, by their numbers and by the sums of their lengths.


def by_number(q: Tensor, k: Tensor, v: Tensor, document: Tensor) -> Tensor:
    scores = q @ k.mT * 0.25
    return torch.softmax(scores.masked_fill(document[:, None] != document, -math.inf), -1) @ v


def by_length(q: Tensor, k: Tensor, v: Tensor, ends: Tensor) -> Tensor:
    document = (torch.arange(q.shape[-2])[:, None] >= ends).sum(-1)
    return by_number(q, k, v, document)


@pytest.mark.parametrize("lengths", [(300,), (1, 299), (100, 150, 50), (64, 64, 64, 64, 44)])
def test_documents_are_told_by_numbers_and_by_sums_of_lengths(lengths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 300, 16) for _ in range(3))
    ends = torch.tensor(lengths).cumsum(0)
    document = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    for f, last in ((by_number, document), (by_length, ends)):
        program = weft.optimize(f, (q, k, v, last))
        exact = by_number(q.double(), k.double(), v.double(), document)
        assert weft.judge(program(q, k, v, last), f(q, k, v, last), exact).ok
        assert not program.fallbacks


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT * 0.25).masked_fill(~mask, -math.inf), -1) @ v


def test_a_mask_that_changes_at_each_step_compiles_nothing() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(4, 1, 16), torch.randn(4, 96, 16), torch.randn(4, 96, 16)
    compiled: Any = weft.compile(masked)
    mask = torch.zeros(1, 96, dtype=torch.bool)
    mask[:, :8] = True
    compiled(q, k, v, mask)
    before = weft.stats()
    for step in range(8, 96, 8):
        mask = mask.clone()
        mask[:, step] = True
        mask[:, step - 8] = False
        exact = masked(q.double(), k.double(), v.double(), mask)
        assert weft.judge(compiled(q, k, v, mask), masked(q, k, v, mask), exact).ok
    after = weft.stats()
    assert (after.binaries_emitted, after.compiles, after.cache_hits) == (
        before.binaries_emitted,
        before.compiles,
        before.cache_hits,
    )


class Held(torch.nn.Module):
    """Attention with a mask that the module holds."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return masked(q, k, v, self.get_buffer("mask"))


def test_a_mask_that_a_module_holds_may_change_in_place_and_be_replaced() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 60, 16) for _ in range(3))
    module = Held(torch.rand(60, 60) < 0.3)
    compiled: Any = weft.compile(module)
    compiled(q, k, v)
    before = weft.stats()
    for change in (
        lambda: module.get_buffer("mask").logical_not_(),
        lambda: module.get_buffer("mask").data[:, :30].fill_(value=True),
        lambda: module.register_buffer("mask", torch.rand(60, 60) < 0.9),
        lambda: module.get_buffer("mask")[::3].fill_(value=False),  # rows without a key are NaN
    ):
        change()
        found, eager = compiled(q, k, v), module(q, k, v)
        assert torch.equal(found.isnan(), eager.isnan())
        exact = masked(q.double(), k.double(), v.double(), module.get_buffer("mask"))
        assert weft.judge(*(torch.nan_to_num(each) for each in (found, eager, exact))).ok
    after = weft.stats()
    assert (after.binaries_emitted, after.compiles) == (before.binaries_emitted, before.compiles)


def test_a_dense_mask_that_is_made_inside_is_kernels_alone() -> None:
    blocks = create_block_mask(lambda b, h, i, j: (i - j).abs() < 40, None, None, 300, 300, device="cpu")

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = weft.dense_mask(blocks)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    given = tuple(torch.randn(1, 2, 300, 16) for _ in range(3))
    before = weft.stats()
    found = weft.compile(attention, measure="never")(*given)
    after = weft.stats()
    assert after.kernels > before.kernels
    assert after.fallbacks == before.fallbacks
    assert weft.judge(found, attention(*given), attention(*(t.double() for t in given))).ok
