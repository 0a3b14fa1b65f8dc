"""Maps that run one iteration after the other: loops, their state, and the lists they stack."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import assert_never

from weft.block.check import body_types, infer
from weft.block.program import (
    Access,
    BlockNode,
    Broadcast,
    Collapse,
    Dot,
    Final,
    Graph,
    Grouped,
    Iterate,
    Join,
    Map,
    Once,
    Place,
    Pointwise,
    Stacked,
    State,
)
from weft.block.ranges import All, Part
from weft.block.walk import every, operands
from weft.emit.kinds import kind_of
from weft.emit.ranges import BlockText, Bounds, Scope, bounds, describe, part_of, tile
from weft.emit.text import factor, is_word, minus, plus, times
from weft.emit.triton import rankings
from weft.emit.triton.body import Body
from weft.emit.triton.frame import Frame
from weft.emit.triton.scalar import COMPUTED, element, number
from weft.emit.triton.text import at_most, call
from weft.emit.triton.values import GlobalBuffer, Local, Tile, Value
from weft.errors import UnsupportedError
from weft.schedule import in_flight
from weft.tensor.axes import Axis
from weft.tensor.scalar import Apply, Arg


def run(body: Body, places: Mapping[str, GlobalBuffer]) -> None:
    """Print the operators of `body`'s graph; the lists named in `places` are to lie there."""
    places = {**places, **_parts(body.graph, places)}
    for node in body.graph.nodes:
        if isinstance(node, Map):
            _loop(body, node, places)
        elif isinstance(node, Join):
            body.values[node.name] = Local(node.name)
        else:
            rankings.PRINTERS.get(type(node), Body.operator)(body, node)


def _parts(graph: Graph, places: Mapping[str, GlobalBuffer]) -> dict[str, GlobalBuffer]:
    """Return the memory of the parts of lists: that of the whole, each under the names that its own axes have."""
    found: dict[str, GlobalBuffer] = {}
    for node in graph.nodes:
        if isinstance(node, Join) and node.name in places:
            whole, own = places[node.name], {b: a for a, b in node.axes}
            strides = {own.get(a, a): s for a, s in whole.strides.items()}
            found[node.first] = replace(whole, strides=strides, dims=tuple(own.get(a, a) for a in whole.dims))
            found[node.rest] = whole
    return found


def iteration(
    body: Body, node: Map, scope: Scope, places: Mapping[str, GlobalBuffer], carried: Mapping[str, Tile]
) -> Body:
    """Print one iteration of `node`, a map in `body`'s graph; gives what it made.

    Args:
        scope: with the current block of `node`'s own axis.
        places: for each list that `node` stacks and another launch reads, the memory of the whole list, and for what it hands out
            as it is, its memory.
        carried: the variables of the state's components.
    """
    inner = entered(body, node, scope)
    outputs = [o for o in node.outputs if not isinstance(o, Final) and o.outer in places]
    lists = {o.inner: places[o.outer] for o in outputs if inner.types[o.inner].buffered}
    if len(lists) < sum(inner.types[o.inner].buffered for o in outputs) or any(n in node.body.inputs for n in lists):
        raise UnsupportedError(f"loop {node.name!r} gives one list under two names")
    run(inner, lists)
    if node.state is not None:
        _update(inner, node, node.state, carried)
    for output in outputs:
        if output.inner not in lists:
            target, dims = places[output.outer], inner.types[output.inner].dims
            inner.store(
                localised(target, dims, scope) if isinstance(output, Stacked) else target, inner.item(output.inner)
            )
    return inner


def entered(body: Body, node: Map, scope: Scope) -> Body:
    """Return the body of `node`, a map in `body`'s graph, with what it sees of its inputs."""
    around = body.around.inside(node)
    kinds = body_types(node, body.types)
    values = {
        f.inner: _seen(body.frame, node, f.access, body.values[f.outer], scope, item=not kinds[f.inner].buffered)
        for f in node.inputs
    }
    return Body(body.frame, scope, around, node.body, infer(node.body, kinds, around), values)


def localised(memory: GlobalBuffer, dims: tuple[Axis, ...], scope: Scope) -> GlobalBuffer:
    """Return the part of the list `memory` that belongs to the current blocks of the loops around, as an item."""
    offset = tuple(times(scope[a].base, s) for a, s in memory.strides.items() if a in scope and scope[a].base != "0")
    return replace(memory, dims=dims, offset=offset, item=True)


