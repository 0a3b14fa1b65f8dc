"""Rules 2, 4, 5, 6 and 8: every rewrite computes the same, and fires only where its condition holds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from testkit.block import paper
from testkit.block.paper import each, row_sum
from testkit.block.programs import ADD, F32, MUL, axes, matmul, tensor
from testkit.fuse.paper_rules import (
    EXP,
    MADE,
    PRODUCT,
    C,
    K,
    M,
    N,
    P,
    V,
    W,
    X,
    inner,
    rowwise,
    scaled_by_a_number,
    tensors,
    two_readers,
)
from testkit.fuse.same import assert_same
from weft.block.check import check
from weft.block.interpret import interpret
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import Graph, Map, sealed
from weft.block.walk import results, spaces
from weft.fuse import Site
from weft.fuse.duplicate_mapped_scale import duplicate_mapped_scale
from weft.fuse.extend_map import extend_map
from weft.fuse.fuse_sibling_maps import fuse_sibling_maps
from weft.fuse.merge_maps import are_siblings, feeds_only_by_iteration, merge_maps
from weft.fuse.rule import apply_at
from weft.fuse.swap_scale_dot import swap_scale_dot
from weft.fuse.swap_shift_dot import swap_shift_dot
from weft.pipeline import PRIORITY, RULES_IN_PLANS, fuse
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.passes import Conditioning
from weft.tensor.program import Elementwise, Monoid, Node, Reduction, Use
from weft.tensor.scalar import Arg, apply


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", MADE)
def test_every_rewrite_of_a_trace_computes_the_same(name):
    rng = random.Random(name)
    fusion = fuse(lower(MADE[name]()), checked=True)
    assert fusion.steps
    for step in fusion.steps:
        blocks = {s.name: rng.randint(1, 3) for s in spaces(step.before)}
        # At least two elements: the variance of one is zero.
        sizes = {space: size * rng.randint(2, 3) for space, size in blocks.items()}
        assert_same(step.before, step.after, sizes, blocks)


@pytest.mark.parametrize("seed", range(30))
def test_random_row_operations_before_random_products(seed):
    """A chain of scales, shifts and functions of x, each with up to three products: all fused, nothing changed."""
    rng = random.Random(seed)
    nodes: list[Node] = []
    outputs: list[str] = []
    last = "x"
    for i in range(rng.randint(1, 3)):
        vector = rng.choice(["c", "t"])
        if vector == "t":
            nodes.append(row_sum(f"t{i}", last, M, K))
            vector = f"t{i}"
        expr = rng.choice([MUL, ADD, apply("mul", Arg(1), Arg(0)), apply("sub", Arg(0), Arg(1))])
        nodes.append(each(f"y{i}", (M, K), expr, Use(last, (M, K)), Use(vector, (M,))))
        last = f"y{i}"
        for j in range(rng.randint(0, 3)):
            matrix, over = rng.choice([("w", N), ("v", P)])
            nodes.append(matmul(f"z{i}{j}", Use(last, (M, K)), Use(matrix, (over, K)), K))
            outputs.append(f"z{i}{j}")
    program = tensors(*nodes, inputs=(X, C, W, V), outputs=(*outputs, last))
    lowered = lower(program)
    fusion = fuse(lowered, checked=True)
    for snapshot in fusion.snapshots:
        blocks = {s.name: rng.randint(1, 3) for s in spaces(lowered)}
        sizes = {space: size * rng.randint(1, 3) for space, size in blocks.items()}
        assert_same(lowered, snapshot.program, sizes, blocks)


# What each rule makes.


def test_a_scale_moves_behind_a_product():
    site = inner(tensors(rowwise(), PRODUCT))
    found = swap_scale_dot.rewrite(site)
    assert found is not None
    assert (
        listing(apply_at(site.program, site.path, found))
        == """\
