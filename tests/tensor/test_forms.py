"""Forms: equal for programs that differ in names alone, and for no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testkit.block.programs import F32, axes, tensor
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.forms import Forms
from weft.tensor.laws import numbered
from weft.tensor.program import Contraction, Elementwise, Extent, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, apply

M, N, K = axes("m", "n", "k")
LESS = apply("sub", Arg(0), Arg(1))


P = Contraction("p", (M, N), F32, Use("x", (M, K)), Use("y", (N, K)), (K,))
E = Extent("e", (), F32, N.space)
D = Elementwise("d", (M, N), F32, LESS, (Use("p", (M, N)), Use("e", ())))


def product() -> TensorProgram:
    """x of M, K times y of N, K, and less than that by how long N is."""
    return TensorProgram((tensor("x", M, K), tensor("y", N, K)), (P, E, D), ("d",))


def form(*programs: TensorProgram) -> object:
    return Forms().of(*programs)[0]


def test_names_do_not_count():
    renamed = numbered(product(), ())
    assert {n.name for n in renamed.inputs}.isdisjoint({"x", "y"})
    assert form(renamed) == form(product())
    one = Forms()
    assert one.of(renamed)[0] == one.of(product())[0]
    assert [s.name for s in one.of(product())[1]] == ["M", "K", "N"]


OTHERS = {
    "operands": replace(product(), nodes=(P, E, replace(D, args=D.args[::-1]))),
    "a number": replace(product(), nodes=(P, E, replace(D, expr=apply("sub", Arg(0), Lit(-0.0)), args=D.args[:1]))),
    "a zero": replace(product(), nodes=(P, E, replace(D, expr=apply("sub", Arg(0), Lit(0.0)), args=D.args[:1]))),
    "a type": replace(product(), nodes=(P, E, replace(D, dtype=DType.float64))),
    "an extent": replace(product(), nodes=(P, replace(E, space=M.space), D)),
    "the result": replace(product(), outputs=("p",)),
    "dimensions": replace(product(), output_dims=((N, M),)),
    "units": replace(product(), output_dims=((None, M, N),)),
    "a fixed size": replace(product(), inputs=(tensor("x", M, Axis("k", Space("K", 8))), product().inputs[1])),
    "the order of inputs": replace(product(), inputs=product().inputs[::-1]),
}


def test_all_else_counts():
    found = {name: form(other) for name, other in OTHERS.items()} | {"": form(product())}
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("shared", [True, False])
def test_of_two_programs_it_says_which_inputs_are_the_same(shared):
    other = product()
    second = (
        other
        if shared
        else replace(
            other,
            inputs=(replace(other.inputs[0], name="z"), other.inputs[1]),
            nodes=(replace(P, left=Use("z", (M, K))), E, D),
        )
    )
    assert form(second) == form(product())
    assert (form(product(), second) == form(product(), product())) is shared
