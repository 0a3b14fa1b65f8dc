"""Programs whose loops can be extended or have their first iteration peeled off, for the tests of both."""

from __future__ import annotations

import random
from collections.abc import Iterator

from testkit.block.paper import each, row_sum
from testkit.block.programs import ADD, F32, MUL, axes, matmul, tensor
from weft.block.program import BlockProgram, Map
from weft.fuse.peel_first_iteration import peel_first_iteration
from weft.fuse.rule import Site, apply_at, graph_at
from weft.tensor.passes import Path
from weft.tensor.program import Contraction, Monoid, Node, Reduction, TensorProgram, Use
from weft.tensor.scalar import Arg, Lit, apply

X, Y, Z, R = axes("x", "y", "z", "r")
_UNARY = (apply("exp", Arg(0)), apply("mul", Arg(0), Arg(0)), apply("add", Arg(0), Lit(2.0)))
_BINARY = (ADD, MUL, apply("sub", Arg(0), Arg(1)))


def random_program(rng: random.Random) -> TensorProgram:
    """Something is made of a[y] once, and used, with c[x,y], for every x: rule 6's variants, fused by half or not.

    a may have rows r as well. What is made for each x is a list over y (variant a), its sum, or a product with w[z,y]; it may
    be scaled by what all of a gives (variants b and c), and be added up over x.
    """
    rows = (R,) if rng.random() < 0.3 else ()
    one, two = (*rows, Y), (*rows, X, Y)
    # What comes first says how loops are nested: x around y.
    nodes: list[Node] = [each("d", (X, Y), rng.choice(_UNARY), Use("c", (X, Y)))]
    nodes.append(each("i", one, rng.choice(_UNARY), Use("a", one)))
    shared = rng.choice(["i", "a"])
    nodes.append(each("b", two, rng.choice(_BINARY), Use(shared, one), Use("d", (X, Y))))
    last, over = "b", (*rows, X, Y)
    if rng.random() < 0.75:
        last, over = "s", (*rows, X)
        nodes.append(Reduction("s", over, F32, rng.choice([Monoid.sum, Monoid.max]), Use("b", two), (Y,)))
        if rng.random() < 0.4 and not rows:
            last, over = "z", (X, Z)
            nodes[-1] = matmul("z", Use("b", two), Use("w", (Z, Y)), Y)
    if shared == "a" or rng.random() < 0.3:
        nodes.append(Reduction("t", rows, F32, Monoid.sum, Use("i", one), (Y,)))
        nodes.append(each("scaled", over, rng.choice(_BINARY), Use(last, over), Use("t", rows)))
        last = "scaled"
    if rng.random() < 0.3:
        kept = tuple(axis for axis in over if axis != X)
        nodes.append(Reduction("added", kept, F32, Monoid.sum, Use(last, over), (X,)))
        last = "added"
    inputs = (tensor("a", *one), tensor("c", X, Y), *([tensor("w", Z, Y)] if any(n.name == "z" for n in nodes) else []))
    return TensorProgram(inputs, tuple(nodes), (last,))


def one_query() -> TensorProgram:
    """Attention of one row: the loop that is peeled is at the top, and so on the grid."""
    d, n, l = axes("d", "n", "l")  # noqa: E741 - the paper's name
    return TensorProgram((tensor("q", d), tensor("kt", n, d), tensor("vt", l, n)), (
        matmul("scores", Use("q", (d,)), Use("kt", (n, d)), d),
        each("e", (n,), apply("exp", Arg(0)), Use("scores", (n,))),
        Reduction("t", (), F32, Monoid.sum, Use("e", (n,)), (n,)),
        matmul("out", Use("e", (n,)), Use("vt", (l, n)), n),
        each("scaled", (l,), apply("div", Arg(0), Arg(1)), Use("out", (l,)), Use("t", ())),
    ), ("scaled",))  # fmt: skip


def sums() -> TensorProgram:
    """exp(a[y]) + c[x,y], where the loop over x is outside."""
    return TensorProgram((tensor("a", Y), tensor("c", X, Y)), (
        each("d", (X, Y), Arg(0), Use("c", (X, Y))),
        each("i", (Y,), apply("exp", Arg(0)), Use("a", (Y,))),
        each("b", (X, Y), ADD, Use("i", (Y,)), Use("d", (X, Y))),
    ), ("b",))  # fmt: skip


def batch() -> TensorProgram:
    """exp(a) times a matrix for each of a batch, whose loop goes by single elements."""
    b, k, n = axes("b", "k", "n")
    return TensorProgram((tensor("a", k), tensor("x", b, k), tensor("w", b, k, n)), (
        each("i", (k,), apply("exp", Arg(0)), Use("a", (k,))),
        each("y", (b, k), MUL, Use("i", (k,)), Use("x", (b, k))),
        Contraction("out", (b, n), F32, Use("y", (b, k)), Use("w", (b, k, n)), (k,)),
    ), ("out",))  # fmt: skip


def peeled_softmax() -> TensorProgram:
    """softmax((x @ w.T) / |x|) @ v.T: the loop that is peeled carries the sums of exponentials."""
    m, d, k, n = axes("m", "d", "k", "n")
    return TensorProgram((tensor("x", m, d), tensor("w", k, d), tensor("v", n, k)), (
        each("square", (m, d), apply("mul", Arg(0), Arg(0)), Use("x", (m, d))),
        row_sum("s", "square", m, d),
        each("inverse", (m,), apply("div", Lit(1.0), apply("sqrt", Arg(0))), Use("s", (m,))),
        each("normal", (m, d), MUL, Use("x", (m, d)), Use("inverse", (m,))),
        matmul("scores", Use("normal", (m, d)), Use("w", (k, d)), d),
        each("e", (m, k), apply("exp", Arg(0)), Use("scores", (m, k))),
        row_sum("t", "e", m, k),
        matmul("mixed", Use("e", (m, k)), Use("v", (n, k)), k),
        each("out", (m, n), apply("div", Arg(0), Arg(1)), Use("mixed", (m, n)), Use("t", (m,))),
    ), ("out",))  # fmt: skip


def paths(program: BlockProgram, path: Path = ()) -> Iterator[Path]:
    """Every graph of `program`."""
    yield path
    for node in graph_at(program.graph, path).nodes:
        if isinstance(node, Map):
            yield from paths(program, (*path, node.name))


def peeled(program: BlockProgram) -> Iterator[BlockProgram]:
    """`program` with a first iteration peeled off, for every graph in which one can be."""
    for path in paths(program):
        found = peel_first_iteration.rewrite(Site(program, path))
        if found is not None:
            yield apply_at(program, path, found)
