"""Chains of reductions over one axis in which later ones use what earlier ones gave: plain PyTorch, small sizes, one loop each.

Those that `weft bench` measures are its own functions (`weft.lab.workloads.cpu`, `weft.lab.workloads.reductions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F

from weft.lab.examples import OperandSpec, Sizes, one_matmul
from weft.lab.workloads import cpu as bench
from weft.lab.workloads import reductions as rows

# The first row is one block, the last is many: what reads a row twice shows there.
ROWS = ((7, 65), (16, 4099))
SHORT_ROWS = ((7, 65), (33, 130))
HEADS = ((1, 3, 65, 16), (2, 2, 130, 40))
PRODUCTS = ((7, 65, 33), (65, 130, 40))

ROUTES = ((7, 65, 33), (65, 96, 128))
FEATURES = ((65, 7), (2048, 128))

CAT = "torch.cat is not in weft's table of operations yet, PyTorch runs it: three kernels and a copy of the scores"
LOG_OF_SHARE = "the logarithm of a share that may be 0: 0 * -inf is NaN, as in eager, and no sum of terms"


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain, and what must come of it.

    Attributes:
        name: of it, in a few words.
        function: in plain PyTorch.
        operands: its arguments at some sizes.
        sizes: at which it is tried.
        kernels: the most that it may be: 1, or 2 where segments of long rows, or rows, are merged.
        loads: how often an element of the operands may be loaded at the last of `sizes`: once where one loop with a state does it
            all and the result is a number a row, twice where each element is one of the result too; None: as often as tiles ask.
        shape: what is done to the random operands, for functions that need zeros, signs or order.
        gaps: what `weft.judge` must know of near-ties, for functions with index outputs.
        fails: by sizes, why it is not yet so few kernels.
        loads_more: why it is loaded more often yet; "" where it is not.
    """

    name: str
    function: Callable[..., Any]
    operands: Callable[[Sizes], tuple[OperandSpec, ...]]
    sizes: tuple[Sizes, ...] = ROWS
    kernels: int = 1
    loads: int | None = None
    shape: Callable[..., tuple[torch.Tensor, ...]] | None = None
    gaps: Callable[..., object] | None = None
    fails: Mapping[Sizes, str] = field(default_factory=dict[Sizes, str])
    loads_more: str = ""

    def inputs(self, sizes: Sizes, number: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
        """The random operands with this number."""
        random = torch.Generator().manual_seed(number)
        drawn = tuple(operand.draw(random, dtype) for operand in self.operands(sizes))
        return drawn if self.shape is None else self.shape(*drawn)


# Operands.


def heads(*more: Callable[[Sizes], OperandSpec]) -> Callable[[Sizes], tuple[OperandSpec, ...]]:
    """Queries, keys and values of the sizes batch, heads, length, width; then `more`."""
    return lambda sizes: (*(OperandSpec(sizes),) * 3, *(operand(sizes) for operand in more))


def latent(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Queries and latent vectors of the sizes batch, heads, keys, width."""
    batch, count, keys, width = sizes
    return OperandSpec((batch, count, width)), OperandSpec((batch, keys, width))


def normed(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Rows, a matrix, and a weight and a bias of the norm."""
    _, inner, _ = sizes
    return *one_matmul(sizes), OperandSpec((inner,), 0.1, 1.0), OperandSpec((inner,), 0.1)


def one_logit(sizes: Sizes) -> OperandSpec:
    return OperandSpec((sizes[1],))


def slope(sizes: Sizes) -> OperandSpec:
    return OperandSpec((sizes[1],), 0.05, 0.2)


def temperature(_: Sizes) -> OperandSpec:
    return OperandSpec((), 0.5, 8.0)


def narrow(sizes: Sizes) -> tuple[OperandSpec, ...]:
    """Numbers about 1, close to one another, so that products of many are of ordinary size."""
    return (OperandSpec(sizes, 0.02, 1.0),)


def with_signs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """About half of the elements negative; a zero in every other row."""
    signed = torch.where((x * 1e4).long() % 2 == 0, x, -x)
    signed[::2, x.shape[-1] // 2] = 0.0
    return (signed,)


# Attention.


def sink_by_hand(q, k, v, sink):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    nothing = sink[:, None, None]
    most = torch.maximum(scores.amax(-1, keepdim=True), nothing)
    weights = torch.exp(scores - most)
    return weights / (weights.sum(-1, keepdim=True) + torch.exp(nothing - most)) @ v


ATTENTION = (
    Chain("attention", bench.attention, heads(), HEADS),
    Chain("causal attention", bench.causal_attention, heads(), HEADS),
    Chain("latent attention, decode", bench.latent_attention, latent, ((1, 4, 96, 80), (2, 3, 130, 72)), kernels=2),
    Chain("attention with a sink", bench.sink_attention, heads(one_logit), HEADS, fails=dict.fromkeys(HEADS, CAT)),
    Chain("attention with a sink, by hand", sink_by_hand, heads(one_logit), HEADS),
    Chain("attention with a soft-cap", bench.capped_attention, heads(), HEADS),
    Chain("attention with ALiBi", bench.alibi_attention, heads(slope), HEADS, kernels=2),  # distances, where that pays
    Chain("attention with a temperature", bench.tempered_attention, heads(temperature), HEADS),
)


# Norms and quantisation before a product.


def layernorm_weighted(x, w, g, b):
    return F.layer_norm(x, (x.shape[-1],), g, b) @ w


def layernorm_by_hand(x, w):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) @ w


def layernorm_by_var(x, w):
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5) @ w


def rmsnorm_by_hand(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) @ w


PRODUCTS_OF_ROWS = (
    Chain("LayerNorm + matmul", bench.layernorm_matmul, one_matmul, PRODUCTS),
    Chain("LayerNorm + matmul, weight and bias", layernorm_weighted, normed, PRODUCTS),
    Chain("LayerNorm + matmul, by hand", layernorm_by_hand, one_matmul, PRODUCTS),
    Chain("LayerNorm + matmul, by torch.var", layernorm_by_var, one_matmul, PRODUCTS),
    Chain("RMSNorm + matmul", bench.rmsnorm_linear, one_matmul, PRODUCTS),
    Chain("RMSNorm + matmul, by hand", rmsnorm_by_hand, one_matmul, PRODUCTS),
    Chain("L2-normalise + matmul", rows.normalised_matmul, one_matmul, PRODUCTS),
    Chain("quantise + matmul", bench.quantised_matmul, one_matmul, PRODUCTS),
    Chain("routing", bench.route, one_matmul, ROUTES, gaps=bench.route_gaps),
)


# Moments.


def variance_as_sums(x):
    mean = x.mean(-1, keepdim=True)
    return torch.sum((x - mean) ** 2, -1)


def var(x):
    return torch.var(x, -1)


def var_uncorrected(x):
    return torch.var(x, -1, correction=0)


def covariance(x, y):
    return ((x - x.mean(-1, keepdim=True)) * (y - y.mean(-1, keepdim=True))).mean(-1)


MOMENTS = (
    Chain("variance", rows.variance, rows.matrix, loads=1),
    Chain("sum of (x - mean)^2", variance_as_sums, rows.matrix, loads=1),
    Chain("torch.var", var, rows.matrix, loads=1),
    Chain("torch.var without correction", var_uncorrected, rows.matrix, loads=1),
    Chain("weighted variance", rows.weighted_variance, rows.weighted, loads=1),
    Chain("inertia", rows.inertia, rows.bodies, ((4, 100, 3), (7, 65, 3)), loads=1),
    Chain("skewness", rows.skewness, rows.matrix, loads=1),
    Chain("kurtosis", rows.kurtosis, rows.matrix, loads=1),
    Chain("covariance of two vectors", covariance, rows.two_matrices, loads=1),
    Chain("covariance of features", rows.covariance_matrix, rows.matrix, FEATURES),
    Chain("correlation", rows.correlation, rows.two_matrices, loads=1),
)


# Exponentials.


def nll_by_hand(x, target):
    logs = x - x.amax(-1, keepdim=True)
    logs = logs - torch.log(torch.exp(logs).sum(-1, keepdim=True))
    return -logs.gather(-1, target[:, None])[:, 0]


def nll(x, target):
    return F.nll_loss(torch.log_softmax(x, -1), target)


def logsumexp_by_hand(x):
    most = x.amax(-1, keepdim=True)
    return (most + torch.log(torch.exp(x - most).sum(-1, keepdim=True)))[..., 0]


def standardised_softmax(x):
    return torch.softmax((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True), -1)


def softmax_of_softmax(x):
    return torch.softmax(torch.softmax(x, -1), -1)


def entropy_by_hand(x):
    p = torch.softmax(x, -1)
    return -(p * torch.log(p)).sum(-1)


def expected_value(x, v):
    return (torch.softmax(x, -1) * v).sum(-1)


EXPONENTIALS = (
    Chain("softmax", rows.softmax, rows.matrix, loads=2),
    Chain("log-softmax", rows.log_softmax, rows.matrix, loads=2),
    Chain(
        "log-softmax + NLL, by hand",
        nll_by_hand,
        rows.classes,
        loads=1,
    ),
    # The count of classes, and the rows; of few rows each thread has a part, which is merged.
    Chain("log-softmax + NLL", nll, rows.classes, kernels=3, loads=2),
    Chain("cross-entropy", rows.cross_entropy, rows.classes, kernels=3, loads=2),
    Chain("log-sum-exp", rows.logsumexp, rows.matrix, loads=1),
    Chain("log-sum-exp, by hand", logsumexp_by_hand, rows.matrix, loads=1),
    Chain("softmax of a standardised row", standardised_softmax, rows.matrix),
    Chain("softmax of a softmax", softmax_of_softmax, rows.matrix),
    Chain("entropy of a softmax", rows.entropy, rows.matrix, loads=1),
    Chain("entropy of a softmax, by hand", entropy_by_hand, rows.matrix, loads=1, loads_more=LOG_OF_SHARE),
    Chain("expected value under a softmax", expected_value, rows.two_matrices, loads=1),
)


# Sums, maxima and products of what a row's own reduction scales.


def cosine(x, y):
    return F.cosine_similarity(x, y, dim=-1)


def cosine_by_hand(x, y):
    return (x * y).sum(-1) / (torch.sqrt((x * x).sum(-1)) * torch.sqrt((y * y).sum(-1)))


def l2_normalised(x, w):
    return x / x.norm(dim=-1, keepdim=True) @ w


def min_max_sum(x):
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return ((x - low) / (high - low)).sum(-1)


def scaled_by_max(a, w):
    return (w * a.amax(-1, keepdim=True)).sum(-1)


def product_below_max(x):
    return (x / x.abs().amax(-1, keepdim=True)).prod(-1)


def product_by_sum(x):
    return (x * torch.sigmoid(x.sum(-1, keepdim=True))).prod(-1)


def product_by_mean(x):
    return (x / x.mean(-1, keepdim=True)).prod(-1)


def product_of_exponentials(x):
    return torch.exp(x - x.amax(-1, keepdim=True)).prod(-1)


SCALED = (
    Chain("Sum + Sum", rows.sum_and_sum, rows.two_matrices, loads=1),
    Chain("sum (w * max a)", scaled_by_max, rows.two_matrices, loads=1),
    Chain("cosine similarity", cosine, rows.two_matrices, loads=1),
    Chain("cosine similarity, by hand", cosine_by_hand, rows.two_matrices, loads=1),
    Chain("L2-normalise + matmul, by hand", l2_normalised, one_matmul, PRODUCTS),
    Chain("min-max normalise + sum", min_max_sum, rows.matrix, loads=2),
    Chain("product below the maximum", product_below_max, narrow, SHORT_ROWS, loads=1),
    Chain(
        "product below the maximum, zeros and signs",
        product_below_max,
        narrow,
        SHORT_ROWS,
        shape=with_signs,
        loads=1,
    ),
    Chain("product by a sum", product_by_sum, narrow, ROWS, loads=1),
    Chain("product by the mean", product_by_mean, narrow, ROWS, loads=1),
    Chain("product of exponentials", product_of_exponentials, narrow, ROWS, loads=1),
    Chain(
        "argmax",
        rows.argmax,
        rows.matrix,
        gaps=rows.argmax_gaps,
        loads=1,
    ),
    Chain(
        "top-k",
        rows.top,
        rows.matrix,
        gaps=rows.top_gaps,
        loads=1,
    ),
)

CHAINS = (*ATTENTION, *PRODUCTS_OF_ROWS, *MOMENTS, *EXPONENTIALS, *SCALED)