def _loop(body: Body, node: Map, places: Mapping[str, GlobalBuffer]) -> None:
    frame, scope = body.frame, body.scope
    for feed in node.inputs:
        if not body.types[feed.outer].buffered:
            body.item(feed.outer)
    carried = {} if node.state is None else _carried(body, node, node.state)
    limits = _named(frame, node, bounds(frame, node, scope))
    frame.out.comment(describe(node))
    with _iterations(frame, node, limits) as step:
        # A state that is carried has the same variables before and after an iteration.
        inner = iteration(body, node, {**scope, node.axis: step}, places, carried)
    if node.state is not None:
        for component, variable in carried.items():
            if not node.runs_once and reduced_apart(node.state, node.body, component):
                frame.out.line(f"{variable.text} = {call('weft_kept', variable.text)}")
        finish = Body(frame, scope, body.around, node.state.finish, {}, dict(carried))
        run(finish, {})
        for output in node.outputs:
            if isinstance(output, Final):
                body.values[output.outer] = finish.item(output.inner)
    for output in node.outputs:
        if not isinstance(output, Final):
            made = _left(node, output, inner)
            body.values[output.outer] = made
            if isinstance(made, Local) and output.outer not in places and _is_read(body, output.outer):
                body.item(output.outer)


def _left(node: Map, output: Stacked | Once, inner: Body) -> Value:
    """Return what `node` leaves as `output`: if it has no more than one iteration, what that one made."""
    if not node.runs_once:
        return Local(output.outer)
    made = inner.values[output.inner]
    # What lies in memory is seen by iterations as their blocks of it: the list of them all is in registers.
    return inner.item(output.inner) if isinstance(made, GlobalBuffer) and made.item else made


def _is_read(body: Body, name: str) -> bool:
    return any(name in operands(n) for n in body.graph.nodes)


def _named(frame: Frame, node: Map, limits: Bounds) -> Bounds:
    """Return `limits` with names for what is more than a name or a number."""
    begin, end = (
        text if is_word(text) else frame.hold(text, f"{node.axis.name}_{what}")
        for what, text in (("begin", limits.start), ("end", limits.stop))
    )
    return Bounds(begin, end, limits.most)


@contextmanager
def _iterations(frame: Frame, node: Map, limits: Bounds) -> Generator[BlockText]:
    """Print what stands around an iteration; yielded is the current block, whose lanes are printed."""
    most = tile(node, limits.most)
    if node.runs_once:
        most = limits.most if isinstance(node.range, All) else most
        step = BlockText(limits.start, most if node.tile == 1 else minus(limits.stop, limits.start), most)
        frame.enter(node, step)
        yield step
        return
    # One over a part of its space may have no iteration; with the lanes for its step, it has one at most.
    block = str(node.tile) if node.place is not Place.whole else frame.extent(node, most)
    first, last = limits.start, limits.stop
    whole = frame.whole_blocks(minus(limits.stop, limits.start), block)
    match part_of(node):
        case Part.all:
            pass
        case Part.full:
            last = frame.hold(plus(*(t for t in (limits.start, whole) if t != "0")), f"{node.axis.name}_last")
        case Part.edge:
            first = plus(*(t for t in (limits.start, whole) if t != "0"))
        case Part.before:
            raise AssertionError(node.name)
        case _:
            assert_never(part_of(node))
    base = frame.names.make(node.axis.name)
    options = [f"loop_unroll_factor={in_flight(node)}"] if in_flight(node) > 1 else []
    inner = list(every(node.body.nodes))
    if frame.stages > 1 and not options and not any(_is_pipelined(n) for n in inner):
        options = [f"num_stages={frame.stages}"]
    counted = call("tl.range" if options else "range", first, last, block, *options)
    with frame.out.block(f"for {base} in {counted}"):
        known = node.tile == 1 or part_of(node) is Part.full
        valid = str(node.tile) if known else frame.hold(at_most(block, minus(limits.stop, base)), f"{base}_len")
        step = BlockText(base, valid, most)
        frame.enter(node, step)
        yield step


def _is_pipelined(node: BlockNode) -> bool:
    """Tell whether Triton makes a pipeline where it finds `node` in a loop, or in it itself."""
    return (isinstance(node, Dot) and len(node.dims) == 2) or (isinstance(node, Map) and not node.runs_once)