forall m in range(M):
  forall n in range(N):
    forall k in range(K):
      t1 = load(X[m,k])
      t2 = load(W[n,k])
      t3 = dot(t1,t2)
      store(t3,I1[m,n,k])
    for k in range(K):
      t4 = load(I1[m,n,k])
      t5 += t4
    store(t5,I2[m,n])
  t6 = load(C[m])
  forall n in range(N):
    t7 = load(I2[m,n])
    t8 = row_scale(t7,t6)
    store(t8,O[m,n])"""
    )


def test_a_shift_becomes_an_outer_product():
    site = inner(tensors(rowwise(ADD), PRODUCT))
    found = swap_shift_dot.rewrite(site)
    assert found is not None
    text = listing(apply_at(site.program, site.path, found))
    assert "row_shift" not in text
    assert [text.count(name) for name in ("row_sum", "outer", "dot", "add")] == [1, 1, 1, 1]


def test_a_scale_is_duplicated_for_each_product():
    counts = {name: Counter(s.rule for s in fuse(lower(MADE[name]())).steps) for name in MADE}
    assert counts["two_readers"]["duplicate_mapped_scale"] == 1
    assert counts["three_readers"]["duplicate_mapped_scale"] == 2
    assert counts["two_shifted"]["duplicate_mapped_scale"] == 1
    assert counts["two_shifted"]["swap_shift_dot"] == 2
    assert counts["scaled"]["duplicate_mapped_scale"] == 0


def test_a_computed_number_scales_as_a_vector_does():
    assert "swap_scale_dot" in [s.rule for s in fuse(lower(scaled_by_a_number())).steps]


def _extension(name: str) -> tuple[Graph, Graph]:
    """The graph that is extended first, and the inner graph that it becomes."""
    step = next(s for s in fuse(lower(MADE[name]()), checked=True).steps if s.rule == "extend_map")
    (node,) = Site(step.after, step.place or ()).graph.nodes
    assert isinstance(node, Map)
    return Site(step.before, step.place or ()).graph, node.body


def _pairs(before: Graph, body: Graph, meet) -> list[tuple[Map, Map]]:
    moved = {n.name for n in before.nodes if isinstance(n, Map)}
    loops = [n for n in body.nodes if isinstance(n, Map)]
    return [(a, b) for a in loops if a.name in moved for b in loops if b.name not in moved and meet(body, a, b)]


def test_extension_where_a_list_is_made_outside_and_read_inside():
    """Variant (a): attention's L-map."""
    before, body = _extension("attention")
    assert _pairs(before, body, feeds_only_by_iteration)
    assert not _pairs(before, body, are_siblings)


def test_extension_where_both_read_an_input():
    """Variant (b): LayerNorm's N-map."""
    before, body = _extension("layernorm")
    assert not _pairs(before, body, feeds_only_by_iteration)
    ((outer, other),) = _pairs(before, body, are_siblings)
    shared = {f.outer for f in outer.inputs} & {f.outer for f in other.inputs}
    assert shared <= set(body.inputs)


def test_extension_where_both_read_a_list_that_the_graph_makes():
    """Variant (c): (e @ w) * sum(e), e = exp(x), before the maps over k are fused."""
    e = each("e", (M, K), EXP, Use("x", (M, K)))
    product = matmul("z", Use("e", (M, K)), Use("w", (N, K)), K)
    scaled = each("out", (M, N), MUL, Use("z", (M, N)), Use("t", (M,)))
    site = inner(tensors(e, row_sum("t", "e", M, K), product, scaled, inputs=(X, W), outputs=("out",)))
    dot, scale = (n for n in site.graph.nodes if isinstance(n, Map) and n.axis.space == N.space)
    before = apply_at(site.program, site.path, merge_maps(site.graph, dot, scale))
    found = extend_map.rewrite(Site(before, site.path))
    assert found is not None
    after_ = apply_at(before, site.path, found)
    check(after_)
    assert_same(before, after_, {"M": 4, "K": 6, "N": 2}, {"M": 2, "K": 3, "N": 1})
    (node,) = found.graph.nodes
    assert isinstance(node, Map)
    pairs = _pairs(Site(before, site.path).graph, node.body, are_siblings)
    made = {name for n in node.body.nodes for name in results(n)}
    assert any({f.outer for f in a.inputs} & {f.outer for f in b.inputs} & made for a, b in pairs)


def test_extension_of_maps_inside_one_another():
    """Variant (d): x * exp(c) for matrices of matrices; exp(c) is over the innermost dimension."""
    (batch,) = axes("b")
    rows = (batch, M, N, K)
    program = tensors(each("e", (K,), EXP, Use("c", (K,))), each("y", rows, MUL, Use("x", rows), Use("e", (K,))),
                      inputs=(tensor("x", *rows), tensor("c", K)), outputs=("y",))  # fmt: skip
    fusion = fuse(lower(program), checked=True)
    assert [step.rule for step in fusion.steps].count("extend_map") == 1
    assert len(fusion.snapshots[0].program.graph.nodes) == 2
    (outer,) = fusion.last.graph.nodes
    assert isinstance(outer, Map)
    assert sorted(n.axis.space.name for n in maps_of(outer)) == ["B", "K", "M", "N"]
    assert_same(lower(program), fusion.last, {"B": 2, "M": 4, "N": 2, "K": 6}, {"B": 1, "M": 2, "N": 1, "K": 3})


