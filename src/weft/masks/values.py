"""What is known of every value of a graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from weft.block.linear import Linear
from weft.block.program import (
    BlockNode,
    Broadcast,
    Collapse,
    Component,
    Dot,
    Extent,
    Final,
    Graph,
    Index,
    Literal,
    Map,
    Monoid,
    Pointwise,
    State,
)
from weft.block.walk import every, results
from weft.masks.known import (
    Endless,
    Facts,
    KnownNumber,
    KnownValue,
    KnownValues,
    Start,
    bounded,
    endless,
    of_expression,
    renamed,
)
from weft.tensor.axes import Axis
from weft.tensor.scalar import Apply, Arg


def values_of(graph: Graph, given: KnownValues, facts: Facts) -> dict[str, KnownValue]:
    """Says what is known of each value of `graph`, of whose inputs `given` is known; other values in it are taken for granted."""
    known: dict[str, KnownValue] = {name: given.get(name) for name in graph.inputs}
    for node in graph.nodes:
        found = _of_map(node, known, facts) if isinstance(node, Map) else _of_operator(node, known, facts)
        made = found if isinstance(found, dict) else dict.fromkeys(results(node), found)
        known.update({name: given.get(name, value) for name, value in made.items()})
    return known


def values_inside(node: Map, known: KnownValues) -> dict[str, KnownValue]:
    """Says what is known of the inputs of the body of `node`, a map in a graph of whose values `known` is known."""
    found: dict[str, KnownValue] = {}
    for feed in node.inputs:
        value = known.get(feed.outer)
        match feed.access:
            case Broadcast():
                found[feed.inner] = value
            case access:
                found[feed.inner] = renamed(value, access.over, node.axis)
    return found


def multiplies(nodes: Iterable[BlockNode]) -> bool:
    """Tell whether a matmul is among `nodes` and all that they run."""
    return any(isinstance(each, Dot) for each in every(nodes))


def unchanged(node: Map, known: KnownValues, facts: Facts, taken: KnownValues | None = None) -> bool:
    """Tells whether an iteration of `node`, a loop with state, leaves the state as it is wherever `facts` hold, and values of its
    body are what they are `taken` for.
    """
    state = node.state
    assert state is not None
    body = values_of(node.body, {**values_inside(node, known), **(taken or {})}, facts)
    start: dict[str, KnownValue] = {c.name: Start(c.name, _least(state, c)) for c in state.components}
    after = values_of(state.update, _fed(state, body, start), facts)
    return all(after[o] == start[c.name] for o, c in zip(state.update.outputs, state.components, strict=True))


def _least(state: State, component: Component) -> float:
    """Bounds `component` from below before any iteration: by its beginning, if each update takes the greater of it and another."""
    out = state.update.outputs[state.components.index(component)]
    made = next((n for n in state.update.nodes if isinstance(n, Pointwise) and n.name == out), None)
    grows = made is not None and made.expr == Apply("maximum", (Arg(0), Arg(1))) and component.name in made.args
    return component.init if grows and state.resume is None else -math.inf


def _fed(state: State, body: KnownValues, components: KnownValues) -> dict[str, KnownValue]:
    names = state.update.inputs[len(state.components) :]
    return {**components, **{name: body[feed] for name, feed in zip(names, state.feeds, strict=True)}}


def _of_map(node: Map, known: KnownValues, facts: Facts) -> dict[str, KnownValue]:
    body = values_of(node.body, values_inside(node, known), facts)
    finished: Mapping[str, KnownValue] = {}
    if node.state is not None:
        finished = _finished(node.state, body)
    if node.state is not None and node.state.resume is None:
        state = node.state
        start: dict[str, KnownValue] = {c.name: KnownNumber(c.init) for c in state.components}
        after = values_of(state.update, _fed(state, body, start), facts)
        same = all(after[o] == start[c.name] for o, c in zip(state.update.outputs, state.components, strict=True))
        finished = values_of(state.finish, start, facts) if same else finished
    return {o.outer: finished.get(o.inner) if isinstance(o, Final) else body[o.inner] for o in node.outputs}


def _finished(state: State, body: KnownValues) -> dict[str, KnownValue]:
    """Says what is known of what a loop leaves, whatever its state was: where it may be infinite."""
    after = values_of(state.update, _fed(state, body, {}), Facts())
    left = {c.name: after[o] for o, c in zip(state.update.outputs, state.components, strict=True)}
    return values_of(state.finish, {n: v for n, v in left.items() if isinstance(v, Endless)}, Facts())


def _of_operator(node: BlockNode, known: KnownValues, facts: Facts) -> KnownValue:
    match node:
        case Pointwise():
            return of_expression(node.expr, [known[a] for a in node.args], facts)
        case Dot():
            operands = (known[node.left], known[node.right])
            nothing = any(isinstance(v, KnownNumber) and v.value == 0 for v in operands)
            if not nothing or any(map(facts.reaches, operands)):
                return endless([*operands, *([] if node.acc is None else [known[node.acc]])])
            return KnownNumber(0.0) if node.acc is None else known[node.acc]
        case Collapse():
            return _collapsed(node.monoid, known[node.arg])
        case Index(_, axis):
            return Linear.index(axis)
        case Literal(_, value):
            return KnownNumber(value)
        case Extent(_, space, dtype, axis):
            if dtype.is_float or axis is not None:
                return None
            return Linear(sizes=((space, 1),)) if space.fixed is None else KnownNumber(space.fixed)
        case _:
            return None


def _collapsed(monoid: Monoid, value: KnownValue) -> KnownValue:
    """Reduces the elements of an item, of which there is at least one, that are all `value`."""
    match value:
        case KnownNumber(number) if monoid in (Monoid.max, Monoid.min) or number == monoid.identity:
            return value
        case Endless() if monoid is Monoid.max:
            return bounded([value])
        case Endless():
            return value if monoid is not Monoid.prod else endless([value])
        case _:
            return None


def counted(nodes: Iterable[BlockNode]) -> frozenset[Axis]:
    """Return the axes whose element numbers some of `nodes` are."""
    return frozenset(node.axis for node in nodes if isinstance(node, Index))
