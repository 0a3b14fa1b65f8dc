"""Products of what depends on earlier results: by the error rule, in segments, and why the logarithms need not be exact."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import torch

import weft
from testkit.afresh import chosen_afresh
from testkit.cascade.chains import one_loop
from testkit.cascade.folding import Folding, cutting
from testkit.cascade.programs import captured, prepared
from testkit.cascade.workloads import product_below_max, product_by_mean, product_by_sum
from testkit.walk import WALK_ALL
from weft.cascade import folds
from weft.lab.measure import Standard
from weft.plan.choose import select
from weft.tensor.fp64 import Fp64Domain

ROWS = 16


def of_softmax(x):
    return torch.softmax(x, -1).prod(-1)


def by_norm(x):
    return (x / x.norm(dim=-1, keepdim=True)).prod(-1)


def by_the_greatest(x):
    return (x * x.amax(-1, keepdim=True)).prod(-1)


# What the elements are, of random numbers of mean 0 and deviation 1.


def near_one(x):
    return 1 + 1e-4 * x


def signs_and_zeros(x):
    """About a quarter negative; of some rows a zero at the end, in the middle or at the beginning."""
    x = near_one(x) * torch.where(x > -0.7, 1.0, -1.0)
    for place, row in zip((-1, x.shape[-1] // 2, 0), (0, 2, 4), strict=True):
        x[row, place] = 0.0
    return x


def far(x):
    return x + 1e4


def equal(x):
    return torch.full_like(x, 0.3)


def zeros_first(x):
    x = near_one(x)
    x[:, : x.shape[-1] * 3 // 4] = 0.0
    return x


def zeros(x):
    return torch.zeros_like(x)


def large(x):
    """The product of the data alone is infinite."""
    return 1e10 * near_one(x)


def small(x):
    """The product of the data alone is 0."""
    return 1e-12 * near_one(x)


def infinities(x):
    x = near_one(x)
    x[0, 3], x[1, 2], x[2, -1], x[3, 0], x[4, 0], x[4, 1] = math.inf, math.nan, -math.inf, math.inf, math.inf, 0.0
    return x


KINDS = (near_one, signs_and_zeros, far, equal, zeros_first, zeros, large, small, infinities)
FUNCTIONS = (product_below_max, product_by_mean, product_by_sum, by_norm, by_the_greatest, of_softmax)
SHARE = (
    (product_below_max, 4099, torch.float32),
    (product_by_mean, 65, torch.float32),
    (product_by_sum, 7, torch.bfloat16),
    (of_softmax, 7, torch.float32),
)
ALL = tuple(itertools.product(FUNCTIONS, (7, 65, 4099), (torch.float32, torch.bfloat16)))


@pytest.fixture(scope="module", autouse=True)
def _derived_loops():
    """Builds the derived loop where it is among the candidates."""
    cheapest = select._cheapest
    with chosen_afresh() as patch:
        patch.setattr(
            select, "_cheapest", lambda found: cheapest([c for c in found if c.origin.startswith("one loop")] or found)
        )
        yield


@pytest.mark.parametrize(("function", "width", "dtype"), ALL if WALK_ALL else SHARE)
def test_products_are_as_exact_as_eager_whatever_the_elements(function, width, dtype):
    """Neither the product of the data nor that of what is divided by need be a number that fits."""
    program = weft.optimize(function, (torch.ones(ROWS, width, dtype=dtype),))
    assert [kernel.verdict.agrees for kernel in program.kernels] == [True]
    assert dict(program.explain().sections)["chains of reductions"].count("keep") == 1 + (function is of_softmax)
    for kind in KINDS:

        def drawn(number, kind=kind):
            random = torch.Generator().manual_seed(number)
            return (kind(torch.randn(ROWS, width, generator=random)).to(dtype),)

        if (function, kind) != (product_by_mean, signs_and_zeros) or width < 1000:  # eager's overflows on its way to 0
            judgement = Standard.of(function, drawn).judge(program)
            assert judgement.ok, f"{kind.__name__}: {judgement}"


def test_a_million_factors_in_two_segments():
    def drawn(number):
        return (far(torch.randn(1, 1_000_003, generator=torch.Generator().manual_seed(number))),)

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with weft.options(threads=2):
            program = weft.optimize(product_by_mean, drawn(0))
            assert [kernel.verdict.agrees for kernel in program.kernels] == [True, True]
            judgement = Standard.of(product_by_mean, drawn).judge(program)
    finally:
        torch.set_num_threads(threads)
    assert judgement.ok, str(judgement)


# The state alone.

PRODUCTS = ("product below the greatest", "product by the mean", "product by a sum", "product of shares")


class CoarseLogarithms(Fp64Domain):
    """Numbers, with logarithms that are up to one in ten thousand off."""

    def elementwise(self, expr, args, dtype):
        found = super().elementwise(expr, args, dtype)
        return found * (1 + 1e-4 * np.sin(1e3 * found)) if "op='log'" in repr(expr) else found


@pytest.mark.parametrize("domain", [Fp64Domain, CoarseLogarithms])
@pytest.mark.parametrize("segments", [1, 2, 7])
@pytest.mark.parametrize("length", [7, 65, 4099])
@pytest.mark.parametrize("name", PRODUCTS)
def test_segments_whose_logarithms_are_nearly_right(name, length, segments, domain):
    """Whatever the logarithms are that the product is relative to, it is the product."""
    program, fold = one_loop(name)
    rng = np.random.default_rng(length)
    for offset, scale in ((1.0, 1e-2 if length < 1000 else 1e-3), (1e4, 1.0), (-1e-8, 1e-12)):
        sizes = {"M": 3, "K": length}
        inputs = {
            n.name: offset + scale * rng.standard_normal([sizes[a.space.name] for a in n.axes]) for n in program.inputs
        }
        folding = Folding(program, fold, domain(), inputs)
        order = random.Random(segments)
        found = folding.over(cutting(length, segments, order), order)
        for value in found:
            wanted = folding.wanted[value]
            np.testing.assert_allclose(found[value], wanted, rtol=1e-9)


def test_a_product_of_what_is_rounded_is_refused():
    """Each factor is off by another amount at a running scale: at the end no single number stands for all of them."""
    program = prepared(
        captured(lambda x: torch.round(x * 127 / x.abs().amax(-1, keepdim=True)).prod(-1), torch.rand(3, 9))
    )
    for running, reason in (
        (True, "no single number stands for all of them"),
        (False, "mixes data with an earlier result"),
    ):
        found = folds(program, running=running)
        assert found.folds == ()
        assert [reason in refused.reason for refused in found.refused] == [True]
