"""Programs compared value by value: equal layers once, and no wrong one among them overlooked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.pipeline import normalize
from weft.plan.partition import by_value
from weft.plan.partition.by_value import agree_by_value
from weft.plan.partition.laws_check import _agree, laws_refuted
from weft.tensor.builder import Builder
from weft.tensor.dtypes import DType
from weft.tensor.program import Contraction, Elementwise, Monoid, Node, TensorProgram
from weft.tensor.scalar import Apply, Arg, Lit, apply

F32 = DType.float32


def layers(count: int, pick: bool = False) -> TensorProgram:
    """Makes as many equal layers, each with weights of its own: a matmul, a function, and a division by a mean."""
    b = Builder()
    x = b.input("x", (6, 4), F32)
    for number in range(count):
        w, c = b.input(f"w{number}", (4, 4), F32), b.input(f"c{number}", (4,), F32)
        y = b.elementwise(apply("add", Arg(0), Arg(1)), [b.matmul(x, b.transpose(w, 0, 1)), c])
        gate = b.elementwise(apply("mul", Arg(0), apply("add", apply("erf", Arg(0)), Lit(1.0))), [y])
        mean = b.reduce(Monoid.sum, b.elementwise(apply("mul", Arg(0), Arg(0)), [gate]), [1], keepdim=True)
        x = b.elementwise(apply("div", Arg(0), apply("add", Arg(1), Lit(1.5))), [gate, mean])
    return b.finish([b.select(x, 0, 0)] if pick else [x])


@pytest.fixture
def compared(monkeypatch) -> list[int]:
    """The numbers of operations of the programs that are compared; small ones are compared by value too."""
    monkeypatch.setattr(by_value, "_FEW", 0)
    return []


def agree(before: TensorProgram, after: TensorProgram, compared: list[int]) -> bool:
    def counted(one: TensorProgram, other: TensorProgram) -> bool:
        compared.append(len(one.nodes))
        return _agree(one, other)

    return agree_by_value(before, after, counted)


def test_more_equal_layers_are_compared_no_more_often(compared):
    counts = []
    for count in (2, 5):
        before = layers(count)
        compared.clear()
        assert agree(before, normalize(before), compared)
        assert 0 < max(compared) < 8
        counts.append(len(compared))
    assert counts[0] == counts[1]


def heads(count: int) -> TensorProgram:
    """Makes as many equal layers, each of which splits its columns into heads: sizes of each follow from those of others."""
    b = Builder()
    x = b.input("x", (6, 8), F32)
    for number in range(count):
        w, c = b.input(f"w{number}", (8, 8), F32), b.input(f"c{number}", (8,), F32)
        y = b.elementwise(apply("add", Arg(0), Arg(1)), [b.matmul(x, b.transpose(w, 0, 1)), c])
        rows = b.split(y, 1, 2, [4])
        total = b.reduce(Monoid.sum, b.elementwise(apply("mul", Arg(0), Arg(0)), [rows]), [1, 2], keepdim=False)
        x = b.elementwise(apply("div", Arg(0), Arg(1)), [y, b.unsqueeze(total, 1)])
    return b.finish([x])


def test_nor_where_sizes_follow_from_those_of_spaces_that_a_value_has_nothing_to_do_with(compared):
    counts = []
    for count in (2, 5):
        before = heads(count)
        assert len(before.derived) >= count
        compared.clear()
        assert agree(before, normalize(before), compared)
        counts.append(len(compared))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("layer", range(4))
def test_one_wrong_layer_among_equal_ones_is_noticed(compared, layer):
    before, seen = layers(4), 0
    after = normalize(before)
    nodes = list(after.nodes)
    for place, node in enumerate(nodes):
        if isinstance(node, Elementwise) and isinstance(node.expr, Apply) and node.expr.op == "erf":
            if seen == layer:
                nodes[place] = replace(node, expr=Apply("tanh", node.expr.args))
            seen += 1
    wrong = replace(after, nodes=tuple(nodes))
    assert seen == 4
    assert not agree(before, wrong, compared)
    assert laws_refuted(before, wrong) is not None


def test_other_weights_in_one_layer_are_noticed(compared):
    before = layers(3)
    after = normalize(before)
    read = {"w1": "w2", "w2": "w1"}

    def other(node: Node) -> Node:
        if not isinstance(node, Contraction):
            return node
        one, two = (replace(u, value=read.get(u.value, u.value)) for u in (node.left, node.right))
        return replace(node, left=one, right=two)

    wrong = replace(after, nodes=tuple(map(other, after.nodes)))
    assert wrong != after
    assert not agree(before, wrong, compared)


def chain(first: float, second: float) -> TensorProgram:
    b = Builder()
    x = b.input("x", (6,), F32)
    a = b.elementwise(apply("mul", Arg(0), Lit(first)), [x])
    return b.finish([b.elementwise(apply("mul", Arg(0), Lit(second)), [a])])


def test_values_of_one_name_need_not_agree_where_the_results_do(compared):
    assert agree(chain(2.0, 8.0), chain(4.0, 4.0), compared)
    assert not agree(chain(2.0, 8.0), chain(4.0, 8.0), compared)


def test_a_row_that_is_picked_first_agrees_with_one_that_is_picked_last(compared):
    before = layers(3, pick=True)
    after = normalize(before)
    assert {n.name for n in after.nodes}.isdisjoint(before.outputs)
    assert agree(before, after, compared)
