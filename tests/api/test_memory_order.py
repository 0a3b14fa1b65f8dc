"""Loops go along memory: elementwise kernels follow the order in which their inputs lie, and results lie as eager's do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import weft
from testkit.api.judged import judged

LAST = torch.channels_last


def _chain(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2) + 1


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x + torch.arange(x.shape[1])[:, None, None]) * x


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "chain": _chain,
    "a vector for each channel": _scaled,
    "another type between": lambda x: x.double().exp().float() + x,
    "a part": lambda x: x[:, :, 1:, 1::2] * 2 + 1,
    "beside": lambda x: functional.pad(x, (1, 2, 3, 0)) + 1,
    "joined": lambda x: torch.cat((x, x.exp()), 1) + 1,
    "largest of windows": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "means of windows": lambda x: functional.avg_pool2d(x, 2) + 1,
    "twice as large": lambda x: functional.interpolate(x, scale_factor=2.0),
    "places that are looked up": lambda x: functional.interpolate(x, size=(11, 9)) + 1,
    "between places": lambda x: functional.interpolate(x, scale_factor=1.5, mode="bilinear"),
}


def _innermost(program: Any) -> tuple[str, list[str]]:
    """Give the axis of the innermost loop of the last kernel's listing, and the subscripts of what is loaded."""
    listing = dict(program.explain().sections)["scheduled program"]
    loops = re.findall(r"for(?:all)? (\w+) in", listing)
    loads = re.findall(r"load\(\w+\[([\w,]+)\]\)", listing)
    return loops[-1], loads


@pytest.mark.parametrize("name", FUNCTIONS)
def test_channels_last_stays_channels_last(name: str) -> None:
    function = FUNCTIONS[name]
    draws = [(torch.randn(2, 20, 12, 14).to(memory_format=LAST),) for _ in range(3)]
    program = weft.optimize(function, draws[0])
    assert not program.fallbacks
    assert judged(function, program, draws).ok
    assert program(*draws[0]).stride() == function(*draws[0]).stride()


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2), (0, 1, 2, 3)])
def test_the_innermost_loop_has_stride_1(order: tuple[int, ...]) -> None:
    back = sorted(range(4), key=lambda d: order[d])
    x = torch.randn(*((20, 30, 40, 50)[d] for d in order)).permute(back)
    program = weft.optimize(_chain, (x,))
    loop, loads = _innermost(program)
    assert loads
    assert all(load.split(",")[order[-1]] == loop for load in loads)
    torch.testing.assert_close(program(x), _chain(x))
    assert program(x).stride() == _chain(x).stride()


