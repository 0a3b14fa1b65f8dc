"""Masks over indices, computed where they are read."""

from __future__ import annotations

import math

import numpy as np
import pytest

from testkit.block.paper import each
from testkit.block.programs import F32, axes, tensor
from weft.tensor import Fp64Domain, evaluate
from weft.tensor.dtypes import DType
from weft.tensor.laws import masks_in_place
from weft.tensor.program import Cast, Constant, Elementwise, Iota, Monoid, Reduction, TensorProgram, Use
from weft.tensor.scalar import Apply, Arg, Lit, Scalar, apply, operations
from weft.verify import equivalent

M, N = axes("m", "n")
ROW, COLUMN, X = Use("i", (M,)), Use("j", (N,)), Use("x", (M, N))
INDICES = (Iota("i", (M,), DType.int64), Iota("j", (N,), DType.int64), Constant("one", (), F32, 1))
BELOW = apply("le", Arg(0), Arg(1))
INF = Lit(-math.inf)


def mask(expr: Scalar, dtype: DType = F32) -> Elementwise:
    return Elementwise("c", (M, N), dtype, expr, (COLUMN, ROW))


def program(made: Elementwise, *rest: Elementwise | Cast, outputs: tuple[str, ...] = ("y",)) -> TensorProgram:
    return TensorProgram((tensor("x", M, N),), (*INDICES, made, *rest), outputs)


def reader(expr: Scalar, value: str = "c") -> Elementwise:
    return each("y", (M, N), expr, X, Use(value, (M, N)))


ONES = mask(apply("where", BELOW, Lit(1.0), Lit(0.0)))
ADDED = mask(apply("where", apply("ge", Arg(0), apply("add", Arg(1), Lit(1))), INF, Lit(0.0)))
EXCLUDED = mask(apply("logical_not", BELOW), DType.bool)
IS_ZERO = apply("eq", Arg(1), Lit(0.0))
BIAS = apply("mul", apply("sub", Lit(1.0), Arg(1)), Lit(-1e4))

CONDITION = mask(BELOW, DType.bool)
NUMBER = Cast("b", (M, N), F32, Use("c", (M, N)), True)

CASES = {
    "a condition as a number": (
        program(
            CONDITION,
            NUMBER,
            reader(apply("where", apply("gt", apply("sub", Lit(1.0), Arg(1)), Lit(0.5)), INF, Arg(0)), "b"),
        ),
        2,
    ),
    "zeros filled": (program(ONES, reader(apply("where", IS_ZERO, INF, Arg(0)))), 2),
    "ones kept": (program(ONES, reader(apply("where", apply("ne", Arg(1), Lit(0.0)), Arg(0), INF))), 2),
    "added": (program(ADDED, reader(apply("add", Arg(0), Arg(1)))), 3),
    "excluded": (program(EXCLUDED, reader(apply("where", Arg(1), INF, Arg(0)))), 2),
    "as a bias": (program(ONES, reader(apply("add", Arg(0), BIAS))), 3),
    "cast": (
        program(
            ONES,
            Cast("b", (M, N), DType.bool, Use("c", (M, N)), True),
            reader(apply("where", apply("logical_not", Arg(1)), INF, Arg(0)), "b"),
        ),
        2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_reader_compares_indices_itself(name):
    before, count = CASES[name]
    after = masks_in_place(before)
    *indices, made = after.nodes
    assert all(isinstance(n, Iota) for n in indices)
    assert isinstance(made, Elementwise)
    assert operations(made.expr) == count
    assert {u.value for u in made.args} == {"i", "j", "x"}
    for sizes in ((3, 4), (5, 5), (6, 2)):
        assert equivalent(before, after, [{"x": sizes}]).agrees
        values = {"x": np.random.default_rng(0).standard_normal(sizes)}
        one, other = (evaluate(p, values, Fp64Domain())[0] for p in (before, after))
        np.testing.assert_array_equal(one, other)


def test_what_is_excluded_by_adding_does_not_propagate_nan():
    after = masks_in_place(CASES["added"][0])
    found = evaluate(after, {"x": np.full((2, 2), np.nan)}, Fp64Domain())[0]
    assert found[0, 1] == -math.inf
    assert np.isnan(found[1]).all()


EXP, PRODUCT = apply("exp", Arg(0)), apply("mul", Arg(0), Arg(1))
EXPONENTIAL = each("e", (M, N), EXP, X)
TIMES_MASK = each("y", (M, N), PRODUCT, Use("e", (M, N)), Use("c", (M, N)))


@pytest.mark.parametrize("number", [1.0, 1.25])
def test_of_an_exponential_a_mask_that_multiplies_it_chooses(number):
    made = mask(apply("where", BELOW, Lit(number), Lit(0.0)))
    before = program(made, EXPONENTIAL, TIMES_MASK)
    after = masks_in_place(before)
    last = after.nodes[-1]
    assert isinstance(last, Elementwise)
    assert isinstance(last.expr, Apply)
    assert last.expr.op == "where"
    assert last.expr.args[2] == Lit(0.0)
    assert equivalent(before, after, [{"x": (3, 4)}]).agrees
    one, other = (evaluate(p, {"x": np.full((2, 2), 1e4)}, Fp64Domain())[0] for p in (before, after))
    assert np.isnan(one[0, 1])  # infinity times 0
    assert other[0, 1] == 0.0
    assert (other[1] == math.inf).all()


def test_other_factors_of_a_mask_stay_factors():
    """Times 0, an infinity among data is NaN, as it is in eager."""
    before = program(ONES, reader(PRODUCT))
    last = masks_in_place(before).nodes[-1]
    assert isinstance(last, Elementwise)
    assert last.expr == apply("mul", Arg(0), apply("where", apply("le", Arg(1), Arg(2)), Lit(1.0), Lit(0.0)))
    weighed = each("w", (M, N), PRODUCT, Use("e", (M, N)), X)
    of_both = each("y", (M, N), PRODUCT, Use("w", (M, N)), Use("c", (M, N)))
    last = masks_in_place(program(ONES, EXPONENTIAL, weighed, of_both)).nodes[-1]
    assert isinstance(last, Elementwise)
    assert operations(last.expr) == 3


SHIFTED = apply("sub", Arg(0), Arg(1))


def operator_of_product(monoid: Monoid, *between: Elementwise) -> str:
    """The operator that is left of an exponential times a mask; `between`: from a row and its reduction to the exponent, `d`."""
    top = Reduction("top", (M,), F32, monoid, X, (N,))
    raised = each("e", (M, N), EXP, Use("d", (M, N)))
    before = TensorProgram((tensor("x", M, N),), (*INDICES, ONES, top, *between, raised, TIMES_MASK), ("y",))
    last = masks_in_place(before).nodes[-1]
    assert isinstance(last, Elementwise)
    assert isinstance(last.expr, Apply)
    return last.expr.op


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (SHIFTED, None),
        (apply("mul", SHIFTED, Lit(0.5)), None),
        (apply("neg", apply("sub", Arg(1), Arg(0))), None),
        (SHIFTED, apply("mul", Arg(0), Lit(0.5))),
        (SHIFTED, apply("sub", Arg(0), Arg(1))),  # as log_softmax, which takes off the logarithm of a sum too
    ],
    ids=["shifted", "times a number at once", "negated", "times a number after", "shifted twice"],
)
def test_what_a_shift_keeps_in_range_stays_a_factor(first, then):
    name = "d" if then is None else "c0"
    between = [each(name, (M, N), first, X, Use("top", (M,)))]
    if then is not None:
        args = [Use(name, (M, N)), Use("top", (M,))][: 2 if then.op == "sub" else 1]
        between.append(each("d", (M, N), then, *args))
    assert operator_of_product(Monoid.max, *between) == "mul"


