"""Choices between two numbers, made where they are read."""

from __future__ import annotations

from testkit.block.paper import each
from testkit.block.programs import F32, axes, tensor
from weft.tensor.dtypes import DType
from weft.tensor.laws import choices_in_place
from weft.tensor.program import Elementwise, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, apply
from weft.verify import equivalent

H, M, N = axes("h", "m", "n")
KEEP = Elementwise("c", (M, N), F32, apply("where", Arg(0), Lit(1.0), Lit(0.0)), (Use("keep", (M, N)),))
TIMES = apply("mul", Arg(0), Arg(1))
TURNED = each("y", (H, M, N), TIMES, Use("x", (H, M, N)), Use("c", (M, N)))


def program(*nodes: Elementwise, outputs: tuple[str, ...] = ("y",)) -> TensorProgram:
    return TensorProgram((tensor("x", H, M, N), tensor("keep", M, N, dtype=DType.bool)), nodes, outputs)


def test_a_reader_with_more_axes_chooses_itself():
    before = program(KEEP, TURNED)
    after = choices_in_place(before)
    (made,) = after.nodes
    assert isinstance(made, Elementwise)
    assert made.args == (Use("x", (H, M, N)), Use("keep", (M, N)))
    assert made.expr == apply("mul", Arg(0), apply("where", Arg(1), Lit(1.0), Lit(0.0)))
    assert equivalent(before, after, [{"x": (2, 3, 4), "keep": (3, 4)}]).agrees


def test_axes_are_those_of_the_reader():
    swapped = Elementwise("c", (N, M), F32, KEEP.expr, (Use("keep", (M, N)),))
    reader = each("y", (H, M, N), TIMES, Use("x", (H, M, N)), Use("c", (N, M)))
    (made,) = choices_in_place(program(swapped, reader)).nodes
    assert isinstance(made, Elementwise)
    assert made.args[1] == Use("keep", (M, N))


def test_what_has_as_many_axes_or_is_given_stays():
    same = each("y", (M, N), apply("add", Arg(0), Arg(1)), Use("z", (M, N)), Use("c", (M, N)))
    made = each("z", (M, N), apply("mul", Arg(0), Lit(2.0)), Use("c", (M, N)))
    before = program(KEEP, made, same)
    assert choices_in_place(before) == before
    assert [n.name for n in choices_in_place(program(KEEP, TURNED, outputs=("y", "c"))).nodes] == ["c", "y"]


def test_a_program_without_is_left_as_it_is():
    before = program(each("y", (H, M, N), TIMES, Use("x", (H, M, N)), Use("x", (H, M, N))))
    assert choices_in_place(before) is before
