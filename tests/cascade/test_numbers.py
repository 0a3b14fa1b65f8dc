"""Numbers that hurt, by the error rule: far from zero, very large, infinite, equal, zero where something is divided by, very many.

A running state divides by what it has seen so far, or takes it away: each chain is also tried where what comes first is nothing yet
(masked, zero, cancelling) although the whole row is ordinary. What is judged is the derived loop, where there is one, whatever its
predicted time; a few chains also as they are chosen. A share of the chains is always tried, all with WALK_ALL=1 in the
environment.
"""

from __future__ import annotations

import functools
import math

import pytest
import torch

import weft
from testkit.api.masked import masked
from testkit.cascade.forcing import CHEAPEST, derived, derived_loops
from testkit.cascade.workloads import CHAINS
from testkit.walk import WALK_ALL
from weft.lab.measure import Standard


@pytest.fixture(scope="module", autouse=True)
def _derived_loops():
    with derived_loops():
        yield


NAMED = {chain.name: chain for chain in CHAINS}
FIRST = 600  # more than a block, less than a row
LONG = 1_000_003

AS_WRITTEN = ("Sum + Sum", "sum (w * max a)", "quantise + matmul", "min-max normalise + sum")
"""Chains that no derived loop computes: two axes, which nothing says are one, roundings and sums at a scale of their row."""

APART = "the second sum runs along an axis of its own, which nothing says is as long as the first: two loops"

SEVERAL = {
    "Sum + Sum": APART,
    "weighted variance": "weights of unknown sign take two sums more, and two loops are predicted to be faster",
    "min-max normalise + sum": "the sum waits for what keeps it in range: two loops",
}


def fails(name, *rest, reason):
    return pytest.param(name, *rest, marks=pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True))


def share(always, more):
    """Returns what is tried: all of it where the whole is asked for."""
    return [*always, *(more if WALK_ALL else ())]


def judged(function, make, gaps=None, loop: bool | None = True):
    """Judges weft on four draws, beside eager and fp64: `loop` says whether by a derived loop, None that it may be."""
    program = weft.optimize(function, make(0))
    assert program.kernels, program  # else PyTorch would be judged
    assert loop is None or derived(program) is loop
    judgement = Standard.of(function, make, gaps=gaps).judge(program)
    assert judgement.ok, str(judgement)
    return program


def check(name, change, sizes=None, *, any_kernel=False):
    """The chain with this name, whose operands are changed."""
    chain = NAMED[name]
    sizes = chain.sizes[-1] if sizes is None else sizes
    loop = None if any_kernel else name not in AS_WRITTEN
    judged(chain.function, lambda number: change(*chain.inputs(sizes, number)), chain.gaps, loop)


# Far from zero.


def first_far(x, *others):
    return x + 1e4, *others


def both_far(x, y):
    return x + 1e4, y - 1e4


def places_far(m, r):
    return m, r + 1e4


@pytest.mark.as_shipped
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "change"),
    share(
        (
            ("variance", first_far),
            ("torch.var", first_far),
            ("weighted variance", first_far),
            ("skewness", first_far),
            ("inertia", places_far),
            ("covariance of two vectors", both_far),
            ("covariance of features", first_far),
            ("LayerNorm + matmul", first_far),
            ("softmax of a standardised row", first_far),
        ),
        (
            ("sum of (x - mean)^2", first_far),
            ("torch.var without correction", first_far),
            ("kurtosis", first_far),
            ("correlation", both_far),
            ("LayerNorm + matmul, weight and bias", first_far),
            ("min-max normalise + sum", first_far),
        ),
    ),
)
def test_a_mean_of_10000_and_a_deviation_of_1(name, change):
    check(name, change)


# Very large, and infinite.


def two_levels(x, *others):
    """Half of the logits about 10000, the others about -10000."""
    return torch.where(x > 0, 1e4, -1e4) + x, *others


def attention_at_two_levels(q, k, v):
    q, k = torch.zeros_like(q), torch.where(k > 0, 1.0, -1.0)
    q[..., 0] = 1e4 * math.sqrt(q.shape[-1])
    return q, k, v


def routes_far_apart(x, w):
    """Logits that are exact, and hundreds apart: all shares but one are about 0."""
    x, w = torch.zeros_like(x), w.clone()
    x[:, 0] = 1.0
    w[0] *= 1e4 * math.sqrt(len(w))
    return x, w


