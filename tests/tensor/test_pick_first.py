"""Sums that leave one place of a row: the place is read before what is computed of it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from testkit.block.paper import each
from testkit.block.programs import F32, axes, tensor
from testkit.tensor.rewritten import rewritten
from weft.tensor import Fp64Domain, evaluate
from weft.tensor.dtypes import DType
from weft.tensor.laws import pick_first
from weft.tensor.program import Cast, Elementwise, Input, Iota, Monoid, Node, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, apply
from weft.verify import equivalent

M, N = axes("m", "n")
X, A = Use("x", (M, N)), Use("a", (M,))
SUB, EQ = apply("sub", Arg(0), Arg(1)), apply("eq", Arg(0), Arg(1))
WHERE = apply("where", Arg(0), Arg(1), Lit(0.0))
SHAPES = [{"x": (m, n), "a": (m,), "i": (m,)} for m, n in ((4, 3), (9, 5), (20, 8))]


def program(*made: Node, read: str = "y", swapped: bool = False) -> TensorProgram:
    """The sum over n of `read` where n is i."""
    compared = (Use("n", (N,)), Use("i", (M,)))
    inputs = (tensor("x", M, N), tensor("a", M), Input("i", (M,), DType.int64))
    return TensorProgram(
        inputs,
        (
            *made,
            Iota("n", (N,), DType.int64),
            Elementwise("t", (M, N), DType.bool, EQ, compared[::-1] if swapped else compared),
            Elementwise("e", (M, N), F32, WHERE, (Use("t", (M, N)), Use(read, (M, N)))),
            Reduction("s", (M,), F32, Monoid.sum, Use("e", (M, N)), (N,)),
        ),
        ("s",),
    )


LESS = each("y", (M, N), SUB, X, A)
TWICE = (each("z", (M, N), SUB, X, A), each("y", (M, N), apply("exp", Arg(0)), Use("z", (M, N))))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("made", [(LESS,), TWICE], ids=["one", "two"])
def test_what_is_computed_of_the_place_is_computed_for_rows_alone(made, swapped):
    before = program(*made, swapped=swapped)
    after = pick_first(before)
    assert [n.name for n in after.nodes if isinstance(n, Elementwise) and X in n.args] == ["s_0"]
    assert all(N not in n.axes for n in after.nodes if isinstance(n, Elementwise) and A in n.args)
    assert equivalent(before, after, SHAPES).agrees
    other = rewritten(before, random.Random(3))
    assert equivalent(other, pick_first(other), SHAPES).agrees
    assert len(pick_first(other).nodes) == len(after.nodes)


def test_nothing_is_picked_where_there_is_no_such_place():
    """The operation would make something else of 0 than the sum is."""
    before = program(LESS)
    values = {"x": np.arange(6.0).reshape(2, 3), "a": np.array([1.0, 2.0]), "i": np.array([3, -1])}
    for each_program in (before, pick_first(before)):
        (found,) = evaluate(each_program, values, Fp64Domain(), sizes={"M": 2, "N": 3})
        assert found.tolist() == [0.0, 0.0]


def test_other_places_do_not_count():
    """An infinity and a NaN beside the place."""
    values = {"x": np.array([[np.inf, 5.0, np.nan]]), "a": np.array([1.0]), "i": np.array([1])}
    (found,) = evaluate(pick_first(program(LESS)), values, Fp64Domain(), sizes={"M": 1, "N": 3})
    assert found.tolist() == [4.0]


BOTH = (each("b", (M, N), apply("exp", Arg(0)), X), each("y", (M, N), SUB, X, Use("b", (M, N))))
ROUNDED = (LESS, Cast("c", (M, N), DType.bfloat16, Use("y", (M, N)), semantic=True))
INTEGERS = (
    Cast("k", (M, N), DType.int64, X, semantic=True),
    Cast("c", (M, N), F32, Use("k", (M, N)), semantic=True),
)


PICKED = program(LESS)
LARGEST = replace(PICKED, nodes=(*PICKED.nodes[:-1], Reduction("s", (M,), F32, Monoid.max, Use("e", (M, N)), (N,))))


@pytest.mark.parametrize(
    "before",
    [
        program(read="x"),
        program(*BOTH),
        program(*ROUNDED, read="c"),
        program(*INTEGERS, read="c"),
        LARGEST,
    ],
    ids=["an input", "two operands vary", "another type", "integers", "no sum"],
)
def test_left_as_it_is(before):
    assert pick_first(before).nodes == before.nodes
