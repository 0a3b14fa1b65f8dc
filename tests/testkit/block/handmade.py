"""Block programs written by hand, and what they are built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from testkit.block.programs import ADD, F32, MUL, silu
from weft.block.program import (
    BlockNode,
    BlockProgram,
    BlockType,
    Broadcast,
    Collapse,
    Component,
    Dot,
    Feed,
    Final,
    Graph,
    Iterate,
    Map,
    Pointwise,
    Stacked,
    State,
    sealed,
)
from weft.block.walk import with_maps
from weft.tensor.axes import Axis, Space
from weft.tensor.program import Monoid
from weft.tensor.scalar import Arg, Lit, apply

M, N, K, D = (Axis(f"%{n}", Space(n.upper())) for n in "mnkd")
SQUARE = apply("pow", Arg(0), Lit(2.0))


def own(name: str, axis: Axis) -> Axis:
    return Axis(f"{name}.{axis.name}", axis.space)


def loop(
    axis: Axis,
    feeds: dict[str, tuple[Axis, ...]],
    nodes: tuple[BlockNode, ...],
    outputs: tuple[Stacked | Final, ...],
    state: State | None = None,
) -> Map:
    """A map whose inputs are iterated where `feeds` has its axis (space) for them; names stay."""
    inputs = tuple(
        Feed(n, n, Iterate(next(a for a in has if a.space == axis.space)))
        if any(a.space == axis.space for a in has) else Feed(n, n, Broadcast())
        for n, has in feeds.items()
    )  # fmt: skip
    graph = Graph((), nodes, ())
    return sealed(Map(axis.name, axis, inputs, graph, outputs, state))


def program(*nodes: BlockNode, over: tuple[Axis, ...], given: Mapping[str, tuple[Axis, ...]]) -> BlockProgram:
    """A program with these inputs, lists over their own axes; its output is `out`."""
    types = tuple((n, BlockType(axes, axes, F32)) for n, axes in given.items())
    return BlockProgram(types, Graph(tuple(given), nodes, ("out",)), (over,))


def inputs(**axes: tuple[Axis, ...]) -> dict[str, tuple[Axis, ...]]:
    return {n: tuple(own(n, a) for a in of) for n, of in axes.items()}


def begun_with(given: BlockProgram, init: float) -> BlockProgram:
    """Return `given` with every state begun with `init`."""

    def changed(node: Map) -> Map:
        if node.state is None:
            return node
        parts = tuple(replace(part, init=init) for part in node.state.components)
        return replace(node, state=replace(node.state, components=parts))

    return replace(given, graph=with_maps(given.graph, changed))


def joint(*parts: State) -> State:
    """Several states of one component as one."""

    def joined(get: Callable[[State], Graph], halves: int) -> Graph:
        graphs = [get(p) for p in parts]
        ins = tuple(g.inputs[i] for i in range(halves) for g in graphs)
        nodes = tuple(n for g in graphs for n in g.nodes)
        return Graph(ins, nodes, tuple(n for g in graphs for n in g.outputs))

    return State(
        tuple(p.components[0] for p in parts), tuple(p.feeds[0] for p in parts),
        joined(lambda s: s.update, 2), joined(lambda s: s.merge, 2), joined(lambda s: s.finish, 1),
    )  # fmt: skip


def sums(*feeds: tuple[str, str, tuple[Axis, ...]]) -> State:
    """The state of several plain sums: (component, feed, axes)."""
    return joint(*(State.of_monoid(Monoid.sum, feed, dims, F32, name) for name, feed, dims in feeds))


def swiglu() -> BlockProgram:
    """RMSNorm and FFN-SwiGLU as the paper's step 26 has it."""
    given = inputs(x=(M, D), wt=(K, D), vt=(K, D), ut=(N, K))
    x, w, v = given["x"], given["wt"], given["vt"]
    over_d = loop(
        D, {"x": x[1:], "wt": w[1:], "vt": v[1:]},
        (
            Pointwise("sq", SQUARE, ("x",), (M, D), F32),
            Collapse("ss", Monoid.sum, "sq", D),
            Dot("xw", "x", "wt", D, (M, K), F32),
            Dot("xv", "x", "vt", D, (M, K), F32),
        ),
        (Final("norm", "n"), Final("gate", "g"), Final("up", "u")),
        sums(("n", "ss", (M,)), ("g", "xw", (M, K)), ("u", "xv", (M, K))),
    )  # fmt: skip
    over_k = loop(
        K, {"x": x[1:], "wt": w, "vt": v, "ut": given["ut"][1:]},
        (
            over_d,
            Pointwise("r", apply("div", Lit(1.0), apply("sqrt", Arg(0))), ("norm",), (M,), F32),
            Pointwise("gs", MUL, ("gate", "r"), (M, K), F32),
            Pointwise("act", silu(Arg(0)), ("gs",), (M, K), F32),
            Pointwise("us", MUL, ("r", "up"), (M, K), F32),
            Pointwise("h", MUL, ("act", "us"), (M, K), F32),
            Dot("hu", "h", "ut", K, (M, N), F32),
        ),
        (Final("out", "o"),), sums(("o", "hu", (M, N))),
    )  # fmt: skip
    over_n = loop(N, {**given, "x": x[1:]}, (over_k,), (Stacked("out", "out"),))
    over_m = loop(M, given, (over_n,), (Stacked("out", "out"),))
    return program(over_m, over=(M, N), given=given)


