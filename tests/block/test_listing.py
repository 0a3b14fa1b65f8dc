"""Listings: the paper's text to the letter; signatures that only another program changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testkit.block import programs
from testkit.block.handmade import (
    SOFTMAX,
    K,
    M,
    N,
    at,
    inputs,
    loop,
    own,
    program,
    rows,
    softmax_state,
    swiglu,
)
from testkit.block.programs import ADD, F32
from testkit.masks.limited import band
from weft.block.check import check
from weft.block.listing import listing
from weft.block.lower import lower
from weft.block.places import Place
from weft.block.program import (
    BlockProgram,
    BlockType,
    Broadcast,
    Collapse,
    Component,
    Dot,
    Extent,
    Feed,
    Fill,
    Final,
    Graph,
    Grouped,
    Index,
    Iterate,
    Layout,
    Literal,
    Map,
    Pointwise,
    Stacked,
    Stage,
    State,
    sealed,
)
from weft.block.ranges import All, Before, Part, Segment, Within
from weft.block.text import expression, number
from weft.tensor.axes import Axis, Space
from weft.tensor.program import Monoid
from weft.tensor.scalar import Arg, Lit, Scalar, apply

STEP_26 = """\
forall m in range(M):
  forall n in range(N):
    for k in range(K):
      for d in range(D):
        t1 = load(X[m,d])
        t2 = t1**2
        t3 += row_sum(t2)
        t4 = load(WT[k,d])
        t5 += dot(t1,t4)
        t6 = load(VT[k,d])
        t7 += dot(t1,t6)
      t8 = 1/sqrt(t3)
      t9 = row_scale(t5,t8)
      t10 = t9/(1+exp(-t9))
      t11 = row_scale(t7,t8)
      t12 = mul(t10,t11)
      t13 = load(UT[n,k])
      t14 += dot(t12,t13)
    store(t14,O[m,n])"""


def test_the_last_listing_of_the_paper():
    check(swiglu())
    assert listing(swiglu()) == STEP_26


def test_an_unfused_program_has_a_buffer_for_each_operation():
    assert (
        listing(lower(programs.linear_relu()))
        == """\
forall m in range(M):
  forall n in range(N):
    forall k in range(K):
      t1 = load(X[m,k])
      t2 = load(W[k,n])
      t3 = dot(t1,t2)
      store(t3,I1[m,n,k])
    for k in range(K):
      t4 = load(I1[m,n,k])
      t5 += t4
    store(t5,I2[m,n])
forall m in range(M):
  forall n in range(N):
    t6 = load(I2[m,n])
    t7 = load(B[n])
    t8 = col_shift(t6,t7)
    store(t8,I3[m,n])
forall m in range(M):
  forall n in range(N):
    t9 = load(I3[m,n])
    t10 = maximum(t9,0)
    store(t10,O[m,n])"""
    )


def test_intermediates_of_an_inner_graph_are_indexed_by_the_loops_around():
    given = inputs(x=(M, K))
    first = loop(K, {"x": given["x"][1:]}, (Collapse("s", Monoid.sum, "x", K),), (Stacked("parts", "s"),))
    again = Axis("again", K.space)
    second = sealed(Map(
        "again", again, (Feed("parts", "p", Iterate(K)),), Graph((), (), ()),
        (Final("total", "t"),), State.of_monoid(Monoid.sum, "p", (M,), F32, "t"),
    ))  # fmt: skip
    result = program(loop(M, given, (first, second), (Stacked("out", "total"),)), over=(M,), given=given)
    check(result)
    assert (
        listing(result)
        == """\
forall m in range(M):
  forall k in range(K):
    t1 = load(X[m,k])
    t2 = row_sum(t1)
    store(t2,I1[m,k])
  for k in range(K):
    t3 = load(I1[m,k])
    t4 += t3
  store(t4,O[m])"""
    )


def test_a_maximum_starts_from_minus_infinity():
    largest = State.of_monoid(Monoid.max, "p", (M,), F32, "s")
    assert (
        listing(rows((Collapse("p", Monoid.max, "x", K),), largest, "s"))
        == """\
