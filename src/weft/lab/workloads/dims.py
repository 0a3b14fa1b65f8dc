"""What `weft bench --device cuda --only dims` measures: reductions over several dimensions, or over one that lies across memory.

Sizes are those of vision models; most inputs are larger than the second-level cache. None of the rows has a goal. They move each
operand and each result once, or an operand twice where every result depends on more of it than a chip holds: a norm over three
dimensions at 1.5 times the floor is as good as it gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from weft.lab.examples import Example, Operand, Sizes

_FP32, _BF16 = (torch.float32,), (torch.bfloat16,)
_Operands = Callable[[Sizes], tuple[Operand, ...]]


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Normalise over all dimensions that the weights have."""
    return functional.layer_norm(x, w.shape, w, b)


def rms_of_channels(x: torch.Tensor) -> torch.Tensor:
    """Divide each pixel by the root of the mean of squares of its channels."""
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-5)


def group_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Normalise eight groups of channels."""
    return functional.group_norm(x, 8, w, b)


def group_norm_silu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Normalise 32 groups of channels, as in a diffusion model."""
    return functional.silu(functional.group_norm(x, 32, w, b))


def moments_of_channels(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the mean and variance that a batch norm needs of its batch."""
    mean = x.mean((0, 2, 3))
    return mean, (x - mean[:, None, None]).pow(2).mean((0, 2, 3))


def softmax_of_channels(x: torch.Tensor) -> torch.Tensor:
    """Compute the logarithms of class probabilities of each pixel."""
    return torch.log_softmax(x, 1)


def moments_of_all(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute variance and mean of a whole tensor."""
    return torch.var_mean(x)


def mean_square(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute a loss."""
    return ((x - y) ** 2).mean()


def softmax_down(x: torch.Tensor) -> torch.Tensor:
    """Compute the softmax of each column."""
    return torch.softmax(x, 0)


def maxima(x: torch.Tensor) -> torch.Tensor:
    """Reduce over channels and rows of pixels."""
    return x.amax((1, 3))


def _image(sizes: Sizes) -> tuple[Operand, ...]:
    return (Operand(sizes, about=0.5),)


def _pair(sizes: Sizes) -> tuple[Operand, ...]:
    return Operand(sizes), Operand(sizes)


def _weights_of_all(sizes: Sizes) -> tuple[Operand, ...]:
    return Operand(sizes, about=0.5), Operand(sizes[1:]), Operand(sizes[1:])


def _weights_of_channels(sizes: Sizes) -> tuple[Operand, ...]:
    return Operand(sizes, about=0.5), Operand(sizes[1:2]), Operand(sizes[1:2])


def _example(
    name: str,
    fn: Callable[..., Any],
    operands: _Operands,
    full: Sizes,
    quick: Sizes,
    dtypes: tuple[torch.dtype, ...] = _FP32,
) -> Example:
    return Example(f"dims-{name}", lambda _: fn, operands, full, quick, dtypes=dtypes)


_PIXELS = (16, 64, 256, 256)
EXAMPLES: tuple[tuple[Example, Sizes], ...] = (
    (_example("layernorm", layer_norm, _weights_of_all, _PIXELS, (2, 3, 5, 6)), (2,)),
    (_example("layernorm-odd", layer_norm, _weights_of_all, (4096, 7, 13, 129), (2, 3, 5, 7)), (256,)),
    (_example("rms-channels", rms_of_channels, _image, _PIXELS, (2, 5, 3, 6)), (2,)),
    (_example("groupnorm", group_norm, _weights_of_channels, (8, 64, 256, 256), (2, 16, 3, 5)), (2,)),
    (_example("groupnorm-silu", group_norm_silu, _weights_of_channels, (8, 320, 64, 64), (2, 64, 3, 5), _BF16), (2,)),
    (_example("moments", moments_of_channels, _image, (32, 64, 112, 112), (3, 4, 5, 6)), ()),
    (_example("softmax-channels", softmax_of_channels, _image, (8, 21, 512, 512), (2, 5, 3, 6)), (2,)),
    (_example("softmax-down", softmax_down, _image, (65536, 512), (37, 6)), ()),
    (_example("moments-all", moments_of_all, _image, (8192, 8192), (9, 13)), ()),
    (_example("mean-square", mean_square, _pair, (64, 3, 512, 512), (3, 3, 4, 5)), ()),
    (_example("maxima", maxima, _image, _PIXELS, (2, 3, 4, 5), _BF16), (2,)),
)
"""Each with how many of the leading dimensions' elements are judged; empty: all."""
