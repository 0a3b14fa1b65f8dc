"""Whether two block programs compute the same: exactly over a field, and in numbers."""

from __future__ import annotations

import numpy as np

from weft.block.interpret import interpret
from weft.block.program import BlockProgram
from weft.tensor.field import FieldDomain
from weft.tensor.fp64 import Fp64Domain


def run(program: BlockProgram, domain, sizes, blocks, seed=0):
    numbers = np.random.default_rng(seed)
    inputs = {n: domain.random([a.space.size(sizes) for a in k.lists], k.dtype, numbers) for n, k in program.inputs}
    return interpret(program, inputs, sizes, domain, blocks)[0]


def assert_same(before: BlockProgram, after: BlockProgram, sizes, blocks):
    exact, numbers = FieldDomain(5), Fp64Domain()
    for one, two in zip(run(before, exact, sizes, blocks), run(after, exact, sizes, blocks), strict=True):
        assert exact.equal(one, two)
    for one, two in zip(run(before, numbers, sizes, blocks), run(after, numbers, sizes, blocks), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-9, atol=1e-9)
