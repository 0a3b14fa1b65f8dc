"""Levels become nested maps in places, and grid maps move outwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from weft.block.copies import merging
from weft.block.places import Place
from weft.block.program import Broadcast, Feed, Final, Graph, Map, Stacked, sealed
from weft.block.ranges import Within
from weft.block.walk import with_maps
from weft.errors import ScheduleError
from weft.schedule.schedule import Level, LevelPlace, Schedule
from weft.tensor.axes import Axis

_PLACES = {LevelPlace.grid: Place.grid, LevelPlace.loop: Place.loop}


def place_loops(graph: Graph, schedule: Schedule, make: Callable[[str], str]) -> Graph:
    """Give every map of `graph`, inside out, the places and tiles of its levels."""
    return with_maps(graph, lambda node: _placed(node, schedule.of(node.name).levels, make))


def _placed(node: Map, levels: tuple[Level, ...], make: Callable[[str], str]) -> Map:
    """Nest maps for `levels`; the innermost is `node` itself, and each refers to the one around it by its range."""
    numbered = [(at, level) for at, level in enumerate(levels) if level.place is not LevelPlace.split]
    *outer, (number, last) = numbered
    original, loop = node.range, node.name
    if last.place is LevelPlace.whole:
        node = replace(node, place=Place.whole)
    else:
        node = replace(node, place=_PLACES[last.place], tile=last.size, level=(loop, number))
    for at, level in reversed(outer):
        name = make(f"{node.axis.name}.outer")
        axis = Axis(name, node.axis.space)
        node = replace(node, range=Within(axis))
        node = _around(
            node,
            replace(
                node,
                name=name,
                axis=axis,
                place=_PLACES[level.place],
                tile=level.size,
                level=(loop, at),
                unit=False,
                guard=None,
            ),
        )
    return replace(node, range=original)


def retiled(graph: Graph, schedule: Schedule) -> Graph:
    """Return the placed `graph` with blocks of the sizes that `schedule` gives the levels they are of: no type changes."""
    nodes = tuple(_retiled(n, schedule) if isinstance(n, Map) else n for n in graph.nodes)
    if all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    made = replace(graph, nodes=nodes)
    made.typed.extend(graph.typed)
    return made


def _retiled(node: Map, schedule: Schedule) -> Map:
    body, tile = retiled(node.body, schedule), node.tile
    if node.level is not None:
        name, number = node.level
        tile = schedule.of(name).levels[number].size
    if body is node.body and tile == node.tile:
        return node
    made = replace(node, body=body, tile=tile)
    made.typed.extend(node.typed)
    return made


def _around(inner: Map, shell: Map) -> Map:
    """Put `shell` around the whole of `inner`: every list is passed on, since ranges speak of absolute elements."""
    outers = tuple(dict.fromkeys(f.outer for f in inner.inputs))
    feeds = tuple(Feed(name, name, Broadcast()) for name in outers)
    if inner.state is None:
        outputs = tuple(Stacked(o.outer, o.outer) for o in inner.outputs)
        return sealed(replace(shell, inputs=feeds, body=Graph((), (inner,), ()), outputs=outputs))
    if inner.state.shown or any(isinstance(o, Stacked) for o in inner.outputs):
        raise ScheduleError(f"loop {inner.name!r} carries state and stacks outputs: it takes one level")
    names = tuple(c.name for c in inner.state.components)
    parts = tuple(f"{n}_level" for n in names)
    raw = replace(inner.state, finish=Graph(names, (), names))
    inner = replace(inner, state=raw, outputs=tuple(Final(p, n) for p, n in zip(parts, names, strict=True)))
    state = shell.state
    assert state is not None
    if state.resume is not None:  # the levels inside start anew, and their states are merged into the one that goes on
        around = {f.inner: f.outer for f in inner.inputs}
        inner = replace(inner, state=replace(raw, resume=None))
        state = replace(state, resume=tuple(around[n] for n in state.resume))
    carried = replace(state, feeds=parts, update=merging(state))
    return sealed(replace(shell, inputs=feeds, body=Graph((), (inner,), ()), state=carried))


def hoist_grid(graph: Graph) -> Graph:
    """Interchange a parallel loop with the grid map that is all its body, until grid maps are outermost.

        for m in loop: forall n in grid: body        becomes        forall n in grid: for m in loop: body

    Both loops are parallel and neither's range speaks of the other, so every pair of iterations is done once either way.
    """
    return with_maps(graph, _hoisted)


def _hoisted(outer: Map) -> Map:
    if outer.place is Place.grid or outer.state is not None or len(outer.body.nodes) != 1:
        return outer
    inner = outer.body.nodes[0]
    if outer.range.one_block or outer.range.follows is not None:
        return outer  # the two stay beside each other
    if not isinstance(inner, Map) or inner.place is not Place.grid or inner.range.through == outer.axis:
        return outer
    around = {f.inner: f for f in outer.inputs}
    feeds = tuple(Feed(around[f.outer].outer, f.inner, f.access) for f in inner.inputs)
    passed = tuple(Feed(f.inner, f.inner, around[f.outer].access) for f in inner.inputs)
    made = {o.outer: o.inner for o in inner.outputs}
    stacked = tuple(Stacked(o.outer, made[o.inner]) for o in outer.outputs)
    loop = sealed(replace(outer, inputs=passed, body=inner.body, outputs=stacked))
    body = Graph((), (_hoisted(loop),), ())
    return sealed(
        replace(inner, inputs=feeds, body=body, outputs=tuple(Stacked(o.outer, o.outer) for o in outer.outputs))
    )


def grid_maps(graph: Graph) -> Iterator[str]:
    """Yield the names of the maps that can be on the grid: parallel, and each all that the grid map around it holds."""
    for node in graph.nodes:
        while isinstance(node, Map) and node.state is None:
            yield node.name
            if len(node.body.nodes) != 1:
                break
            node = node.body.nodes[0]  # noqa: PLW2901 - one level down


def demand_grid(graph: Graph, *, nested: bool = False, inside_loop: bool = False) -> None:
    """Raise `ScheduleError` unless each grid map is at the top, or all that a grid map around it holds."""
    for node in graph.nodes:
        if not isinstance(node, Map):
            continue
        if node.place is Place.grid and (inside_loop or (nested and len(graph.nodes) > 1)):
            raise ScheduleError(
                f"loop {node.name!r} cannot run on the grid: other work stands beside or around it",
                todo="place it as a loop, or split it",
            )
        demand_grid(node.body, nested=True, inside_loop=inside_loop or node.place is not Place.grid)
