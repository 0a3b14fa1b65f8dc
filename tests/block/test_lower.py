"""Lowering by look-up: what the programs of the other tests do not have."""

from __future__ import annotations

import numpy as np
import pytest

from testkit.block.programs import F32, axes, tensor
from weft.block.check import check
from weft.block.interpret import interpret
from weft.block.lower import lower
from weft.tensor.evaluate import evaluate
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Contraction, Monoid, Reduction, TensorProgram, Use


@pytest.mark.parametrize("monoid", [Monoid.sum, Monoid.max])
def test_a_reduction_over_a_batch_axis_alone(monoid):
    """Loops over a batch go by single elements, and so does the reduction: nothing is left to combine inside an item."""
    b, m, k, n = axes("b", "m", "k", "n")
    product = Contraction("p", (b, m, n), F32, Use("x", (b, m, k)), Use("y", (b, k, n)), (k,))
    reduced = Reduction("out", (m, n), F32, monoid, Use("p", (b, m, n)), (b,))
    program = TensorProgram((tensor("x", b, m, k), tensor("y", b, k, n)), (product, reduced), ("out",))
    block = lower(program)
    check(block)
    sizes, domain, numbers = {"B": 3, "M": 4, "K": 2, "N": 6}, Fp64Domain(), np.random.default_rng(0)
    inputs = {i.name: domain.random([a.space.size(sizes) for a in i.axes], i.dtype, numbers) for i in program.inputs}
    (wanted,), ((found,), _) = evaluate(program, inputs, domain), interpret(block, inputs, sizes, domain, {"M": 2})
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
