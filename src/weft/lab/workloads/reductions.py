"""What `weft bench` measures of reductions alone: chains in which one along a row uses what others along it gave, and orders.

Variance and inertia are RedFuser's (tables V and I of its appendix A.6), Sum + Sum its smallest chain (A.2). The others are what
statistics, losses and vocabularies ask of long rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from weft.lab.examples import ExampleFunction, OperandSpec, Sizes
from weft.verify.judge import IndexGap

_FP32, _BF16 = (torch.float32,), (torch.bfloat16,)
_Operands = Callable[[Sizes], tuple[OperandSpec, ...]]


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


def _image(sizes: Sizes) -> tuple[OperandSpec, ...]:
    return (OperandSpec(sizes, about=0.5),)


def two_matrices(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes rows, and others of the same sizes."""
    return OperandSpec(sizes), OperandSpec(sizes)


def _weights_of_all(sizes: Sizes) -> tuple[OperandSpec, ...]:
    return OperandSpec(sizes, about=0.5), OperandSpec(sizes[1:]), OperandSpec(sizes[1:])


def _weights_of_channels(sizes: Sizes) -> tuple[OperandSpec, ...]:
    return OperandSpec(sizes, about=0.5), OperandSpec(sizes[1:2]), OperandSpec(sizes[1:2])


def _example(
    name: str,
    fn: Callable[..., Any],
    operands: _Operands,
    full: Sizes,
    quick: Sizes,
    dtypes: tuple[torch.dtype, ...] = _FP32,
) -> ExampleFunction:
    return ExampleFunction(f"dims-{name}", lambda _: fn, operands, full, quick, dtypes=dtypes)


_PIXELS = (16, 64, 256, 256)
EXAMPLES: tuple[tuple[ExampleFunction, Sizes], ...] = (
    (_example("layernorm", layer_norm, _weights_of_all, _PIXELS, (2, 3, 5, 6)), (2,)),
    (_example("layernorm-odd", layer_norm, _weights_of_all, (4096, 7, 13, 129), (2, 3, 5, 7)), (256,)),
    (_example("rms-channels", rms_of_channels, _image, _PIXELS, (2, 5, 3, 6)), (2,)),
    (_example("groupnorm", group_norm, _weights_of_channels, (8, 64, 256, 256), (2, 16, 3, 5)), (2,)),
    (_example("groupnorm-silu", group_norm_silu, _weights_of_channels, (8, 320, 64, 64), (2, 64, 3, 5), _BF16), (2,)),
    (_example("moments", moments_of_channels, _image, (32, 64, 112, 112), (3, 4, 5, 6)), ()),
    (_example("softmax-channels", softmax_of_channels, _image, (8, 21, 512, 512), (2, 5, 3, 6)), (2,)),
    (_example("softmax-down", softmax_down, _image, (65536, 512), (37, 6)), ()),
    (_example("moments-all", moments_of_all, _image, (8192, 8192), (9, 13)), ()),
    (_example("mean-square", mean_square, two_matrices, (64, 3, 512, 512), (3, 3, 4, 5)), ()),
    (_example("maxima", maxima, _image, _PIXELS, (2, 3, 4, 5), _BF16), (2,)),
)
"""Each with how many of the leading dimensions' elements are judged; empty: all."""


_TOP = 8


# Moments.


def variance(x: torch.Tensor) -> torch.Tensor:
    """Computes the variance of each row."""
    return ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1)