def rows(nodes: tuple[BlockNode, ...], state: State, final: str) -> BlockProgram:
    """Map m around loop k over the blocks of x."""
    given = inputs(x=(M, K))
    inner = loop(K, {"x": given["x"][1:]}, nodes, (Final("r", final),), state)
    return program(loop(M, given, (inner,), (Stacked("out", "r"),)), over=(M,), given=given)


def softmax_state() -> State:
    """The running maximum and the sum that is scaled along with it; their quotient's logarithm."""
    new, old = ("top", "sum"), ("top", "sum", "high", "low")
    shrink = apply("exp", apply("sub", Arg(0), Arg(1)))

    def combine(second_top: str, second_sum: str) -> tuple[BlockNode, ...]:
        return (
            Pointwise("top2", apply("maximum", Arg(0), Arg(1)), ("top", second_top), (M,), F32),
            Pointwise("c", shrink, ("top", "top2"), (M,), F32),
            Pointwise("kept", MUL, ("sum", "c"), (M,), F32),
            Pointwise("c2", shrink, (second_top, "top2"), (M,), F32),
            Pointwise("added", MUL, (second_sum, "c2"), (M,), F32),
            Pointwise("sum2", ADD, ("kept", "added"), (M,), F32),
        )

    both = Graph(old, combine("high", "low"), ("top2", "sum2"))
    finish = Pointwise("end", apply("add", Arg(0), apply("log", Arg(1))), new, (M,), F32)
    return State(
        (Component("top", (M,), F32, float("-inf")), Component("sum", (M,), F32, 0.0)),
        ("h", "l"), both, both, Graph(new, (finish,), ("end",)),
    )  # fmt: skip


SOFTMAX = (
    Collapse("h", Monoid.max, "x", K),
    Pointwise("e", apply("exp", apply("sub", Arg(0), Arg(1))), ("x", "h"), (M, K), F32),
    Collapse("l", Monoid.sum, "e", K),
)


def at(of: BlockProgram, name: str, change: Callable[[Map], Map]) -> BlockProgram:
    """`of` with its map called `name` changed."""
    return everywhere(of, lambda m: change(m) if m.name == name else m)


def everywhere(of: BlockProgram, change: Callable[[Map], Map]) -> BlockProgram:
    """`of` with every map changed, inner ones first."""

    def changed(node: BlockNode) -> BlockNode:
        if not isinstance(node, Map):
            return node
        return change(replace(node, body=replace(node.body, nodes=inside(node.body))))

    def inside(graph: Graph) -> tuple[BlockNode, ...]:
        return tuple(changed(n) for n in graph.nodes)

    return replace(of, graph=replace(of.graph, nodes=inside(of.graph)))