forall m in range(M):
  t1 = -inf
  for k in range(K):
    t2 = load(X[m,k])
    t1 = maximum(t1,row_max(t2))
  store(t1,O[m])"""
    )


def test_a_contribution_that_is_used_again_is_named():
    product = State.of_monoid(Monoid.prod, "p", (M,), F32, "s")
    given = inputs(x=(M, K))
    inner = loop(
        K, {"x": given["x"][1:]}, (Collapse("p", Monoid.prod, "x", K),),
        (Final("r", "s"), Stacked("parts", "p")), product,
    )  # fmt: skip
    outer = loop(M, given, (inner,), (Stacked("out", "r"), Stacked("all", "parts")))
    result = program(outer, over=(M,), given=given)
    result = replace(
        result,
        graph=replace(result.graph, outputs=("out", "all", "out")),
        output_axes=((M,), (K, M), (M,)),
    )
    check(result)
    assert (
        listing(result)
        == """\
forall m in range(M):
  t1 = 1
  for k in range(K):
    t2 = load(X[m,k])
    t3 = row_prod(t2)
    store(t3,O2[k,m])
    t1 *= t3
  store(t1,O1[m])
  store(t1,O3[m])"""
    )


def test_a_joint_state_prints_its_update_and_its_projection():
    result = rows(SOFTMAX, softmax_state(), "end")
    check(result)
    assert (
        listing(result)
        == """\
forall m in range(M):
  t1 = -inf
  for k in range(K):
    t2 = load(X[m,k])
    t3 = row_max(t2)
    t4 = exp(t2-t3[:,newaxis])
    t5 = row_sum(t4)
    t6 = maximum(t1,t3)
    t7 = exp(t1-t6)
    t9 = mul(t8,t7)
    t10 = exp(t3-t6)
    t11 = mul(t5,t10)
    t8 = add(t9,t11)
    t1 = t6
  t12 = t1+log(t8)
  store(t12,O[m])"""
    )


def test_a_state_whose_components_change_places_is_assigned_at_once():
    swap = Graph(("a", "b", "p"), (Pointwise("n", ADD, ("b", "p"), (M,), F32),), ("n", "a"))
    merge = Graph(("a", "b", "c", "d"), (), ("a", "b"))
    components = (Component("a", (M,), F32, 0.0), Component("b", (M,), F32, 1.0))
    state = State(components, ("p",), swap, merge, Graph(("a", "b"), (), ("a",)))
    text = listing(rows((Collapse("p", Monoid.sum, "x", K),), state, "a"))
    assert (
        text
        == """\
forall m in range(M):
  t1 = 1
  for k in range(K):
    t2 = load(X[m,k])
    t3 = row_sum(t2)
    t4 = add(t1,t3)
    t5, t1 = t4, t5
  store(t5,O[m])"""
    )


def test_a_peeled_loop_goes_on_where_the_first_stopped():
    given = inputs(x=(M, K))
    edge = Axis("edge", K.space)
    part = Collapse("p", Monoid.sum, "x", K)
    state = State.of_monoid(Monoid.sum, "p", (M,), F32, "s")
    full = loop(K, {"x": given["x"][1:]}, (part,), (Final("most", "s"),), state)
    full = replace(full, range=All(Part.full))
    last = Map(
        "edge", edge, (Feed("x", "x", Iterate(given["x"][1])), Feed("most", "before", Broadcast())),
        Graph((), (Fill("f", "x", 0.0), Collapse("p", Monoid.sum, "f", edge)), ()),
        (Final("r", "s"),), replace(state, resume=("before",)), All(Part.edge),
    )  # fmt: skip
    outer = loop(M, given, (full, sealed(last)), (Stacked("out", "r"),))
    result = program(outer, over=(M,), given=given)
    check(result)
    for name, place in ((M.name, Place.grid), (K.name, Place.loop), ("edge", Place.loop)):
        result = at(result, name, lambda m, p=place: replace(m, place=p, tile=64))
    check(result)
    assert (
        listing(result)
        == """\
