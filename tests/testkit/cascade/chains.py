"""Chains that the tests of the state are about, in plain PyTorch, on operands of shape [rows, length] and others after these."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from testkit.cascade.programs import captured, prepared
from weft.block.fold import Fold
from weft.cascade import folds
from weft.lab.workloads import cpu as workloads
from weft.lab.workloads import reductions as rows
from weft.tensor.program import TensorProgram

ROWS, LENGTH = 3, 9


@dataclass(frozen=True)
class Chain:
    """A function whose reductions are one loop.

    Attributes:
        shapes: of its operands, in small.
        positive: whether its first operand is weights.
    """

    function: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    positive: bool = False


ONE = ((ROWS, LENGTH),)
TWO = ((ROWS, LENGTH), (ROWS, LENGTH))


def covariance(x, y):
    return ((x - x.mean(-1, keepdim=True)) * (y - y.mean(-1, keepdim=True))).mean(-1)


def weighted_variance(w, x):
    return rows.weighted_variance(x, w)


def mean_under_softmax(x, v):
    return (torch.softmax(x, -1) * v).sum(-1)


def variance_under_softmax(x, v):
    p = torch.softmax(x, -1)
    mean = (p * v).sum(-1, keepdim=True)
    return (p * (v - mean) ** 2).sum(-1)


def spread_of_exponents(x):
    p = torch.softmax(x, -1)
    mean = (p * x).sum(-1, keepdim=True)
    return (p * (x - mean) ** 2).sum(-1)


def covariance_with_exponents(x, y):
    p = torch.softmax(x, -1)
    mean = (p * x).sum(-1, keepdim=True)
    return (p * (x - mean) * y).sum(-1)


def mean_square_of_logarithms(x):
    return (torch.softmax(x, -1) * torch.log_softmax(x, -1) ** 2).sum(-1)


def entropy_below_a_bound(x, bound):
    """Computes the entropy of the exponentials below the greatest, or below `bound` if that is more."""
    below = x - torch.maximum(x.amax(-1, keepdim=True), bound[:, None])
    return (torch.exp(below) * below).sum(-1)


def weighted_below_the_greatest(x, bias, w):
    return (torch.exp(x - x.amax(-1, keepdim=True) + bias) * w).sum(-1)


def weighted_from_the_greatest(x, w):
    return (torch.exp(x.amax(-1, keepdim=True) - x) * w).sum(-1)


def biased_below_the_greatest(x, bias):
    return torch.exp(x - x.amax(-1, keepdim=True) + bias).sum(-1)


def exponentials_from_the_greatest(x):
    return torch.exp(x.amax(-1, keepdim=True) - x).sum(-1)


def sum_of_squared_shares(x):
    return (torch.softmax(x, -1) ** 2).sum(-1)


def exponentials_below_the_mean(x):
    return torch.exp(x - x.mean(-1, keepdim=True)).sum(-1)


def exponentials_above_the_least(x):
    return torch.exp(x.amin(-1, keepdim=True) - x).sum(-1)


def between_least_and_greatest(x):
    least, greatest = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return ((x - least) / (greatest - least)).sum(-1)


def sum_above_the_least(x):
    return (x - x.amin(-1, keepdim=True)).sum(-1)


def squares_above_the_least(x):
    return ((x - x.amin(-1, keepdim=True)) ** 2).sum(-1)


def about_a_mean_by_a_number(x):
    return ((x - x.sum(-1, keepdim=True) / LENGTH) ** 2).sum(-1)


def sum_and_sum(a, b):
    return (a * b * a.sum(-1, keepdim=True)).sum(-1)


def shares(x, w):
    return (x / x.sum(-1, keepdim=True) * w).sum(-1)


def times_the_greatest(a, w):
    return (a * w * a.abs().amax(-1, keepdim=True)).sum(-1)


def length_without_overflow(x):
    greatest = x.abs().amax(-1, keepdim=True)
    return ((x / greatest) ** 2).sum(-1).sqrt() * greatest[..., 0]


def standardised_fourth_powers(x):
    return (((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)) ** 4).sum(-1)


def below_the_greatest(a, w):
    return (a * w / a.abs().amax(-1, keepdim=True)).sum(-1)


def chosen_variance(w, x):
    """Computes the variance of the elements whose weight is positive."""
    chosen = w > 0
    count = chosen.float().sum(-1, keepdim=True)
    mean = torch.where(chosen, x, 0.0).sum(-1, keepdim=True) / count
    return torch.where(chosen, (x - mean) ** 2, 0.0).sum(-1)


def covariance_under_softmax(logits, x, y):
    p = torch.softmax(logits, -1)
    x = x - (p * x).sum(-1, keepdim=True)
    return (p * x * (y - (p * y).sum(-1, keepdim=True))).sum(-1)


def divergence(x, y):
    return (torch.softmax(x, -1) * (torch.log_softmax(x, -1) - torch.log_softmax(y, -1))).sum(-1)


def product_below_the_greatest(x):
    return (x / x.abs().amax(-1, keepdim=True)).prod(-1)


def product_by_a_sum(x):
    return (x * torch.sigmoid(x.sum(-1, keepdim=True))).prod(-1)


def product_by_the_mean(x, w):
    """The mean of x is negative where w is not: factors change their sign."""
    return (w * x / x.mean(-1, keepdim=True)).prod(-1)


def product_of_exponentials(x):
    return torch.exp(x - x.amax(-1, keepdim=True)).prod(-1)


def product_of_exponentials_below_the_mean(x):
    return torch.exp(x - x.mean(-1, keepdim=True)).prod(-1)


def product_of_differences(x):
    return (x - x.mean(-1, keepdim=True)).prod(-1)


def product_of_those_chosen(x, w):
    return torch.where(w > 0, x / x.abs().amax(-1, keepdim=True), 1.0).prod(-1)


def product_of_shares(x, w):
    return (torch.softmax(x, -1) * w).prod(-1)


def sum_by_a_product(x, w):
    shares = x / x.norm(dim=-1, keepdim=True)
    return (w / (1 + shares.prod(-1, keepdim=True).abs())).sum(-1)


def cosines(x):
    unit = x / x.norm(dim=-1, keepdim=True)
    return unit @ unit.T


def softmax_times_softmax(x, y):
    return torch.softmax(x, -1) @ torch.softmax(y, 0)


CHAINS = {
    "variance": Chain(rows.variance, ONE),
    "weighted variance": Chain(weighted_variance, TWO, positive=True),
    "skewness": Chain(rows.skewness, ONE),
    "kurtosis": Chain(rows.kurtosis, ONE),
    "covariance": Chain(covariance, TWO),
    "inertia": Chain(rows.inertia, ((ROWS, LENGTH), (ROWS, LENGTH, 3)), positive=True),
    "log-sum-exp": Chain(rows.logsumexp, ONE),
    "mean under a softmax": Chain(mean_under_softmax, TWO),
    "squared shares": Chain(sum_of_squared_shares, ONE),
    "entropy": Chain(rows.entropy, ONE),
    "entropy below a bound": Chain(entropy_below_a_bound, ((ROWS, LENGTH), (ROWS,))),
    "exponentials below the greatest and biased": Chain(biased_below_the_greatest, TWO),
    "exponentials from the greatest": Chain(exponentials_from_the_greatest, ONE),
    "exponentials below the mean": Chain(exponentials_below_the_mean, ONE),
    "exponentials above the least": Chain(exponentials_above_the_least, ONE),
    "variance about a mean by a number": Chain(about_a_mean_by_a_number, ONE),
    "sum and sum": Chain(sum_and_sum, TWO),
    "shares": Chain(shares, TWO),
    "times the greatest": Chain(times_the_greatest, TWO),
    "covariance of features": Chain(rows.covariance_matrix, ((LENGTH, 4),)),
    "softmax times softmax": Chain(softmax_times_softmax, ((ROWS, LENGTH), (LENGTH, 2))),
    "product below the greatest": Chain(product_below_the_greatest, ONE),
    "product by a sum": Chain(product_by_a_sum, ONE),
    "product by the mean": Chain(product_by_the_mean, TWO),
    "product of exponentials": Chain(product_of_exponentials, ONE),
    "product of shares": Chain(product_of_shares, TWO),
    "sum by a product": Chain(sum_by_a_product, TWO),
    "attention": Chain(workloads.attention, ((ROWS, 5), (LENGTH, 5), (LENGTH, 2))),
    "LayerNorm + matmul": Chain(workloads.layernorm_matmul, ((ROWS, LENGTH), (LENGTH, 2))),
}


IN_RANGE = "keeps the sum in range: without it, the sum may be infinite or 0"
FREED = "may be out of range"
NO_MEAN = "is not a difference to a mean of these data, so no running value is known to be near it"

REFUSED = {
    "cosines of all pairs": (Chain(cosines, ONE), FREED),
    "cosines of two": (
        Chain(lambda x, y: F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).T, ((ROWS, LENGTH), (4, LENGTH))),
        FREED,
    ),
    "a projection on itself": (Chain(lambda x: F.normalize(x, dim=-1) @ x.T, ONE), FREED),
    "sum above the least": (Chain(sum_above_the_least, ONE), NO_MEAN),
    "between least and greatest": (Chain(between_least_and_greatest, ONE), IN_RANGE),
    "below the greatest": (Chain(below_the_greatest, TWO), IN_RANGE),
    "length without overflow": (Chain(length_without_overflow, ONE), IN_RANGE),
    "quantise + matmul": (
        Chain(lambda a, w: a * 448 / a.abs().amax(-1, keepdim=True) @ w, ((ROWS, LENGTH), (LENGTH, 2))),
        IN_RANGE,
    ),
    "standardised fourth powers": (
        Chain(standardised_fourth_powers, ONE),
        "is a power: without it, the sum may be infinite or 0",
    ),
    "squares above the least": (Chain(squares_above_the_least, ONE), NO_MEAN),
    "variance under a softmax": (
        Chain(variance_under_softmax, TWO),
        "is weighted, and no running value is known to be near the data",
    ),
    **{
        name: (Chain(function, shapes), "relative to the greatest so far it could cancel or overflow")
        for name, function, shapes in (
            ("variance of the exponents", spread_of_exponents, ONE),
            ("covariance with the exponents", covariance_with_exponents, TWO),
            ("mean square of logarithms", mean_square_of_logarithms, ONE),
        )
    },
    **{
        name: (Chain(function, shapes), "is not bounded by its own maximum, and has other factors")
        for name, function, shapes in (
            ("weighted, biased exponentials", weighted_below_the_greatest, ((ROWS, LENGTH),) * 3),
            ("weighted exponentials from the greatest", weighted_from_the_greatest, TWO),
        )
    },
    "variance of those chosen": (
        Chain(chosen_variance, TWO),
        "leaves out elements, which a running value would still contain",
    ),
    "covariance under a softmax": (
        Chain(covariance_under_softmax, ((ROWS, LENGTH),) * 3),
        "is weighted, and no running value is known to be near the data",
    ),
    "product of exponentials below the mean": (
        Chain(product_of_exponentials_below_the_mean, ONE),
        "is not bounded by its own maximum: in a product one factor may be infinite and another 0",
    ),
    "product of differences": (
        Chain(product_of_differences, ONE),
        "the state of a product of sums would grow with the number of elements",
    ),
    "product of those chosen": (
        Chain(product_of_those_chosen, TWO),
        "the state of a product of sums would grow with the number of elements",
    ),
    "divergence of softmaxes": (
        Chain(divergence, TWO),
        "is weighted, and no running value is known to be near the data",
    ),
}
"""What no state is known for that keeps its precision, and the reason that is given."""


@functools.cache
def one_loop(name: str) -> tuple[TensorProgram, Fold]:
    """The chain's program as the plan prepares it, and its one fold."""
    chain = CHAINS[name]
    program = prepared(captured(chain.function, *(torch.rand(shape) for shape in chain.shapes)))
    found = folds(program)
    assert found.refused == ()
    (fold,) = found.folds
    return program, fold
