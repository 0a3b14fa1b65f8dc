"""The same block program, written otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from weft.block.program import BlockNode, BlockProgram, BlockType, Bounded, Dot, Extent, Graph, Map, Pointwise, sealed
from weft.block.rename import rename_body, rename_program_axes, rename_values, values_of
from weft.block.walk import maps, operands, results
from weft.tensor.axes import Axis, Space
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, substitute


def shuffled(program: BlockProgram, rng: random.Random) -> BlockProgram:
    """`program` with its nodes in another order, operands of commutative operations swapped, and everything renamed."""
    program = replace(program, graph=_graph(program.graph, rng))
    names = [m.name for m in maps(program.graph)]
    rng.shuffle(names)
    loops = {name: f"loop{i}" for i, name in enumerate(names)}
    spaces: dict[Space, Space] = {}

    def axis(a: Axis) -> Axis:
        letter = spaces.setdefault(a.space, Space(f"S{rng.random()}", a.space.fixed))
        return Axis(f"a{rng.random()}", letter)

    found = [a for _, kind in program.inputs for a in kind.lists] + [m.axis for m in maps(program.graph)]
    axes = {a: axis(a) for a in dict.fromkeys(found)}
    program = rename_program_axes(program, axes)
    graph = _renamed_spaces(_renamed_loops(program.graph, loops), spaces)

    def kind(of: BlockType) -> BlockType:
        return replace(of, lists=tuple(axes[a] for a in of.lists), dims=tuple(axes[a] for a in of.dims))

    values = _names(values_of(graph), rng)
    inputs = tuple((values[n], kind(of)) for n, of in program.inputs)
    return replace(program, inputs=inputs, graph=rename_values(graph, values))


def _names(values: Iterable[str], rng: random.Random) -> dict[str, str]:
    old = sorted(values)
    new = [f"v{i}" for i in range(len(old))]
    rng.shuffle(new)
    return dict(zip(old, new, strict=True))


def _graph(graph: Graph, rng: random.Random) -> Graph:
    ready, rest, done = set(graph.inputs), list(graph.nodes), list[BlockNode]()
    while rest:
        node = rng.choice([n for n in rest if ready.issuperset(operands(n))])
        rest.remove(node)
        ready.update(results(node))
        done.append(_node(node, rng))
    return replace(graph, nodes=tuple(done))


def _node(node: BlockNode, rng: random.Random) -> BlockNode:
    match node:
        case Map():
            feeds = list(node.inputs)
            rng.shuffle(feeds)
            node = sealed(replace(node, inputs=tuple(feeds), body=_graph(node.body, rng)))
            return rename_body(node, _names(values_of(node.body), rng))
        case Dot() if rng.random() < 0.5:
            return replace(node, left=node.right, right=node.left)
        case Pointwise():
            order = list(range(len(node.args)))
            rng.shuffle(order)
            expr = substitute(_swapped(node.expr, rng), lambda i: Arg(order.index(i)))
            return replace(node, expr=expr, args=tuple(node.args[i] for i in order))
        case _:
            return node


def _swapped(expr: Scalar, rng: random.Random) -> Scalar:
    match expr:
        case Apply(op, args):
            args = tuple(_swapped(a, rng) for a in args)
            return Apply(op, args[::-1] if op in ("add", "mul") and rng.random() < 0.5 else args)
        case Convert(dtype, inner):
            return Convert(dtype, _swapped(inner, rng))
        case Arg() | Lit():
            return expr


def _each(graph: Graph, change: Callable[[BlockNode], BlockNode]) -> Graph:
    """`graph` with `change` applied to every node, inner graphs first."""

    def node(n: BlockNode) -> BlockNode:
        return change(replace(n, body=_each(n.body, change)) if isinstance(n, Map) else n)

    return replace(graph, nodes=tuple(map(node, graph.nodes)))


def _renamed_loops(graph: Graph, names: dict[str, str]) -> Graph:
    return _each(graph, lambda n: replace(n, name=names[n.name]) if isinstance(n, Map) else n)


def _renamed_spaces(graph: Graph, spaces: dict[Space, Space]) -> Graph:
    return _each(graph, lambda n: replace(n, space=spaces[n.space]) if isinstance(n, Bounded | Extent) else n)
