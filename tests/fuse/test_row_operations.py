"""Rules 4, 5 and 8 on rows as PyTorch writes them: divided, subtracted from, last in an expression, rounded for the product."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from testkit.block import paper
from testkit.block.paper import each, row_sum
from testkit.block.programs import ADD, F32, MUL, axes, matmul, tensor
from testkit.fuse.same import assert_same
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockProgram, Map
from weft.block.walk import maps, operands
from weft.fuse import Fusion
from weft.pipeline import fuse
from weft.tensor.dtypes import DType
from weft.tensor.program import Cast, Node, TensorProgram, Use
from weft.tensor.scalar import Apply, Arg, Scalar, apply

M, K, N, P = axes("m", "k", "n", "p")
X, C, G, W, V = tensor("x", M, K), tensor("c", M), tensor("g", K), tensor("w", N, K), tensor("v", P, K)
ROWS, BOTH = (M,), (M, K)
DIV, SUB = apply("div", Arg(0), Arg(1)), apply("sub", Arg(0), Arg(1))
SIZES, BLOCKS = {"M": 6, "K": 4, "N": 3, "P": 2}, {"M": 2, "K": 2, "N": 1, "P": 2}
BF16 = DType.bfloat16


def product(of: str, name: str = "z") -> Node:
    return matmul(name, Use(of, BOTH), Use("w", (N, K)), K)


def second(of: str) -> Node:
    return matmul("z2", Use(of, BOTH), Use("v", (P, K)), K)


def program(*nodes: Node, outputs: tuple[str, ...] = ("z",)) -> TensorProgram:
    return TensorProgram((X, C, G, W, V), nodes, outputs)


def rows(expr: Scalar, of: str = "x") -> Node:
    """y = expr(of, c)."""
    return each("y", BOTH, expr, Use(of, BOTH), Use("c", ROWS))


def fused(of: TensorProgram) -> Fusion:
    """The fusion of `of`, each step of which computes the same."""
    fusion = fuse(lower(of), checked=True)
    for step in fusion.steps:
        used = {m.axis.space.name for m in maps(step.before.graph)}
        used |= {a.space.name for _, kind in step.before.inputs for a in kind.lists}
        assert_same(step.before, step.after, {s: SIZES[s] for s in used}, {s: BLOCKS[s] for s in used})
    return fusion


def count(fusion: Fusion, rule: str) -> int:
    return [s.rule for s in fusion.steps].count(rule)


@pytest.mark.parametrize(
    ("expr", "rule", "text"),
    [
        (DIV, "swap_scale_dot", r"t\d+/t\d+\[:,newaxis\]"),
        (SUB, "swap_shift_dot", r"t\d+-t\d+\n"),
        (MUL, "swap_scale_dot", r"row_scale\("),
        (ADD, "swap_shift_dot", r"add\("),
    ],
    ids=["div", "sub", "mul", "add"],
)
@pytest.mark.parametrize("readers", [1, 2])
def test_rows_move_behind_the_product_and_stay_what_they_were(expr, rule, text, readers):
    nodes = (product("y"), second("y"))[:readers]
    fusion = fused(program(rows(expr), *nodes, outputs=("z", "z2")[:readers]))
    assert count(fusion, rule) == readers
    assert count(fusion, "duplicate_mapped_scale") == readers - 1
    if readers == 1:
        assert re.search(rf"dot\((.*\n)*.*{text}", listing(fusion.last) + "\n")


@pytest.mark.parametrize("expr", [apply("div", Arg(1), Arg(0)), apply("sub", Arg(1), Arg(0))], ids=["c / x", "c - x"])
def test_a_vector_that_is_divided_or_subtracted_from_stays(expr):
    fusion = fused(program(rows(expr), product("y")))
    assert not count(fusion, "swap_scale_dot")
    assert not count(fusion, "swap_shift_dot")


def composite(op: str, swapped: bool = False) -> TensorProgram:
    """op(exp(x) + g, c), or op(c, ..), as one expression."""
    inner = apply("add", apply("exp", Arg(0)), Arg(2))
    expr = Apply(op, (Arg(1), inner) if swapped else (inner, Arg(1)))
    y = each("y", BOTH, expr, Use("x", BOTH), Use("c", ROWS), Use("g", (K,)))
    return program(y, product("y"))


@pytest.mark.parametrize(
    ("op", "swapped"), [("mul", False), ("mul", True), ("div", False), ("add", False), ("add", True), ("sub", False)]
)
def test_the_last_operation_of_an_expression_is_split_off(op, swapped):
    fusion = fused(composite(op, swapped))
    assert count(fusion, "swap_scale_dot" if op in ("mul", "div") else "swap_shift_dot") == 1
    assert "exp" in listing(fusion.last)


def test_an_expression_may_be_split_for_several_products():
    whole = composite("mul")
    fusion = fused(replace(whole, nodes=(*whole.nodes, second("y")), outputs=("z", "z2")))
    assert count(fusion, "duplicate_mapped_scale") == 1
    assert count(fusion, "swap_scale_dot") == 2


def test_an_expression_whose_rest_is_no_block_stays():
    """exp(g[k]) * c[m], as one expression: without c there are no rows."""
    expr = apply("mul", apply("exp", Arg(0)), Arg(1))
    fusion = fused(program(each("y", BOTH, expr, Use("g", (K,)), Use("c", ROWS)), product("y")))
    assert not count(fusion, "swap_scale_dot")


@pytest.mark.parametrize("op", ["div", "sub"])
def test_an_expression_that_ends_otherwise_stays(op):
    fusion = fused(composite(op, swapped=True))
    assert not count(fusion, "swap_scale_dot")
    assert not count(fusion, "swap_shift_dot")


# The magnitudes that rule 4 bears.


def both_scaled(left: Scalar, few_bits: bool = False) -> TensorProgram:
    """(left(x) / c) @ (w / d).T."""
    w = replace(W, dtype=DType.int8) if few_bits else W
    y = each("y", BOTH, apply("div", left, Arg(1)), Use("x", BOTH), Use("c", ROWS))
    v = each("v", (N, K), DIV, Use("wide", (N, K)), Use("d", (N,)))
    wide = Cast("wide", (N, K), F32, Use("w", (N, K)), semantic=True)
    nodes = (wide, y, v, matmul("z", Use("y", BOTH), Use("v", (N, K)), K))
    return TensorProgram((X, C, w, tensor("d", N)), nodes, ("z",))


def test_of_two_norms_none_moves_behind_the_product_of_what_they_divide():
    assert not count(fused(both_scaled(Arg(0))), "swap_scale_dot")


def test_a_norm_stays_before_a_product_with_what_it_is_the_norm_of():
    squares = each("q", BOTH, MUL, Use("x", BOTH), Use("x", BOTH))
    y = each("y", BOTH, DIV, Use("x", BOTH), Use("t", ROWS))
    other = replace(M, name="m2")
    z = matmul("z", Use("y", BOTH), Use("x", (other, K)), K)
    fusion = fused(TensorProgram((X,), (squares, row_sum("t", "q", M, K), y, z), ("z",)))
    assert not count(fusion, "swap_scale_dot")


@pytest.mark.parametrize(
    "before",
    [both_scaled(apply("exp", Arg(0))), both_scaled(Arg(0), few_bits=True)],
    ids=["an exponential's", "beside numbers of few bits"],
)
def test_scales_about_ordinary_numbers_move(before):
    assert count(fused(before), "swap_scale_dot") == 1


# Roundings of a product's operands.


def cast(name: str, of: Use, semantic: bool = False) -> Cast:
    return Cast(name, of.axes, BF16, of, semantic)


def rounded(expr: Scalar, *sides: str) -> TensorProgram:
    """y @ w.T with y, w or both rounded for the product."""
    left, right = Use("y", BOTH), Use("w", (N, K))
    nodes: list[Node] = [rows(expr)]
    if "left" in sides:
        nodes.append(cast("yc", left))
        left = Use("yc", BOTH)
    if "right" in sides:
        nodes.append(cast("wc", right))
        right = Use("wc", (N, K))
    return program(*nodes, matmul("z", left, right, K))


def nests(of: BlockProgram) -> int:
    """The maps at the top level of a lowered program: one for each operation."""
    return len([n for n in of.graph.nodes if isinstance(n, Map)])


@pytest.mark.parametrize("sides", [("left",), ("right",), ("left", "right")], ids=" ".join)
@pytest.mark.parametrize("expr", [MUL, DIV, ADD, SUB], ids=lambda e: e.op)
def test_roundings_stay_at_the_product(expr, sides):
    fusion = fused(rounded(expr, *sides))
    assert nests(lower(rounded(expr, *sides))) == 2
    assert count(fusion, "swap_scale_dot" if expr in (MUL, DIV) else "swap_shift_dot") == 1
    copies = re.findall(r" = t\d+\n", listing(fusion.last))
    # A shift sums the columns of what the product reads on the right, as it reads it.
    assert len(copies) == len(sides) + ("right" in sides and expr in (ADD, SUB))
    if expr in (ADD, SUB):
        (summed,) = re.findall(r"row_sum\((t\d+)\)", listing(fusion.last))
        assert bool(re.search(rf" {summed} = t\d+\n", listing(fusion.last))) == ("right" in sides)


def test_what_is_rounded_for_several_products_is_rounded_at_each():
    nodes = (rows(MUL), cast("yc", Use("y", BOTH)), product("yc"), second("yc"))
    fusion = fused(program(*nodes, outputs=("z", "z2")))
    assert count(fusion, "swap_scale_dot") == 2


def test_a_product_needs_no_rounding_of_what_has_its_type():
    """x in bfloat16, scaled in fp32 and rounded: without the scale, x is what the product reads."""
    wide = rounded(MUL, "left")
    narrow = replace(wide, inputs=(replace(X, dtype=BF16), *wide.inputs[1:]))
    assert listing(fused(narrow).last) == listing(fused(program(rows(MUL), product("y"))).last)


@pytest.mark.parametrize(
    "kept",
    [
        program(rows(MUL), cast("yc", Use("y", BOTH)), product("yc"), outputs=("z", "yc")),
        program(rows(MUL), cast("yc", Use("y", BOTH)), product("yc"), each("e", BOTH, apply("exp", Arg(0)), Use("yc", BOTH)),
                outputs=("z", "e")),
        program(rows(MUL), cast("yc", Use("y", BOTH), semantic=True), product("yc")),
    ],
    ids=["returned", "read elsewhere", "semantic"],
)  # fmt: skip
def test_other_roundings_are_operations(kept):
    lowered = lower(kept)
    assert any("yc" in [o.outer for o in n.outputs] for n in lowered.graph.nodes if isinstance(n, Map))
    assert any("yc" in operands(n) for n in lowered.graph.nodes)
    assert not count(fused(kept), "swap_scale_dot")


def test_operators_behind_the_last_map_do_not_hold_its_extension_up():
    """RMSNorm and SwiGLU, rounded at the end: the rounding stays behind the loop that is extended."""
    plain = paper.rmsnorm()
    (out,) = plain.outputs
    axes_ = plain.values()[out].axes
    narrow = replace(plain, nodes=(*plain.nodes, cast("r", Use(out, axes_), semantic=True)), outputs=("r",))
    counts = [count(fuse(lower(p), checked=True), "extend_map") for p in (plain, narrow)]
    assert counts == [2, 2]
