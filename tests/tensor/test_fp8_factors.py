"""Products of fp8 numbers that were widened read them as they are, where results have 16 bits; no others do."""

from __future__ import annotations

import pytest
import torch

from testkit.capture.collector import Collector
from weft.pipeline import normalize
from weft.plan.partition.laws_check import laws_refuted
from weft.tensor import well_formed
from weft.tensor.dtypes import DType
from weft.tensor.laws import multiply_in_fp8, narrow_exact_factors
from weft.tensor.program import Contraction, TensorProgram

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
X, W, V = torch.randn(5, 6).bfloat16(), torch.randn(6, 4).to(E4), torch.randn(6, 4).bfloat16()

EIGHT = {
    "widened to float32": (lambda x, w: (x.to(E4).float() @ w.float()).bfloat16(), W),
    "widened to bfloat16": (lambda x, w: x.to(E4).bfloat16() @ w.bfloat16(), W),
    "rounded after a division": (lambda x, w: ((x / 3).to(E4).float() @ w.float() * 2).bfloat16(), W),
    "two types": (lambda x, w: (x.to(E5).float() @ w.float()).bfloat16(), W),
}
NOT = {
    "a result of 32 bits": (lambda x, w: x.to(E4).float() @ w.float(), W),
    "one wide factor": (lambda x, w: (x.float() @ w.float()).bfloat16(), W),
    "changed after rounding": (lambda x, w: ((x.to(E4).float() + 1) @ w.float()).bfloat16(), W),
    "no fp8 number": (lambda x, w: x @ w, V),
}


def captured(function, weight: torch.Tensor) -> TensorProgram:
    collector = Collector()
    collector.run(function, X, weight)
    found = collector.only.program
    assert found is not None
    return normalize(found)


def factors(program: TensorProgram) -> list[set[DType]]:
    values = program.values()
    products = [n for n in program.nodes if isinstance(n, Contraction)]
    return [{values[u.value].dtype for u in (n.left, n.right)} for n in products]


@pytest.mark.parametrize("name", EIGHT)
def test_both_factors_are_read_as_they_are(name: str) -> None:
    program = captured(*EIGHT[name])
    made = multiply_in_fp8(program)
    well_formed(made)
    assert factors(made)
    assert all(kinds <= {DType.float8_e4m3fn, DType.float8_e5m2} for kinds in factors(made))
    assert laws_refuted(program, made) is None
    assert narrow_exact_factors(made) is made


@pytest.mark.parametrize("name", NOT)
def test_no_other_product_changes(name: str) -> None:
    program = captured(*NOT[name])
    assert multiply_in_fp8(program) is program
