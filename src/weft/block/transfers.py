"""Loads and stores: lists become memory, and what a loop reads and leaves of them becomes operators of its body.

    y = list over m:  forall m: x = item m of X;  out item m of y = f(x)
becomes
    y = buffer[m];    forall m: x = load X[m];  t = f(x);  store y[m] = t

A map of the result is fed whole memory and items, and hands out nothing but states' projections and single items. The memory of a
list that is part of a larger one is that of the larger one; the two parts of a `Join` are stored into one memory. Where a list
leaves under several names, its items are stored into each of these memories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from weft.block.check import body_types, infer
from weft.block.places import Place
from weft.block.program import (
    Access,
    BlockNode,
    BlockProgram,
    BlockType,
    Broadcast,
    Buffer,
    Feed,
    Final,
    Graph,
    Grouped,
    Iterate,
    Join,
    Load,
    Map,
    Stacked,
    Store,
    sealed,
)
from weft.block.rename import fresh, values_of
from weft.block.scope import Scope, Types
from weft.block.subscripts import Subscript
from weft.block.walk import graphs, maps, operands
from weft.errors import UnsupportedError
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType


def with_transfers(program: BlockProgram) -> BlockProgram:
    """Return `program` with its lists in memory, as the module's docstring shows; itself where they are there already.

    Raises:
        UnsupportedError: a list that a map is fed and hands out again: it would have to be copied.
    """
    if not any(_is_on_lists(node) for node in maps(program.graph)):
        return program
    scope = Scope({}, applied=any(m.place is not None for m in maps(program.graph)))
    types = infer(program.graph, dict(program.inputs), scope)
    found = Counter(name for graph in _every_graph(program.graph) for name in values_of(graph))
    writer = _Writer(found, fresh(set(found)))
    views = {name: _View.of(writer.memory(name), kind) for name, kind in program.inputs if kind.buffered}
    nodes = writer.nodes(program.graph, types, scope, views, {})
    return replace(program, graph=replace(program.graph, nodes=tuple(nodes)))


def _is_on_lists(node: Map) -> bool:
    """Tell whether `node` iterates a list or hands one out."""
    iterates = any(not isinstance(feed.access, Broadcast) for feed in node.inputs)
    return iterates or any(isinstance(output, Stacked) for output in node.outputs)


def _every_graph(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph.nodes:
        if isinstance(node, Map):
            for inner in graphs(node):
                yield from _every_graph(inner)


@dataclass(frozen=True, slots=True)
class _Memory:
    """A memory: its name in the graph that has it, and in all graphs inside."""

    home: str
    inside: str


@dataclass(frozen=True, slots=True)
class _View:
    """A list as part of a memory.

    Attributes:
        at: for each axis of the memory where the items lie, or the axis that it is a list over still.
        dims: axes of an item, those that it is a list over still by the axes of the list.
    """

    memory: _Memory
    at: tuple[Subscript | Axis, ...]
    dims: tuple[Axis, ...]
    dtype: DType

    @staticmethod
    def of(memory: _Memory, kind: BlockType) -> _View:
        """View all of `memory`, which holds a list of `kind`."""
        at = tuple(axis if axis in kind.lists else Subscript.of(axis) for axis in _axes(kind))
        return _View(memory, at, kind.dims, kind.dtype)

    @property
    def is_list(self) -> bool:
        """True where it is a list still."""
        return any(isinstance(each, Axis) for each in self.at)

    def here(self, over: Axis, axis: Axis, group: int = 1) -> _View:
        """View what an iteration of the map over `axis` sees of it along `over`."""
        subscript = Subscript.of(axis, group)
        at = tuple(subscript if each == over else each for each in self.at)
        return replace(self, at=at, dims=tuple(axis if each == over else each for each in self.dims))

    def part(self, axes: Mapping[Axis, Axis]) -> _View:
        """View it with other names for axes that it is a list over."""
        at = tuple(axes.get(each, each) if isinstance(each, Axis) else each for each in self.at)
        return replace(self, at=at, dims=tuple(axes.get(each, each) for each in self.dims))

    def load(self, name: str) -> Load:
        """Make the operator that gives the one item that is left."""
        return Load(name, self.memory.inside, self._subscripts(), self.dims, self.dtype)

    def looked_up(self, node: Load) -> Load:
        """Complete a load by indices, which has subscripts for the axes that this is a list over still."""
        own = iter(node.at)
        at = tuple(next(own) if isinstance(each, Axis) else each for each in self.at)
        return replace(node, memory=self.memory.inside, at=at)

    def store(self, value: str) -> Store:
        """Make the operator that puts `value` where the one item lies that is left."""
        return Store(self.memory.inside, value, self._subscripts())

    def _subscripts(self) -> tuple[Subscript, ...]:
        return tuple(each for each in self.at if isinstance(each, Subscript))


def _axes(kind: BlockType) -> tuple[Axis, ...]:
    """Return the axes of memory for a list of `kind`: its own, and those of loops around that its items have."""
    return (*kind.lists, *(a for a in kind.dims if a not in kind.lists))


_Views = Mapping[str, _View]
_Homes = Mapping[str, tuple[_View, ...]]


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes graphs.

    Attributes:
        found: of how many graphs each name is a value.
        make: a maker of names that are none.
    """

    found: Counter[str]
    make: Callable[[str], str]

    def memory(self, name: str) -> _Memory:
        """Return the memory of the list `name`; where graphs inside have values of that name, it has another there."""
        return _Memory(name, name if self.found[name] == 1 else self.make(name))

    def nodes(self, graph: Graph, types: Types, scope: Scope, views: _Views, homes: _Homes) -> list[BlockNode]:
        """Write the operators of `graph`.

        Args:
            graph: whose values have `types`, with the loops of `scope` around.
            views: the lists that it is given.
            homes: for lists that it hands out, which part of which memories each is.
        """
        views, homes, made = dict(views), dict(homes), list[BlockNode]()
        own = set[_Memory]() if scope.maps else {view.memory for view in views.values()}
        joins = {part: node for node in graph.nodes if isinstance(node, Join) for part in (node.first, node.rest)}
        for node in graph.nodes:
            match node:
                case Map():
                    for name in (o.outer for o in node.outputs if types[o.outer].buffered and o.outer not in homes):
                        join = joins.get(name)
                        whole = name if join is None else join.name
                        if whole not in homes:
                            memory, kind = self.memory(whole), types[whole]
                            own.add(memory)
                            made.append(Buffer(whole, _axes(kind), kind.dims, kind.dtype))
                            homes[whole] = (_View.of(memory, kind),)
                        if join is not None:
                            axes = {other: one for one, other in join.axes} if name == join.first else {}
                            homes[name] = tuple(view.part(axes) for view in homes[whole])
                    made.append(self.map(node, types, scope, views, homes, own))
                    views |= {o.outer: homes[o.outer][0] for o in node.outputs if o.outer in homes}
                case Join():
                    views[node.name] = homes[node.name][0]
                case Load():
                    made.append(views[node.memory].looked_up(node))
                case _:
                    made.append(node)
        return made

    def map(self, node: Map, types: Types, scope: Scope, views: _Views, homes: _Homes, own: set[_Memory]) -> Map:
        """Write a map of a graph that has the memories `own`, others being of graphs around it."""
        inside = scope.inside(node)
        inner = infer(node.body, body_types(node, types), inside)
        seen = {f.inner: _seen(views[f.outer], node, f.access) for f in node.inputs if f.outer in views}
        loads = {name: view for name, view in seen.items() if not view.is_list and not _is_of_grid(node.body)}
        lists, stores = dict[str, tuple[_View, ...]](), list[BlockNode]()
        for output in (o for o in node.outputs if o.outer in homes):
            parts = homes[output.outer]
            if isinstance(output, Stacked):
                parts = tuple(view.here(node.axis, node.axis) for view in parts)
            if not inner[output.inner].buffered:
                stores += [view.store(output.inner) for view in parts]
            elif output.inner in node.body.inputs:
                raise UnsupportedError(f"loop {node.name!r} hands out a list that it is fed: {output.outer!r}")
            else:
                lists[output.inner] = (*lists.get(output.inner, ()), *parts)
        given = {name: view for name, view in seen.items() if name not in loads}
        nodes = self.nodes(node.body, inner, inside, given, lists)
        nodes = _loaded(nodes, stores, node, loads)
        read = {name for each in nodes for name in operands(each)}
        feeds = dict[str, Feed]()
        for view in (views.get(f.outer, f) for f in node.inputs):
            if isinstance(view, Feed):
                feeds[view.inner] = view
            elif view.memory.inside in read:
                feeds[view.memory.inside] = _whole(view.memory, own)
        for view in (view for name in homes for view in homes[name] if view.memory.inside in read):
            feeds.setdefault(view.memory.inside, _whole(view.memory, own))
        kept = tuple(o for o in node.outputs if o.outer not in homes)
        return sealed(replace(node, inputs=tuple(feeds.values()), body=Graph((), tuple(nodes), ()), outputs=kept))


