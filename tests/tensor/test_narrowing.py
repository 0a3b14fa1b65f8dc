"""Products of numbers that bfloat16 has are products in bfloat16; no others are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from testkit.capture.collector import Collector
from weft.pipeline import normalize
from weft.plan.partition.laws_check import laws_refuted
from weft.tensor import well_formed
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain, rounded
from weft.tensor.laws import narrow_exact_factors
from weft.tensor.program import Contraction, TensorProgram

X, B = torch.randn(5, 6), torch.randn(6, 4).bfloat16()
I8, U8 = torch.arange(-12, 12, dtype=torch.int8).view(6, 4) * 10, torch.arange(24).to(torch.uint8).view(6, 4) * 10
F8 = torch.randn(6, 4).to(torch.float8_e4m3fn)


def steps(x):
    return (x / x.abs().amax(-1, keepdim=True) * 127).round().clamp(-127, 127)


EXACT = {
    "bytes": (lambda x, w: steps(x).to(torch.int8).float() @ w.float(), I8),
    "rounded and clamped": (lambda x, w: steps(x) @ w.float(), B),
    "clamped before": (lambda x, w: torch.round(x.clamp(-256, 256)) @ w.float(), B),
    "an fp8 number": (lambda x, w: x.to(torch.float8_e5m2).float() @ w.float(), F8),
    "rounded to bfloat16": (lambda x, w: x.bfloat16().to(torch.float8_e4m3fn).float() @ w.float(), B),
    "less a zero point": (lambda x, w: steps(x) @ (w.float() - 128), U8),
    "less one, as integers": (lambda x, w: steps(x) @ (w.int() - w.int()[:1]).float(), U8),
    "choices and signs": (lambda x, w: torch.where(x > 0, steps(x), -1.5).abs() @ w.float().relu(), B),
    "a mask": (lambda x, w: (x > 0).float() @ w.float(), B),
    "signs": (lambda x, w: x.sign() @ w.float(), I8),
    "a maximum": (lambda x, w: steps(x).view(5, 6, 1).expand(5, 6, 2).amax(-1) @ w.float(), I8),
}
NOT = {
    "a float": (lambda x, w: x @ w.float(), B),
    "rounded without bounds": (lambda x, w: x.round() @ w.float(), B),
    "bounds without rounding": (lambda x, w: x.clamp(-1, 1) @ w.float(), B),
    "bounds above 256": (lambda x, w: x.clamp(-257, 257).round() @ w.float(), B),
    "a wide weight": (lambda x, w: steps(x) @ (w.float() * 0.1), B),
    "sums": (lambda x, w: (steps(x) * 3) @ w.float(), B),
    "a wrapped integer": (lambda x, w: x.to(torch.int32).float() @ w.float(), B),
    "what NaN becomes": (lambda x, w: steps(x).to(torch.int32).float() @ w.float(), B),
    "a number that is none of its": (lambda x, w: torch.where(x > 0, steps(x), 0.1) @ w.float(), B),
    "fp64": (lambda x, w: steps(x).double() @ w.double(), B),
}


INFINITE = torch.tensor(
    [[math.inf, -math.inf, math.nan, 1e30, -300.0, 0.0], [0.0] * 6, [255.5] * 6, [1e-40, 256.5, 2, 3, 4, 5]]
)


def captured(function, weight: torch.Tensor) -> TensorProgram:
    collector = Collector()
    collector.run(function, X, weight)
    found = collector.only.program
    assert found is not None
    return normalize(found)


def operands(program: TensorProgram) -> tuple[str, str]:
    (product,) = (n for n in program.nodes if isinstance(n, Contraction))
    return product.left.value, product.right.value


def kinds(program: TensorProgram) -> set[DType]:
    values = program.values()
    return {values[name].dtype for name in operands(program)}


@pytest.mark.parametrize("name", EXACT)
def test_products_of_what_bfloat16_has(name):
    function, weight = EXACT[name]
    before = captured(function, weight)
    after = narrow_exact_factors(before)
    assert kinds(before) == {DType.float32}
    assert kinds(after) == {DType.bfloat16}
    well_formed(after)
    product = next(n for n in after.nodes if isinstance(n, Contraction))
    assert product.dtype is DType.float32  # what it is summed in
    assert laws_refuted(before, after) is None
    assert narrow_exact_factors(after) is after


@pytest.mark.parametrize("name", EXACT)
def test_no_number_is_changed(name):
    """Inputs may be any: those that nothing bounds, too."""
    function, weight = EXACT[name]
    before = captured(function, weight)
    read = replace(before, outputs=operands(before), output_dims=())
    for x in (X, 100 * X, INFINITE, torch.randn(50, 6) * torch.logspace(-30, 30, 50)[:, None]):
        given = {"x": x, "w": weight}
        inputs = {
            n.name: given[n.name].double().numpy() if n.dtype.is_float else given[n.name].numpy() for n in read.inputs
        }
        for found in evaluate(read, inputs, Fp64Domain()):
            assert np.array_equal(found, rounded(found, DType.bfloat16), equal_nan=True)


@pytest.mark.parametrize("name", NOT)
def test_other_products_stay(name):
    before = captured(*NOT[name])
    assert narrow_exact_factors(before) is before
