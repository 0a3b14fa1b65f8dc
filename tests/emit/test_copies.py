"""Elements that are only moved are copied as they lie, in every type and layout; what something computes with is computed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch

import weft

Tensors: TypeAlias = tuple[torch.Tensor, ...]

MOVES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "joined": lambda x, y: torch.cat((x, y, x[:, :3]), 1),
    "joined rows": lambda x, y: torch.cat((x[:2], y)),
    "stacked": lambda x, y: torch.stack((x, y), 1),
    "padded": lambda x, y: torch.nn.functional.pad(x, (2, 3, 1, 0)),
    "cropped": lambda x, y: torch.nn.functional.pad(x, (-2, 3)),
    "rolled": lambda x, y: torch.roll(x, 3, 1),
    "rolled rows": lambda x, y: torch.roll(x, -1, 0),
    "joined wide": lambda x, y: (
        torch.cat((x.float(), y.float()), 1).to(x.dtype) if x.dtype.itemsize == 2 else y.clone()
    ),
    "turned": lambda x, y: x.t().contiguous(),
    "stored at an index": lambda x, y: x.index_copy(0, torch.tensor([1]), y[:1]),
}
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64, torch.int8]
WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(WHOLE[tensor.element_size()])


def drawn(shape: tuple[int, int], dtype: torch.dtype, rng: random.Random) -> torch.Tensor:
    """Make elements of any bits, NaN of any kind among them, that lie by rows, by columns or with others between them."""
    whole = WHOLE[dtype.itemsize]
    made = torch.randint(torch.iinfo(whole).min, torch.iinfo(whole).max, shape, dtype=whole)
    between = torch.zeros(shape[0], 2 * shape[1], dtype=whole)[:, ::2]
    return rng.choice((made, made.t().contiguous().t(), between.copy_(made))).view(dtype)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_bits_are_moved(name: str, dtype: torch.dtype) -> None:
    rng = random.Random(f"{name} {dtype}")
    function, shape = MOVES[name], rng.choice(((5, 7), (2, 33), (70, 1030), (19, 64)))
    given = tuple(drawn(shape, dtype, rng) for _ in range(2))
    program = weft.optimize(function, given)
    assert program.fallbacks == ()
    assert torch.equal(bits(program(*given)), bits(function(*given)))
    narrow = dtype.is_floating_point and dtype.itemsize < 4
    for word in ("weft::load(", "weft::store(") if narrow else ():
        assert not any(word in kernel.source for kernel in program.kernels), "it would be widened and rounded again"


def test_what_is_moved_and_computed_with_is_both() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Tensors:
        joined = torch.cat((x, y), 1)
        return joined, joined * 2, torch.cat((y, x), 1)

    given = tuple(torch.randn(9, 37).bfloat16() for _ in range(2))
    for found, wanted in zip(weft.optimize(function, given)(*given), function(*given), strict=True):
        assert torch.equal(found, wanted)


def test_a_choice_that_changes_along_a_loop_is_made_for_each_element() -> None:
    given = torch.rand(9, 37) > 0.5, torch.randn(9, 37).bfloat16(), torch.randn(9, 37).bfloat16()
    assert torch.equal(weft.optimize(torch.where, given)(*given), torch.where(*given))


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (33, 47), (128, 1), (1, 130), (129, 257)], ids=str)
def test_squares_of_a_turned_tensor(shape: tuple[int, int]) -> None:
    x = torch.randn(3, *shape)
    found = weft.optimize(lambda x: x.transpose(1, 2).contiguous(), (x,))(x)
    assert torch.equal(found, x.transpose(1, 2))


def appended(x: torch.Tensor, w: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Tensors:
    """Add rows of heads to two caches of heads, as decoding does."""
    heads, _, width = keys.shape
    query, *rows = (each.view(1, heads, width).transpose(0, 1) for each in (x @ w + 1).split(heads * width, 1))
    return query, *(torch.cat(pair, 1) for pair in zip((keys, values), rows, strict=True))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 3, 16, 64])
@pytest.mark.parametrize("length", [0, 1, 5, 700])
def test_rows_that_are_joined_are_copied_along_memory(length: int, width: int, dtype: torch.dtype) -> None:
    """Heads of 16 elements and more are copied head by head, however many rows there are: not an element of each in turn."""
    torch.manual_seed(0)
    x, w = torch.randn(1, 32), torch.randn(32, 9 * width)
    given = tuple(t.to(dtype) for t in (x, w, *torch.randn(2, 3, length, width)))
    program = weft.optimize(appended, given)
    assert program.fallbacks == ()
    found, wanted = program(*given), appended(*given)
    for cache, longer in zip(given[2:], found[1:], strict=True):
        assert torch.equal(bits(longer[:, :length]), bits(cache)), "what was there is moved"
    assert weft.judge(found, wanted, appended(*(t.double() for t in given)))
    if width >= 16 and length > 0:
        sources = "".join(kernel.source for kernel in program.kernels)
        assert f"[{width} * j + i]" not in sources
        assert f"[{width} * i + j]" in sources


def token(query: torch.Tensor, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Tensors:
    """Attend to two caches of heads and one row more of each."""
    keys, values = (torch.cat((cache, rows), 1) for cache in (keys, values))
    return torch.softmax(query @ keys.transpose(1, 2) * 0.125, -1) @ values, keys, values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [140, 1100])
def test_joined_rows_that_a_matmul_reads_lie_where_they_are_stored(length: int, dtype: torch.dtype) -> None:
    """They are copied along memory and multiplied there, not gathered to where they lie across it and copied back."""
    torch.manual_seed(0)
    given = tuple(torch.randn(12, n, 64).to(dtype) for n in (1, 1, length, length))
    program = weft.optimize(token, given)
    assert program.kernels
    assert not any("weft::copy_items(" in kernel.source for kernel in program.kernels)
    found, wanted = program(*given), token(*given)
    for longer, own in zip(found[1:], wanted[1:], strict=True):
        assert torch.equal(bits(longer), bits(own))
    assert weft.judge(found, wanted, token(*(t.double() for t in given)))


def token_of_one_width(query: torch.Tensor, row: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Tensors:
    """Attend with one row to keys, and to values with one row more, all heads of which are 64 wide."""
    row = torch.tanh(row).view(1, 12, 64).transpose(0, 1)
    values = torch.cat((values, row), 1)
    return torch.softmax(query @ keys.transpose(1, 2) * 0.125, -1) @ values, values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_are_copied_along_memory_beside_a_reduction(dtype: torch.dtype) -> None:
    """The loops of a softmax go along its rows, but those that join values beside it go along a head."""
    torch.manual_seed(0)
    given = [torch.randn(shape).to(dtype) for shape in ((12, 1, 64), (1, 12 * 64), (12, 1101, 64), (12, 1100, 64))]
    program = weft.optimize(token_of_one_width, given, scheme="0x0")
    (kernel,) = program.kernels
    assert "weft::copy_items(" not in kernel.source
    assert "[64 * i + j]" in kernel.source
    assert "[64 * j + i]" not in kernel.source
    found, wanted = program(*given), token_of_one_width(*given)
    assert torch.equal(bits(found[1][:, :-1]), bits(given[3]))
    assert weft.judge(found, wanted, token_of_one_width(*(t.double() for t in given)))