def _whole(memory: _Memory, own: Container[_Memory]) -> Feed:
    """Make the feed of `memory` from a graph that has it, being among its `own`, or is inside of that."""
    return Feed(memory.home if memory in own else memory.inside, memory.inside, Broadcast())


def _seen(view: _View, node: Map, access: Access) -> _View:
    match access:
        case Broadcast():
            return view
        case Iterate(over):
            return view.here(over, node.axis)
        case Grouped(over, group):
            return view.here(over, node.axis, group)
        case _:
            assert_never(access)


def _is_of_grid(body: Graph) -> bool:
    """Tell whether `body` is one more map of the grid, and nothing stands beside it."""
    return bool(body.nodes) and all(isinstance(n, Map) and n.place is Place.grid for n in body.nodes)


def _loaded(
    nodes: Sequence[BlockNode], stores: Sequence[BlockNode], node: Map, loads: Mapping[str, _View]
) -> list[BlockNode]:
    """Return the operators of the body of `node`, and its `stores`, each item loaded where it is first read."""
    made, waiting = list[BlockNode](), dict(loads)

    def load(names: Iterable[str]) -> None:
        made.extend(waiting.pop(name).load(name) for name in dict.fromkeys(names) if name in waiting)

    load(() if node.guard is None else (node.guard.value,))
    for each in nodes:
        load(operands(each))
        made.append(each)
    load(() if node.state is None else (*node.state.feeds, *(node.state.resume or ())))
    for each in stores:
        load(operands(each))
        made.append(each)
    load(o.inner for o in node.outputs if not isinstance(o, Final))
    return made
