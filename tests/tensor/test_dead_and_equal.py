"""Laws that take nodes away, and the names of those that stay: what nothing reads, what is there twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testkit.tensor.forms import ADD, EXP, kinds, run
from weft.tensor.builder import Builder
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.laws import called_by_place, merge_equal, numbered, remove_dead
from weft.tensor.program import Input, Monoid, TensorProgram
from weft.tensor.scalar import Arg, Lit, apply
from weft.tensor.wellformed import well_formed

F32 = DType.float32


def test_dead_nodes_go_and_inputs_stay() -> None:
    b = Builder()
    x, y = b.input("x", (4,), F32), b.input("y", (4,), F32)
    b.elementwise(EXP, [y])
    program = remove_dead(b.finish([b.elementwise(EXP, [x])]))
    assert len(program.nodes) == 1
    assert [n.name for n in program.inputs] == ["x", "y"]


def test_equal_nodes_merge_up_to_axes_and_outputs_follow() -> None:
    b = Builder()
    x = b.input("x", (4, 5), F32)
    first, second = b.elementwise(EXP, [x]), b.elementwise(EXP, [x])
    program = merge_equal(b.finish([b.elementwise(ADD, [first, second]), second, first]))
    assert len(program.nodes) == 2
    assert program.outputs == ("t2", "t0", "t0")
    value = np.ones((2, 3))
    total, _, one = run(program, {"x": value}, Fp64Domain())
    assert np.allclose(total, 2 * one)


def test_an_output_that_merges_is_returned_along_the_axes_of_the_first() -> None:
    b = Builder()
    x = b.input("x", (4,), F32)
    assert x.dims[0] is not None
    made = [b.iota(x.dims[0]), b.unsqueeze(b.iota(x.dims[0]), 0)]
    program = merge_equal(b.finish(made))
    assert kinds(program) == ["Iota"]
    plain, deep = run(program, {"x": np.zeros(3)}, Fp64Domain())
    assert plain.tolist() == [0, 1, 2]
    assert deep.tolist() == [[0, 1, 2]]


def test_the_same_operation_along_another_axis_does_not_merge() -> None:
    b = Builder()
    x = b.input("x", (4, 4), F32)
    y = b.elementwise(ADD, [x, b.transpose(x, 0, 1)])
    assert y.dims[0] is not None
    rows, columns = b.reduce(Monoid.sum, y, [0]), b.reduce(Monoid.sum, y, [1])
    program = merge_equal(b.finish([rows, columns]))
    assert kinds(program) == ["Elementwise", "Reduction", "Reduction"]


@pytest.mark.parametrize("other", [0, -0.0, False])
def test_literals_that_compare_equal_may_differ(other: float) -> None:
    b = Builder()
    x = b.input("x", (4,), F32)
    made = [b.elementwise(apply("maximum", Arg(0), Lit(v)), [x]) for v in (0.0, other, 0.0)]
    assert len(merge_equal(b.finish(made)).nodes) == 2


def test_opaque_operations_never_merge() -> None:
    b = Builder()
    x = b.input("x", (4,), F32)
    (axis,) = x.dims
    assert axis is not None
    made = [b.opaque("aten.bernoulli", "call", [x], (axis,), F32, "random") for _ in range(2)]
    assert len(merge_equal(b.finish(made)).nodes) == 2


def test_numbered_programs_are_the_same_text_wherever_they_were_cut_out_of() -> None:
    def made(before: int) -> str:
        b = Builder()
        for i in range(before):  # what the rest of a graph has taken names for
            b.input(f"other{i}", (3, 4), F32)
        w, x = b.input("w", (5, 6), F32), b.input("x", (5, 6), F32)
        x = b.elementwise(EXP, (x,), F32)
        y = b.elementwise(ADD, (b.matmul(x, b.permute(w, (1, 0))), b.cast(b.extent(w.dims[1], F32), F32)), F32)
        whole = remove_dead(b.finish([y]))
        computed = next(n for n in whole.nodes if n.name == x.value)
        inputs = (*(n for n in whole.inputs if n.name == "w"), Input(computed.name, computed.axes, F32))
        part = replace(whole, inputs=inputs, nodes=tuple(n for n in whole.nodes if n is not computed))
        named = numbered(part, {"w"})
        assert well_formed(named) is None
        assert [n.name for n in named.inputs] == ["w", "t0"]
        assert [s.name for s in named.spaces()] == ["M", "K", "N"][: len(named.spaces())]
        assert [s.example for s in named.spaces()] == [s.example for s in part.spaces()]
        return str(named)

    assert len({made(before) for before in (0, 1, 7)}) == 1


def test_copies_of_computed_values_are_numbered_too() -> None:
    """Parts of a view of a computed value are called after it, as `t19.0`: that number is of the graph that it was cut out of."""
    b = Builder()
    names = ("t19.0", "t19.1", "t2_5.3", "keys.0", "layer_3.1.2")
    x = [b.input(name, (5, 6), F32) for name in names]
    named = numbered(b.finish([b.elementwise(ADD, (x[0], x[i]), F32) for i in range(1, 5)]), frozenset[str]())
    assert well_formed(named) is None
    assert [n.name for n in named.inputs] == ["t0", "t1", "t2", "keys.0", "layer_3.0"]


def test_programs_called_by_place_have_no_numbers_of_a_graph() -> None:
    def made(*names: str) -> TensorProgram:
        b = Builder()
        x, y = (b.input(name, (5, 6), F32) for name in names)
        z = b.elementwise(ADD, (x, y), F32)
        program = b.finish([b.elementwise(EXP, (z,), F32), z])
        return replace(program, rounded=((z.value, DType.bfloat16),))

    first, second, third = (made(*names) for names in (("w_1_a", "x"), ("w_2_a", "t9"), ("v_1_a", "x")))
    everything = [called_by_place(p, lambda _: "") for p in (first, second, third)]
    assert everything[0] == everything[1] == everything[2]
    assert well_formed(everything[0]) is None
    stems = [called_by_place(p, lambda name: name[:1]) for p in (first, second, third)]
    assert [n.name for n in stems[0].inputs] == ["w:0", "x:1"]
    assert stems[0] != stems[1]
    assert stems[0] != stems[2]
