"""Guards found out beforehand: a launch looks at each block of a mask once, and says which ones have something to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from weft.block.check import body_types, infer
from weft.block.guard import GuardedBlocks
from weft.block.places import Place
from weft.block.program import (
    BlockProgram,
    Broadcast,
    Feed,
    Graph,
    Iterate,
    Map,
    Stacked,
    sealed,
)
from weft.block.ranges import EVERY_BLOCK
from weft.block.rename import fresh, rename_map_axes, values_of
from weft.block.scope import Scope, Types
from weft.block.walk import asked, operands, pruned, results
from weft.errors import ScheduleError
from weft.masks import counted
from weft.schedule.answers import answers, told
from weft.tensor.axes import Axis


def summarize(program: BlockProgram, loop: str, make: Callable[[str], str]) -> BlockProgram:
    """Find out beforehand which iterations of a guarded loop are idle.

        forall m: forall n: for k: skip where load(Mask[n,k]) is False everywhere; ...
    becomes
        forall n: forall k: store(any(load(Mask[n,k])), S[n,k])
        forall m: forall n: for k: skip where load(S[n,k]) is False everywhere; ...

    The mask is read once for each of its blocks, and not again for each m. Of a loop over full blocks, the one over partial blocks
    is told as well, by the same list.

    Args:
        program: with places.
        loop: the name of the loop.
        make: makes names of loops and axes.

    Raises:
        ScheduleError: the loop has no guard; or what says that an iteration is idle is made inside, or goes by blocks of blocks.
    """
    path = _path(program.graph, loop)
    if not path or path[-1].guard is None:
        raise ScheduleError(f"loop {loop!r} has no guard to find out beforehand")
    inside = summarizable(program, loop)
    if not inside or any(node.tile is None for node in inside):
        raise ScheduleError(f"what says that iterations of loop {loop!r} are idle does not go by its blocks")
    axes = {node.axis: Axis(make(node.axis.name), node.axis.space) for node in inside}
    name = fresh(values_of(program.graph).union(*(values_of(node.body) for node in path)))("busy")
    made = _summary(path, _reads(path), axes, _types_inside(program, path), name)
    reading = _reading(path, _asking(program, path), axes, name)
    nodes = [m for n in program.graph.nodes for m in ((made,) if n is path[0] else ()) + (reading.get(n.name, n),)]
    return replace(program, graph=replace(program.graph, nodes=tuple(nodes)))


def summarizable(program: BlockProgram, loop: str) -> tuple[Map, ...]:
    """Return the maps along which a launch before the guarded loop `loop` can find out what is idle, it the last; () if none."""
    path = _path(program.graph, loop)
    try:
        feeds = _reads(path)
    except ScheduleError:
        return ()
    numbered = counted(asked(path[-1])[0])
    inside = tuple(
        node
        for node, fed in zip(path, feeds, strict=True)
        if node.axis in numbered or any(f.access != Broadcast() for f in fed)
    )
    whole = all(n.range == EVERY_BLOCK or (n is path[-1] and n.range.segment is not None) for n in inside)
    return inside if path[-1] in inside and whole else ()


def _path(graph: Graph, loop: str) -> tuple[Map, ...]:
    """Return the maps that lead to the one of this name, it the last."""
    for node in graph.nodes:
        if isinstance(node, Map):
            rest = () if node.name == loop else _path(node.body, loop)
            if rest or node.name == loop:
                return (node, *rest)
    return ()


def _reads(path: Sequence[Map]) -> list[list[Feed]]:
    """Return for each map of `path` the feeds by which what the last one asks is there, from outside of the first."""
    nodes, _ = asked(path[-1])
    guard = path[-1].guard
    assert guard is not None
    wanted = {guard.value, *(name for node in nodes for name in operands(node))}
    found: list[list[Feed]] = []
    for node in reversed(path):
        fed = [f for f in node.inputs if f.inner in wanted]
        made = wanted - {f.inner for f in fed} - {name for n in nodes for name in results(n)}
        if made:
            raise ScheduleError(
                f"what says that iterations of loop {path[-1].name!r} are idle is made inside of {node.name!r}"
            )
        found.insert(0, fed)
        wanted, nodes = {f.outer for f in fed}, ()
    return found


def _types_inside(program: BlockProgram, path: Sequence[Map]) -> Types:
    """Return the types of the values of the body of the last map of `path`, the first of which is in the graph of `program`."""
    scope, types, graph = Scope({}, applied=False), dict(program.inputs), program.graph
    for node in path:
        types, scope, graph = body_types(node, infer(graph, types, scope)), scope.inside(node), node.body
    return infer(graph, types, scope)


def _summary(
    path: Sequence[Map], feeds: Sequence[Sequence[Feed]], axes: Mapping[Axis, Axis], types: Types, name: str
) -> Map:
    """Make the maps that store for each block of the mask whether it has anything to do, as the list `name`.

    Args:
        path: the maps that lead to the guarded loop, it the last.
        feeds: by which of its inputs each gives what the guard is made of.
        axes: the new maps' axes, for those maps that go along the mask.
        types: of the values of the guarded loop's body.
        name: of the list.
    """
    levels, names = list[Map](), dict[str, str]()
    for node, fed in zip(path, feeds, strict=True):
        given = tuple(replace(f, outer=names.get(f.outer, f.outer)) for f in fed)
        names = {f.inner: f.inner if node.axis in axes else names.get(f.outer, f.outer) for f in fed}
        if node.axis in axes:
            levels.append(
                replace(
                    node,
                    name=axes[node.axis].name,
                    inputs=given,
                    range=EVERY_BLOCK,
                    state=None,
                    guard=None,
                    place=Place.grid,
                )
            )
    body, inner = _answered(path[-1], types, fresh({*values_of(path[-1].body), name}))
    for level in reversed(levels):
        made = sealed(replace(level, body=body, outputs=(Stacked(name, inner),)))
        body, inner = Graph((), (made,), ()), name
    (whole,) = body.nodes
    assert isinstance(whole, Map)
    return rename_map_axes(whole, axes)


def _answered(loop: Map, types: Types, make: Callable[[str], str]) -> tuple[Graph, str]:
    """Return the operators that answer what `loop` asks, and the name of the answer."""
    guard, (nodes, _) = loop.guard, asked(loop)
    assert guard is not None
    steps = answers(guard, types[guard.value].dims, make)
    return Graph((), (*nodes, *steps), ()), steps[-1].name


def _reading(path: Sequence[Map], asking: Sequence[Map], axes: Mapping[Axis, Axis], name: str) -> dict[str, Map]:
    """Return the first map of `path`, in which the loops `asking` are guarded by their items of the list `name`; by name, with them
    where they are in no other map.
    """
    access = Iterate(axes[path[-1].axis])
    made = dict[str, Map]()
    for loop in asking:
        assert loop.guard is not None
        feeds = (*loop.inputs, Feed(name, name, access))
        made[loop.name] = pruned(replace(loop, guard=told(loop.guard, name), inputs=feeds))
    for node in reversed(path[:-1]):
        body = replace(node.body, nodes=tuple(made.get(n.name, n) for n in node.body.nodes))
        access = Iterate(axes[node.axis]) if node.axis in axes else Broadcast()
        made = {node.name: pruned(replace(node, body=body, inputs=(*node.inputs, Feed(name, name, access))))}
    return made


def _asking(program: BlockProgram, path: Sequence[Map]) -> tuple[Map, ...]:
    """Return the last map of `path`, and the one that goes over its partial blocks, if there is one."""
    beside, loop = (path[-2].body if len(path) > 1 else program.graph).nodes, path[-1]
    made = {o.outer for o in loop.outputs}
    others = (
        n for n in beside if isinstance(n, Map) and n.guard is not None and n.guard.blocks is GuardedBlocks.partial
    )
    return (loop, *(n for n in others if not made.isdisjoint(operands(n))))