LOGITS = ("softmax", "log-softmax", "log-sum-exp", "expected value under a softmax", "entropy of a softmax")
MORE_LOGITS = (
    "log-sum-exp, by hand",
    "log-softmax + NLL, by hand",
    "entropy of a softmax, by hand",
    "softmax of a softmax",
)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, two_levels) for name in share(LOGITS, (*MORE_LOGITS, "log-softmax + NLL"))),
        ("cross-entropy", two_levels),
        ("attention", attention_at_two_levels),
        ("attention with a sink, by hand", lambda q, k, v, s: (*attention_at_two_levels(q, k, v), s)),
        ("attention with a soft-cap", attention_at_two_levels),
        ("routing", routes_far_apart),
    ],
)
def test_logits_of_10000(name, change):
    check(name, change)


def infinite(x, *others):
    """Rows of -inf: all, those first, all but the last, those last; one +inf; one NaN."""
    x = x.clone()
    x[0] = -math.inf
    x[1, :FIRST] = -math.inf
    x[2, :-1] = -math.inf
    x[3, FIRST:] = -math.inf
    x[4, FIRST] = math.inf
    x[5, FIRST] = math.nan
    return x, *others


@pytest.mark.parametrize(
    "name",
    share(LOGITS, MORE_LOGITS),
)
def test_rows_of_infinities(name):
    check(name, infinite)


def masked_by_condition(q, k, v, allowed):
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~allowed, -math.inf)
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("function", [masked, masked_by_condition], ids=lambda f: f.__name__)
def test_the_first_blocks_of_keys_are_masked(function):
    def make(number):
        random = torch.Generator().manual_seed(number)
        q, k, v = (torch.randn(1, 2, length, 16, generator=random) for length in (65, 2 * FIRST, 2 * FIRST))
        allowed = torch.ones(65, 2 * FIRST, dtype=torch.bool)
        allowed[:, :FIRST] = False
        return q, k, v, allowed if function is masked_by_condition else torch.zeros(()).masked_fill(~allowed, -math.inf)

    program = judged(function, make)
    assert (len(program.kernels), program.fallbacks) == (1, ())


# What the elements' sizes keep in range, and what is relative to no mean.


def length(x):
    greatest = x.abs().amax(-1, keepdim=True)
    return ((x / greatest) ** 2).sum(-1).sqrt() * greatest[..., 0]


def squares_above_the_least(x):
    return ((x - x.amin(-1, keepdim=True)) ** 2).sum(-1)


def one_infinite(x):
    x = x.abs()
    x[::2, 7] = math.inf
    return x


@pytest.mark.parametrize(
    ("function", "change"),
    [
        (length, lambda x: x * 1e20),
        (length, lambda x: x * 1e-25),
        (squares_above_the_least, one_infinite),
    ],
)
def test_a_sum_overflows_where_eagers_does(function, change):
    judged(function, lambda number: (change(NAMED["variance"].inputs((16, 4099), number)[0]),), loop=False)


# Beside float64.


def in_the_chain(p, scores):
    return p.std(-1)  # a variance is float64 on a CPU, as in PyTorch


def beside_the_chain(p, scores):
    return p.amax(-1).std(0), scores.std(0)


@pytest.mark.parametrize("more", [in_the_chain, beside_the_chain])
def test_float64_does_not_change_which_numbers_a_maximum_is_of(more):
    """The scores are rounded wherever else they are read: where a row has but one term, its softmax is exactly 1."""

    def function(x):
        scores = x * 1e4
        p = torch.softmax(scores, -1)
        return p.amax(-1), more(p, scores)

    x = torch.linspace(-1, 3, 90).reshape(6, 15).flip(1) * torch.pi
    program = weft.optimize(function, (x,))
    assert torch.equal(program(x)[0], function(x)[0])


# Equal, and zero.


def some_equal(x, *others):
    """Every other row is one number, which is no binary fraction; the others are ordinary."""
    x = x.clone()
    x[::2] = 0.1
    return x, *others


@pytest.mark.parametrize(
    "name",
    share(
        (
            "variance",
            "weighted variance",
            "LayerNorm + matmul",
            "softmax",
            "log-sum-exp",
            "entropy of a softmax",
        ),
        ("torch.var", "covariance of two vectors", "L2-normalise + matmul", "cosine similarity"),
    ),
)
def test_all_equal_rows(name):
    check(name, some_equal)


def threes(x, *others):
    return torch.full_like(x, 3.0), *others


@pytest.mark.parametrize("name", ["skewness", "kurtosis", "correlation", "min-max normalise + sum"])
def test_all_equal_rows_where_eager_divides_0_by_0(name):
    """The length and the number are such that their mean is exact."""
    check(name, threes, (16, 4096))


