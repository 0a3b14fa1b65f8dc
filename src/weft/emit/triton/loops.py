"""Maps that run one iteration after the other: loops and their state."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

from weft.block.check import body_types, infer
from weft.block.program import BlockNode, Collapse, Final, Graph, Load, Map, Pointwise, Prefix, State, Store
from weft.block.scope import Types
from weft.block.walk import asked, operands, results
from weft.emit.kinds import kind_of
from weft.emit.ranges import BlockText, Iterations, RunText, Scope, block_at, describe, iterations
from weft.emit.text import is_word, minus, plus, times
from weft.emit.triton import prefixes, rankings
from weft.emit.triton.body import Body
from weft.emit.triton.frame import Frame
from weft.emit.triton.guards import busy, busy_iterations, known_before
from weft.emit.triton.scalar import COMPUTED, element, number
from weft.emit.triton.text import call
from weft.emit.triton.values import Tile, Value
from weft.tensor.scalar import Apply, Arg

_PRINTERS = {**rankings.PRINTERS, **prefixes.PRINTERS}


def run(body: Body, nodes: Sequence[BlockNode] | None = None) -> None:
    """Print the operators of `body`'s graph, or some `nodes` of it; what is stored is left to the loop that has it."""
    for node in body.graph.nodes if nodes is None else nodes:
        if isinstance(node, Map):
            _loop(body, node)
        elif not isinstance(node, Store):
            _PRINTERS.get(type(node), Body.operator)(body, node)


def iteration(body: Body, node: Map, scope: Scope, carried: Mapping[str, Tile]) -> Body:
    """Print one iteration of `node`, a map in `body`'s graph, and return what it made.

    Args:
        scope: with the current block of `node`'s own axis.
        carried: the variables of the state's components.
    """
    inner = entered(body, node, scope)
    if node.state is not None:
        inner.values |= {name: carried[component] for component, name in node.state.shown}
    first, rest = asked(node)
    guard = None if known_before(body, node) else node.guard
    run(inner, first if guard is node.guard else ())
    with nullcontext() if guard is None else body.frame.out.block(f"if {busy(inner, guard)}"):
        run(inner, rest)
        if node.state is not None:
            _update(inner, node, node.state, carried)
    for each in node.body.nodes:
        if isinstance(each, Store):
            inner.store(each)
    return inner


def entered(body: Body, node: Map, scope: Scope) -> Body:
    """Return the body of `node`, a map in `body`'s graph, with what it sees of its inputs."""
    around = body.around.inside(node)
    values = {f.inner: body.values[f.outer] for f in node.inputs}
    types = infer(node.body, body_types(node, body.types), around)
    return Body(body.frame, scope, around, node.body, types, values, dict(body.places))


def _loop(body: Body, node: Map) -> None:
    frame, scope = body.frame, body.scope
    for feed in node.inputs:
        if not body.types[feed.outer].buffered:
            body.item(feed.outer)
    for name, size in _indexing(body, node, body.types):
        body.place(name, size)
    carried = {} if node.state is None else _carried(body, node, node.state)
    found = iterations(frame, node, scope)
    frame.out.comment(describe(node))
    with _iterations(body, node, found) as step:
        # A state that is carried has the same variables before and after an iteration.
        inner = iteration(body, node, {**scope, node.axis: step}, carried)
    if node.state is not None:
        for component, variable in carried.items():
            if not node.runs_once and reduced_apart(node.state, node.body, component):
                frame.out.line(f"{variable.text} = {call('weft_kept', variable.text)}")
        finish = Body(frame, scope, body.around, node.state.finish, {}, dict(carried))
        run(finish)
        body.values |= {o.outer: finish.item(o.inner) for o in node.outputs if isinstance(o, Final)}
    body.values |= {o.outer: inner.item(o.inner) for o in node.outputs if not isinstance(o, Final)}


