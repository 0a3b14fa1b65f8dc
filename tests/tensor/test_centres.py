"""Differences to the mean of a row are taken about an element of the row."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from testkit.block.paper import each
from testkit.block.programs import F32, axes, tensor
from testkit.tensor.rewritten import rewritten
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.laws import centre_at_an_element, views
from weft.tensor.program import (
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Monoid,
    Node,
    Reduction,
    Reindex,
    TensorProgram,
    Use,
)
from weft.tensor.rename import with_axes
from weft.tensor.scalar import Arg, apply
from weft.verify import equivalent

M, N, D = axes("m", "n", "d")
X, Y = Use("x", (M, N)), Use("y", (M, N))
ADD, SUB, MUL, DIV, TANH = (
    *(apply(op, Arg(0), Arg(1)) for op in ("add", "sub", "mul", "div")),
    apply("tanh", Arg(0)),
)
SIZES = {"x": (4, 3), "y": (4, 3), "w": (4, 2), "v": (2, 3)}


def program(first=(), of="x", summed="x", below=None, monoid=Monoid.sum, over=(N,), mean=DIV, less=SUB):
    """The squares of what `of` is above its mean, or nearly."""
    kept = tuple(a for a in (M, N) if a not in over)
    counts = below or (
        Extent("n", (), F32, N.space),
        Extent("m", (), F32, M.space),
        each("mn", (), MUL, Use("m", ()), Use("n", ())),
    )
    count = {(N,): "n", (M,): "m", (M, N): "mn"}[over]
    return TensorProgram(
        (tensor("x", M, N), tensor("y", M, N), tensor("w", M, D), tensor("v", D, N)),
        (
            *first,
            *counts,
            Reduction("t", kept, F32, monoid, Use(summed, (M, N)), over),
            each("mean", kept, mean, Use("t", kept), Use(count, ())),
            each("u", (M, N), less, Use(of, (M, N)), Use("mean", kept)),
            each("out", (M, N), MUL, Use("u", (M, N)), Use("u", (M, N))),
        ),
        ("out",),
    )  # fmt: skip


BOTH = each("z", (M, N), ADD, X, Y)


@pytest.mark.parametrize(
    ("before", "seen"),
    [
        (program(), 1),
        (program(over=(M,)), 1),
        (program(over=(M, N)), 1),
        (program((BOTH,), of="z", summed="z"), 2),
        (program((each("z", (M, N), TANH, X),), of="z", summed="z"), 1),
    ],
    ids=["along a row", "down a column", "over all", "of a sum of inputs", "of a function of an input"],
)
def test_about_the_first_element(before, seen):
    after = centre_at_an_element(before)
    made, found = views(after)
    assert len(found) == seen
    assert not any(isinstance(n, Reindex) for n in made.nodes)
    assert equivalent(before, after, [SIZES])
    again = centre_at_an_element(rewritten(before, random.Random(1)))
    assert len(views(again)[1]) == seen


PRODUCT = Contraction("z", (M, N), F32, Use("w", (M, D)), Use("v", (D, N)), (D,))


@pytest.mark.parametrize(
    "before",
    [
        program(summed="y"),
        program(monoid=Monoid.max),
        program(mean=MUL),
        program(less=ADD),
        program(below=(Constant("n", (), F32, 3.0),)),
        program((PRODUCT,), of="z", summed="z"),
    ],
    ids=[
        "of something else",
        "a maximum",
        "times the size",
        "a sum",
        "by a number",
        "of a product",
    ],
)
def test_left_as_it_is(before):
    assert centre_at_an_element(before) is before


def test_what_is_taken_off_its_own_mean():
    before = program(less=apply("sub", Arg(1), Arg(0)))
    after = centre_at_an_element(before)
    assert len(views(after)[1]) == 1
    assert equivalent(before, after, [SIZES])


@pytest.mark.parametrize(("number", "seen"), [(768.0, 1), (767.0, 0)])
def test_a_number_that_is_the_size_in_the_example(number, seen):
    def axis(a: Axis) -> Axis:
        return replace(a, space=replace(a.space, example=768)) if a == N else a

    before = program(below=(Constant("n", (), F32, number),))
    before = replace(
        before,
        inputs=tuple(with_axes(i, axis) for i in before.inputs),
        nodes=tuple(with_axes(n, axis) for n in before.nodes),
    )
    after = centre_at_an_element(before)
    assert len(views(after)[1]) == seen
    assert equivalent(before, after, [SIZES, {"x": (4, 5), "y": (4, 5), "w": (4, 2), "v": (2, 5)}])


def test_a_row_of_a_fixed_size_may_be_divided_by_that_number():
    fixed = replace(N, space=replace(N.space, fixed=3))
    before = program(below=(Constant("n", (), F32, 3.0),))
    x = Input("x", (M, fixed), F32)

    def along(use: Use) -> Use:
        return replace(use, axes=tuple(fixed if axis == N else axis for axis in use.axes))

    def fixed_along(n: Node) -> Node:
        match n:
            case Reduction():
                return replace(n, axes=tuple(fixed if a == N else a for a in n.axes), over=(fixed,), arg=along(n.arg))
            case Elementwise() if n.name != "mean":
                return replace(n, axes=(M, fixed), args=tuple(map(along, n.args)))
            case _:
                return n

    nodes = tuple(map(fixed_along, before.nodes))
    after = centre_at_an_element(replace(before, inputs=(x,), nodes=nodes))
    assert len(views(after)[1]) == 1


def test_in_float64_the_bound_is_that_of_float64():
    wide = program()
    nodes = tuple(replace(n, dtype=DType.float64) for n in wide.nodes)
    after = centre_at_an_element(
        replace(wide, inputs=tuple(replace(i, dtype=DType.float64) for i in wide.inputs), nodes=nodes)
    )
    assert str(2.0**970) in str(after)
