"""Where the library's convolutions of pictures had better have channels last in memory: where that costs no precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import torch

from weft.capture.recording import Call, Recording, Slot
from weft.capture.sizes import hint

CHANNELS_LAST = (0, 2, 3, 1)
"""The dimensions of pictures, [batch, channels, height, width], outermost in memory first."""

_OF_PICTURES = ("aten.conv2d", "aten.convolution")
_HALVES = (torch.bfloat16, torch.float16)
_FEW = 4
"""Channels, that of a colour picture among them, whose convolutions add up as precisely either way."""


def prefers_channels_last(recording: Recording) -> bool:
    """Tell whether the convolutions of pictures in `recording` had better read and write them with their channels last.

    The library's kernels compute in that order, or in one of their own, and copy pictures that lie otherwise there and back.
    What is computed between two convolutions keeps the order. It costs nothing in half precision, and in fp32 for
    convolutions of one position (1x1) or of few channels at a time. For others oneDNN then adds all products of an element
    one after the other, with two to five times the error: a graph with such a one keeps its order.
    """
    found = {_precise(call, recording) for call in recording.calls}
    return True in found and False not in found


def operands(call: Call, fakes: Mapping[Slot, torch.Tensor]) -> tuple[Slot, ...]:
    """List the pictures and the weights of a convolution of pictures; nothing of another call."""
    if call.packet not in _OF_PICTURES:
        return ()
    slots = tuple(each for each in call.args[:2] if isinstance(each, Slot))
    return slots if all(fakes[slot].ndim == len(CHANNELS_LAST) for slot in slots) else ()


def _precise(call: Call, recording: Recording) -> bool | None:
    """Tell whether a convolution of pictures is as precise, and known to be faster, with channels last; None for another call."""
    fakes = {slot: recording.fakes[slot.index] for slot in call.reads()}
    if not (found := operands(call, fakes)):
        return None
    pictures, weights = (fakes[slot] for slot in found)
    if pictures.dtype in _HALVES:
        return pictures.device.type == "cuda" or _onednn()
    if pictures.dtype != torch.float32 or pictures.device.type != "cpu" or not _onednn():
        return False
    _, channels, *window = map(hint, weights.shape)
    return channels <= _FEW or all(size == 1 for size in window)


def _onednn() -> bool:
    return bool(torch.backends.mkldnn.enabled) and torch.backends.mkldnn.is_available()


def _with_bias_apart(convolution: Any) -> Callable[..., Any]:
    """Make a function that convolves and then adds the bias: cuDNN does so too, but its addition joins no other work."""

    def parts(
        pictures: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *rest: Any, **named: Any
    ) -> Any:
        if bias is None or pictures.device.type != "cuda" or bias.dtype != pictures.dtype:
            return NotImplemented
        return convolution(pictures, weight, None, *rest, **named) + bias.reshape(-1, *(1 for _ in weight.shape[2:]))

    return parts


_ATEN: Any = torch.ops.aten
_OVERLOADS = (
    *(f"conv{n}d.{way}" for n in (1, 2, 3) for way in ("default", "padding")),
    *("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input", "convolution.default"),
)

CONVOLUTIONS = {f"aten.{name}": _with_bias_apart(attrgetter(name)(_ATEN)) for name in _OVERLOADS}
"""By overload, what a convolution consists of on a GPU."""
