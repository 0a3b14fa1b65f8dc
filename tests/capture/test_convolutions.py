"""How the operands of convolutions lie: with channels last where that is faster and no less precise; results lie as eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from weft.capture.captured import Captured
from weft.capture.convolutions import CONVOLUTIONS
from weft.tensor.program import Elementwise
from weft.tensor.scalar import Arg

_ONEDNN: Any = torch.ops.mkldnn
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
        (block(3, 1, 3), torch.bfloat16, _ONEDNN._is_mkldnn_bf16_supported()),
        (block(3, 1), torch.float16, _ONEDNN._is_mkldnn_fp16_supported()),
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


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    "look",
    [
        lambda x: x[0],
        lambda x: x.detach(),
        lambda x: x.transpose(0, 1),
        lambda x: x.view(-1),
        lambda x: x.as_strided((3,), (1,)),
        lambda x: x.as_strided((3,), (1,)) + 1,
    ],
    ids=["a part", "detached", "transposed", "flat", "by strides", "computed by strides"],
)
def test_what_else_reads_pictures_and_weights_sees_them_as_they_are(look: Callable[..., Any], before, monkeypatch):
    monkeypatch.setenv("WEFT_MEASURE", "never")

    def model(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = look(x), look(w)
        made = torch.conv2d(x, w).relu()
        return made, *(first if before else (look(x), look(w)))

    pictures, weight = torch.randn(2, 8, 6, 5).bfloat16(), torch.randn(4, 8, 3, 3).bfloat16()
    torch.compiler.reset()
    found, wanted = torch.compile(model, backend="weft")(pictures, weight), model(pictures, weight)
    for one, other in zip(found, wanted, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)
    theirs = [each.untyped_storage().data_ptr() for each in wanted[1:]]
    if theirs[0] == pictures.untyped_storage().data_ptr():
        assert [each.untyped_storage().data_ptr() for each in found[1:]] == theirs


def test_pictures_that_are_written_into_between_convolutions_count_anew():
    def model(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = torch.conv2d(x, w)
        x.mul_(2)
        w.add_(1)
        return first, torch.conv2d(x, w), x.view(-1) + 1

    pictures, weight = torch.randn(2, 8, 6, 5).bfloat16(), torch.randn(4, 8, 3, 3).bfloat16()
    wanted = model(pictures.clone(), weight.clone())
    found = torch.compile(model, backend="weft")(pictures, weight)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_pictures_of_one_channel_keep_their_order(weft):
    """They lie either way, and the library takes them to lie in eager's."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()).bfloat16()
    pictures = torch.randn(2, 1, 9, 8).bfloat16()
    right(model, pictures)
    weft.run(model, pictures)
    assert orders(weft.only) == [None, _TURNED]
    (made,) = next(iter(weft.only.calls.values())).results
    assert made.order is None


@pytest.mark.parametrize("size", [2, 1])
def test_patches_side_by_side_turn_nothing_by_themselves(weft, size):
    """A copy of their weights takes longer than it saves; beside others they are turned with these."""
    patches = nn.Conv2d(3, 8, size, size).bfloat16()
    pictures = torch.randn(2, 3, 8, 6).bfloat16()
    weft.run(nn.Sequential(patches, nn.ReLU()), pictures)
    assert orders(weft.only) == [None if size > 1 else _TURNED]
    weft.run(nn.Sequential(patches, nn.ReLU(), block(3).bfloat16()), pictures)
    assert orders(weft.only) == [_TURNED, _TURNED]


def test_transposed_convolutions_keep_their_order(weft):
    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        options = [1, 1], [0, 0], [1, 1], True, [0, 0], 1
        return torch.ops.aten.convolution.default(x, w, None, *options).relu()

    weft.run(model, torch.randn(1, 64, 5, 5), torch.randn(64, 4, 3, 3))
    (call,) = weft.only.calls.values()
    assert call.args[0].order is None


@pytest.mark.parametrize("shape", [(8, 6, 5), (0, 8, 6, 5)], ids=["one picture", "none"])
def test_other_pictures(shape):
    right(nn.Conv2d(8, 8, 3, padding=1).bfloat16(), torch.randn(shape).bfloat16())


def test_pictures_on_another_device_are_the_library_s():
    def model(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.conv2d(x.to("meta"), w.to("meta")), x + 1

    pictures, weight = torch.randn(2, 8, 6, 5).bfloat16(), torch.randn(4, 8, 3, 3).bfloat16()
    made, more = torch.compile(model, backend="weft")(pictures, weight)
    assert made.shape == (2, 4, 4, 3)
    torch.testing.assert_close(more, pictures + 1)


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


class OnGpu(torch.Tensor):
    """A tensor of this CPU that says it is on a GPU."""

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return torch.device("cuda")


@pytest.mark.parametrize("overload", CONVOLUTIONS)
def test_on_a_gpu_the_bias_is_added_by_itself(overload):
    packet, name = overload.removeprefix("aten.").split(".")
    call = getattr(getattr(torch.ops.aten, packet), name)
    spatial = next((int(digit) for digit in packet if digit.isdigit()), 2)
    sizes, window = (9, 8, 7)[:spatial], (3,) * spatial
    ones, none = [1] * spatial, [0] * spatial
    rest = (ones, none, ones, False, none, 1) if packet == "convolution" else ()
    weight, bias = torch.randn(4, 4, *window), torch.randn(4)
    for shape in ((2, 4, *sizes), *[(4, *sizes)] * (not rest)):  # the last has no form for one picture
        pictures = torch.randn(shape)
        assert (
            CONVOLUTIONS[overload](pictures, weight, bias, *rest) is NotImplemented
        )  # a CPU's library adds it at once
        found = CONVOLUTIONS[overload](pictures.as_subclass(OnGpu), weight, bias, *rest)
        torch.testing.assert_close(found.as_subclass(torch.Tensor), call(pictures, weight, bias, *rest))


def test_a_bias_stays_where_it_is_no_sum_of_its_own():
    parts = CONVOLUTIONS["aten.conv2d.default"]
    pictures, weight, bias = torch.randn(2, 4, 8, 8).as_subclass(OnGpu), torch.randn(4, 4, 3, 3), torch.randn(4)
    assert parts(pictures, weight, None) is NotImplemented
    assert parts(pictures, weight, bias.double()) is NotImplemented  # eager says what is wrong
    assert parts(pictures, weight, bias[:1]) is NotImplemented
    depthwise = torch.randn(4, 1, 3, 3)
    assert parts(pictures, depthwise, bias, [1, 1], [0, 0], [1, 1], 4) is NotImplemented