def test_what_a_sum_is_taken_off_is_not_kept_in_range():
    assert operator_of_product(Monoid.sum, each("d", (M, N), SHIFTED, X, Use("top", (M,)))) == "where"


def test_a_product_of_masks_is_a_mask():
    second = Elementwise(
        "b", (M, N), F32, apply("where", apply("lt", Arg(0), Arg(1)), Lit(0.0), Lit(2.0)), (COLUMN, ROW)
    )
    joined = each("z", (M, N), PRODUCT, Use("c", (M, N)), Use("b", (M, N)))
    before = program(ONES, second, joined, reader(apply("where", IS_ZERO, INF, Arg(0)), "z"))
    after = masks_in_place(before)
    assert [type(n) for n in after.nodes] == [Iota, Iota, Elementwise]
    assert equivalent(before, after, [{"x": (3, 4)}]).agrees
    values = {"x": np.random.default_rng(0).standard_normal((4, 5))}
    one, other = (evaluate(p, values, Fp64Domain())[0] for p in (before, after))
    np.testing.assert_array_equal(one, other)


def test_a_mask_that_values_decide_stays():
    made = each("c", (M, N), apply("where", apply("gt", Arg(0), Lit(0.0)), Lit(1.0), Lit(0.0)), X)
    before = program(made, reader(apply("mul", Arg(0), Arg(1))))
    assert [n.name for n in masks_in_place(before).nodes] == ["c", "y"]


def test_a_mask_that_is_returned_stays_too():
    before = program(ONES, reader(apply("where", IS_ZERO, INF, Arg(0))), outputs=("y", "c"))
    assert "c" in [n.name for n in masks_in_place(before).nodes]


def test_a_comparison_of_floats_is_not_turned_round():
    made = Elementwise("c", (M, N), DType.bool, apply("logical_not", BELOW), (Use("g", (N,)), Use("f", (M,))))
    floats = [Cast(new, (axis,), F32, Use(old, (axis,)), True) for new, old, axis in (("f", "i", M), ("g", "j", N))]
    before = TensorProgram(
        (tensor("x", M, N),), (*INDICES, *floats, made, reader(apply("where", Arg(1), INF, Arg(0)))), ("y",)
    )
    last = masks_in_place(before).nodes[-1]
    assert isinstance(last, Elementwise)
    # NaN is neither below nor above: only the branches may change places.
    assert last.expr == Apply("where", (BELOW, Arg(2), INF)) or operations(last.expr) == 2


ROUNDED = {
    "a logarithm": apply("log", apply("add", Arg(1), Lit(1.0))),
    "an exponential": apply("exp", apply("mul", Arg(1), Lit(2.0))),
    "a third": apply("div", Arg(1), Lit(3.0)),
    "a product": apply("mul", apply("mul", Arg(1), Lit(0.1)), Lit(0.3)),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_rounded_is_not_worked_out_beforehand(name):
    """A finite field has neither log 2 nor the number nearest to a third: such a law could not be shown right."""
    before = program(ONES, reader(apply("add", Arg(0), ROUNDED[name])))
    after = masks_in_place(before)
    assert "c" not in [n.name for n in after.nodes]
    assert equivalent(before, after, [{"x": (3, 4)}]).agrees
