"""Exponentials of what lies below its maximum take no number above 0."""

from __future__ import annotations

import random

import pytest
import torch

import weft
from testkit.block.paper import each
from testkit.block.programs import F32, axes, tensor
from testkit.tensor.rewritten import rewritten
from weft.tensor.axes import Axis
from weft.tensor.laws import decays_below_maxima
from weft.tensor.program import Elementwise, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, apply
from weft.verify import equivalent

M, N = axes("m", "n")
X = Use("x", (M, N))
SUB, EXP, DECAY = apply("sub", Arg(0), Arg(1)), apply("exp", Arg(0)), apply("decay", Arg(0))


def program(monoid=Monoid.max, shifted=SUB, of="x", top=(M,), over=(N,)):
    """exp(x - max(x)), or nearly."""
    return TensorProgram(
        (tensor("x", M, N), tensor("z", M, N)),
        (
            Reduction("t", top, F32, monoid, Use(of, (M, N)), over),
            each("d", (M, N), shifted, X, Use("t", top)),
            each("e", (M, N), EXP, Use("d", (M, N))),
        ),
        ("e",),
    )


def decays(made):
    return [n.name for n in made.nodes if isinstance(n, Elementwise) and n.expr == DECAY]


@pytest.mark.parametrize("before", [program(), program(top=(), over=(M, N)), program(top=(N,), over=(M,))])
def test_below_the_maximum(before):
    after = decays_below_maxima(before)
    assert decays(after) == ["e"]
    assert equivalent(before, after, [{"x": (4, 3), "z": (4, 3)}])
    assert len(decays(decays_below_maxima(rewritten(before, random.Random(1))))) == 1


@pytest.mark.parametrize(
    "before",
    [
        program(monoid=Monoid.min),
        program(shifted=apply("add", Arg(0), Arg(1))),
        program(shifted=apply("sub", Arg(1), Arg(0))),
        program(of="z"),
    ],
    ids=["a minimum", "a sum", "the other way round", "of something else"],
)
def test_left_as_it_is(before):
    assert decays_below_maxima(before) is before


def test_a_square_less_its_columns_maxima_is_not_below_its_rows():
    """x[m, n] - t[n] where t is over the rows' own numbers: one space, two axes."""
    n = Axis("n", M.space)
    other = TensorProgram(
        (tensor("x", M, n),),
        (
            Reduction("t", (M,), F32, Monoid.max, Use("x", (M, n)), (n,)),
            each("d", (M, n), SUB, Use("x", (M, n)), Use("t", (n,))),
            each("e", (M, n), EXP, Use("d", (M, n))),
        ),
        ("e",),
    )
    assert decays_below_maxima(other) is other


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_with_nothing_in_them_large_ones_and_infinities(dtype, scale):
    x = (torch.randn(7, 300, generator=torch.Generator().manual_seed(0)) * scale).to(dtype)
    x[1], x[2, 5], x[3, 7], x[4, :150] = -torch.inf, torch.inf, torch.nan, -torch.inf
    for fn in (lambda x: torch.softmax(x, -1), lambda x: torch.log_softmax(x, -1)):
        torch.testing.assert_close(weft.optimize(fn, (x,))(x), fn(x), equal_nan=True)
