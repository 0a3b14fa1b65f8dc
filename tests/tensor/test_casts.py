"""Casts that eager rounds by: which of them a program may drop, and which it may not."""

from __future__ import annotations

import pytest

from testkit.tensor.forms import EXP, casts, kinds
from weft.pipeline import normalize
from weft.tensor.builder import Builder
from weft.tensor.dtypes import DType
from weft.tensor.laws import drop_precision_casts, numbers_as_doubles
from weft.tensor.program import Cast, Contraction, Elementwise, Monoid
from weft.tensor.scalar import Arg, Convert, Lit, Scalar, apply

BF16, F32 = DType.bfloat16, DType.float32


def test_casts_between_operations_go_and_those_of_outputs_are_semantic() -> None:
    b = Builder()
    x = b.input("x", (4, 4), BF16)
    y = b.elementwise(EXP, [b.elementwise(EXP, [x])])
    program = drop_precision_casts(b.finish([b.reduce(Monoid.sum, y, [1])]))
    assert kinds(program) == ["Elementwise", "Elementwise", "Reduction", "Cast"]
    assert casts(program) == [("bfloat16", True)]


def test_casts_that_feed_a_contraction_stay_precision() -> None:
    b = Builder()
    x, w = b.input("x", (4, 4), BF16), b.input("w", (4, 4), BF16)
    y = b.matmul(b.elementwise(EXP, [b.elementwise(EXP, [x])]), w)
    program = drop_precision_casts(b.finish([y]))
    assert kinds(program) == ["Elementwise", "Elementwise", "Cast", "Contraction", "Cast"]
    assert casts(program) == [("bfloat16", False), ("bfloat16", True)]
    (product,) = (n for n in program.nodes if isinstance(n, Contraction))
    assert program.values()[product.left.value].dtype is BF16


def test_a_contraction_reads_past_a_cast_there_and_back() -> None:
    b = Builder()
    x, w = b.input("x", (4, 4), F32), b.input("w", (4, 4), F32)
    back = b.cast(b.cast(x, BF16), F32)
    program = drop_precision_casts(b.finish([b.matmul(back, w)]))
    assert kinds(program) == ["Contraction"]


@pytest.mark.parametrize(
    ("expr", "dtype"),
    [
        (apply("lt", Arg(0), Lit(1.0)), DType.bool),
        (apply("floor", Arg(0)), BF16),
        (apply("where", apply("lt", Arg(0), Lit(1.0)), Arg(0), Lit(0.0)), BF16),
    ],
)
def test_casts_that_feed_a_jump_stay_semantic(expr: Scalar, dtype: DType) -> None:
    b = Builder()
    x = b.input("x", (4,), BF16)
    y = b.elementwise(expr, [b.elementwise(EXP, [b.elementwise(EXP, [x])])], dtype)
    program = drop_precision_casts(b.finish([y]))
    found = casts(program)
    assert all(semantic for _, semantic in found)
    assert len(found) == (1 if dtype is DType.bool else 2)


def test_a_cast_to_an_integer_reads_what_eager_rounded() -> None:
    b = Builder()
    x = b.input("x", (4,), BF16)
    program = drop_precision_casts(b.finish([b.cast(b.elementwise(EXP, [x]), DType.int64)]))
    assert casts(program) == [("bfloat16", True), ("int64", True)]


def test_what_is_cast_there_and_back_is_still_a_tensor_of_its_own() -> None:
    b = Builder()
    x = b.input("x", (4,), BF16)
    program = normalize(b.finish([b.cast(b.cast(b.flip(x, [0]), F32), BF16), b.cast(b.cast(x, F32), BF16)]))
    assert casts(program) == [("bfloat16", True), ("bfloat16", True)]
    assert all(isinstance(program.values()[name], Cast) for name in program.outputs)


def test_a_semantic_cast_is_never_dropped() -> None:
    b = Builder()
    x = b.input("x", (4,), F32)
    y = b.elementwise(EXP, [b.cast(x, BF16, semantic=True)], F32)
    assert casts(drop_precision_casts(b.finish([y]))) == [("bfloat16", True)]


def test_what_an_opaque_operation_reads_is_rounded() -> None:
    b = Builder()
    y = b.elementwise(EXP, [b.input("x", (4,), BF16)])
    program = drop_precision_casts(b.finish([b.opaque("sort", "s", [y], (4,), BF16, "sorts")]))
    assert casts(program) == [("bfloat16", True)]


def test_numbers_among_masks_are_doubles_where_the_result_is() -> None:
    """One that meets a double has its type anyway."""
    b = Builder()
    mask, y = b.input("mask", (4,), DType.bool), b.input("y", (4,), DType.float64)
    chosen = b.elementwise(apply("where", Arg(0), Lit(0.1), Lit(0.5)), [mask], DType.float64)
    program = numbers_as_doubles(b.finish([chosen, b.elementwise(apply("mul", Arg(0), Lit(0.1)), [y])]))
    first, second = (n.expr for n in program.nodes if isinstance(n, Elementwise))
    assert first == apply("where", Arg(0), *(Convert(DType.float64, Lit(n)) for n in (0.1, 0.5)))
    assert second == apply("mul", Arg(0), Lit(0.1))
