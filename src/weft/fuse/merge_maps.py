"""The substitution that rules 1, 2 and 3 share: two maps become one whose inner graph is the two, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.block.program import Feed, Final, Graph, Iterate, Map, Stacked, State, sealed
from weft.block.rename import fresh, rename_body, rename_values, values_of
from weft.block.walk import consumers, in_order, operands, results
from weft.fuse.rule import Rewrite


def feeds_only_by_iteration(graph: Graph, first: Map, second: Map) -> bool:
    """Tell whether the only paths from `first` to `second` are edges on which `second` iterates what `first` stacks.

    That is the condition of rules 1 and 3: same range and kind of loop, at least one such edge, no other access to anything
    that `first` makes, and no way from `first` to `second` through a third operator, which merging would turn into a loop.
    """
    made = {o.outer: o for o in first.outputs}
    edges = [f for f in second.inputs if f.outer in made]
    if not edges or not _alike(first, second):
        return False
    if not all(isinstance(made[f.outer], Stacked) and f.access == Iterate(first.axis) for f in edges):
        return False
    return not (_reached(graph, first, second) - set(results(first))).intersection(operands(second))


def are_siblings(graph: Graph, first: Map, second: Map) -> bool:
    """Tell whether `first` and `second` read one value in one way, and neither needs anything that the other makes.

    That is the condition of rule 2, with the same range and kind of loop.
    """
    if first is second or not _alike(first, second):
        return False
    shared = {(f.outer, f.access) for f in first.inputs} & {(f.outer, f.access) for f in second.inputs}
    apart = bool(shared) and _reached(graph, first, second).isdisjoint(operands(second))
    return apart and _reached(graph, second, first).isdisjoint(operands(first))


def _alike(first: Map, second: Map) -> bool:
    return first.range == second.range and first.unit == second.unit and first.axis.space == second.axis.space


def _reached(graph: Graph, first: Map, second: Map) -> set[str]:
    """Return the values that `first` makes, and those that other operators than `second` make of them."""
    reached = set(results(first))
    for node in graph.nodes:
        if node is not first and node is not second and reached.intersection(operands(node)):
            reached.update(results(node))
    return reached


def merge_maps(graph: Graph, first: Map, second: Map) -> Rewrite:
    """Merge `first` and `second` in `graph`; the caller has checked `feeds_only_by_iteration` or `are_siblings`."""
    stacked = {o.outer: o.inner for o in first.outputs if isinstance(o, Stacked)}
    shared = {(f.outer, f.access): f.inner for f in first.inputs}
    make = fresh(values_of(first.body) | values_of(second.body) | _state_names(first) | _state_names(second))
    names: dict[str, str] = {}
    added: list[Feed] = []
    for feed in second.inputs:
        if feed.outer in stacked:
            names[feed.inner] = stacked[feed.outer]
        elif (feed.outer, feed.access) in shared:
            names[feed.inner] = shared[feed.outer, feed.access]
        else:
            names[feed.inner] = make(feed.inner)
            added.append(replace(feed, inner=names[feed.inner]))
    shown = () if second.state is None else tuple(inner for _, inner in second.state.shown)
    names.update({name: make(name) for name in shown})
    for node in second.body.nodes:  # in order, for a name depends on those given before
        names.update({name: make(name) for name in results(node)})
    renamed = rename_body(_with_fresh_state(second, {n: make(n) for n in sorted(_state_names(second))}), names)
    kept = tuple(o for o in first.outputs if not _only_for(graph, o.outer, second))
    merged = replace(
        first,
        inputs=(*first.inputs, *added),
        body=replace(first.body, nodes=(*first.body.nodes, *renamed.body.nodes)),
        outputs=(*kept, *renamed.outputs),
        state=_joint(first.state, renamed.state),
    )
    nodes = [sealed(merged) if n is first else n for n in graph.nodes if n is not second]
    return Rewrite(replace(graph, nodes=in_order(nodes, graph.inputs)), {second.axis: first.axis})


def _only_for(graph: Graph, name: str, reader: Map) -> bool:
    return consumers(graph, name) == operands(reader).count(name)


def _state_names(node: Map) -> set[str]:
    """Return every name that lives in the graphs of `node`'s state."""
    if node.state is None:
        return set()
    state = node.state
    return {c.name for c in state.components}.union(*(values_of(g) for g in (state.update, state.merge, state.finish)))


def _with_fresh_state(node: Map, names: Mapping[str, str]) -> Map:
    if node.state is None:
        return node
    old = node.state
    state = replace(
        old,
        components=tuple(replace(c, name=names[c.name]) for c in old.components),
        update=rename_values(old.update, names),
        merge=rename_values(old.merge, names),
        finish=rename_values(old.finish, names),
        shown=tuple((names[name], inner) for name, inner in old.shown),
    )
    outputs = tuple(replace(o, inner=names[o.inner]) if isinstance(o, Final) else o for o in node.outputs)
    return replace(node, state=state, outputs=outputs)


def _joint(first: State | None, second: State | None) -> State | None:
    """Carry the two states side by side."""
    if first is None or second is None:
        return first if second is None else second
    a, b = len(first.components), len(second.components)

    def beside(one: Graph, other: Graph, inputs: tuple[str, ...]) -> Graph:
        return Graph(inputs, (*one.nodes, *other.nodes), (*one.outputs, *other.outputs))

    f, s = first, second
    update = (*f.update.inputs[:a], *s.update.inputs[:b], *f.update.inputs[a:], *s.update.inputs[b:])
    merge = (*f.merge.inputs[:a], *s.merge.inputs[:b], *f.merge.inputs[a:], *s.merge.inputs[b:])
    return State(
        (*f.components, *s.components),
        (*f.feeds, *s.feeds),
        beside(f.update, s.update, update),
        beside(f.merge, s.merge, merge),
        beside(f.finish, s.finish, (*f.finish.inputs, *s.finish.inputs)),
        None if f.resume is None or s.resume is None else (*f.resume, *s.resume),
        (*f.shown, *s.shown),
    )
