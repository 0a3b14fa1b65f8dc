"""Maps that run one iteration after the other: loops, their state, and what they store."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from weft.block.check import body_types, infer
from weft.block.program import (
    BlockNode,
    BlockType,
    Buffer,
    Dot,
    Fill,
    Final,
    Graph,
    Load,
    Map,
    Once,
    Pointwise,
    Prefix,
    State,
    Store,
)
from weft.block.walk import asked, consumers, maps, operands, stored
from weft.emit.calls import row_major
from weft.emit.cpp import levels, nests, places, prefixes, rankings
from weft.emit.cpp.body import Accumulator, Body
from weft.emit.cpp.frame import Frame, part
from weft.emit.cpp.guards import done, of_busy_rows
from weft.emit.cpp.order import arranged
from weft.emit.cpp.plan import Put
from weft.emit.cpp.ranges import widest
from weft.emit.cpp.scalar import element
from weft.emit.cpp.values import ItemMemory, Lazy, ListMemory, Value, resolved
from weft.emit.ranges import BlockText, Bounds, Iterations, Scope, block_at, describe, iterations
from weft.emit.text import minus, times
from weft.tensor.axes import Axis
from weft.tensor.scalar import exactly_equal

_PRINTERS = {**rankings.PRINTERS, **prefixes.PRINTERS}


def run(
    body: Body, accumulators: Mapping[str, Accumulator] | None = None, nodes: Sequence[BlockNode] | None = None
) -> None:
    """Print the operators of `body`'s graph, or some `nodes` of it; what is stored is left to the loop that has it, so that it is
    put there at once.
    """
    for node in body.graph.nodes if nodes is None else nodes:
        match node:
            case Map():
                _loop(body, node)
            case Buffer():
                body.memories[node.name] = _reserved(body, node)
            case Load() if node.indices:
                body.look_up(node)
            case Load(name, memory, at, dims):
                body.values[name] = part(body.frame, body.memories[memory], at, dims, body.scope)
            case Store():
                pass
            case _:
                _PRINTERS.get(type(node), Body.operator)(body, node, accumulators or {})


def iteration(
    body: Body, node: Map, scope: Scope, places: Mapping[str, ItemMemory], carried: Mapping[str, tuple[ItemMemory, str]]
) -> None:
    """Print one iteration of `node`, a map in `body`'s graph.

    Args:
        scope: with the current block of `node`'s own axis.
        places: for each value that `node` hands out as it is, its memory.
        carried: for each component of the state, its memory, and the expression that is true where it has a value already.
    """
    frame, inner = body.frame, entered(body, node, scope)
    stores = [n for n in node.body.nodes if isinstance(n, Store)]
    if node.state is not None:
        inner.values |= {name: carried[component][0] for component, name in node.state.shown}
    whole = _multiplied(node) | {n.name for n in node.body.nodes if isinstance(n, Prefix)}
    targets = {n: _target(inner, n) for n in stores if n.value in whole}
    inner.homes |= {n.value: target for n, target in targets.items()}
    first, rest = asked(node)
    run(inner, nodes=first)
    with nullcontext() if node.guard is None else frame.out.block(f"if ({done(inner, node.guard)})"):
        if node.guard is not None and node.guard.rows is not None:
            inner, carried = of_busy_rows(inner, node, rest, carried)
        run(inner, nodes=rest)
        puts = [] if node.state is None else _updated(inner, node.state, carried)
        left = [(targets.get(n) or _target(inner, n), inner.values[n.value]) for n in stores]
        left += [(places[o.outer], inner.values[o.inner]) for o in node.outputs if isinstance(o, Once)]
        puts += [Put(target, value) for target, value in left if resolved(value) is not target]
        if puts:
            nests.run(frame, inner.scope, puts)


def _target(body: Body, node: Store) -> ItemMemory:
    """Return where `node` puts an item."""
    dims = body.types[node.value].dims
    return part(body.frame, body.memories[node.memory], node.at, dims, body.scope, writable=True)


def _multiplied(node: Map) -> frozenset[str]:
    """Return the values of the body of `node` that matmuls read as they are: they have to be put in memory."""
    found = _factors(node.body)
    if node.state is not None:
        update = node.state.update
        fed = dict(zip(update.inputs[len(node.state.components) :], node.state.feeds, strict=True))
        found |= {fed[v] for v in _factors(update) if v in fed}
    return found | {n.arg for n in node.body.nodes if isinstance(n, Fill) and n.name in found}


def _factors(graph: Graph) -> frozenset[str]:
    """Return what matmuls of `graph` read, filled up to whole blocks or not."""
    found = {v for n in graph.nodes if isinstance(n, Dot) for v in (n.left, n.right)}
    return frozenset(found | {n.arg for n in graph.nodes if isinstance(n, Fill) and n.name in found})


def entered(body: Body, node: Map, scope: Scope) -> Body:
    """Return the body of `node`, a map in `body`'s graph, with what it sees of its inputs."""
    values = {f.inner: body.values[f.outer] for f in node.inputs if f.outer in body.values}
    memories = {f.inner: body.memories[f.outer] for f in node.inputs if f.outer in body.memories}
    around = body.around.inside(node)
    types = infer(node.body, body_types(node, body.types), around)
    return Body(body.frame, scope, around, node.body, types, values, memories=memories)


