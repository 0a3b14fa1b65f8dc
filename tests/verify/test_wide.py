"""Numbers of any magnitude, by which results are judged that eager and fp64 have not the range to say."""

from __future__ import annotations

import numpy as np
import pytest

from testkit.block import programs
from testkit.block.paper import each, row_sum
from testkit.verify import emitted
from testkit.verify.emitted import ATTENTION, NORM, SOFTMAX, sizes_of
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.program import Input, Monoid, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, Scalar, apply
from weft.verify.cases import cases
from weft.verify.eager import MaskedDomain
from weft.verify.emitted import ErrorTally
from weft.verify.wide import WideDomain

F32 = DType.float32


CHOICE = apply("where", Arg(0), Arg(1), Lit(0.0))
PRODUCT = apply("mul", Arg(1), apply("where", Arg(0), Lit(1.0), Lit(0.0)))


def masked(kept: Scalar = CHOICE) -> TensorProgram:
    """Weights exp(s) where a mask keeps them, divided by their sum, by which rows of v are weighed."""
    m, n, d = programs.axes("m", "n", "d")
    nodes = (
        each("e", (m, n), apply("exp", Arg(0)), Use("s", (m, n))),
        each("k", (m, n), kept, Use("mask", (m, n)), Use("e", (m, n))),
        row_sum("t", "k", m, n),
        each("p", (m, n), apply("div", Arg(0), Arg(1)), Use("k", (m, n)), Use("t", (m,))),
        programs.matmul("out", Use("p", (m, n)), Use("v", (n, d)), n),
    )
    mask = Input("mask", (m, n), DType.bool)
    return TensorProgram((programs.tensor("s", m, n), mask, programs.tensor("v", n, d)), nodes, ("out",))


def stable(case):
    """Returns what a right kernel gives: with the maximum of what is kept taken off, in fp32."""
    s, mask, v = (np.asarray(case.inputs[name]) for name in ("s", "mask", "v"))
    with np.errstate(all="ignore"):
        kept = np.where(mask, s, -np.inf).astype(np.float32)
        top = kept.max(-1, keepdims=True)
        e = np.where(mask, np.exp(kept - np.where(np.isfinite(top), top, 0)), np.float32(0))
        weights = e / e.sum(-1, keepdims=True)
        products = np.where(~mask[..., None], 0, weights[..., None] * v.astype(np.float32))
        found = np.where(mask.any(-1, keepdims=True), products.sum(-2), np.nan)
        return (found.astype(np.float64),)


@pytest.fixture(params=["numpy", "torch"])
def tally(request):
    """Holds results against references in numpy's arrays, or in PyTorch's, as where a GPU is judged."""
    return ErrorTally if request.param == "numpy" else emitted.HeldTally


@pytest.mark.parametrize(
    ("kept", "off", "is_right"),
    [(CHOICE, 1.0, True), (CHOICE, 1.0 + 1e-2, False), (CHOICE, -1.0, False), (PRODUCT, 1.0, False)],
)
def test_what_only_a_kernel_has_the_range_for_is_judged(tally, kept, off, is_right):
    """Refuse a product with a mask: the kernel's maximum may be one that the mask excludes, where right numbers prove nothing."""
    program = masked(kept)
    own, lost = tally(program), 0
    for case in cases(program, [], [sizes_of(program)], 0):
        (found,) = stable(case)
        beyond = np.isnan(case.eager[0]) & np.isnan(case.unmasked[0]) & np.isfinite(found)
        lost += int(beyond.sum())
        own.add(case, (np.where(beyond, off * found, found),))
    assert lost > 100
    said = own.verdict()
    assert (said is None) == is_right, said


@pytest.mark.parametrize("program", [SOFTMAX, ATTENTION, NORM], ids=["softmax", "attention", "norm"])
def test_within_the_range_of_fp64_they_are_the_same(program):
    compared = 0
    for case in cases(program, [], [sizes_of(program)], 0):
        every, (wanted,) = case.wide(), case.unmasked
        assert every is not None
        (found,) = every
        sure = np.isfinite(wanted) & np.isfinite(case.exact[0])
        scale = np.abs(wanted).max(where=sure, initial=0.0)
        np.testing.assert_allclose(found[sure], wanted[sure], rtol=1e-9, atol=1e-12 * scale)
        compared += int(sure.sum())
    assert compared > 1000


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "maximum", "minimum", "lt", "le", "gt", "ge", "eq", "ne"])
def test_arithmetic_is_that_of_numbers(op):
    special = [0.0, -0.0, 1.0, -1.0, 3.0, 1e-30, -1e300, np.inf, -np.inf, np.nan, 2.0**-1000]
    one, other = (np.array(v) for v in zip(*((a, b) for a in special for b in special), strict=True))
    expr = apply(op, Arg(0), Arg(1))
    kind = DType.bool if op in ("lt", "le", "gt", "ge", "eq", "ne") else DType.float64
    wide, plain = WideDomain(), MaskedDomain()
    with np.errstate(all="ignore"):
        wanted = plain.elementwise(expr, (one, other), kind)
        found = wide.told(wide.elementwise(expr, (wide.given(one), wide.given(other)), kind))
    excluded = (np.isnan(one) | np.isnan(other)) & (op in ("maximum", "minimum"))
    assert np.isnan(found[excluded]).all()
    np.testing.assert_array_equal(found[~excluded], wanted[~excluded])


def test_what_is_far_beyond_the_range_comes_back():
    wide = WideDomain()
    at = np.array([1e5, 1e5 - 1, -3e8, 2e9, 2e9])
    large = wide.elementwise(apply("exp", Arg(0)), (wide.given(at),), F32)
    assert wide.told(large)[2] == 0.0
    assert np.isinf(wide.told(large)).tolist() == [True, True, False, True, True]
    quotient = wide.elementwise(apply("div", Arg(0), Arg(1)), (large[:2], large[1::-1]), F32)
    np.testing.assert_allclose(wide.told(quotient), np.exp([1.0, -1.0]), rtol=1e-11)
    for monoid, wanted in ((Monoid.max, 1.0), (Monoid.sum, 2.0)):
        found = wide.reduce(monoid, large, (0,))
        of_largest = wide.elementwise(apply("div", Arg(0), Arg(1)), (found, large[3]), F32)
        np.testing.assert_allclose(wide.told(of_largest), wanted, rtol=1e-11)
    logarithm = wide.told(wide.elementwise(apply("log", Arg(0)), (large,), F32))
    np.testing.assert_allclose(logarithm, at, rtol=1e-11)
    product = wide.reduce(Monoid.prod, wide.elementwise(apply("exp", Arg(0)), (wide.given(at - at),), F32), (0,))
    assert wide.told(product) == 1.0


def test_rounding_at_random_is_off_by_what_the_type_rounds():
    m, n = programs.axes("m", "n")
    program = TensorProgram((programs.tensor("x", m, n),), (row_sum("t", "x", m, n),), ("t",))
    x = np.ones((50, 64))
    runs = []
    for seed in (1, 2, 3):
        domain = WideDomain(seed, F32.eps)
        (found,) = evaluate(program, {"x": domain.given(x)}, domain, sizes={"M": 50, "N": 64})
        runs.append(domain.told(found))
    off = np.abs(np.array(runs) / 64 - 1)
    assert 0.1 * F32.eps < off.max() < 20 * F32.eps
    assert not np.array_equal(runs[0], runs[1])
