"""Convolutions on their way to the library: channels last in memory where that costs no precision; on a GPU the bias apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import torch

from weft.capture.recording import Call, Recording, Slot
from weft.capture.sizes import hint

CHANNELS_LAST = (0, 2, 3, 1)
"""The dimensions of pictures, [batch, channels, height, width], outermost in memory first."""

_ATEN: Any = torch.ops.aten
_ONEDNN: Any = torch.ops.mkldnn
_TRANSPOSED = 6
"""The place among the arguments of `aten.convolution` that says whether it is a transposed one."""
_STEPS = 3
"""The place of the stride among the arguments of a convolution."""
_PRECISE_CHANNELS = 4
"""Channels at a time, those of a picture with transparency, up to which convolutions in fp32 add up as precisely either way."""


def types_with_channels_last(recording: Recording) -> frozenset[torch.dtype]:
    """Choose the element types of which convolutions of pictures in `recording` read and write them with channels last.

    The library's kernels compute in that order, or in one of their own, and copy pictures that lie otherwise there and back.
    What is computed between two convolutions keeps the order. It costs nothing in half precision, and in fp32 for
    convolutions of one position (1x1) or of few channels at a time. For others oneDNN then adds all products of an element
    one after the other, with two to five times the error: where there is such a one, those of fp32 keep their order.
    Convolutions of patches side by side are matmuls, for which a copy of their weights takes longer than it saves (1.1 to 1.9
    times the time, of ViT's and the like on a CPU): where there is no other, they keep their order.
    """
    fakes = {slot: recording.fakes[slot.index] for call in recording.calls for slot in call.reads()}
    found, refused = set[torch.dtype](), set[torch.dtype]()
    for call in recording.calls:
        if operands := _operands(call, fakes):
            pictures, weights = (fakes[slot] for slot in operands)
            if not _is_as_precise(pictures, weights):
                refused.add(pictures.dtype)
            elif not _is_of_patches(call, weights):
                found.add(pictures.dtype)
    return frozenset(found - refused)


def with_channels_last(
    call: Call, fakes: Mapping[Slot, torch.Tensor], types: frozenset[torch.dtype]
) -> tuple[Slot, ...]:
    """List the pictures and weights that a call reads with channels last, of convolutions in `types`; none for another call.

    Pictures of one channel lie in either order, and the library takes them to lie in eager's.
    """
    operands = _operands(call, fakes)
    if not operands or fakes[operands[0]].dtype not in types or hint(fakes[operands[0]].shape[1]) == 1:
        return ()
    return operands


def _operands(call: Call, fakes: Mapping[Slot, torch.Tensor]) -> tuple[Slot, ...]:
    """List the pictures and the weights of a convolution of pictures, no transposed one."""
    whole = call.packet == "aten.convolution" and len(call.args) > _TRANSPOSED and not call.args[_TRANSPOSED]
    if call.packet != "aten.conv2d" and not whole:
        return ()
    slots = tuple(each for each in call.args[:2] if isinstance(each, Slot))
    if any(fakes[slot].ndim != len(CHANNELS_LAST) or fakes[slot].device.type not in ("cpu", "cuda") for slot in slots):
        return ()
    return slots if len(slots) == 2 else ()


def _is_as_precise(pictures: torch.Tensor, weights: torch.Tensor) -> bool:
    """Tell whether the library convolves as precisely, and faster, with channels last."""
    if pictures.device.type != "cpu":
        return pictures.dtype in (torch.bfloat16, torch.float16)
    if not (torch.backends.mkldnn.enabled and torch.backends.mkldnn.is_available()):
        return False
    _, channels, *window = map(hint, weights.shape)
    match pictures.dtype:
        case torch.bfloat16:
            return bool(_ONEDNN._is_mkldnn_bf16_supported())  # noqa: SLF001 - what ATen asks
        case torch.float16:
            return bool(_ONEDNN._is_mkldnn_fp16_supported())  # noqa: SLF001 - what ATen asks
        case torch.float32:
            return channels <= _PRECISE_CHANNELS or all(size == 1 for size in window)
        case _:
            return False


def _is_of_patches(call: Call, weights: torch.Tensor) -> bool:
    """Tell whether a convolution goes over patches that lie side by side, of more than one position."""
    window = list(map(hint, weights.shape[2:]))
    steps: Any = call.kwargs.get("stride", call.args[_STEPS] if len(call.args) > _STEPS else 1)
    return max(window) > 1 and (window == [steps] * 2 if isinstance(steps, int) else window == [*steps])


def _with_bias_apart(convolution: Any) -> Callable[..., Any]:
    """Make a function that convolves and then adds the bias: cuDNN does so too, but its addition joins no other work.

    A depthwise one is left whole: PyTorch's own kernels for these add the bias before they round.
    """

    def parts(
        pictures: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *rest: Any, **named: Any
    ) -> Any:
        if bias is None or pictures.device.type != "cuda" or bias.dtype != pictures.dtype:
            return NotImplemented
        spatial = weight.ndim - 2
        made = convolution(pictures, weight, None, *rest, **named)
        if hint(weight.shape[1]) == 1 or bias.ndim != 1 or hint(bias.shape[0]) != hint(made.shape[-1 - spatial]):
            return NotImplemented
        return made + bias.reshape(-1, *(1 for _ in range(spatial)))

    return parts


_OVERLOADS = (
    *("conv1d.default", "conv2d.default", "conv3d.default", "convolution.default"),
    *("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input"),
)

CONVOLUTIONS = {f"aten.{name}": _with_bias_apart(attrgetter(name)(_ATEN)) for name in _OVERLOADS}
"""By overload, what a convolution consists of on a GPU."""