def _reserved(body: Body, node: Buffer) -> ListMemory:
    """Reserve scratch for the whole of the list that maps of `body`'s graph store, for the current blocks of the loops around."""
    frame, scope = body.frame, body.scope
    makers = [n for n in body.graph.nodes if isinstance(n, Map) and node.name in stored(n)]
    loops = {m.axis: m for maker in makers for m in (maker, *maps(maker.body))}
    blocks = {a: "" if m.tile is None else str(m.tile) for a, m in loops.items()}
    axes = (*(a for a in node.axes if a not in node.dims), *arranged(node.dims, lambda a: blocks.get(a, "")))
    ranges = {
        a: widest(frame, a, loops, scope) if a in loops else Bounds(scope[a].base, "", scope[a].most) for a in axes
    }
    extents = [ranges[a].most for a in axes]
    base = frame.scratch(node.name, element(node.dtype), times(*extents))
    strides = row_major(axes, extents)
    return ListMemory(base, node.dtype, tuple(strides[a] for a in node.axes), tuple(ranges[a].start for a in node.axes))


def _loop(body: Body, node: Map) -> None:
    frame, scope = body.frame, body.scope
    body.in_memory({f.outer: None for f in node.inputs if _is_work(body.values.get(f.outer))})
    once = [o.outer for o in node.outputs if isinstance(o, Once)]
    places = {name: _place(frame, name, body.types[name], scope) for name in once}
    found = iterations(frame, node, scope)
    base = found.only.first if node.tile is None else frame.names.make(node.axis.name)
    own = levels.begun(frame, node)
    carried = {} if node.state is None else _carried(body, node, node.state, found, base, own)
    memories = {name: memory for name, (memory, _) in carried.items()}
    if own is not None:
        levels.declare(body, own, [*memories.values()], lambda left, right: _merged(body, node, left, right))
    with _iterations(frame, node, found, base) as step:
        iteration(body, node, {**scope, node.axis: step}, places, carried)
        if own is not None and node.state is not None:
            levels.step(body, node.state, own, carried)
    if own is not None:
        levels.end(frame, own)
    if node.state is not None:
        _finish(body, node, node.state, memories)
    body.values |= places


def _place(frame: Frame, name: str, kind: BlockType, scope: Scope) -> ItemMemory:
    """Reserve memory for an item that outlives the iteration that makes it."""
    return (
        frame.array(name, kind.dtype, kind.dims, scope) if kind.dims else places.variable(frame, name, kind.dtype, 0.0)
    )


def _is_work(value: Value | None) -> bool:
    return isinstance(value, Lazy) and value.is_work


@contextmanager
def _iterations(frame: Frame, node: Map, found: Iterations, base: str) -> Generator[BlockText]:
    """Print the braces around an iteration, whose block begins at `base`; yielded is that block."""
    out, block = frame.out, str(node.tile)
    out.comment(describe(node))
    if node.tile is None:
        run = found.only
        with out.block(f"if ({run.first} < {run.stop})"):
            yield BlockText(run.first, minus(run.stop, run.first), found.most)
        return
    if len(found.runs) == 1:
        run = found.only
        with out.block(f"for (i64 {base} = {run.first}; {base} < {run.last}; {base} += {block})"):
            yield block_at(frame, node, found.most, run.stop, base, block)
        return
    number, (firsts, lasts, stops) = frame.names.make(f"{base}_run"), _tables(frame, found, base)
    with (
        out.block(f"for (int {number} = 0; {number} < {len(found.runs)}; ++{number})"),
        out.block(f"for (i64 {base} = {firsts}[{number}]; {base} < {lasts}[{number}]; {base} += {block})"),
    ):
        yield block_at(frame, node, found.most, f"{stops}[{number}]", base, block)


def _tables(frame: Frame, found: Iterations, base: str) -> tuple[str, str, str]:
    """Print where runs begin, where their last blocks do at most, and where they end: a table of each."""
    names = dict[tuple[str, ...], str]()

    def table(column: tuple[str, ...], what: str) -> str:
        if column not in names:
            names[column] = frame.names.make(f"{base}_{what}")
            frame.out.line(f"const i64 {names[column]}[] = {{{', '.join(column)}}};")
        return names[column]

    runs = found.runs
    firsts = table(tuple(r.first for r in runs), "begins")
    return firsts, table(tuple(r.last for r in runs), "lasts"), table(tuple(r.stop for r in runs), "ends")


# State.


