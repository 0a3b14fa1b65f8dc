"""Fresh copies of maps, and canonical names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.block.program import (
    BlockNode,
    BlockProgram,
    BlockType,
    Broadcast,
    Feed,
    Final,
    Graph,
    Map,
    Pointwise,
    State,
    sealed,
)
from weft.block.rename import fresh, rename_body, rename_map_axes, rename_program_axes, rename_values, values_of
from weft.block.walk import consumers, maps, results, with_nodes
from weft.tensor.axes import Axis
from weft.tensor.scalar import Arg, occurrences, substitute


def loop_names(program: BlockProgram) -> Callable[[str], str]:
    """Return a maker of names that no loop or axis of `program` has."""
    taken = {m.name for m in maps(program.graph)} | {m.axis.name for m in maps(program.graph)}
    return fresh(taken)


def fresh_loops(node: Map, make: Callable[[str], str]) -> Map:
    """Copy `node` so that it and every map inside have new names and axes; values keep theirs."""
    renamed = {m.axis: Axis(make(m.axis.name), m.axis.space) for m in (node, *maps(node.body))}

    def rename(of: Map) -> Map:
        body = replace(of.body, nodes=tuple(rename(n) if isinstance(n, Map) else n for n in of.body.nodes))
        return replace(of, name=renamed_names[of.name], body=body)

    renamed_names = {m.name: renamed[m.axis].name for m in (node, *maps(node.body))}
    return rename_map_axes(rename(node), renamed)


def merging(state: State) -> Graph:
    """Return the update of a loop that is fed whole states of `state`'s components, one by one: the merge, with the
    loop's own left.
    """
    names = tuple(c.name for c in state.components)
    make = fresh(values_of(state.merge) | set(names))
    new = {n: make(n) for n in sorted(values_of(state.merge)) if n in names}
    return rename_values(state.merge, {**new, **dict(zip(state.merge.inputs[: len(names)], names, strict=True))})


def continued(before: Map, after: Map, make: Callable[[str], str]) -> tuple[Map, Map]:
    """Join two loops with one state, so that `after` goes on where `before` stopped; maps without state stay as they are.

    Args:
        before: keeps the outputs that are no projections of the state.
        after: carries the same components.
        make: a maker of names of values that are new in their graph.
    """
    if before.state is None or after.state is None:
        return before, after
    names = tuple(c.name for c in before.state.components)
    carried = {n: make(f"{n}_carried") for n in names}
    kept = tuple(o for o in before.outputs if not isinstance(o, Final))
    raw = replace(before.state, finish=Graph(names, (), names))
    before = replace(before, state=raw, outputs=(*kept, *(Final(carried[n], n) for n in names)))
    inside = fresh(values_of(after.body))
    resumed = {n: inside(f"{n}_so_far") for n in names}
    feeds = tuple(Feed(carried[n], resumed[n], Broadcast()) for n in names)
    state = replace(after.state, resume=tuple(resumed.values()))
    return sealed(before), sealed(replace(after, inputs=(*after.inputs, *feeds), state=state))


def without_unread(graph: Graph) -> Graph:
    """Return `graph` without the projections of states that nothing reads."""
    nodes: list[BlockNode] = []
    for node in graph.nodes:
        if isinstance(node, Map):
            kept = tuple(o for o in node.outputs if not isinstance(o, Final) or consumers(graph, o.outer))
            nodes.append(replace(node, outputs=kept, body=without_unread(node.body)))
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def canonical(program: BlockProgram) -> BlockProgram:
    """Rename `program` so that its names depend on its structure alone.

    Loops are named after their spaces in the order of the listing (m, n, k, k1 ...), the axes of inputs after the inputs, and
    every value of an inner graph has a name that no other value of the program has. Expressions number their arguments in the
    order in which they read them.
    """
    make = fresh(set())
    axes = {a: Axis(f"{name}.{d}", a.space) for name, kind in program.inputs for d, a in enumerate(kind.lists)}
    names: dict[str, str] = {}
    for node in maps(program.graph):
        name = make(node.axis.space.name.lower())
        axes[node.axis], names[node.name] = Axis(name, node.axis.space), name
    program = replace(
        rename_program_axes(program, axes), inputs=tuple((n, _with_axes(k, axes)) for n, k in program.inputs)
    )
    values = fresh(values_of(program.graph))
    nodes = tuple(_canonical_map(n, names, values) if isinstance(n, Map) else n for n in program.graph.nodes)
    return replace(program, graph=replace(program.graph, nodes=nodes))


def _with_axes(kind: BlockType, axes: dict[Axis, Axis]) -> BlockType:
    return replace(kind, lists=tuple(axes[a] for a in kind.lists), dims=tuple(axes[a] for a in kind.dims))


def _in_order(graph: Graph) -> Graph:
    """Return `graph` with the arguments of each expression in the order in which it reads them."""
    return with_nodes(graph, [_as_read(n) if isinstance(n, Pointwise) else n for n in graph.nodes])


def _as_read(node: Pointwise) -> Pointwise:
    if list(dict.fromkeys(occurrences(node.expr))) == list(range(len(node.args))):
        return node
    places: dict[int, int] = {}
    expr = substitute(node.expr, lambda i: Arg(places.setdefault(i, len(places))))
    return replace(node, expr=expr, args=tuple(node.args[i] for i in places))


def _canonical_map(node: Map, names: dict[str, str], make: Callable[[str], str]) -> Map:
    stems = {f.inner: f.outer for f in node.inputs}
    own = {n: make(stems.get(n, "t").rstrip("0123456789") or "t") for n in _appearance(node.body)}
    node = rename_body(node, own)
    if node.state is not None:
        node = _canonical_state(node, node.state, make)
    nodes = tuple(_canonical_map(n, names, make) if isinstance(n, Map) else n for n in node.body.nodes)
    body = _in_order(replace(node.body, nodes=nodes))
    return replace(node, name=names[node.name], body=body)


def _canonical_state(node: Map, state: State, make: Callable[[str], str]) -> Map:
    renamed = {c.name: make("s") for c in state.components}
    made: list[Graph] = []
    for graph, given in ((state.update, renamed), (state.merge, {}), (state.finish, renamed)):
        own = {name: given.get(name) or make("s") for name in _appearance(graph)}
        made.append(_in_order(rename_values(graph, own)))
    renamed |= dict(zip(state.finish.outputs, made[2].outputs, strict=True))
    components = tuple(replace(c, name=renamed[c.name]) for c in state.components)
    shown = tuple((renamed[name], inner) for name, inner in state.shown)
    update, merge, finish = made
    outputs = tuple(replace(o, inner=renamed[o.inner]) if isinstance(o, Final) else o for o in node.outputs)
    state = replace(state, components=components, update=update, merge=merge, finish=finish, shown=shown)
    return replace(node, state=state, outputs=outputs)


def _appearance(graph: Graph) -> list[str]:
    return list(dict.fromkeys((*graph.inputs, *(name for n in graph.nodes for name in results(n)))))