def _indexing(body: Body, node: Map, types: Types) -> Iterator[tuple[str, str]]:
    """Yield the indices that loads in `node` are given from outside of it, with the size of what each indexes."""
    outer = {f.inner: f.outer for f in node.inputs}
    inner = body_types(node, types)
    for each in node.body.nodes:
        found: Iterable[tuple[str, str]] = ()
        match each:
            case Load() if each.indices and not each.masked and each.memory in inner:
                axes = zip(inner[each.memory].lists, each.at, strict=True)
                found = zip(
                    each.indices, [body.frame.size(a.space) for a, s in axes if s.index is not None], strict=True
                )
            case Map() if all(f.outer in inner for f in each.inputs):
                found = _indexing(body, each, inner)
            case _:
                pass
        yield from ((outer[name], size) for name, size in found if name in outer)


@contextmanager
def _iterations(body: Body, node: Map, found: Iterations) -> Generator[BlockText]:
    """Print what stands around an iteration; yielded is the current block, whose lanes are printed."""
    frame, options = body.frame, list[str]()
    options += [f"loop_unroll_factor={node.demands.unroll}"] if node.demands.unroll > 1 else []
    options += [f"num_stages={frame.stages}"] if node.demands.pipelined and frame.stages > 1 else []
    flags = known_before(body, node)
    if flags is not None:
        with busy_iterations(body, node, found, flags, options) as step:
            yield step
        return
    if node.runs_once:
        run = found.only
        step = BlockText(run.first, "1" if node.tile == 1 else minus(run.stop, run.first), found.most)
        frame.enter(node, step)
        yield step
        return
    # One over a part of its space may have no iteration; with the lanes for its step, it has one at most.
    block = frame.extent(node) if node.tile is None else str(node.tile)
    base = frame.names.make(node.axis.name)
    runs, first = found.runs, found.runs[0]
    number, ends, counted = base, list[str](), (first.first, first.last, block)
    if len(runs) > 1:
        ends, number = _run_ends(frame, runs, base, block), frame.names.make(f"{base}_block")
        counted = ("0", ends[-1], "1")
    with frame.out.block(f"for {number} in {call('tl.range' if options else 'range', *counted, *options)}"):
        stop = _of_run(frame, runs, ends, (number, base, block)) if ends else first.stop
        step = block_at(frame, node, found.most, stop, base, block)
        frame.enter(node, step)
        yield step


def _run_ends(frame: Frame, runs: Sequence[RunText], base: str, block: str) -> list[str]:
    """Print after how many blocks each of the runs ends."""
    ends = list[str]()
    for run in runs:
        count = frame.spelling.blocks_of(frame.spelling.at_least("0", minus(run.last, run.first)), block)
        ends.append(frame.hold(plus(*ends[-1:], count), f"{base}_blocks"))
    return ends


def _of_run(frame: Frame, runs: Sequence[RunText], ends: Sequence[str], names: tuple[str, str, str]) -> str:
    """Print where the block with a number begins, in whichever run it is; returned is where this run stops.

    Args:
        frame: of the kernel.
        runs: the runs.
        ends: after how many blocks each ends.
        names: the block's number, what its beginning is called, and its elements.
    """
    number, base, block = names
    froms = [minus(number, end) if end else number for end in ("", *ends[:-1])]
    begins = [plus(run.first, times(of, block)) for run, of in zip(runs, froms, strict=True)]
    text, stop = begins[-1], runs[-1].stop
    for run, begin, end in reversed([*zip(runs, begins, ends, strict=True)][:-1]):
        text = call("tl.where", f"{number} < {end}", begin, text)
        stop = stop if stop == run.stop else call("tl.where", f"{number} < {end}", run.stop, stop)
    frame.out.line(f"{base} = {text}")
    return stop if is_word(stop) else frame.hold(stop, f"{base}_end")


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
        if f in results(known)
    }
    place = update.inputs.index(component)
    last = made.get(update.outputs[place])
    if isinstance(last, Prefix):  # its elements read the component, too
        return None if state.components[place].dims and state.components[place].dtype.is_float else False
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
    run(inner)
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