def weighted_variance(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Computes the variance of each row, whose elements have weights."""
    total = w.sum(-1, keepdim=True)
    mean = (w * x).sum(-1, keepdim=True) / total
    return (w * (x - mean) ** 2).sum(-1) / total[..., 0]


def skewness(x: torch.Tensor) -> torch.Tensor:
    """Computes the third standardised moment of each row."""
    centred = x - x.mean(-1, keepdim=True)
    return (centred**3).mean(-1) / (centred**2).mean(-1) ** 1.5


def kurtosis(x: torch.Tensor) -> torch.Tensor:
    """Computes the fourth standardised moment of each row."""
    centred = x - x.mean(-1, keepdim=True)
    return (centred**4).mean(-1) / (centred**2).mean(-1) ** 2


def correlation(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Computes the correlation coefficient of two vectors, for each row."""
    a, b = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    return (a * b).sum(-1) / torch.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def covariance_matrix(x: torch.Tensor) -> torch.Tensor:
    """Computes the covariance of features, which are the columns of x."""
    centred = x - x.mean(0)
    return centred.T @ centred / x.shape[0]


def inertia(m: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Computes the moment of inertia of masses at points about their centre, of each batch."""
    mass = m.sum(-1, keepdim=True)
    centre = (m[..., None] * r).sum(1) / mass
    return (m * ((r - centre[:, None]) ** 2).sum(-1)).sum(-1)


# Exponentials.


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Computes each row's softmax."""
    return torch.softmax(x, -1)


def cross_entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Computes the mean loss of classes that are known."""
    return functional.cross_entropy(x, target)


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    """Computes each row's logarithms of probabilities."""
    return torch.log_softmax(x, -1)


def logsumexp(x: torch.Tensor) -> torch.Tensor:
    """Computes the logarithm of each row's sum of exponentials."""
    return torch.logsumexp(x, -1)


def entropy(x: torch.Tensor) -> torch.Tensor:
    """Computes the entropy of each row's softmax."""
    logs = torch.log_softmax(x, -1)
    return -(logs.exp() * logs).sum(-1)


# Others.


def sum_and_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Computes each row's sum of b, scaled by the row's sum of a."""
    s = a.sum(-1, keepdim=True)
    return (b * s).sum(-1)


def normalised_matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Multiplies rows of Euclidean length 1 by a matrix."""
    return functional.normalize(x, dim=-1) @ w


def argmax(x: torch.Tensor) -> torch.Tensor:
    """Finds where each row is largest."""
    return x.argmax(-1)


def top(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds each row's eight largest, and where they are."""
    values, places = x.topk(_TOP)
    return values, places


def order_gaps(values: torch.Tensor, count: int) -> torch.Tensor:
    """Measures how far each of the `count` largest of each row is from its neighbours in order; inf where it has none."""
    ordered = values.topk(min(count + 1, values.shape[-1])).values
    ends = torch.full_like(ordered[..., :1], math.inf)
    ahead = torch.cat((ordered[..., :-1] - ordered[..., 1:], ends), -1)[..., :count]
    return torch.minimum(ahead, torch.cat((ends, ahead[..., :-1]), -1))


def argmax_gaps(x: torch.Tensor) -> IndexGap:
    """Allows only equal elements to stand for one another."""
    return IndexGap(order_gaps(x.double(), 1)[..., 0], 0.0)


def top_gaps(x: torch.Tensor) -> tuple[None, IndexGap]:
    """Allows only equal elements to stand for one another."""
    return None, IndexGap(order_gaps(x.double(), _TOP), 0.0)


# Sizes.


def matrix(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes rows."""
    return (OperandSpec(sizes),)


def weighted(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes rows, and weights about 1: where weights sum up to about 0 the mean may be anywhere."""
    return OperandSpec(sizes), OperandSpec(sizes, 0.25, 1.0)


def bodies(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes operands of these sizes: batch, points, dimensions of space. Masses about 1, and places."""
    batch, points, space = sizes
    return OperandSpec((batch, points), 0.25, 1.0), OperandSpec((batch, points, space))


def classes(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Describes rows, and one index of each."""
    rows, count = sizes
    return OperandSpec((rows, count)), OperandSpec((rows,), below=count)


_ROWS = (512, 8192)
_VOCABULARY = (256, 32000)
_BOTH = (torch.float32, torch.bfloat16)


def _chain(
    title: str,
    fn: Callable[..., Any],
    full: Sizes,
    formula: str = "",
    operands: Callable[[Sizes], tuple[OperandSpec, ...]] = matrix,
    quick: Sizes = (16, 200),
    dtypes: tuple[torch.dtype, ...] = _FP32,
    gaps: Callable[..., object] | None = None,
) -> ExampleFunction:
    return ExampleFunction(title, lambda _: fn, operands, full, quick, formula=formula, dtypes=dtypes, gaps=gaps)


_VARIANCE = "((x - x.mean(-1)) ** 2).mean(-1)"
_CENTRED = "c = x - x.mean(-1)"
REDUCTIONS = (
    _chain("variance (V5)", variance, _ROWS, _VARIANCE),
    _chain("variance, one row (V2)", variance, (1, 1 << 22), _VARIANCE, quick=(1, 500)),
    _chain(
        "weighted variance",
        weighted_variance,
        _ROWS,
        "m = (w * x).sum(-1) / w.sum(-1); (w * (x - m) ** 2).sum(-1) / w.sum(-1)",
        weighted,
    ),
    _chain("skewness", skewness, _ROWS, f"{_CENTRED}; (c**3).mean(-1) / (c**2).mean(-1) ** 1.5"),
    _chain("kurtosis", kurtosis, _ROWS, f"{_CENTRED}; (c**4).mean(-1) / (c**2).mean(-1) ** 2"),
    _chain(
        "correlation",
        correlation,
        _ROWS,
        "a, b = x - x.mean(-1), y - y.mean(-1); (a * b).sum(-1) / sqrt((a * a).sum(-1) * (b * b).sum(-1))",
        two_matrices,
    ),
    _chain(
        "covariance of features",
        covariance_matrix,
        (8192, 256),
        "c = x - x.mean(0); c.T @ c / x.shape[0]",
        quick=(200, 16),
        dtypes=_BOTH,
    ),
    _chain(
        "inertia (I3)",
        inertia,
        (128, 8192, 3),
        "(m * ((r - (m * r).sum(1) / m.sum(1)) ** 2).sum(-1)).sum(-1)",
        bodies,
        (4, 100, 3),
    ),
    _chain("Sum + Sum", sum_and_sum, _ROWS, "s = a.sum(-1); (b * s).sum(-1)", two_matrices),
    _chain("softmax", softmax, (1024, 4096), dtypes=_BOTH),
    _chain("log-softmax", log_softmax, (1024, 4096), dtypes=_BOTH),
    _chain("log-sum-exp", logsumexp, _VOCABULARY, dtypes=_BOTH),
    _chain(
        "entropy of a softmax", entropy, _VOCABULARY, "p = log_softmax(x, -1); -(p.exp() * p).sum(-1)", dtypes=_BOTH
    ),
    _chain("cross-entropy", cross_entropy, _VOCABULARY, operands=classes, dtypes=_BOTH),
    _chain("argmax", argmax, _VOCABULARY, dtypes=_BOTH, gaps=argmax_gaps),
    _chain("top-k", top, _VOCABULARY, "x.topk(8)", dtypes=_BOTH, gaps=top_gaps),
)
"""Rows of the benchmark."""
