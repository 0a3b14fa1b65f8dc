"""Which programs divide by whole sums of exponentials alone: whose kernels may have numbers where eager has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid, TensorProgram
from weft.tensor.scalar import Arg, Lit, Scalar, apply
from weft.verify.totals import has_totals

F = DType.float32
Made = Callable[[Builder, Ref], Ref]


def of(b: Builder, expr: Scalar, *args: Ref) -> Ref:
    return b.elementwise(expr, args, F)


def both(op: str) -> Scalar:
    return apply(op, Arg(0), Arg(1))


def total(b: Builder, of_rows: Ref) -> Ref:
    return b.unsqueeze(b.reduce(Monoid.sum, of_rows, (1,)), 1)


def kept(b: Builder, e: Ref) -> Ref:
    return of(b, apply("where", Arg(0), Arg(1), Lit(0.0)), b.input("mask", (5, 7), DType.bool), e)


def weighed(b: Builder, e: Ref) -> Ref:
    return of(b, both("mul"), e, b.input("w", (5, 7), F))


def divided(b: Builder, e: Ref) -> Ref:
    return of(b, both("div"), e, total(b, e))


def averaged(b: Builder, e: Ref) -> Ref:
    return of(b, both("div"), b.matmul(e, b.input("v", (7, 4), F)), total(b, e))


def by_a_product(b: Builder, e: Ref) -> Ref:
    return of(b, both("div"), b.matmul(e, b.input("v", (7, 4), F)), b.matmul(e, b.input("mask", (7, 1), F)))


def logarithm(b: Builder, e: Ref) -> Ref:
    return of(b, apply("log", Arg(0)), total(b, e))


def doubled(b: Builder, e: Ref) -> Ref:
    return of(b, apply("mul", Lit(2.0), Arg(0)), e)


TOTALS: Mapping[str, tuple[Made, bool]] = {
    "shares": (divided, True),
    "attention": (averaged, True),
    "attention of what a mask keeps": (lambda b, e: averaged(b, kept(b, e)), True),
    "a multiple": (lambda b, e: averaged(b, doubled(b, e)), True),
    "the logarithm of a sum": (logarithm, True),
    "shares of products": (lambda b, e: divided(b, weighed(b, e)), False),
    "what is kept of products": (lambda b, e: averaged(b, kept(b, weighed(b, e))), False),
    "a product as divisor": (by_a_product, False),
    "the logarithm of a sum of products": (lambda b, e: logarithm(b, weighed(b, e)), False),
    "shares times data": (lambda b, e: divided(b, weighed(b, divided(b, e))), True),
    "one that is added": (lambda b, e: divided(b, of(b, apply("add", Arg(0), Lit(1.0)), e)), False),
}


def program(made: Made) -> TensorProgram:
    b = Builder()
    return b.finish([made(b, of(b, apply("exp", Arg(0)), b.input("s", (5, 7), F)))])


@pytest.mark.parametrize("name", TOTALS)
def test_divisors_are_sums_of_exponentials_alone(name: str) -> None:
    made, whole = TOTALS[name]
    assert has_totals(program(made)) is whole


def test_a_program_without_exponentials_has_no_more_range() -> None:
    b = Builder()
    assert not has_totals(b.finish([divided(b, b.input("x", (5, 7), F))]))