def some_zero(x, *others):
    x = x.clone()
    x[::2] = 0.0
    return x, *others


def zeros_first(x, *others):
    x = x.clone()
    x[..., : x.shape[-1] * 3 // 4] = 0.0
    return x, *others


ZEROS = ("quantise + matmul", "product below the maximum", "L2-normalise + matmul", "cosine similarity")
MORE_ZEROS = ("L2-normalise + matmul, by hand", "RMSNorm + matmul", "cosine similarity, by hand")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, change) for name in share(ZEROS, MORE_ZEROS) for change in (some_zero, zeros_first)),
        ("min-max normalise + sum", some_zero),
        ("min-max normalise + sum", zeros_first),
    ],
)
def test_rows_that_are_or_begin_with_zeros(name, change):
    check(name, change)


def largest_is_zero(a, w):
    """Makes every other row largest only at its end; the others are zeros."""
    a = -a.abs() - 1.0
    a[:, -1] = 0.0
    a[::2] = 0.0
    return a, w


def largest_becomes_zero(a, w):
    """At the end of the first blocks, and is not at the end of the row."""
    a = -a.abs() - 1.0
    a[:, FIRST] = 0.0
    a[:, -1] = 2.0
    return a, w


def sums_to_zero(a, b):
    """Exactly, and in the second half of the rows only up to before the last element."""
    signs = torch.ones_like(a)
    signs[:, 1::2] = -1.0
    signs[:, -1] = 0.0
    signs[len(a) // 2 :, -1] = 1.5
    return signs, b


def weights_begin_with_zeros(x, w):
    w = w.clone()
    w[:, :FIRST] = 0.0
    return x, w


def masses_begin_with_zeros(m, r):
    m = m.clone()
    m[:, :50] = 0.0
    return m, r


def masses_cancel_first(m, r):
    m = m.clone()
    m[:, :32], m[:, 32:40] = 1.0, -4.0
    return m, r


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("sum (w * max a)", largest_is_zero),
        ("sum (w * max a)", largest_becomes_zero),
        ("Sum + Sum", sums_to_zero),
        ("weighted variance", weights_begin_with_zeros),
        ("inertia", masses_begin_with_zeros),
        ("inertia", masses_cancel_first),
    ],
)
def test_factors_that_are_zero_at_the_end_or_on_the_way(name, change):
    check(name, change)


# As chosen.


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "change"),
    share(
        (
            ("variance", first_far),
            ("LayerNorm + matmul", first_far),
            ("covariance of features", first_far),
            ("entropy of a softmax", two_levels),
            ("softmax", infinite),
        ),
        (("covariance of two vectors", both_far), ("log-sum-exp", infinite), ("variance", some_equal)),
    ),
)
def test_what_the_cost_model_chooses(name, change):
    with derived_loops(CHEAPEST):
        check(name, change, any_kernel=True)


# One, and very many.

MANY = ("variance", "log-sum-exp", "Sum + Sum")
MORE = ("torch.var without correction", "weighted variance", "skewness", "kurtosis", "correlation", "softmax", "cosine similarity",
        "entropy of a softmax", "expected value under a softmax", "min-max normalise + sum", "sum (w * max a)")  # fmt: skip


@pytest.mark.parametrize("name", share((*MANY, "skewness"), MORE))
def test_rows_of_one_element(name):
    """There is no loop."""
    check(name, lambda *operands: operands, (3, 1), any_kernel=True)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@functools.cache
def long(name):
    with weft.options(threads=2):
        program = weft.optimize(NAMED[name].function, million(name, 0))
    assert derived(program) == (name not in AS_WRITTEN)
    return program


def million(name, number):
    """About 1: a sum of so many numbers about 0 is mostly rounding, eager's too."""
    return tuple(operand + 1 for operand in NAMED[name].inputs((1, LONG), number))


@pytest.mark.parametrize("name", share(MANY, MORE))
def test_a_million_elements(name, two_threads):
    judgement = Standard.of(NAMED[name].function, lambda number: million(name, number)).judge(long(name))
    assert judgement.ok, str(judgement)


@pytest.mark.parametrize("name", [fails(n, reason=SEVERAL[n]) if n in SEVERAL else n for n in share(MANY, MORE)])
def test_a_million_elements_are_segments_and_one_merge(name, two_threads):
    program = long(name)
    assert program.fallbacks == ()
    assert len(program.kernels) == 2
