"""Renaming values and axes: what every rewrite that moves a graph into another is built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

from weft.block.program import (
    Access,
    BlockNode,
    BlockProgram,
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
    Join,
    Literal,
    Map,
    Once,
    Pointwise,
    Rank,
    Stacked,
    Stage,
    State,
    results,
)
from weft.block.ranges import All, Band, First, Range, Rest, Segment, Within
from weft.tensor.axes import Axis

Values = Mapping[str, str]
Axes = Mapping[Axis, Axis]


def rename_values(graph: Graph, names: Values) -> Graph:
    """Return `graph` with its own values renamed (defined and used); inner graphs have names of their own and stay."""
    return Graph(
        tuple(names.get(n, n) for n in graph.inputs),
        tuple(rename_node(n, names) for n in graph.nodes),
        tuple(names.get(n, n) for n in graph.outputs),
    )


def rename_node(node: BlockNode, names: Values) -> BlockNode:
    """Return `node` with the names that it defines and reads in its own graph replaced."""

    def new(name: str) -> str:
        return names.get(name, name)

    match node:
        case Pointwise():
            return replace(node, name=new(node.name), args=tuple(map(new, node.args)))
        case Dot():
            acc = None if node.acc is None else new(node.acc)
            return replace(node, name=new(node.name), left=new(node.left), right=new(node.right), acc=acc)
        case Collapse() | Fill() | Stage():
            return replace(node, name=new(node.name), arg=new(node.arg))
        case Rank():
            acc = (new(node.acc[0]), new(node.acc[1]))
            node = replace(node, name=new(node.name), places=new(node.places), acc=acc)
            return replace(node, arg=new(node.arg), numbers=new(node.numbers))
        case Join():
            return replace(node, name=new(node.name), first=new(node.first), rest=new(node.rest))
        case Index() | Literal() | Extent():
            return replace(node, name=new(node.name))
        case Map():
            inputs = tuple(replace(f, outer=new(f.outer)) for f in node.inputs)
            return replace(node, inputs=inputs, outputs=tuple(replace(o, outer=new(o.outer)) for o in node.outputs))
        case _:
            assert_never(node)


def rename_body(node: Map, names: Values) -> Map:
    """Return `node` with the values of its body renamed, wherever the map speaks of them."""

    def new(name: str) -> str:
        return names.get(name, name)

    def output(out: Stacked | Final | Once) -> Stacked | Final | Once:
        return out if isinstance(out, Final) else replace(out, inner=new(out.inner))

    state = node.state
    if state is not None:
        resume = None if state.resume is None else tuple(map(new, state.resume))
        state = replace(state, feeds=tuple(map(new, state.feeds)), resume=resume)
    return replace(
        node,
        inputs=tuple(replace(f, inner=new(f.inner)) for f in node.inputs),
        body=rename_values(node.body, names),
        outputs=tuple(map(output, node.outputs)),
        state=state,
    )


def rename_axes(graph: Graph, axes: Axes) -> Graph:
    """Replace axes everywhere in `graph`, inner graphs included; the result is the very same object where none of them occurs."""
    nodes = tuple(_axes_in(n, axes) for n in graph.nodes)
    same = all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if same else replace(graph, nodes=nodes)


def rename_program_axes(program: BlockProgram, axes: Axes) -> BlockProgram:
    """Replace axes in `program`'s graph and in what it says of its outputs."""
    outputs = tuple(tuple(axes.get(a, a) for a in out) for out in program.output_axes)
    return replace(program, graph=rename_axes(program.graph, axes), output_axes=outputs)


def rename_map_axes(node: Map, axes: Axes) -> Map:
    """Replace axes in all that `node` holds, its own axis too."""

    def dims(of: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(axes.get(a, a) for a in of)

    def component(c: Component) -> Component:
        return c if axes.keys().isdisjoint(c.dims) else replace(c, dims=dims(c.dims))

    state = node.state
    if state is not None:
        parts = tuple(map(component, state.components))
        update, merge, finish = (rename_axes(g, axes) for g in (state.update, state.merge, state.finish))
        old = (*state.components, state.update, state.merge, state.finish)
        if any(a is not b for a, b in zip((*parts, update, merge, finish), old, strict=True)):
            state = State(parts, state.feeds, update, merge, finish, state.resume)
    body, bounds = rename_axes(node.body, axes), _range(node.range, axes)
    inputs = tuple(_fed(f, axes) for f in node.inputs)
    if (
        state is node.state
        and body is node.body
        and node.axis not in axes
        and (inputs, bounds) == (node.inputs, node.range)
    ):
        return node
    return replace(node, axis=axes.get(node.axis, node.axis), inputs=inputs, body=body, state=state, range=bounds)


def _axes_in(node: BlockNode, axes: Axes) -> BlockNode:
    def new(axis: Axis) -> Axis:
        return axes.get(axis, axis)

    match node:
        case Pointwise() | Stage():
            return node if axes.keys().isdisjoint(node.dims) else replace(node, dims=tuple(map(new, node.dims)))
        case Dot():
            same = axes.keys().isdisjoint((node.over, *node.dims))
            return node if same else replace(node, over=new(node.over), dims=tuple(map(new, node.dims)))
        case Collapse():
            return replace(node, over=new(node.over)) if node.over in axes else node
        case Rank():
            own = {a for a in (node.over, node.rank, *node.dims) if a is not None}
            over, rank = (None if a is None else new(a) for a in (node.over, node.rank))
            same = axes.keys().isdisjoint(own)
            return node if same else replace(node, over=over, rank=rank, dims=tuple(map(new, node.dims)))
        case Index():
            return replace(node, axis=new(node.axis)) if node.axis in axes else node
        case Join():
            return replace(node, axes=tuple((new(a), new(b)) for a, b in node.axes))
        case Extent():
            return replace(node, axis=new(node.axis)) if node.axis is not None and node.axis in axes else node
        case Literal() | Fill():
            return node
        case Map():
            return rename_map_axes(node, axes)
        case _:
            assert_never(node)


def _fed(feed: Feed, axes: Axes) -> Feed:
    access = _access(feed.access, axes)
    return feed if access is feed.access else replace(feed, access=access)


def _access(access: Access, axes: Axes) -> Access:
    match access:
        case Iterate(over):
            return Iterate(axes[over]) if over in axes else access
        case Grouped(over, group):
            return Grouped(axes[over], group) if over in axes else access
        case Broadcast():
            return access
        case _:
            assert_never(access)


def _range(of: Range, axes: Axes) -> Range:
    match of:
        case All() | First():
            return of
        case Within(outer, part):
            return Within(axes.get(outer, outer), part)
        case Band(outer):
            return replace(of, outer=axes.get(outer, outer))
        case Segment(index, count, part):
            return Segment(axes.get(index, index), count, part)
        case Rest(after, part):
            return Rest(axes.get(after, after), part)
        case _:
            assert_never(of)


def fresh(taken: frozenset[str] | set[str]) -> Callable[[str], str]:
    """Return a maker of names that are not in `taken` and not given before: `make("t")` is t, t1, t2 ..."""
    used = set(taken)

    def make(stem: str) -> str:
        name, number = stem, 0
        while name in used:
            number += 1
            name = f"{stem}{number}"
        used.add(name)
        return name

    return make


def values_of(graph: Graph) -> set[str]:
    """Return the names of all values of `graph`, its inputs included, those of inner graphs not."""
    return {*graph.inputs, *(name for node in graph.nodes for name in results(node))}
