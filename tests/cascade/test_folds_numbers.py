"""Infinities, NaN and zeros in a state: what the program gives, whatever the pieces and their order."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from testkit.cascade.chains import CHAINS, one_loop
from testkit.cascade.folding import Folding, Numbers, cutting
from testkit.cascade.programs import wrong
from weft.tensor.fp64 import Fp64Domain

INF, NAN, HALF = math.inf, math.nan, 8


def changed(*changes: tuple[slice | int, float]) -> np.ndarray:
    """A row of ordinary numbers but for those places."""
    row = np.random.default_rng(1).standard_normal(2 * HALF)
    for place, value in changes:
        row[place] = value
    return row


FIRST, LAST, ALL = slice(0, HALF), slice(HALF, None), slice(None)
CANCELLING = changed((slice(0, None, 2), 1.0), (slice(1, None, 2), -1.0))
KINDS = {
    "-inf": [changed((ALL, -INF)), changed((FIRST, -INF)), changed((LAST, -INF)), changed((3, -INF))],
    "+inf": [changed((0, INF)), changed((-2, INF)), changed((1, -INF), (-2, INF)), changed((ALL, INF))],
    "NaN": [changed((0, NAN)), changed((-2, NAN)), changed((FIRST, -INF), (-1, NAN)), changed((ALL, NAN))],
    "zeros": [changed((ALL, 0.0)), changed((FIRST, 0.0)), changed((LAST, 0.0)), CANCELLING],
    "large": [changed() * 1e4, changed((2, 1e6)), changed() + 1e4],
    "equal": [changed((ALL, 3.0)), changed((FIRST, 2.0)), changed((slice(0, HALF, 2), 1.0), (slice(1, HALF, 2), -1.0))],
}
INFINITE_FACTOR = "an infinite result multiplies the sum, where each element times it has a sign of its own"
WRONG = {
    ("shares", 0, "zeros"): INFINITE_FACTOR,
    **{(name, 0, kind): INFINITE_FACTOR for name in ("sum and sum", "times the greatest") for kind in ("-inf", "+inf")},
}
"""By chain, number of the operand, and kind."""
SPECIAL = [
    (name, i, kind) for name in CHAINS for i, s in enumerate(CHAINS[name].shapes) for kind in KINDS if s == (3, 9)
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "operand", "kind"), [wrong(*c, reason=WRONG[c]) if c in WRONG else c for c in SPECIAL], ids=str
)
def test_numbers_that_hurt(name, operand, kind):
    """The state is infinite or NaN where the program is, and the same number where that is a number."""
    program, fold = one_loop(name)
    rows = np.stack(KINDS[kind])
    rng = np.random.default_rng(0)
    sizes = {"M": len(rows), "K": rows.shape[1], "N": 2}
    inputs = {n.name: rng.standard_normal([sizes[a.space.name] for a in n.axes]) for n in program.inputs}
    inputs[program.inputs[operand].name] = rows
    folding = Folding(program, fold, Fp64Domain(), inputs)
    for seed in range(8):
        order = random.Random(seed)
        with np.errstate(all="ignore"):
            found = folding.over(cutting(folding.length, order.randint(1, 5), order), order)
        for value in found:
            np.testing.assert_allclose(found[value], folding.wanted[value], rtol=1e-6, atol=1e-9)


def test_weights_whose_sum_is_about_0_on_the_way():
    """A mean by such weights is far from all data, and what is relative to it has lost these."""
    program, fold = one_loop("weighted variance")
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((2, 4, 1024)).astype(np.float32)
    w[:, :64] -= w[:, :64].mean(-1, keepdims=True)
    inputs = dict(zip((n.name for n in program.inputs), (w, x), strict=True))
    wide = {n: v.astype(np.float64) for n, v in inputs.items()}
    exact = Folding(program, fold, Fp64Domain(), wide).wanted
    found = Folding(program, fold, Numbers(np.float32), inputs).over([[64] * 16])
    mean = (wide[program.inputs[0].name] * x).sum(-1, keepdims=True) / w.astype(np.float64).sum(-1, keepdims=True)
    for value in found:
        sizes = (np.abs(w) * (x - mean) ** 2).sum(-1) / np.abs(w.astype(np.float64).sum(-1))
        assert np.all(np.abs(found[value] - exact[value]) <= 1e-6 * sizes)