def _carried(
    body: Body, node: Map, state: State, steps: Iterations, base: str, own: levels.Levels | None
) -> dict[str, tuple[ItemMemory, str]]:
    """Return the memory of each component, printed and initialised, and the expression that is true once it has a value."""
    frame = body.frame
    found: dict[str, tuple[ItemMemory, str]] = {}
    outer = {f.inner: f.outer for f in node.inputs}
    for place, component in enumerate(state.components):
        dtype = component.dtype.accumulator
        if state.resume is not None:
            found[component.name] = (_resumed(body, outer[state.resume[place]], component.dims), "true")
            continue
        if not component.dims:
            found[component.name] = (places.variable(frame, component.name, dtype, component.init), "true")
            continue
        memory = frame.array(component.name, dtype, component.dims, body.scope)
        alone = steps.runs[0] if len(steps.runs) == 1 else None
        if alone and node.guard is None and exactly_equal(component.init, 0.0) and _starts_by_overwriting(state, place):
            with frame.out.block(f"if ({alone.last} <= {alone.first})"):
                places.fill(frame, body.scope, memory, component.init)
            begun = f"{base} > {alone.first}" if own is None else f"!({own.is_new})"
            found[component.name] = (memory, "false" if node.tile is None else begun)
        else:
            places.fill(frame, body.scope, memory, component.init)
            found[component.name] = (memory, "true")
    return found


def _resumed(body: Body, name: str, dims: tuple[Axis, ...]) -> ItemMemory:
    """Return the state that an earlier loop left as `name`: its own memory where nothing else reads that."""
    value = resolved(body.values[name])
    if isinstance(value, ItemMemory) and value.owned and consumers(body.graph, name) == 1:
        return value
    dtype = value.dtype.accumulator
    target = body.frame.array(name, dtype, dims, body.scope) if dims else places.variable(body.frame, name, dtype, None)
    nests.run(body.frame, body.scope, [Put(target, value)])
    return target


def _starts_by_overwriting(state: State, place: int) -> bool:
    """Tell whether all that an iteration does to a component is to add a matmul: the first can do without a zero."""
    name, made = state.update.inputs[place], state.update.outputs[place]
    node = next((n for n in state.update.nodes if n.name == made), None)
    return isinstance(node, Dot) and node.acc == name and _into(state.update, node, name)


def _into(update: Graph, node: Dot, component: str) -> bool:
    """Tell whether the matmul can go into the component's memory: nothing but it, or its addend, reads the old value."""
    if component in update.outputs or update.outputs.count(node.name) != 1:
        return False
    readers = [n for n in update.nodes if component in operands(n)]
    if node.acc == component:
        return readers == [node]
    addend = next((n for n in update.nodes if n.name == node.acc), None)
    if isinstance(addend, Pointwise):
        return consumers(update, addend.name) == 1 and all(n is addend for n in readers)
    return not readers


def _updated(body: Body, state: State, carried: Mapping[str, tuple[ItemMemory, str]]) -> list[Put]:
    """Print the update graph; the stores that are left to do make the new state."""
    update = state.update
    memories = [carried[c.name][0] for c in state.components]
    values: dict[str, Value] = dict(
        zip(update.inputs, [*memories, *(body.values[f] for f in state.feeds)], strict=True)
    )
    accumulators: dict[str, Accumulator] = {}
    for name, made, (memory, add) in zip(update.inputs, update.outputs, carried.values(), strict=False):
        node = next((n for n in update.nodes if n.name == made), None)
        if isinstance(node, Dot) and _into(update, node, name) and node.dims == memory.dims:
            accumulators[made] = Accumulator(
                memory, "false" if node.acc is None else add if node.acc == name else "true"
            )
    accumulators |= rankings.in_place(state, carried)
    inner = Body(body.frame, body.scope, body.around, update, {}, values, body.reductions)
    run(inner, accumulators)
    made = [inner.values[o] for o in update.outputs]
    return [Put(m, v) for m, v in zip(memories, made, strict=True) if resolved(v) is not m]


def _merged(body: Body, node: Map, left: Sequence[ItemMemory], right: Sequence[ItemMemory]) -> None:
    """Print what merges the state in `right` into the one in `left`, of what came before it."""
    assert node.state is not None
    merge = node.state.merge
    inner = Body(body.frame, body.scope, body.around, merge, {}, dict(zip(merge.inputs, (*left, *right), strict=True)))
    run(inner)
    values = [inner.values[o] for o in merge.outputs]
    nests.run(body.frame, body.scope, [Put(m, v) for m, v in zip(left, values, strict=True) if resolved(v) is not m])


def _finish(body: Body, node: Map, state: State, memories: Mapping[str, ItemMemory]) -> None:
    finish = state.finish
    inner = Body(body.frame, body.scope, body.around, finish, {}, dict(memories), body.reductions)
    run(inner)
    for output in node.outputs:
        if isinstance(output, Final):
            body.values[output.outer] = inner.values[output.inner]
