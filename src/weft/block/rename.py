"""Renaming values and axes: what every rewrite that moves a graph into another is built from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from operator import is_
from typing import Any, TypeVar, cast

from weft.block.linear import Linear, Quotient
from weft.block.program import (
    BlockNode,
    BlockProgram,
    Feed,
    Final,
    Graph,
    Map,
    Once,
    Stacked,
    State,
)
from weft.block.spans import Span
from weft.block.subscripts import Digit, Subscript
from weft.block.walk import fields_of, results
from weft.tensor.axes import Axis

T = TypeVar("T")
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

    if not isinstance(node, Map):
        return _changed(node, _names_of, names)
    inputs = tuple([f if (name := new(f.outer)) == f.outer else replace(f, outer=name) for f in node.inputs])
    outputs = tuple([o if (name := new(o.outer)) == o.outer else replace(o, outer=name) for o in node.outputs])
    if all(map(is_, inputs, node.inputs)) and all(map(is_, outputs, node.outputs)):
        return node
    return replace(node, inputs=inputs, outputs=outputs)


def rename_body(node: Map, names: Values) -> Map:
    """Return `node` with the values of its body renamed, wherever the map speaks of them."""

    def new(name: str) -> str:
        return names.get(name, name)

    def output(out: Stacked | Final | Once) -> Stacked | Final | Once:
        return out if isinstance(out, Final) or new(out.inner) == out.inner else replace(out, inner=new(out.inner))

    state = node.state
    if state is not None:
        resume = None if state.resume is None else tuple(map(new, state.resume))
        shown = tuple((name, new(inner)) for name, inner in state.shown)
        state = replace(state, feeds=tuple(map(new, state.feeds)), resume=resume, shown=shown)
    guard = node.guard
    return replace(
        node,
        guard=None if guard is None else replace(guard, value=new(guard.value)),
        inputs=tuple([f if (name := new(f.inner)) == f.inner else replace(f, inner=name) for f in node.inputs]),
        body=rename_values(node.body, names),
        outputs=tuple(map(output, node.outputs)),
        state=state,
    )


def rename_axes(graph: Graph, axes: Axes) -> Graph:
    """Replace axes everywhere in `graph`, inner graphs included; the result is the very same object where none of them occurs."""
    nodes = tuple(_axes_in(n, axes) for n in graph.nodes)
    return graph if all(map(is_, nodes, graph.nodes)) else replace(graph, nodes=nodes)


def rename_program_axes(program: BlockProgram, axes: Axes) -> BlockProgram:
    """Replace axes in `program`'s graph and in what it says of its outputs."""
    outputs = tuple(tuple(axes.get(a, a) for a in out) for out in program.output_axes)
    return replace(program, graph=rename_axes(program.graph, axes), output_axes=outputs)


def rename_map_axes(node: Map, axes: Axes) -> Map:
    """Replace axes in all that `node` holds, its own axis too."""
    if axes_named(node).isdisjoint(axes):
        return node
    state = node.state
    if state is not None:
        parts = tuple(_changed(c, _axes_of, axes) for c in state.components)
        update, merge, finish = (rename_axes(g, axes) for g in (state.update, state.merge, state.finish))
        old = (*state.components, state.update, state.merge, state.finish)
        if not all(map(is_, (*parts, update, merge, finish), old)):
            state = State(parts, state.feeds, update, merge, finish, state.resume, state.shown)
    body, bounds = rename_axes(node.body, axes), _changed(node.range, _axes_of, axes)
    inputs = tuple(_fed(f, axes) for f in node.inputs)
    guard = node.guard
    if guard is not None and guard.rows is not None and guard.rows in axes:
        guard = replace(guard, rows=axes[guard.rows])
    same = state is node.state and body is node.body and bounds is node.range and node.axis not in axes
    if same and guard is node.guard and all(map(is_, inputs, node.inputs)):
        return node
    axis = axes.get(node.axis, node.axis)
    return replace(node, axis=axis, inputs=inputs, body=body, state=state, range=bounds, guard=guard)


def axes_named(node: BlockNode) -> frozenset[Axis]:
    """Return the axes that `node` and all that it runs name: what `rename_axes` would replace in it. Worked out once for a map."""
    if not isinstance(node, Map):
        return frozenset(_held(node))
    if not node.named:
        state = node.state
        graphs = (node.body,) if state is None else (node.body, state.update, state.merge, state.finish)
        things = [node.range, *(f.access for f in node.inputs), *(() if state is None else state.components)]
        own = {node.axis, *(axis for thing in things for axis in _held(thing))}
        node.named.append(frozenset(own).union(*(axes_named(inner) for graph in graphs for inner in graph.nodes)))
    return node.named[0]


def _held(thing: object) -> Iterator[Axis]:
    """Yield the axes in the fields of a dataclass that hold axes."""
    for name in _axes_of(thing.__class__):
        yield from _axes_among(getattr(thing, name))


def _axes_among(value: object) -> Iterator[Axis]:
    match value:
        case Axis():
            yield value
        case tuple():
            for each in cast("tuple[object, ...]", value):
                yield from _axes_among(each)
        case Subscript() | Digit() | Span() | Linear() | Quotient():
            yield from _held(value)
        case _:
            pass


def _fed(feed: Feed, axes: Axes) -> Feed:
    access = _changed(feed.access, _axes_of, axes)
    return feed if access is feed.access else replace(feed, access=access)


def _axes_in(node: BlockNode, axes: Axes) -> BlockNode:
    return rename_map_axes(node, axes) if isinstance(node, Map) else _changed(node, _axes_of, axes)


@cache
def _names_of(form: type) -> tuple[str, ...]:
    return (*fields_of(form, "makes"), *fields_of(form, "reads"))


@cache
def _axes_of(form: type) -> tuple[str, ...]:
    return fields_of(form, "axes")


def _changed(thing: T, of: Callable[[type], tuple[str, ...]], new: Mapping[Any, Any]) -> T:
    """Return `thing`, a dataclass, with what its fields `of` hold replaced by `new`; itself where none of it occurs."""
    changes: dict[str, Any] = {}
    for name in of(thing.__class__):
        value = getattr(thing, name)
        other = _replaced(value, new)
        if other is not value:
            changes[name] = other
    return replace(cast("Any", thing), **changes) if changes else thing


_PARTS = (Subscript, Digit, Span, Linear, Quotient)


def _replaced(value: Any, new: Mapping[Any, Any]) -> Any:
    if value.__class__ in _PARTS:
        return _changed(value, _axes_of, new)
    if value.__class__ is not tuple:
        return new.get(value, value)
    parts = tuple([_replaced(each, new) for each in value])
    return value if all(map(is_, parts, value)) else parts


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