def _seen(frame: Frame, node: Map, access: Access, value: Value, scope: Scope, *, item: bool) -> Value:
    """Return the part of `value` that an iteration of `node` sees."""
    match access:
        case Broadcast():
            return value
        case Iterate(over):
            first = scope[node.axis].base
        case Grouped(over, group):
            first = f"{factor(scope[node.axis].base)} // {group}"
        case _:
            assert_never(access)
    if isinstance(value, Local):
        return value
    if isinstance(value, Tile):
        return _block_of(frame, node, access, value)
    if isinstance(access, Grouped) and over in value.dims:
        raise UnsupportedError(f"loop {node.name!r} reads blocks of {over} in groups: single elements are supported")
    own = {(node.axis if a == over else a): s for a, s in value.strides.items() if a != over or a in value.dims}
    dims = tuple(node.axis if a == over else a for a in value.dims)
    offset = value.offset if first == "0" else (*value.offset, times(first, value.strides[over]))
    return replace(value, strides=own, dims=dims, offset=offset, item=item)


def _block_of(frame: Frame, node: Map, access: Iterate | Grouped, value: Tile) -> Tile:
    """Return the one block of a list in registers that `node`, whose one iteration is all, goes over."""
    over = access.over
    same = over not in value.dims or frame.lanes[over].count == frame.lanes[node.axis].count
    if isinstance(access, Grouped) or not node.runs_once or node.range != All() or not same:
        raise UnsupportedError(
            f"list {value.text!r} would have to stay in a Triton kernel where loop {node.name!r} goes over it block by block"
        )
    return replace(value, dims=tuple(node.axis if a == over else a for a in value.dims))


# State.


def _carried(body: Body, node: Map, state: State) -> dict[str, Tile]:
    """Declare a variable for each component, with the value it starts from."""
    outer = {f.inner: f.outer for f in node.inputs}
    found: dict[str, Tile] = {}
    for place, component in enumerate(state.components):
        dtype = component.dtype.accumulator
        kind = kind_of(dtype)
        if state.resume is not None:
            before = body.item(outer[state.resume[place]])
            text = body.aligned(before.computed, before.dims, component.dims)
        else:
            text = call("tl.full", body.shape(component.dims) if component.dims else "[]",
                        number(component.init, kind), element(COMPUTED[kind]))  # fmt: skip
        name = body.frame.hold(text, component.name)
        found[component.name] = Tile(name, component.dims, COMPUTED[kind], dtype)
    return found


def reduced_apart(state: State, body: Graph, component: str) -> bool | None:
    """Tell whether an iteration reduces a block, and `component` goes on with what that gives, by the same monoid.

    Triton (its pass OptimizeThreadLocality) makes of such loops ones whose threads reduce apart, and of the result one after the
    loop. It takes for one whatever is done last to a component and a reduced block, and is right only where that is the
    same monoid, where the iterations read the component for nothing else (triton-lang/triton#11836: they would read one
    thread's part of it), and where the result is read once. None: it could take the component for one, and must not.
    """
    update, count = state.update, len(state.components)
    made = {n.name: n for n in update.nodes}
    made |= {
        n: known
        for n, f in zip(update.inputs[count:], state.feeds, strict=True)
        for known in body.nodes
        if known.name == f
    }
    place = update.inputs.index(component)
    last = made.get(update.outputs[place])
    if not isinstance(last, Pointwise) or not state.components[place].dims or not last.dtype.is_float:
        return False
    if not any(isinstance(n, Collapse) for n in (*body.nodes, *update.nodes)):
        return False
    parts = [made.get(n) for n in last.args if n != component]
    if len(last.args) == 2 and len(parts) == 1 and isinstance(parts[0], Collapse):
        combined = Apply(parts[0].monoid.value, (Arg(0), Arg(1)))
        reads = [name for n in update.nodes for name in operands(n)] + list(update.outputs)
        return True if last.expr == combined and reads.count(component) == 1 else None
    return None


def _update(body: Body, node: Map, state: State, carried: Mapping[str, Tile]) -> None:
    """Print the update graph, and the assignment that makes the new state the current one."""
    update = state.update
    feeds = [body.item(f) for f in state.feeds]
    values: dict[str, Value] = dict(zip(update.inputs, [*carried.values(), *feeds], strict=True))
    inner = Body(body.frame, body.scope, body.around, update, {}, values)
    run(inner, {})
    changed: list[tuple[str, str]] = []
    for (component, variable), output in zip(carried.items(), update.outputs, strict=True):
        value = inner.item(output)
        text = inner.aligned(value.computed, value.dims, variable.dims)
        if not node.runs_once and reduced_apart(state, node.body, component) is None:
            text = call("weft_kept", text)
        if text != variable.text:
            changed.append((variable.text, text))
    if changed:
        # All at once: a new component may be the old one of another.
        targets, texts = zip(*changed, strict=True)
        body.frame.out.line(f"{', '.join(targets)} = {', '.join(texts)}")
