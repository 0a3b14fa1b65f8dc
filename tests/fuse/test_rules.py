"""Blockbuster's rules: every rewrite computes the same, fires where its law holds, and nowhere else."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from testkit.block import programs
from testkit.block.normal import signature
from weft.block.check import check
from weft.block.interpret import interpret
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.program import BlockProgram, Feed, Graph, Iterate, Map, Pointwise, Stacked, sealed
from weft.block.walk import maps, results
from weft.fuse import Site
from weft.fuse.merge_maps import feeds_only_by_iteration, merge_maps
from weft.pipeline import EXTENSION, PRIORITY, fuse
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.field import FieldDomain
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Elementwise, Input, Monoid, Node, Reduction, TensorProgram, Use
from weft.tensor.rename import with_axes, with_values
from weft.tensor.scalar import Arg, Lit, Scalar, apply

F32 = DType.float32


def run(program: BlockProgram, domain, sizes, blocks, seed=0):
    numbers = np.random.default_rng(seed)
    inputs = {n: domain.random([a.space.size(sizes) for a in k.lists], k.dtype, numbers) for n, k in program.inputs}
    return interpret(program, inputs, sizes, domain, blocks)[0]


def chain(m: Axis, *exprs: Scalar) -> TensorProgram:
    """A vector through one function after the other."""
    nodes: list[Node] = []
    last = "x"
    for i, expr in enumerate(exprs):
        nodes.append(Elementwise(f"t{i}", (m,), F32, expr, (Use(last, (m,)),)))
        last = f"t{i}"
    return TensorProgram((Input("x", (m,), F32),), tuple(nodes), (last,))


M, N = Axis("m", Space("M")), Axis("n", Space("N"))
DOUBLE, PLUS = apply("mul", Arg(0), Lit(2.0)), apply("add", Arg(0), Lit(1.0))


@pytest.mark.parametrize("name", programs.ALL)
def test_every_rewrite_of_a_trace_computes_the_same(name):
    program = programs.ALL[name]()
    rng = random.Random(name)
    steps = fuse(lower(program), checked=True).steps
    assert steps
    for step in steps:
        blocks = {s.name: rng.randint(1, 4) for s in program.spaces()}
        sizes = {name: size * rng.randint(1, 3) for name, size in blocks.items()}
        exact = FieldDomain(3)
        for before, after in zip(
            run(step.before, exact, sizes, blocks), run(step.after, exact, sizes, blocks), strict=True
        ):
            assert exact.equal(before, after), (str(step), sizes, blocks)
        numbers = Fp64Domain()
        for before, after in zip(
            run(step.before, numbers, sizes, blocks), run(step.after, numbers, sizes, blocks), strict=True
        ):
            np.testing.assert_allclose(after, before, rtol=1e-12)


def test_the_trace_of_relu_linear():
    fusion = fuse(lower(programs.linear_relu()), checked=True)
    fused, steps = fusion.last, fusion.steps
    assert [s.rule for s in steps] == ["fuse_consecutive_maps"] * 4 + ["fuse_map_with_reduction"]
    assert listing(fused) == (
        "forall m in range(M):\n"
        "  forall n in range(N):\n"
        "    for k in range(K):\n"
        "      t1 = load(X[m,k])\n"
        "      t2 = load(W[k,n])\n"
        "      t3 += dot(t1,t2)\n"
        "    t4 = load(B[n])\n"
        "    t5 = col_shift(t3,t4)\n"
        "    t6 = maximum(t5,0)\n"
        "    store(t6,O[m,n])"
    )


@pytest.mark.parametrize("name", programs.ALL)
def test_names_do_not_matter(name):
    """Renaming every space, axis and value changes neither the steps nor the fused program."""
    program = programs.ALL[name]()
    other = _renamed(program)
    one, two = fuse(lower(program)), fuse(lower(other))
    assert [(s.rule, len(s.place or ())) for s in one.steps] == [(s.rule, len(s.place or ())) for s in two.steps]
    assert signature(one.last) == signature(two.last)


def _renamed(program: TensorProgram) -> TensorProgram:
    text: dict[str, str] = {}

    def axis(a: Axis) -> Axis:
        return Axis(f"q{a.name}", Space(f"Q{a.space.name}", a.space.fixed))

    def name(n: str) -> str:
        return text.setdefault(n, f"v{len(text)}")

    def node(n: Node) -> Node:
        named = with_axes(with_values(n, name), axis)
        return replace(named, name=name(n.name))

    inputs = tuple(replace(with_axes(n, axis), name=name(n.name)) for n in program.inputs)
    nodes = tuple(map(node, program.nodes))
    return TensorProgram(tuple(n for n in inputs if isinstance(n, Input)), nodes, tuple(map(name, program.outputs)))


def test_maps_do_not_fuse_past_a_third_operator():
    """x / sum(x): the division iterates x, but also reads a sum that needs all of it first."""
    total = Reduction("s", (), F32, Monoid.sum, Use("e", (M,)), (M,))
    division = apply("div", Arg(0), Arg(1))
    program = TensorProgram(
        (Input("x", (M,), F32),),
        (
            Elementwise("e", (M,), F32, DOUBLE, (Use("x", (M,)),)),
            total,
            Elementwise("y", (M,), F32, division, (Use("e", (M,)), Use("s", ()))),
        ),
        ("y",),
    )
    graph = lower(program).graph
    first, last = graph.nodes[0], graph.nodes[-1]
    assert isinstance(first, Map)
    assert isinstance(last, Map)
    assert not feeds_only_by_iteration(graph, first, last)
    fusion = fuse(lower(program), checked=True)
    fused, steps = fusion.last, fusion.steps
    # e's map with the row sums and their reduction; never the division, which waits for the sum
    assert len([n for n in fused.graph.nodes if isinstance(n, Map)]) == 2
    assert steps[-1].rule in {"fuse_map_with_reduction", "fuse_consecutive_maps"}
    sizes, blocks = {"M": 6}, {"M": 3}
    (before,), (after,) = (run(p, Fp64Domain(), sizes, blocks) for p in (lower(program), fused))
    np.testing.assert_allclose(after, before)


def test_a_map_that_reads_all_of_a_list_does_not_fuse_with_its_maker():
    """(x + x.T): the second use iterates the other axis, so that row m needs every row."""
    square = Axis("m", Space("M")), Axis("m1", Space("M"))
    double = Elementwise("d", square, F32, DOUBLE, (Use("x", square),))
    both = Elementwise("y", square, F32, apply("add", Arg(0), Arg(1)), (Use("d", square), Use("d", square[::-1])))
    program = TensorProgram((Input("x", square, F32),), (double, both), ("y",))
    fused = fuse(lower(program), checked=True).last
    assert len(list(maps(fused.graph))) == 4
    sizes, blocks = {"M": 6}, {"M": 2}
    (before,), (after,) = (run(p, Fp64Domain(), sizes, blocks) for p in (lower(program), fused))
    np.testing.assert_allclose(after, before)


def test_elementwise_chains_become_one_operator():
    fusion = fuse(lower(chain(M, DOUBLE, PLUS, DOUBLE)), checked=True)
    fused, steps = fusion.last, fusion.steps
    assert [s.rule for s in steps].count("fuse_consecutive_elementwise") == 2
    assert listing(fused).count("=") == 2


def test_a_value_that_is_read_twice_is_not_folded_away():
    program = chain(M, DOUBLE, PLUS)
    program = replace(program, outputs=("t0", "t1"))
    steps = fuse(lower(program), checked=True).steps
    assert "fuse_consecutive_elementwise" not in [s.rule for s in steps]


def test_rules_leave_alone_what_does_not_match():
    site = Site(lower(chain(M, DOUBLE)))
    for rule in (*PRIORITY, *EXTENSION):
        assert rule.rewrite(site) is None


def test_a_list_that_others_read_stays_an_output():
    """y = 2x + 1 and 2x itself: fusing keeps both."""
    program = replace(chain(M, DOUBLE, PLUS), outputs=("t0", "t1"))
    fused = fuse(lower(program), checked=True).last
    check(fused)
    assert len(fused.graph.nodes) == 1
    assert len(fused.graph.outputs) == 2


def test_merging_gives_names_in_the_order_of_the_operators():
    """Not in that of a set, which is another in every process: t becomes t11 here, and so would t1, had it come first."""
    names = [f"{letter}{number or ''}" for letter in "abcdef" for number in range(11)]
    chain_of = tuple(Pointwise(b, PLUS, (a,), (M,), F32) for a, b in pairwise(["in", *names]))
    feed = Feed("x", "in", Iterate(M))
    first = sealed(Map("one", M, (feed,), Graph((), chain_of, ()), (Stacked("y", names[-1]),)))
    second = sealed(Map("two", M, (replace(feed, outer="y"),), Graph((), chain_of, ()), (Stacked("z", names[-1]),)))
    (node,) = merge_maps(Graph(("x",), (first, second), ("z",)), first, second).graph.nodes
    assert isinstance(node, Map)
    merged = [name for n in node.body.nodes for name in results(n)][len(names) :]
    assert merged[::11] == [f"{letter}11" for letter in "abcdef"]
    assert merged[1::11] == [f"{letter}12" for letter in "abcdef"]