forall m in range(M):  # grid, 64 a block
  for k in range(K, full):  # loop, 64 a block
    t1 = load(X[m,k])
    t2 += row_sum(t1)
  t3 = t2
  for k in range(K, edge):  # loop, 64 a block
    t4 = load(X[m,k])
    t5 = fill(t4, 0.0)
    t3 += row_sum(t5)
  store(t3,O[m])"""
    )


def test_an_accumulating_dot_and_staged_operands():
    given = inputs(x=(M, K), y=(K, N))
    component = Component("acc", (M, N), F32, 0.0)
    update = Graph(("acc", "l", "r"), (Dot("next", "l", "r", K, (M, N), F32, "acc"),), ("next",))
    merge = State.of_monoid(Monoid.sum, "", (M, N), F32, "acc").merge
    state = State((component,), ("x", "s"), update, merge, Graph(("acc",), (), ("acc",)))
    inner = loop(
        K, {"x": given["x"][1:], "y": given["y"][:1]}, (Stage("s", "y", (N, K), Layout.panel),),
        (Final("r", "acc"),), state,
    )  # fmt: skip
    over_n = loop(N, {"x": (), "y": given["y"]}, (inner,), (Stacked("out", "r"),))
    over_m = loop(M, given, (over_n,), (Stacked("out", "out"),))
    over_m = replace(over_m, inputs=(over_m.inputs[0], Feed("y", "y", Broadcast())))
    result = program(over_m, over=(M, N), given=given)
    check(result)
    assert (
        listing(result)
        == """\
forall m in range(M):
  forall n in range(N):
    for k in range(K):
      t1 = load(Y[k,n])
      t2 = stage(t1.T, panel)
      t3 = load(X[m,k])
      t4 += dot(t3,t2)
    store(t4,O[m,n])"""
    )


def _ranged(of) -> str:
    """The header of a loop over K inside a loop over K, with this range."""
    inner = Axis("inner", K.space)
    body = loop(inner, {}, (), (Final("r", "s"),), State.of_monoid(Monoid.sum, "", (), F32, "s"))
    body = replace(body, state=None, outputs=(), range=of)
    return listing(program(loop(K, {}, (body,), ()), over=(), given={"out": ()})).splitlines()[1]


def test_ranges():
    assert _ranged(All()) == "  forall k1 in range(K):"
    assert _ranged(Within(K)) == "  forall k1 in range(K within k):"
    assert _ranged(Within(K, Part.full)) == "  forall k1 in range(K within k, full):"
    assert _ranged(band(K, high=-1)) == "  forall k1 in range(K to k-1):"
    assert _ranged(Before(K)) == "  forall k1 in range(K before k):"
    assert _ranged(Segment(K, 4)) == "  forall k1 in range(K segment k of 4):"


def test_a_loop_within_a_block_gives_its_own_index_alone():
    given = inputs(x=(M,))
    first, second = Axis("first", M.space), Axis("second", M.space)

    def within(axis: Axis, value: str, over: Axis, op: str, out: str) -> Map:
        node = Pointwise("r", apply(op, Arg(0)), ("v",), (axis,), F32)
        feed = Feed(value, "v", Iterate(over))
        return sealed(Map(axis.name, axis, (feed,), Graph((), (node,), ()), (Stacked(out, "r"),),
                          range=Within(M)))  # fmt: skip

    nodes = (
        within(first, "x", given["x"][0], "exp", "mid"),
        within(second, "mid", first, "log", "list"),
    )
    outer = Map("m", M, (Feed("x", "x", Broadcast()),), Graph((), nodes, ()),
                (Stacked("out", "list"),))  # fmt: skip
    result = program(sealed(outer), over=(second,), given=given)
    check(result)
    assert (
        listing(result)
        == """\
forall m in range(M):
  forall m1 in range(M within m):
    t1 = load(X[m1])
    t2 = exp(t1)
    store(t2,I1[m1])
  forall m1 in range(M within m):
    t3 = load(I1[m1])
    t4 = log(t3)
    store(t4,O[m1])"""
    )


def test_shared_heads_positions_numbers_and_sizes():
    heads, keys = Axis("h", Space("HEADS")), Axis("g", Space("GROUPS"))
    nodes = (
        Literal("two", 2.0, F32),
        Extent("size", M.space, F32),
        Index("i", M),
        Pointwise("r", apply("mul", apply("div", Arg(0), Arg(1)), apply("add", Arg(2), Arg(3))),
                  ("x", "size", "two", "i"), (M,), F32),
    )  # fmt: skip
    inner = loop(M, {"x": (own("x", M),)}, nodes, (Stacked("list", "r"),))
    outer = Map("h", heads, (Feed("x", "x", Grouped(keys, 2)),), Graph((), (inner,), ()),
                (Stacked("out", "list"),), unit=True)  # fmt: skip
    kind = BlockType((keys, own("x", M)), (own("x", M),), F32)
    result = BlockProgram((("x", kind),), Graph(("x",), (sealed(outer),), ("out",)), ((heads, M),))
    check(result)
    assert (
        listing(result)
        == """\