def test_the_first_operand_with_all_dimensions_says_the_order() -> None:
    rows, last = torch.randn(3, 20, 12, 14), torch.randn(3, 20, 12, 14).to(memory_format=LAST)
    few = torch.randn(20, 1, 1)

    def function(few: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(few * x + y) * 2

    for x, y in ((rows, last), (last, rows), (last, last)):
        program = weft.optimize(function, (few, x, y))
        torch.testing.assert_close(program(few, x, y), function(few, x, y))
        assert program(few, x, y).stride() == function(few, x, y).stride()


class _Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
        self.norm = nn.BatchNorm2d(24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        return torch.relu(self.norm(self.second(x)) + x)


def test_what_kernels_read_of_convolutions_and_make_for_them_lies_so() -> None:
    torch.manual_seed(3)
    model: Any = _Images().eval()
    model = model.to(memory_format=LAST)
    x = torch.randn(2, 3, 16, 18).to(memory_format=LAST)
    with torch.inference_mode():
        program = weft.optimize(model, (x,))
        found, eager = program(x), model(x)
    assert {f.operation for f in program.fallbacks} == {"aten.conv2d"}
    torch.testing.assert_close(found, eager)
    assert found.stride() == eager.stride()
    captured = dict(program.explain().sections)["captured program"]
    made = re.findall(r"float32\[([^\]]+)\] = opaque aten.conv2d", captured)
    assert len(made) == 2
    channels = {axes.split(", ")[-1].split(":")[1] for axes in made}
    assert channels == {_space_of_bias(captured)}


def test_a_copy_for_merged_dimensions_lies_as_what_it_copies() -> None:
    """Halves of keys are joined, heads share them, and they are transposed: positions do not become innermost for that."""

    def function(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        k = k.view(2, 5, 3, 8).transpose(1, 2)
        k = k * 2 + torch.cat((-k[..., 4:], k[..., :4]), -1)
        k = k[:, :, None].expand(2, 3, 4, 5, 8).reshape(2, 12, 5, 8)
        return q @ k.transpose(-1, -2)

    given = torch.randn(2, 12, 7, 8), torch.randn(2, 5, 24)
    program = weft.optimize(function, given)
    captured = dict(program.explain().sections)["captured program"]
    positions = re.search(r"k: float32\[\w+:\w+, \w+:(\w+), ", captured)
    copies = re.findall(r"float32\[([^\]]+)\] = \w+\[[^\]]*\]$", captured, re.MULTILINE)
    assert positions is not None
    assert copies
    assert positions[1] not in {axes.split(", ")[-1].split(":")[1] for axes in copies}, captured
    torch.testing.assert_close(program(*given), function(*given))


def test_heads_that_are_merged_again_lie_innermost() -> None:
    """Attention gives heads, then positions; merged, the heads of a position lie side by side, as a matmul reads them."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x.view(2, 5, 3, 8).transpose(1, 2)) @ torch.ones(8, 8)
        x = torch.cat((-x[..., 4:], x[..., :4]), -1)
        return x.transpose(1, 2).reshape(2, 5, 24) @ w

    given = torch.randn(2, 5, 24), torch.randn(24, 6)
    program = weft.optimize(function, given)
    captured = dict(program.explain().sections)["captured program"]
    flat = re.findall(r"float32\[([^\]]+)\] = opaque aten.flatten", captured)
    depth = re.search(r"w: float32\[\w+:(\w+), ", captured)
    assert depth is not None
    assert flat
    assert flat[-1].split(", ")[-1].split(":")[1] == depth[1], captured
    torch.testing.assert_close(program(*given), function(*given))


def _space_of_bias(captured: str) -> str:
    """Give the space of the channels, which the norm's weight has alone."""
    found = re.search(r"norm_weight: float32\[\w+:(\w+)\]", captured)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("shape", [(2, 3, 9, 11), (1, 20, 7, 1), (2, 1, 5, 6), (3, 17, 1, 1), (0, 4, 3, 2)])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).to(memory_format=LAST)
    program = weft.optimize(_scaled, (x,))
    torch.testing.assert_close(program(x), _scaled(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_other_types(dtype: torch.dtype) -> None:
    x = torch.randn(2, 20, 6, 7).mul(3).to(dtype).contiguous(memory_format=LAST)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, 0) * 2 + 1

    program = weft.optimize(function, (x,))
    torch.testing.assert_close(program(x), function(x))
    assert program(x).stride() == function(x).stride()


def test_sizes_and_layouts_that_change_from_call_to_call() -> None:
    fast = weft.compile(FUNCTIONS["largest of windows"], dynamic=True)
    three = weft.compile(_chain, dynamic=True)
    with torch.inference_mode():
        for size in (8, 9, 14, 21):
            x = torch.randn(2, 20, size, size + 3)
            for each in (x, x.to(memory_format=LAST)):
                torch.testing.assert_close(fast(each), FUNCTIONS["largest of windows"](each))
            y = torch.randn(2, 5, size, 4, 6).to(memory_format=torch.channels_last_3d)
            assert three(y).stride() == _chain(y).stride()
            torch.testing.assert_close(three(y), _chain(y))


def test_pytorchs_attention_lies_in_memory_as_its_queries_do():
    """So that heads can be joined by a view, within a graph and behind it."""

    def attention(q):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    def joined(q):
        return attention(q).transpose(1, 2).view(2, 5, 32)

    q = torch.randn(2, 5, 4, 8).transpose(1, 2)
    for function in (attention, joined):
        for given in (q, q.contiguous()) if function is attention else (q,):
            program = weft.optimize(function, (given,))
            found, wanted = program(given), function(given)
            assert not program.fallbacks
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("training", [False, True], ids=["as trained", "of the batch"])
def test_a_batch_norms_result_is_contiguous_or_has_its_channels_last(training: bool) -> None:
    """PyTorch's fake tensors say that it lies as its argument."""
    mean, scale = torch.randn(8), torch.rand(8) + 0.5
    given = () if training else (mean, scale)

    def norm(x: torch.Tensor) -> torch.Tensor:
        running = given or (None, None)
        return functional.batch_norm(x, *running, scale, mean, training=training).relu()

    images = torch.randn(4, 8, 5, 6)
    for x in (
        torch.randn(4, 10, 8).transpose(1, 2),
        torch.randn(8, 6).T,
        images,
        images.mT,
        images.to(memory_format=LAST),
        images.permute(0, 1, 3, 2),
        torch.randn(2, 8, 4, 5, 3).transpose(2, 4),
        torch.randn(4, 16, 5, 6).to(memory_format=LAST)[:, :8],
        torch.randn(4, 8, 9, 6).to(memory_format=LAST)[:, :, ::2],
    ):
        found, eager = weft.compile(norm, measure="never")(x), norm(x)
        assert found.stride() == eager.stride()
        torch.testing.assert_close(found, eager)