def maps_of(node: Map) -> list[Map]:
    inner = [n for n in node.body.nodes if isinstance(n, Map)]
    return [node, *(each for n in inner for each in maps_of(n))]


def test_maps_inside_one_another_are_not_extended_over_sums():
    """x * sum(a): the sum would be made again for each matrix of matrices."""
    batch, summed = axes("b", "l")
    rows = (batch, M, N, K)
    program = tensors(row_sum("t", "a", K, summed), each("y", rows, MUL, Use("x", rows), Use("t", (K,))),
                      inputs=(tensor("x", *rows), tensor("a", K, summed)), outputs=("y",))  # fmt: skip
    assert len(fuse(lower(program), checked=True).snapshots) == 1


# Where they must not fire.


def test_siblings_that_need_each_other_do_not_fuse():
    """x * sum(x): both maps iterate x, and the second waits for the sum of the first."""
    y = each("y", (M, K), MUL, Use("x", (M, K)), Use("t", (M,)))
    site = inner(tensors(row_sum("t", "x", M, K), y, inputs=(X,), outputs=("y",)))
    assert len([n for n in site.graph.nodes if isinstance(n, Map)]) == 3
    assert fuse_sibling_maps.rewrite(site) is None


def test_siblings_must_share_a_value_and_a_dimension():
    (m1,) = axes("m1")
    apart = tensors(each("a", (M,), EXP, Use("c", (M,))), each("b", (M,), EXP, Use("d", (M,))),
                    inputs=(C, tensor("d", M)), outputs=("a", "b"))  # fmt: skip
    across = tensors(Reduction("a", (M,), F32, Monoid.sum, Use("x", (M, m1)), (m1,)),
                     Reduction("b", (M,), F32, Monoid.sum, Use("x", (m1, M)), (m1,)),
                     inputs=(tensor("x", M, m1),), outputs=("a", "b"))  # fmt: skip
    assert fuse_sibling_maps.rewrite(Site(lower(apart))) is None
    assert fuse_sibling_maps.rewrite(Site(lower(across))) is None
    together = replace(apart, nodes=(apart.nodes[0], each("b", (M,), EXP, Use("c", (M,)))))
    assert fuse_sibling_maps.rewrite(Site(lower(together))) is not None


@pytest.mark.parametrize(("rule", "expr"), [(swap_scale_dot, MUL), (swap_shift_dot, ADD)])
def test_rows_that_others_read_are_not_swapped(rule, expr):
    assert rule.rewrite(inner(tensors(rowwise(expr), PRODUCT))) is not None
    read_again = tensors(rowwise(expr), PRODUCT, outputs=("z", "y"))
    assert rule.rewrite(inner(read_again)) is None
    summed = tensors(rowwise(expr), PRODUCT, row_sum("t", "y", M, K), outputs=("z", "t"))
    assert rule.rewrite(inner(summed)) is None
    assert rule.rewrite(inner(two_readers(expr))) is None


@pytest.mark.parametrize(("rule", "expr"), [(swap_scale_dot, MUL), (swap_shift_dot, ADD)])
def test_only_rows_are_swapped(rule, expr):
    """A vector along the contracted axis is part of every product; so is a whole matrix, or another function."""
    columns = each("y", (M, K), expr, Use("x", (M, K)), Use("c", (K,)))
    matrix = each("y", (M, K), expr, Use("x", (M, K)), Use("c", (M, K)))
    other = each("y", (M, K), apply("maximum", Arg(0), Arg(1)), Use("x", (M, K)), Use("c", (M,)))
    for node, vector in ((columns, tensor("c", K)), (matrix, tensor("c", M, K)), (other, C)):
        site = inner(tensors(node, PRODUCT, inputs=(X, vector, W)))
        assert rule.rewrite(site) is None, node


@pytest.mark.parametrize(("rule", "expr"), [(swap_scale_dot, MUL), (swap_shift_dot, ADD)])
def test_a_vector_stretched_to_a_block_is_not_swapped(rule, expr):
    """x[k] * c[m] is no scale of rows of a block: without it, the product has no rows."""
    stretched = each("y", (M, K), expr, Use("x", (K,)), Use("c", (M,)))
    site = inner(tensors(stretched, PRODUCT, inputs=(tensor("x", K), C, W)))
    assert rule.rewrite(site) is None


@pytest.mark.parametrize(("rule", "expr"), [(swap_scale_dot, MUL), (swap_shift_dot, ADD)])
def test_rows_times_themselves_are_not_swapped(rule, expr):
    """y @ y.T: the other operand is scaled as well."""
    m1 = axes("m1")[0]
    gram = matmul("z", Use("y", (M, K)), Use("y", (m1, K)), K)
    fused = fuse(lower(tensors(rowwise(expr), gram, inputs=(X, C))), checked=True)
    assert rule.name not in [s.rule for s in fused.steps]