forall heads in range(HEADS):
  forall m in range(M):
    t1 = index(m)
    t2 = load(X[heads//2,m])
    t3 = t2/MM*(2+t1)
    store(t3,O[heads,m])"""
    )


def test_an_item_is_loaded_before_the_loop_that_only_reads_it():
    given = inputs(x=(M, K), b=(M,))
    inner = loop(
        K, {"x": given["x"][1:], "b": ()}, (Pointwise("y", ADD, ("b", "x"), (M, K), F32),),
        (Stacked("list", "y"),),
    )  # fmt: skip
    outer = loop(M, given, (inner,), (Stacked("out", "list"), Stacked("again", "b")))
    result = program(outer, over=(M, K), given=given)
    result = replace(
        result,
        graph=replace(result.graph, outputs=("out", "again")),
        output_axes=((M, K), (M,)),
    )
    check(result)
    assert (
        listing(result)
        == """\
forall m in range(M):
  t1 = load(B[m])
  forall k in range(K):
    t2 = load(X[m,k])
    t3 = row_shift(t2,t1)
    store(t3,O1[m,k])
  store(t1,O2[m])"""
    )


def test_a_block_the_other_way_round_is_turned():
    given = inputs(x=(M, K), y=(M, K))
    nodes = (
        Pointwise("z", apply("exp", Arg(0)), ("y",), (K, M), F32),
        Pointwise("r", ADD, ("x", "z"), (M, K), F32),
    )
    inner = loop(K, {n: a[1:] for n, a in given.items()}, nodes, (Stacked("list", "r"),))
    outer = loop(M, given, (inner,), (Stacked("out", "list"),))
    result = program(outer, over=(M, K), given=given)
    check(result)
    assert "t2 = exp(t1.T)" in listing(result)
    assert "add(t3,t2.T)" in listing(result)


def test_names_never_meet():
    t, same = Axis("t", Space("t")), Axis("u", Space("T"))
    given = {"o": (t, same), "i1": (t,), "I1": (t,)}
    node = Pointwise("r", ADD, ("o", "i1"), (t, same), F32)
    inner = Map("u", same, (Feed("o", "o", Iterate(same)), Feed("i1", "i1", Broadcast())),
                Graph((), (node,), ()), (Stacked("list", "r"),))  # fmt: skip
    outer = Map("t", t, (Feed("o", "o", Iterate(t)), Feed("i1", "i1", Iterate(t))),
                Graph((), (sealed(inner),), ()), (Stacked("out", "list"),))  # fmt: skip
    assert (
        listing(program(sealed(outer), over=(t, same), given=given))
        == """\
forall t in range(T):
  t1 = load(I1_in[t])
  forall t_1 in range(T_1):
    t2 = load(O_in[t,t_1])
    t3 = row_shift(t2,t1)
    store(t3,O[t,t_1])"""
    )


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (apply("add", apply("add", Arg(0), Arg(1)), Arg(0)), "a+b+a"),
        (apply("add", Arg(0), apply("add", Arg(1), Arg(0))), "a+(b+a)"),
        (apply("mul", apply("sub", Arg(0), Arg(1)), Lit(-2.0)), "(a-b)*(-2)"),
        (apply("div", Arg(0), apply("mul", Arg(1), Arg(1))), "a/(b*b)"),
        (apply("pow", apply("neg", Arg(0)), Lit(0.5)), "(-a)**0.5"),
        (apply("neg", apply("pow", Arg(0), Lit(2))), "-a**2"),
        (apply("neg", apply("add", Arg(0), Lit(1e30))), "-(a+1e+30)"),
        (apply("where", apply("lt", Arg(0), Arg(1)), Lit(True), Arg(1)), "where(a<b,True,b)"),
        (apply("eq", apply("lt", Arg(0), Arg(1)), Arg(0)), "(a<b)==a"),
    ],
)
def test_expressions(expr: Scalar, text: str):
    assert expression(expr, ("a", "b")) == text


def test_numbers():
    assert [number(v) for v in (1.0, -0.5, 3, True)] == ["1", "-0.5", "3", "True"]
    assert [number(v) for v in (float("inf"), float("-inf"), float("nan"))] == [
        "inf",
        "-inf",
        "nan",
    ]
