"""How the operands of convolutions lie: with channels last where that is faster and no less precise; results lie as eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.capture.captured import Captured
from weft.capture.convolutions import CONVOLUTIONS
from weft.tensor.program import Elementwise
from weft.tensor.scalar import Arg

_TURNED = (0, 3, 1, 2)
"""Which of the axes of a picture with channels last its dimensions are."""


def block(*kernels: int, groups: int = 1, channels: int = 8) -> nn.Module:
    layers: list[nn.Module] = []
    for size in kernels:
        layers += [nn.Conv2d(channels, channels, size, padding=size // 2, groups=groups), nn.BatchNorm2d(channels)]
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers).eval()


def right(model: nn.Module, pictures: torch.Tensor) -> None:
    """Hold results to eager's, by value and by stride."""
    with torch.no_grad():
        found, wanted = torch.compile(model, backend="weft")(pictures), model(pictures)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)


def orders(captured: Captured) -> list[tuple[int, ...] | None]:
    """Say how what each convolution reads is turned in memory."""
    calls = [call for call in captured.calls.values() if call.target is torch.ops.aten.conv2d.default]
    assert calls
    return [call.args[0].order for call in calls]


@pytest.mark.parametrize(
    ("model", "dtype", "turned"),
    [
        (block(3, 1, 3), torch.bfloat16, True),
        (block(3, 1), torch.float16, True),
        (block(1, 1), torch.float32, True),
        (block(3, 1, groups=8), torch.float32, True),
        (block(3, 3, channels=3), torch.float32, True),
        (block(1, 3, 1), torch.float32, False),  # less precise with channels last
        (block(1, 1), torch.float64, False),  # not the library's
    ],
)
def test_pictures_have_channels_last_where_that_costs_no_precision(weft, model, dtype, turned):
    model = copy.deepcopy(model).to(dtype)
    pictures = torch.randn(2, next(model.parameters()).shape[0], 6, 5, dtype=dtype)
    right(model, pictures)
    weft.run(model, pictures)
    found = orders(weft.only)
    assert found == [_TURNED if turned else None] * len(found)


def test_what_has_channels_last_is_not_copied(weft):
    model: Any = block(3, 3).bfloat16()
    model.to(memory_format=torch.channels_last)
    pictures = torch.randn(2, 8, 6, 5, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    right(model, pictures)
    weft.run(model, pictures)
    assert orders(weft.only) == [None, _TURNED]  # the axes of an input are its dimensions, however they lie
    assert not [n for n in weft.only.program.nodes if isinstance(n, Elementwise) and n.expr == Arg(0)]


def flat(x: torch.Tensor) -> torch.Tensor:
    return (x.view(x.shape[0], -1) * 2).sum(-1)


def attended(x: torch.Tensor) -> torch.Tensor:
    rows = x.flatten(2).transpose(1, 2)
    return (rows.softmax(-1) @ rows.mT @ rows).mT.reshape(x.shape)


@pytest.mark.parametrize(
    "then",
    [
        flat,
        attended,
        lambda x: x.permute(0, 2, 3, 1),
        lambda x: x[:, 1:3].contiguous().view(-1),
        lambda x: x.mean((2, 3)),
    ],
    ids=["view", "attention", "permuted", "a part", "means"],
)
@pytest.mark.parametrize("size", [6, 1])
def test_what_follows_a_convolution_is_as_eager_has_it(then: Callable[[torch.Tensor], torch.Tensor], size):
    convolution = nn.Conv2d(4, 8, 3, padding=1).bfloat16()

    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = convolution(x)
        return then(made), made

    pictures = torch.randn(2, 4, size, size, dtype=torch.bfloat16)
    with torch.no_grad():
        found, wanted = torch.compile(model, backend="weft")(pictures), model(pictures)
    assert found[1].stride() == wanted[1].stride()
    for one, other in zip(found, wanted, strict=True):
        strides = zip(one.shape, one.stride(), other.stride(), strict=True)
        assert all(mine == theirs for size, mine, theirs in strides if size > 1)
        torch.testing.assert_close(one, other)


def test_weights_that_are_loaded_anew_count():
    model: Any = block(3).bfloat16()
    pictures = torch.randn(2, 8, 6, 5, dtype=torch.bfloat16)
    compiled = torch.compile(model, backend="weft")
    with torch.no_grad():
        compiled(pictures)
        model[0].weight.mul_(-2)
        torch.testing.assert_close(compiled(pictures), model(pictures))


def test_on_a_gpu_the_bias_is_added_by_itself():
    parts, options = CONVOLUTIONS["aten.conv2d.default"], ([1, 1], [1, 1], [1, 1], 1)
    pictures, weight, bias = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    assert parts(pictures, weight, bias, *options) is NotImplemented  # the CPU's library adds it at once
    with FakeTensorMode():
        pictures, weight, bias = (torch.empty(each.shape, device="cuda") for each in (pictures, weight, bias))
        assert parts(pictures, weight, bias, *options).shape == (2, 4, 8, 8)
        assert parts(pictures, weight, None, *options) is NotImplemented
        assert parts(pictures, weight, bias.double(), *options) is NotImplemented  # eager says what is wrong