def test_one_product_needs_no_copy():
    assert duplicate_mapped_scale.rewrite(inner(tensors(rowwise(), PRODUCT))) is None
    assert duplicate_mapped_scale.rewrite(inner(tensors(rowwise(), PRODUCT, outputs=("z", "y")))) is None
    assert duplicate_mapped_scale.rewrite(inner(two_readers())) is not None


def test_a_map_is_not_extended_over_what_leaves_the_graph():
    """Attention whose row sums are a result too: the L-map must not make them once for each l."""
    fusion = fuse(lower(replace(paper.attention(), outputs=("out", "t"))), checked=True)
    assert [s.steps for s in fusion.snapshots] == [15]


def test_a_map_that_is_read_in_its_graph_is_not_extended():
    """Attention whose result goes into a product that then nobody reads: the L-map is not the last."""
    program = paper.attention()
    m, l, p = axes("m", "l", "p")  # noqa: E741 - the paper's name
    unused = matmul("unused", Use("out", (m, l)), Use("u", (p, l)), l)
    program = replace(program, inputs=(*program.inputs, tensor("u", p, l)), nodes=(*program.nodes, unused))
    fused = fuse(lower(program), extend=()).last
    (node,) = fused.graph.nodes
    assert isinstance(node, Map)
    node = sealed(replace(node, outputs=tuple(o for o in node.outputs if o.outer == "out")))
    fused = replace(fused, graph=replace(fused.graph, nodes=(node,)))
    check(fused)
    assert extend_map.rewrite(Site(fused, (node.name,))) is None


def test_a_map_is_not_extended_over_what_it_sees_item_by_item():
    """e * sum(e) * (q @ v.T) * sum(q), e = exp(x): the map over k reads e item by item, but needs all of sum(e) first."""
    q, v = tensor("q", M, N), tensor("v", K, N)
    rows = (M, K)
    program = tensors(
        each("e", rows, EXP, Use("x", rows)),
        row_sum("t", "e", M, K),
        row_sum("g", "q", M, N),
        matmul("d", Use("q", (M, N)), Use("v", (K, N)), N),
        each("y1", rows, MUL, Use("e", rows), Use("t", (M,))),
        each("y2", rows, MUL, Use("y1", rows), Use("g", (M,))),
        each("y", rows, MUL, Use("y2", rows), Use("d", rows)),
        inputs=(X, q, v), outputs=("y",),
    )  # fmt: skip
    fusion = fuse(lower(program), checked=True)
    assert len(fusion.snapshots) == 1
    sizes, blocks = {"M": 4, "K": 6, "N": 6}, {"M": 2, "K": 3, "N": 2}
    assert_same(lower(program), fusion.last, sizes, blocks)


def test_a_map_is_extended_only_where_a_fusion_follows():
    """x * exp(c): there is something beside the last map, and nothing in that map to meet."""
    site = inner(tensors(each("e", (M,), EXP, Use("c", (M,))), rowwise_of("e"), inputs=(X, C), outputs=("y",)))
    assert len(site.graph.nodes) > 1
    assert extend_map.rewrite(site) is None


def rowwise_of(vector: str) -> Elementwise:
    return each("y", (M, K), MUL, Use("x", (M, K)), Use(vector, (M,)))


def test_rules_say_what_they_do_to_rounding():
    known = {rule.name: rule.conditioning for rule in PRIORITY}
    assert known["swap_shift_dot"] is Conditioning.cancels
    assert known["swap_scale_dot"] is Conditioning.rounding
    assert all(rule.conditioning is Conditioning.exact for rule in RULES_IN_PLANS)
    assert [rule.number for rule in PRIORITY if rule.number is not None] == [8, 4, 5, 9, 3, 1, 2]


def test_a_shift_that_cancels_loses_every_digit_in_the_moved_form():
    """Why swap_shift_dot is marked: rows near 1e8 less their mean, times w, in double precision."""
    numbers = np.random.default_rng(0)
    lowered = lower(tensors(rowwise(ADD), PRODUCT))
    sizes = {"M": 4, "K": 64, "N": 4}
    x = 1e8 + numbers.standard_normal((4, 64))
    given = {"x": x, "c": -x.mean(1), "w": numbers.standard_normal((4, 64))}
    blocks = dict.fromkeys(sizes, 4)
    (plain,), (moved,) = (interpret(p, given, sizes, Fp64Domain(), blocks)[0] for p in (lowered, fuse(lowered).last))
    error = np.abs(moved - plain).max() / np.abs(plain).max()
    assert error > 1e-10
