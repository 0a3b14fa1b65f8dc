"""Going over block programs: every operator of a graph, what it reads and makes, what is needed, and rewriting from inside out.

In: a graph, and sometimes what to do at each map. Out: iterators, or the graph rewritten, the very same object where nothing
changed. What is the same for all forms of operators is here, made of the roles of their fields (`fields_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import get_args

from weft.block.program import (
    BlockNode,
    BlockProgram,
    Bounded,
    Extent,
    Graph,
    Load,
    Map,
    Prefix,
    Store,
    exports,
    sealed,
)
from weft.errors import InvalidProgramError
from weft.tensor.axes import Axis, Space


def fields_of(form: type, role: str) -> tuple[str, ...]:
    """Name the fields of `form`, a dataclass, that have `role`: "makes", "reads" or "axes"; of those read, how: those of values
    whose place the result may take ("overwrites"), of what it is a copy ("copies"), or has
    the place of and differs from in padding alone ("shares").
    """
    return tuple(each.name for each in fields(form) if role in (each.metadata.get("role"), each.metadata.get("how")))


_OPERATORS: tuple[type, ...] = tuple(form for form in get_args(BlockNode) if form is not Map)
_MADE: Mapping[type, tuple[str, ...]] = {form: fields_of(form, "makes") for form in _OPERATORS}
_READ: Mapping[type, tuple[str, ...]] = {form: fields_of(form, "reads") for form in _OPERATORS}
_OVERWRITTEN: Mapping[type, tuple[str, ...]] = {form: fields_of(form, "overwrites") for form in _OPERATORS}
_COPIED: Mapping[type, tuple[str, ...]] = {form: fields_of(form, "copies") for form in _OPERATORS}
_SHARED: Mapping[type, tuple[str, ...]] = {form: fields_of(form, "shares") for form in _OPERATORS}


def results(node: BlockNode) -> tuple[str, ...]:
    """Return the names of the values that `node` defines in its graph."""
    if isinstance(node, Map):
        return tuple([o.outer for o in node.outputs])
    return _names(node, _MADE)


def operands(node: BlockNode) -> tuple[str, ...]:
    """Return the names of the values that `node` reads in its graph, one entry per edge."""
    return tuple([f.outer for f in node.inputs]) if isinstance(node, Map) else _names(node, _READ)


def overwritten(node: BlockNode) -> tuple[str, ...]:
    """Return the operands whose place the result may take."""
    return () if isinstance(node, Map) else _names(node, _OVERWRITTEN)


def shared(node: BlockNode) -> str | None:
    """Return the operand whose place the result has, since it differs from it in padding alone; None where there is none."""
    return None if isinstance(node, Map) else next(iter(_names(node, _SHARED)), None)


def copied(node: BlockNode) -> str | None:
    """Return the operand whose valid elements are those of the result, if that is all an operator does."""
    return None if isinstance(node, Map) else next(iter(_names(node, _COPIED)), shared(node))


def _names(node: BlockNode, of: Mapping[type, tuple[str, ...]]) -> tuple[str, ...]:
    found: list[str] = []
    for each in of[node.__class__]:
        value: str | tuple[str, ...] | None = getattr(node, each)
        if isinstance(value, tuple):
            found += value
        elif value is not None:
            found.append(value)
    return tuple(found)


def worked_axes(node: BlockNode, dims_of: Callable[[str], tuple[Axis, ...]]) -> tuple[Axis, ...]:
    """List the axes that an operator's loops run over: of its result, or of an operand that has more; else of both.

    Args:
        node: none that has a body.
        dims_of: gives the axes of an item.
    """
    match node:
        case Load(dims=dims):
            return dims
        case Store(value=item):
            return dims_of(item)
        case _:
            every = [dims_of(name) for name in (*results(node), *operands(node))]
            axes = tuple(dict.fromkeys(axis for dims in every for axis in dims))
            return next((dims for dims in every if len(dims) == len(axes)), axes)


def stored(node: BlockNode) -> tuple[str, ...]:
    """Return the memory of its graph that `node` puts something into."""
    return touched(node, Store)


def touched(node: BlockNode, how: type[Load | Store]) -> tuple[str, ...]:
    """Return the memory of its graph that `node` loads something from, or stores something into: whatever `how` does."""
    match node:
        case Load() | Store():
            return (node.memory,) if isinstance(node, how) else ()
        case Map():
            outer = {f.inner: f.outer for f in node.inputs}
            found = (outer[name] for inner in node.body.nodes for name in touched(inner, how) if name in outer)
            return tuple(dict.fromkeys(found))
        case _:
            return ()


def graphs(node: Map) -> tuple[Graph, ...]:
    """Return the graphs that the iterations of `node` run, and what makes its results of its state: not how states merge."""
    return (node.body,) if node.state is None else (node.body, node.state.update, node.state.finish)


def every(nodes: Iterable[BlockNode]) -> Iterator[BlockNode]:
    """Yield `nodes` and all that their maps run, each map before what is in it."""
    for node in nodes:
        yield node
        if isinstance(node, Map):
            for graph in graphs(node):
                yield from every(graph.nodes)


def maps(graph: Graph) -> Iterator[Map]:
    """Yield every map of `graph` and of its inner graphs, outermost first, in order."""
    for node in graph.nodes:
        if isinstance(node, Map):
            yield node
            yield from maps(node.body)


def scans_apart(graph: Graph, *, inside: bool = False) -> Iterator[Map]:
    """Yield the loops of `graph` itself whose iterations see their state, and that segments may share; `inside`: of its parallel
    maps too.

    Products of floats go one by one: those of a segment may be infinite where times 0, which comes before, they are 0.
    """
    for node in graph.nodes:
        if not isinstance(node, Map):
            continue
        if node.state is None and inside:
            yield from scans_apart(node.body, inside=True)
        if node.state is None or not node.state.shown:
            continue
        if not any(isinstance(each, Prefix) and each.in_order for each in node.body.nodes):
            yield node


def sub_blocks(node: Map) -> frozenset[Axis]:
    """Return the axes of the maps in `node` that go through its blocks, or the segments that it numbers: what they stack is one
    list with what it stacks.
    """
    return frozenset(
        m.axis
        for m in maps(node.body)
        if node.axis in (m.range.through, None if m.range.segment is None else m.range.segment[0])
    )


def with_maps(graph: Graph, change: Callable[[Map], Map]) -> Graph:
    """Return `graph` with every map, those inside it first, replaced by what `change` makes of it."""
    nodes: list[BlockNode] = []
    for node in graph.nodes:
        if isinstance(node, Map):
            body = with_maps(node.body, change)
            node = change(node if body is node.body else replace(node, body=body))  # noqa: PLW2901
        nodes.append(node)
    return with_nodes(graph, nodes)


def with_nodes(graph: Graph, nodes: Sequence[BlockNode]) -> Graph:
    """Return `graph` with other `nodes`; itself where they are those that it has."""
    same = len(nodes) == len(graph.nodes) and all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if same else replace(graph, nodes=tuple(nodes))


def fed(graph: Graph) -> dict[str, str]:
    """Return what `graph` calls the values that graphs inside call otherwise, by their names there."""
    found = dict[str, str]()
    for node in maps(graph):
        found |= {f.inner: found.get(f.outer, f.outer) for f in node.inputs if f.inner != f.outer}
    return found


def ranks(graph: Graph) -> frozenset[Axis]:
    """Return the axes of the rankings in `graph`: a loop over one has a single block."""
    found = (getattr(node, "rank", None) for node in every(graph.nodes))
    return frozenset(axis for axis in found if axis is not None)


def needed(nodes: Sequence[BlockNode], wanted: Iterable[str]) -> tuple[BlockNode, ...]:
    """Return those of `nodes`, in order, that the values `wanted` depend on."""
    alive, found = set(wanted), list[BlockNode]()
    for node in reversed(nodes):
        if not alive.isdisjoint(results(node)):
            alive.update(operands(node))
            found.append(node)
    return tuple(found[::-1])


def asked(node: Map) -> tuple[tuple[BlockNode, ...], tuple[BlockNode, ...]]:
    """Return the operators of the body of `node` that say whether an iteration is idle, and the others."""
    if node.guard is None:
        return (), node.body.nodes
    first = needed(node.body.nodes, (node.guard.value,))
    return first, tuple(n for n in node.body.nodes if not any(n is each for each in first))


def pruned(node: Map) -> Map:
    """Return `node` without operators and feeds that nothing reads."""
    roots = {*exports(node), *(() if node.state is None else node.state.resume or ())}
    nodes = needed(node.body.nodes, roots)
    read = roots.union(*map(operands, nodes))
    feeds = tuple(f for f in node.inputs if f.inner in read)
    return sealed(replace(node, inputs=feeds, body=replace(node.body, nodes=nodes)))


def in_order(nodes: Sequence[BlockNode], given: Iterable[str]) -> tuple[BlockNode, ...]:
    """Return `nodes` in a topological order that departs from theirs only where it must.

    Raises:
        InvalidProgramError: where they depend on each other in a circle, or on a value that is not there.
    """
    ready, rest, done = set(given), list(nodes), list[BlockNode]()
    while rest:
        node = next((n for n in rest if ready.issuperset(operands(n))), None)
        if node is None:
            raise InvalidProgramError(
                "block operators depend on each other in a circle", node=rest[0].name, condition="a graph is acyclic"
            )
        rest.remove(node)
        done.append(node)
        ready.update(results(node))
    return tuple(done)


def consumers(graph: Graph, name: str) -> int:
    """Count the edges that leave value `name` of `graph`, one more for each time it is an output of the graph."""
    return sum(operands(n).count(name) for n in graph.nodes) + graph.outputs.count(name)


def spaces(program: BlockProgram) -> tuple[Space, ...]:
    """Return the spaces of all inputs, of all loops, and those whose size alone is asked for, in order of appearance."""
    seen: dict[Space, None] = {}
    for _, kind in program.inputs:
        for axis in (*kind.lists, *kind.dims):
            seen.setdefault(axis.space)
    for node in maps(program.graph):
        seen.setdefault(node.axis.space)
    seen.update(dict.fromkeys(n.space for n in every(program.graph.nodes) if isinstance(n, Bounded | Extent)))
    return tuple(seen)
