"""Functions of sizes alone, computed where they are read."""

from __future__ import annotations

from testkit.block.paper import each
from testkit.block.programs import F32, axes, tensor
from weft.tensor.laws import sizes_in_place
from weft.tensor.program import Elementwise, Extent, Node, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, apply
from weft.verify import equivalent

M, K = axes("m", "k")
ROOT, DIV = apply("sqrt", Arg(0)), apply("div", Arg(0), Arg(1))
SIZE = Extent("kk", (), F32, K.space)


def program(*nodes: Node, outputs: tuple[str, ...] = ("y",)) -> TensorProgram:
    return TensorProgram((tensor("x", M, K),), (SIZE, *nodes), outputs)


SCALED = (
    each("s", (), ROOT, Use("kk", ())),
    each("t", (), apply("add", apply("div", Lit(1.0), Arg(0)), Arg(1)), Use("s", ()), Use("kk", ())),
    each("y", (M, K), apply("mul", apply("sub", Arg(0), Arg(1)), Arg(2)), Use("x", (M, K)), Use("t", ()), Use("s", ())),
)


def test_a_chain_of_functions_of_sizes_becomes_part_of_what_reads_it():
    before = program(*SCALED)
    after = sizes_in_place(before)
    assert [n.name for n in after.nodes] == ["kk", "y"]
    (reader,) = (n for n in after.nodes if isinstance(n, Elementwise))
    assert reader.args == (Use("x", (M, K)), Use("kk", ()))
    for sizes in ((3, 4), (1, 1), (5, 2)):
        assert equivalent(before, after, [{"x": sizes}])


def test_what_is_given_stays():
    after = sizes_in_place(program(*SCALED, outputs=("y", "s")))
    assert [n.name for n in after.nodes] == ["kk", "s", "y"]


def test_a_program_without_is_left_as_it_is():
    before = program(each("y", (M, K), DIV, Use("x", (M, K)), Use("kk", ())))
    assert sizes_in_place(before) is before
