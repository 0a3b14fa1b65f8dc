"""What a loop body does to its operands and its accumulator: padding, staging, and accumulation in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from weft.block.check import body_types, infer, update_types
from weft.block.program import (
    BlockNode,
    BlockProgram,
    Collapse,
    Component,
    Dot,
    Fill,
    Graph,
    Layout,
    Map,
    Pointwise,
    Prefix,
    Rank,
    Stage,
    State,
    sealed,
)
from weft.block.rename import fresh, rename_body, values_of
from weft.block.scope import Scope, Types
from weft.block.walk import consumers, results, with_maps, with_nodes
from weft.errors import ScheduleError
from weft.schedule.schedule import Schedule
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg


def prepare_operands(program: BlockProgram, schedule: Schedule) -> BlockProgram:
    """Fill the padding of what is combined, where it does not hold the identity, and stage what `schedule` names.

    t3 = dot(t1,t2)         becomes         t4 = fill(t2, 0);  t5 = stage(t4, panel);  t3 = dot(t1,t5)

    Staged is what is copied to dense local memory, in the layout in which it is read.
    """
    graph = _prepared(program.graph, dict(program.inputs), Scope({}, applied=False), schedule)
    return program if graph is program.graph else replace(program, graph=graph)


@dataclass
class _Operands:
    """The operands of one graph's operators as these read them; `nodes`: the operators so far, with fills and stages."""

    types: Types
    scope: Scope
    schedule: Schedule
    make: Callable[[str], str]
    nodes: list[BlockNode] = field(default_factory=list[BlockNode])
    filled: dict[tuple[str, float], str] = field(default_factory=dict[tuple[str, float], str])

    def padded(self, name: str, over: Axis | None, identity: float) -> str:
        """Return the name of `name` with `identity` in its padding along `over`."""
        if over is None or not self.scope.may_be_partial(over) or self.types[name].pad == identity:
            return name
        known = self.filled.get((name, identity))
        if known is None:
            known = self.filled[name, identity] = self.make(f"{name}_filled")
            self.nodes.append(Fill(known, name, identity))
        return known

    def read(self, node: BlockNode) -> BlockNode:
        """Return `node` reading what it needs, which is added before it."""
        match node:
            case Dot(_, left, right, over):
                rest = {each: tuple(a for a in self.types[each].dims if a != over) for each in (left, right)}
                read = {each: self.padded(each, over, 0.0) for each in (left, right)}
                first, second = read[left], read[right]
                if node.name in self.schedule.rows:
                    first = self.staged(f"{first}_rows", first, (*rest[left], over), Layout.rows)
                if node.name in self.schedule.panels:
                    second = self.staged(f"{second}_panel", second, (over, *rest[right]), Layout.panel)
                return node if (first, second) == (left, right) else replace(node, left=first, right=second)
            case Collapse(_, monoid, arg, over):
                new = self.padded(arg, over, monoid.identity)
                return node if new == arg else replace(node, arg=new)
            case Prefix(args=args, merge=merge, over=over):
                states = tuple(self.padded(a, over, begin) for a, begin in zip(args, merge.begin, strict=True))
                return node if states == args else replace(node, args=states)
            case Rank(over=over, rank=rank, numbers=numbers):
                new = self.padded(numbers, None if over == rank else over, float("inf"))
                return node if new == numbers else replace(node, numbers=new)
            case Map():
                return _prepared_map(node, body_types(node, self.types), self.scope.inside(node), self.schedule)
            case _:
                return node

    def staged(self, wish: str, arg: str, dims: tuple[Axis, ...], layout: Layout) -> str:
        """Return the name of a copy of `arg`."""
        name = self.make(wish)
        self.nodes.append(Stage(name, arg, dims, layout))
        return name


def _prepared(graph: Graph, inputs: Types, scope: Scope, schedule: Schedule) -> Graph:
    operands_ = _Operands(infer(graph, inputs, scope), scope, schedule, fresh(values_of(graph)))
    for node in graph.nodes:
        operands_.nodes.append(operands_.read(node))
    return with_nodes(graph, operands_.nodes)


def _prepared_map(node: Map, inputs: Types, scope: Scope, schedule: Schedule) -> Map:
    """Prepare what `node`'s body is fed, and the operands of operators there and in what updates its state."""
    changed = _transposed(node, inputs, schedule)
    body, state = _prepared(changed.body, inputs, scope, schedule), changed.state
    if state is not None:
        update = _prepared(state.update, update_types(state, infer(body, inputs, scope)), scope, schedule)
        state = state if update is state.update else replace(state, update=update)
    return (
        changed if body is changed.body and state is changed.state else sealed(replace(changed, body=body, state=state))
    )


def _transposed(node: Map, inputs: Types, schedule: Schedule) -> Map:
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


def whole_of(node: Prefix, monoid: Monoid, dtype: DType, wide: str, name: str) -> tuple[BlockNode, ...]:
    """Return operators that make, as `name`, what the elements that `node` combines by `monoid` come to by themselves: in `dtype`,
    in which they are called `wide`.
    """
    return (
        Pointwise(wide, Arg(0), node.args, node.dims, dtype, node.location),
        Collapse(name, monoid, wide, node.over, node.location),
    )


def added(name: str, monoid: Monoid, args: tuple[str, str], component: Component) -> BlockNode:
    """Return the operator that combines `args`, items like `component`, as `name`."""
    return Pointwise(name, Apply(monoid.value, (Arg(0), Arg(1))), args, component.dims, component.dtype)


def copy_of(name: str, arg: str, component: Component) -> BlockNode:
    """Return the operator that copies `arg`, an item like `component`, as `name`."""
    return Pointwise(name, Arg(0), (arg,), component.dims, component.dtype)


def accumulate(graph: Graph) -> Graph:
    """Turn every `s = s + dot(a,b)` of a loop's state into one accumulating `dot(a,b,acc=s)`.

    The matmul of a block goes straight into the accumulator, in its precision; nothing in between is stored.
    """
    return with_maps(graph, _accumulating)


def _accumulating(node: Map) -> Map:
    if node.state is None:
        return node
    update = _onto_addends(node.state.update)
    if update is not node.state.update:
        node = replace(node, state=replace(node.state, update=update))
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
    """Turn every sum of something and a matmul of `update`'s own into one accumulating matmul."""
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
