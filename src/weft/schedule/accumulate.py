"""What a loop body does to its operands and its accumulator: staging, and accumulation in place."""

from __future__ import annotations

from dataclasses import replace

from weft.block.check import Scope, body_types, infer, update_types
from weft.block.program import (
    BlockNode,
    BlockProgram,
    BlockType,
    Dot,
    Graph,
    Layout,
    Map,
    Pointwise,
    Stage,
    State,
    sealed,
)
from weft.block.rename import fresh, rename_body, values_of
from weft.block.walk import consumers, results
from weft.errors import ScheduleError
from weft.schedule.schedule import Schedule
from weft.tensor.scalar import Apply, Arg


def stage_operands(program: BlockProgram, schedule: Schedule) -> BlockProgram:
    """Copy to dense local memory what `schedule` names, in the layout in which it is read.

    t3 = dot(t1,t2)         becomes         t4 = stage(t2, panel);  t3 = dot(t1,t4)
    """
    return replace(program, graph=_staged(program.graph, dict(program.inputs), Scope({}, applied=False), schedule))


def _staged(graph: Graph, inputs: dict[str, BlockType], scope: Scope, schedule: Schedule) -> Graph:
    nodes: list[BlockNode] = []
    make = fresh(values_of(graph))
    types = infer(graph, inputs, scope)
    for node in graph.nodes:
        match node:
            case Map():
                nodes.append(_staged_map(node, body_types(node, types), scope.inside(node), schedule))
            case Dot():
                left, right = node.left, node.right
                if node.name in schedule.rows:
                    left = make(f"{left}_rows")
                    dims = (*(a for a in types[node.left].dims if a != node.over), node.over)
                    nodes.append(Stage(left, node.left, dims, Layout.rows))
                if node.name in schedule.panels:
                    right = make(f"{right}_panel")
                    dims = (node.over, *(a for a in types[node.right].dims if a != node.over))
                    nodes.append(Stage(right, node.right, dims, Layout.panel))
                nodes.append(replace(node, left=left, right=right))
            case _:
                nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _staged_map(node: Map, inputs: dict[str, BlockType], scope: Scope, schedule: Schedule) -> Map:
    """Stage what `node`'s body is fed, and the operands of products there and in what updates its state."""
    node = _transposed(node, inputs, schedule)
    body, state = _staged(node.body, inputs, scope, schedule), node.state
    if state is not None:
        fed = update_types(state, infer(body, inputs, scope))
        state = replace(state, update=_staged(state.update, fed, scope, schedule))
    return sealed(replace(node, body=body, state=state))


def _transposed(node: Map, inputs: dict[str, BlockType], schedule: Schedule) -> Map:
    """Return `node` with copies of the items that `schedule` transposes, read instead of what its body is fed.

    A loop of several levels has the name on each: only the innermost sees an item.
    """
    make = fresh(values_of(node.body))
    named = [name for name in node.body.inputs if name in schedule.transposed and not inputs[name].buffered]
    for name in named:
        if len(inputs[name].dims) != 2:
            raise ScheduleError(f"{name!r} is {inputs[name]}: only an item of two axes can be transposed")
    copies = {name: make(f"{name}_across") for name in named}
    if not copies:
        return node
    stages = [Stage(copy, name, inputs[name].dims[::-1], Layout.rows) for name, copy in copies.items()]
    made = rename_body(node, copies)
    body = replace(made.body, nodes=(*stages, *made.body.nodes), inputs=node.body.inputs)
    state = made.state
    if state is not None and node.state is not None:
        state = replace(state, resume=node.state.resume)
    return replace(made, body=body, inputs=node.inputs, state=state)


def accumulate(graph: Graph) -> Graph:
    """Turn every `s = s + dot(a,b)` of a loop's state into one accumulating `dot(a,b,acc=s)`.

    The product of a block goes straight into the accumulator, in its precision; nothing in between is stored.
    """
    nodes = tuple(_accumulating(replace(n, body=accumulate(n.body))) if isinstance(n, Map) else n for n in graph.nodes)
    return replace(graph, nodes=nodes)


def _accumulating(node: Map) -> Map:
    if node.state is None:
        return node
    node = replace(node, state=replace(node.state, update=_onto_addends(node.state.update)))
    state, body = node.state, node.body
    assert state is not None
    for place, feed in enumerate(state.feeds):
        dot = next((n for n in body.nodes if isinstance(n, Dot) and n.name == feed), None)
        if dot is not None and consumers(body, feed) == 1 and state.feeds.count(feed) == 1:
            fused = _into_state(state, place, dot)
            if fused is not None:
                return _accumulating(sealed(replace(node, state=fused, body=_without(body, dot))))
    return node


def _onto_addends(update: Graph) -> Graph:
    """Turn every sum of something and a product of `update`'s own into one accumulating product."""
    plus = Apply("add", (Arg(0), Arg(1)))
    for node in update.nodes:
        if not isinstance(node, Pointwise) or node.expr != plus:
            continue
        for addend, name in (node.args, reversed(node.args)):
            dot = next((n for n in update.nodes if isinstance(n, Dot) and n.name == name and n.acc is None), None)
            made = any(addend in results(n) for n in update.nodes)
            if dot is not None and made and consumers(update, name) == 1 and set(dot.dims) == set(node.dims):
                onto = replace(dot, name=node.name, acc=addend)
                nodes = [onto if n is node else n for n in update.nodes if n is not dot]
                return _onto_addends(replace(update, nodes=tuple(nodes)))
    return update


def _without(body: Graph, dot: Dot) -> Graph:
    return replace(body, nodes=tuple(n for n in body.nodes if n is not dot))


def _into_state(state: State, place: int, dot: Dot) -> State | None:
    """Feed `state` the operands of `dot` instead of its result, where the update just adds it to a component."""
    count = len(state.components)
    name = state.update.inputs[count + place]
    plus = Apply("add", (Arg(0), Arg(1)))
    for index, node in enumerate(state.update.nodes):
        if (
            isinstance(node, Pointwise)
            and node.expr == plus
            and node.args[1] == name
            and node.args[0] in state.update.inputs[:count]
        ):
            if consumers(state.update, name) != 1 or consumers(state.update, node.args[0]) != 1:
                return None
            make = fresh(values_of(state.update))
            left, right = make("left"), make("right")
            added = replace(dot, name=node.name, left=left, right=right, acc=node.args[0])
            nodes = (*state.update.nodes[:index], added, *state.update.nodes[index + 1 :])
            inputs = (*state.update.inputs[: count + place], left, right, *state.update.inputs[count + place + 1 :])
            feeds = (*state.feeds[:place], dot.left, dot.right, *state.feeds[place + 1 :])
            return replace(state, feeds=feeds, update=Graph(inputs, nodes, state.update.outputs))
    return None
