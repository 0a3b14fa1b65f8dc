"""A loop that shows its state, in segments: what each comes to, what came before each, and then each from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from weft.block.copies import fresh_loops, merging
from weft.block.program import (
    BlockNode,
    Broadcast,
    Feed,
    Final,
    Graph,
    Iterate,
    Map,
    Prefix,
    Stacked,
    State,
    sealed,
)
from weft.block.ranges import Before, Segment
from weft.block.rename import fresh, values_of
from weft.block.walk import maps, operands, pruned, results
from weft.errors import ScheduleError
from weft.schedule.accumulate import added, copy_of, whole_of
from weft.schedule.together import in_blocks
from weft.tensor.axes import Axis, Space
from weft.tensor.merge import Monoid


@dataclass(frozen=True, slots=True)
class _Names:
    """Makers of names: of loops and axes, and of values of the graph that the loop stands in."""

    loops: Callable[[str], str]
    values: Callable[[str], str]


def in_segments(
    loop: Map, count: int, loops: Callable[[str], str], around: Graph, *, together: bool
) -> tuple[Map, ...]:
    """Cut `loop`, whose body sees its state, into `count` segments.

        for n in range(N): y[n], s = prefix(s, x[n])
    becomes
        forall s in range(count):  for n in range(N, segment s): c = c + sum(x[n]);  store(c, P[s])
        for s in range(count): store(b, B[s]);  b = merge(b, load(P[s]))
        forall s in range(count):  b = load(B[s]);  for n in range(N, segment s): y[n], b = prefix(b, x[n])
    or, `together`, where the state is all that the loop is for,
        forall s in range(count):  for n in range(N, segment s): c = c + sum(x[n]);  store(c, P[s])
        forall s in range(count):
          for j in range(count, before s): b = b + sum(load(P[j]))
          for n in range(N, segment s): y[n], b = prefix(b, x[n])

    Args:
        loop: in `around`.
        count: of segments.
        loops: makes up names of loops and axes.
        around: the graph.
        together: whether each segment should merge all that come before it, many at once, in place of a loop for all segments.

    Raises:
        ScheduleError: what is combined depends on what came before, so that no segment is known by itself; or there are loops
            inside; or floats are multiplied, whose products depend on where they begin.
    """
    state = loop.state
    assert state is not None
    _demand_apart(loop, state)
    name = loops(f"{loop.axis.space.name.lower()}s")
    space = Space(name.upper(), count)
    names = _Names(loops, fresh(values_of(around)))
    parts = {c.name: names.values("parts") for c in state.components}
    make = fresh({*values_of(loop.body), *(f.outer for f in loop.inputs), *parts.values()})
    begun = {c.name: make(f"{c.name}_begin") for c in state.components}
    together = together and merged_in_each(loop)
    first = _totals(loop, state, Axis(name, space), parts, names, together=together)
    merging = Axis(loops(f"{name}.merge"), space)
    index = Axis(loops(name), space)
    if together:
        before = _before(loop, state, merging, Before(index), first.axis, parts)
        before = replace(before, outputs=tuple(Final(begun[n], n) for n in begun))
        feeds = tuple(Feed(part, part, Broadcast()) for part in parts.values())
        return first, _resumed(loop, state, index, begun, feeds, before)
    begins = {c.name: names.values("begins") for c in state.components}
    merge = _merged(loop, state, merging, first.axis, parts, begins)
    feeds = tuple(Feed(begins[n], begun[n], Iterate(merge.axis)) for n in begins)
    return first, merge, _resumed(loop, state, index, begun, feeds)


def _demand_apart(loop: Map, state: State) -> None:
    """Raise ScheduleError unless what each iteration contributes is known without what came before."""
    late = {inner for _, inner in state.shown}
    whole = set[str]()
    for node in loop.body.nodes:
        read = set(operands(node)) - set(node.accs if isinstance(node, Prefix) else ())
        if isinstance(node, Prefix) and late.isdisjoint(read):
            whole.update(node.totals)
        if not late.isdisjoint(operands(node)):
            late.update(results(node))
    if any(isinstance(node, Prefix) and node.in_order for node in loop.body.nodes):
        raise ScheduleError(
            f"loop {loop.name!r} cannot be split: products of its segments may overflow where its own do not"
        )
    inside = next(maps(loop.body), None)
    if inside is not None or state.resume is not None or not late.isdisjoint({*state.feeds} - whole):
        raise ScheduleError(
            f"loop {loop.name!r} cannot be split: its iterations contribute what depends on those before"
        )


def merged_in_each(loop: Map) -> bool:
    """Tell whether each segment of `loop` can merge those before it by itself: nothing but the body wants the state, and each
    component is what a prefix there has merged.
    """
    state = loop.state
    if state is None or any(isinstance(o, Final) for o in loop.outputs):
        return False
    prefixes = [node for node in loop.body.nodes if isinstance(node, Prefix)]
    wholes = {acc: total for node in prefixes for acc, total in zip(node.accs, node.totals, strict=True)}
    shown, fed = dict(state.shown), dict(zip(state.update.inputs[len(state.components) :], state.feeds, strict=True))
    merged = (
        fed.get(given, "") == wholes.get(shown.get(component.name, ""))
        for component, given in zip(state.components, state.update.outputs, strict=True)
    )
    return all(merged)


def _totals(loop: Map, state: State, index: Axis, parts: dict[str, str], names: _Names, *, together: bool) -> Map:
    """Make the map over segments that stores what each comes to, from a state that has seen nothing.

    Args:
        loop, state: what is cut.
        index: of the segments.
        parts: by component, the list of what segments come to.
        names: makers of names.
        together: whether blocks of parts are read.
    """
    alone = fresh_loops(_reduced(loop, state), names.loops)
    alone = pruned(sealed(replace(alone, range=Segment(index, index.space.size({})))))
    given = tuple(dict.fromkeys(f.outer for f in alone.inputs))
    items = in_blocks(state.components, index, {*given, *parts}) if together else ()
    left = [node.name for node in items] or list(parts)
    stacked = tuple(Stacked(parts[n], name) for n, name in zip(parts, left, strict=True))
    around = tuple(Feed(o, o, Broadcast()) for o in given)
    return sealed(Map(index.name, index, around, Graph((), (alone, *items), ()), stacked, unit=not together))


def _reduced(loop: Map, state: State) -> Map:
    """Make the loop that leaves what all iterations of `loop` come to, from a state that has seen nothing.

    Numbers that a monoid combines are reduced, in any order; other states are merged as in the scan.
    """
    make = fresh(values_of(loop.body))
    nodes, feeds, made = list[BlockNode](), dict[str, str](), dict[str, Monoid]()
    reduced = set[str]()
    for node in loop.body.nodes:
        if not isinstance(node, Prefix) or node.merge.monoid is None:
            nodes.append(node)
            continue
        (acc,), (arg,), (total,) = node.accs, node.args, node.totals
        carried = next(c for c in state.components if c.name == _shown(state, acc))
        reduced.add(carried.name)
        wide, feeds[total] = make(f"{arg}_wide"), make(f"{total}_part")
        made[total] = node.merge.monoid
        nodes += whole_of(node, node.merge.monoid, carried.dtype, wide, feeds[total])
    own = fresh(values_of(state.update))
    combined, outputs = list(state.update.nodes), list(state.update.outputs)
    for place, (component, given) in enumerate(zip(state.components, state.update.outputs, strict=True)):
        position = state.update.inputs.index(given) if given in state.update.inputs else 0
        fed = state.feeds[position - len(state.components)] if position >= len(state.components) else ""
        if fed in made:
            outputs[place] = own(f"{component.name}_next")
            combined.append(added(outputs[place], made[fed], (component.name, given), component))
    names = tuple(c.name for c in state.components)
    raw = replace(
        state,
        feeds=tuple(feeds.get(f, f) for f in state.feeds),
        update=Graph(state.update.inputs, tuple(combined), tuple(outputs)),
        finish=Graph(names, (), names),
        shown=tuple(each for each in state.shown if each[0] not in reduced),
    )
    body = replace(loop.body, nodes=tuple(nodes))
    return replace(loop, body=body, state=raw, outputs=tuple(Final(n, n) for n in names))


def _shown(state: State, inner: str) -> str:
    return next(name for name, value in state.shown if value == inner)


def _merged(loop: Map, state: State, axis: Axis, index: Axis, parts: dict[str, str], begins: dict[str, str]) -> Map:
    """Make the loop over segments that stores the state before each, and leaves what the whole loop leaves of its own."""
    inner = {n: f"{n}_part" for n in parts}
    before = {n: f"{n}_before" for n in parts}
    kept = {n: f"{n}_begin" for n in parts}  # what is shown is overwritten before anything is stored
    nodes = tuple(copy_of(kept[c.name], before[c.name], c) for c in state.components)
    carried = State(state.components, tuple(inner.values()), merging(state), state.merge, state.finish)
    carried = replace(carried, shown=tuple(before.items()))
    feeds = tuple(Feed(parts[n], inner[n], Iterate(index)) for n in parts)
    outputs = (
        *(Stacked(begins[n], kept[n]) for n in parts),
        *(o for o in loop.outputs if isinstance(o, Final)),
    )
    return sealed(Map(axis.name, axis, feeds, Graph((), nodes, ()), outputs, carried, unit=True))


def _before(loop: Map, state: State, axis: Axis, span: Before, index: Axis, parts: dict[str, str]) -> Map:
    """Make the loop over the segments in `span` that leaves what these come to: the loop's own merges, of whole segments.

    Args:
        loop, state: what is cut.
        axis: of the loop.
        span: the segments before one.
        index: of the lists of `parts`.
        parts: by component, the list of what segments come to.
    """
    make = fresh(values_of(loop.body))
    inner = {n: make(f"{n}_part") for n in parts}

    def of_parts(node: Prefix) -> Prefix:
        dims = tuple(axis if a == node.over else a for a in node.dims)
        return replace(node, args=tuple(inner[_shown(state, acc)] for acc in node.accs), over=axis, dims=dims)

    prefixes = tuple(of_parts(node) for node in loop.body.nodes if isinstance(node, Prefix))
    feeds = tuple(Feed(parts[n], inner[n], Iterate(index)) for n in parts)
    merged = Map(axis.name, axis, feeds, Graph((), prefixes, ()), (), state, span)
    return pruned(sealed(_reduced(merged, state)))


def _resumed(
    loop: Map, state: State, index: Axis, begun: dict[str, str], feeds: tuple[Feed, ...], before: Map | None = None
) -> Map:
    """Make the map over segments in which the loop goes over each, from the state before it.

    Args:
        loop, state: what is cut.
        index: of the segments.
        begun: by component, the name of its value before a segment.
        feeds: of the map, beside those of the loop.
        before: what makes the values before a segment; None where they are fed.
    """
    outers = tuple(dict.fromkeys(f.outer for f in loop.inputs))
    own = replace(
        loop,
        inputs=(*loop.inputs, *(Feed(name, name, Broadcast()) for name in begun.values())),
        outputs=tuple(o for o in loop.outputs if isinstance(o, Stacked)),
        range=Segment(index, index.space.size({})),
        state=replace(state, resume=tuple(begun.values())),
    )
    around = (*(Feed(o, o, Broadcast()) for o in outers), *feeds)
    nodes = (sealed(own),) if before is None else (before, sealed(own))
    stacked = tuple(Stacked(o.outer, o.outer) for o in own.outputs)
    return sealed(Map(index.name, index, around, Graph((), nodes, ()), stacked, unit=True))
