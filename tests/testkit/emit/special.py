"""Programs for what matrix products alone do not show: reductions either way, masks, integers, several results, states."""

from __future__ import annotations

from dataclasses import replace

from testkit.block.handmade import D, K, M, N, inputs, loop, program
from testkit.block.programs import ADD, F32, MUL, SQUARE, axes, matmul, relu, tensor
from weft.block.places import Place
from weft.block.program import (
    BlockNode,
    BlockProgram,
    Collapse,
    Component,
    Dot,
    Fill,
    Final,
    Graph,
    Pointwise,
    Stacked,
    State,
)
from weft.block.transfers import with_transfers
from weft.tensor.dtypes import DType
from weft.tensor.program import (
    Cast,
    Constant,
    Elementwise,
    Extent,
    Iota,
    Monoid,
    Reduction,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Arg, Convert, Lit, apply

SUB, DIV = apply("sub", Arg(0), Arg(1)), apply("div", Arg(0), Arg(1))


def softmax(dtype: DType = F32) -> TensorProgram:
    """softmax(x @ w) along the rows, as it is typed: maximum, exp, sum, quotient."""
    m, k, n = axes("m", "k", "n")
    x, w, both = tensor("x", m, k, dtype=dtype), tensor("w", k, n, dtype=dtype), (m, n)
    return TensorProgram((x, w), (
        matmul("s", Use("x", (m, k)), Use("w", (k, n)), k, dtype),
        Reduction("top", (m,), dtype, Monoid.max, Use("s", both), (n,)),
        Elementwise("e", both, dtype, apply("exp", SUB), (Use("s", both), Use("top", (m,)))),
        Reduction("sum", (m,), dtype, Monoid.sum, Use("e", both), (n,)),
        Elementwise("out", both, dtype, DIV, (Use("e", both), Use("sum", (m,)))),
    ), ("out",))  # fmt: skip


def columns(dtype: DType = F32) -> TensorProgram:
    """Sums, products and extrema of x + x's column means along the first axis."""
    m, n = axes("m", "n")
    both = (m, n)
    return TensorProgram((tensor("x", m, n, dtype=dtype),), (
        Reduction("sum", (n,), dtype, Monoid.sum, Use("x", both), (m,)),
        Extent("count", (), dtype, m.space),
        Elementwise("mean", (n,), dtype, DIV, (Use("sum", (n,)), Use("count", ()))),
        Elementwise("y", both, dtype, ADD, (Use("x", both), Use("mean", (n,)))),
        Reduction("low", (n,), dtype, Monoid.min, Use("y", both), (m,)),
        Elementwise("z", both, dtype, apply("add", Lit(1.0), apply("mul", Arg(0), Lit(0.01))), (Use("y", both),)),
        Reduction("product", (n,), dtype, Monoid.prod, Use("z", both), (m,)),
    ), ("low", "product", "mean"))  # fmt: skip


def several(dtype: DType = F32) -> TensorProgram:
    """A product, its relu, the sums of its squares along rows, and all of them."""
    m, k, n = axes("m", "k", "n")
    x, w, both = tensor("x", m, k, dtype=dtype), tensor("w", k, n, dtype=dtype), (m, n)
    return TensorProgram((x, w), (
        matmul("y", Use("x", (m, k)), Use("w", (k, n)), k, dtype),
        Elementwise("positive", both, dtype, relu(Arg(0)), (Use("y", both),)),
        Elementwise("square", both, dtype, SQUARE, (Use("y", both),)),
        Reduction("rows", (m,), dtype, Monoid.sum, Use("square", both), (n,)),
        Reduction("all", (), dtype, Monoid.sum, Use("rows", (m,)), (m,)),
    ), ("y", "positive", "rows", "all"))  # fmt: skip


def masked(dtype: DType = F32) -> TensorProgram:
    """Sums along rows of what lies on or below the diagonal, the mask itself, and how many it holds."""
    m, n = axes("m", "n")
    both, i64 = (m, n), DType.int64
    picked = apply("where", Arg(0), Arg(1), Lit(0))
    return TensorProgram((tensor("x", m, n, dtype=dtype),), (
        Iota("row", (m,), i64),
        Iota("column", (n,), i64),
        Elementwise("below", both, DType.bool, apply("le", Arg(0), Arg(1)), (Use("column", (n,)), Use("row", (m,)))),
        Elementwise("kept", both, dtype, picked, (Use("below", both), Use("x", both))),
        Reduction("sums", (m,), dtype, Monoid.sum, Use("kept", both), (n,)),
        Cast("ones", both, i64, Use("below", both), semantic=True),
        Reduction("count", (m,), i64, Monoid.sum, Use("ones", both), (n,)),
    ), ("sums", "below", "count"))  # fmt: skip


def integers(dtype: DType = F32) -> TensorProgram:
    """Integer arithmetic with an int32 and an int64 tensor, extrema, a quotient, and rounding casts."""
    m, n = axes("m", "n")
    both, i64 = (m, n), DType.int64
    a, b = tensor("a", m, n, dtype=DType.int32), tensor("b", n, dtype=i64)
    mixed = apply("sub", apply("mul", Arg(0), Lit(3)), apply("maximum", Arg(1), Lit(-2)))
    halves = Convert(DType.bfloat16, apply("div", Arg(0), Lit(3)))
    return TensorProgram((a, b), (
        Constant("seven", (), i64, 7),
        Elementwise("c", both, i64, mixed, (Use("a", both), Use("b", (n,)))),
        Elementwise("d", both, i64, apply("neg", apply("abs", Arg(0))), (Use("c", both),)),
        Reduction("top", (m,), i64, Monoid.max, Use("d", both), (n,)),
        Elementwise("e", (m,), i64, ADD, (Use("top", (m,)), Use("seven", ()))),
        Elementwise("f", both, dtype, halves, (Use("c", both),)),
        Elementwise("odd", both, DType.bool, apply("logical_not", apply("gt", Arg(0), Lit(0.5))), (Use("f", both),)),
    ), ("d", "e", "f", "odd"))  # fmt: skip


def cube(dtype: DType = F32) -> TensorProgram:
    """A sum over two axes of a tensor with three, and what is left of it with a vector added."""
    m, n, k = axes("m", "n", "k")
    every = (m, n, k)
    return TensorProgram((tensor("x", m, n, k, dtype=dtype), tensor("b", k, dtype=dtype)), (
        Elementwise("y", every, dtype, ADD, (Use("x", every), Use("b", (k,)))),
        Reduction("sums", (m,), dtype, Monoid.sum, Use("y", every), (n, k)),
        Reduction("tops", (n,), dtype, Monoid.max, Use("y", every), (m, k)),
    ), ("y", "sums", "tops"))  # fmt: skip


def vectors(dtype: DType = F32) -> TensorProgram:
    """A matrix times a vector, a vector times a matrix, and a dot product."""
    m, k = axes("m", "k")
    x, u, v = tensor("x", m, k, dtype=dtype), tensor("u", k, dtype=dtype), tensor("v", m, dtype=dtype)
    return TensorProgram((x, u, v), (
        matmul("right", Use("x", (m, k)), Use("u", (k,)), k, dtype),
        matmul("left", Use("v", (m,)), Use("x", (m, k)), m, dtype),
        matmul("number", Use("left", (k,)), Use("u", (k,)), k, dtype),
    ), ("right", "left", "number"))  # fmt: skip


ALL = {f.__name__: f for f in (softmax, columns, several, masked, integers, cube, vectors)}


def attention(rows: int, block: int, dtype: DType = F32) -> BlockProgram:
    """One pass of attention with its state scaled before each product is added to it, placed by hand.

    The state is (largest score, sum, output); its update holds a reduction, a product with an addend, and a Fill.
    """
    given = inputs(q=(M, D), k=(N, D), v=(N, K))
    q, k, v = given["q"][1:], given["k"], given["v"]
    plus = Graph(("c", "a", "b"), (Dot("c2", "a", "b", D, (M, N), F32, "c"),), ("c2",))
    plain = State.of_monoid(Monoid.sum, "s", (M, N), F32, "c")
    product = replace(plain, components=(Component("c", (M, N), F32, 0.0),), feeds=("qf", "kf"), update=plus,
                      finish=Graph(("c",), (), ("c",)))  # fmt: skip
    fills = (Fill("qf", "q", 0.0), Fill("kf", "k", 0.0))
    scores = replace(loop(D, {"q": q, "k": k[1:]}, fills, (Final("s", "c"),), product), place=Place.loop, tile=3)
    old, shrink = ("top", "sum", "acc"), apply("exp", SUB)
    update = Graph((*old, "x", "y"), (
        Fill("low", "x", float("-inf")),
        Collapse("high", Monoid.max, "low", N),
        Pointwise("top2", apply("maximum", Arg(0), Arg(1)), ("top", "high"), (M,), F32),
        Pointwise("f", shrink, ("top", "top2"), (M,), F32),
        Pointwise("p", shrink, ("x", "top2"), (M, N), dtype),
        Fill("pf", "p", 0.0),
        Fill("yf", "y", 0.0),
        Pointwise("scaled", MUL, ("acc", "f"), (M, K), F32),
        Dot("acc2", "pf", "yf", N, (M, K), F32, "scaled"),
        Collapse("l", Monoid.sum, "pf", N),
        Pointwise("sum2", apply("add", apply("mul", Arg(0), Arg(1)), Arg(2)), ("sum", "f", "l"), (M,), F32),
    ), ("top2", "sum2", "acc2"))  # fmt: skip
    dims = ((M,), (M,), (M, K))
    parts = tuple(Component(n, d, F32, i) for n, d, i in zip(old, dims, (float("-inf"), 0.0, 0.0), strict=True))
    names = tuple(f"{n}_{side}" for side in ("left", "right") for n in old)
    # No segment of this loop is ever merged: any graph of the right types will do.
    merge = Graph(names, (), names[:3])
    finish = Graph(old, (Pointwise("end", DIV, ("acc", "sum"), (M, K), dtype),), ("end",))
    state = State(parts, ("s", "v"), update, merge, finish)
    over_n = loop(N, {"q": q, "k": k, "v": v[:1]}, (scores,), (Final("o", "end"),), state)
    over_n = replace(over_n, place=Place.loop, tile=block)
    over_k = loop(K, {"q": q, "k": k, "v": v}, (over_n,), (Stacked("o", "o"),))
    over_m = loop(M, given, (replace(over_k, place=Place.whole),), (Stacked("out", "o"),))
    return with_transfers(program(replace(over_m, place=Place.grid, tile=rows), over=(M, K), given=given))


def normalised() -> BlockProgram:
    """softmax(x - x.sum(0) / 2) along rows, all in one body: reductions along both axes of an item, and what reads them."""
    given = inputs(x=(M, N))
    inner = loop(N, {"x": given["x"][1:]}, (
        Collapse("c", Monoid.sum, "x", M),
        Pointwise("d", apply("mul", Arg(0), Lit(0.5)), ("c",), (N,), F32),
        Pointwise("y", SUB, ("x", "d"), (M, N), F32),
        Collapse("h", Monoid.max, "y", N),
        Pointwise("e", apply("exp", SUB), ("y", "h"), (M, N), F32),
        Collapse("l", Monoid.sum, "e", N),
        Pointwise("o", DIV, ("e", "l"), (M, N), F32),
    ), (Stacked("out", "o"),))  # fmt: skip
    return program(loop(M, given, (inner,), (Stacked("out", "out"),)), over=(M, N), given=given)


def turning() -> BlockProgram:
    """A state of two components that change places at every step, the row sums of x added to one of them."""
    given = inputs(x=(M, K))
    old = ("a", "b")
    step = Pointwise("n", ADD, ("b", "f"), (M,), F32)
    state = State(
        tuple(Component(n, (M,), F32, 0.0) for n in old), ("r",), Graph((*old, "f"), (step,), ("n", "a")),
        Graph((*old, "c", "d"), (), old), Graph(old, (Pointwise("end", apply("sub", Arg(0), Arg(1)), old, (M,), F32),), ("end",)),
    )  # fmt: skip
    sums = (Collapse("r", Monoid.sum, "x", K),)
    inner = loop(K, {"x": given["x"][1:]}, sums, (Final("o", "end"),), state)
    return program(loop(M, given, (inner,), (Stacked("out", "o"),)), over=(M,), given=given)


def looking_back(rows: int, block: int, *, late: bool) -> BlockProgram:
    """s = s / 2 + x @ w, and r = r + the row sums of the old s, which are taken after the product where `late`."""
    given = inputs(x=(M, K), w=(K, N))
    halved = Pointwise("half", apply("mul", Arg(0), Lit(0.5)), ("s",), (M, N), F32)
    product = Dot("s2", "xf", "wf", K, (M, N), F32, "half")
    sums: tuple[BlockNode, ...] = (
        Fill("sf", "s", 0.0),
        Collapse("t", Monoid.sum, "sf", N),
        Pointwise("r2", ADD, ("r", "t"), (M,), F32),
    )
    fills = (Fill("xf", "x", 0.0), Fill("wf", "w", 0.0))
    update = (*fills, halved, product, *sums) if late else (*fills, *sums, halved, product)
    old = ("s", "r")
    end = Pointwise("end", ADD, old, (M, N), F32)
    state = State(
        (Component("s", (M, N), F32, 0.0), Component("r", (M,), F32, 0.0)), ("x", "w"),
        Graph((*old, "x", "w"), update, ("s2", "r2")), Graph((*old, "c", "d"), (), old), Graph(old, (end,), ("end",)),
    )  # fmt: skip
    feeds = {"x": given["x"][1:], "w": given["w"][:1]}
    over_k = replace(loop(K, feeds, (), (Final("o", "end"),), state), place=Place.loop, tile=block)
    over_n = replace(
        loop(N, {"x": given["x"][1:], "w": given["w"]}, (over_k,), (Stacked("o", "o"),)), place=Place.whole
    )
    over_m = replace(loop(M, given, (over_n,), (Stacked("out", "o"),)), place=Place.grid, tile=rows)
    return with_transfers(program(over_m, over=(M, N), given=given))


def entangled(block: int) -> BlockProgram:
    """A state whose first component is new before the last reader of the old one can run, which waits for column sums."""
    given = inputs(x=(M, K))
    old = ("a", "r")
    update = (
        Fill("xf", "x", 0.0),
        Collapse("t", Monoid.sum, "xf", K),
        Pointwise("a2", ADD, ("a", "t"), (M,), F32),
        Collapse("c", Monoid.sum, "xf", M),
        Pointwise("y", SUB, ("xf", "c"), (M, K), F32),
        Pointwise("z", MUL, ("y", "a"), (M, K), F32),
        Fill("zf", "z", 0.0),
        Collapse("l", Monoid.sum, "zf", K),
        Pointwise("r2", ADD, ("r", "l"), (M,), F32),
    )
    state = State(
        tuple(Component(n, (M,), F32, 0.0) for n in old), ("x",), Graph((*old, "x"), update, ("a2", "r2")),
        Graph((*old, "c", "d"), (), old), Graph(old, (Pointwise("end", ADD, old, (M,), F32),), ("end",)),
    )  # fmt: skip
    inner = replace(loop(K, {"x": given["x"][1:]}, (), (Final("o", "end"),), state), place=Place.loop, tile=block)
    outer = replace(loop(M, given, (inner,), (Stacked("out", "o"),)), place=Place.whole)
    return with_transfers(program(outer, over=(M,), given=given))
