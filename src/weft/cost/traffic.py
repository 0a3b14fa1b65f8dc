"""What an applied program moves and computes, in closed form: no value is computed, no loop is run.

The iterations of a loop fall into a few classes that are alike (the whole blocks; the one with less
than a block), so that a nest is walked once per combination of classes and multiplied out. What is
counted is defined by `weft.block.interpret`, and equal to what it counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from math import prod
from typing import TypeAlias, TypeVar, assert_never

from weft.block.program import (
    BlockNode,
    BlockProgram,
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
    Rank,
    Stacked,
)
from weft.block.size import value
from weft.block.walk import copied, maps, operands, sub_blocks
from weft.schedule import kernels
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import operations

Counts: TypeAlias = Mapping[str, int]
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a program, or one kernel of it, moves and does.

    Attributes:
        loaded, stored: bytes by buffered edge: what crosses from a list to an item, and from an
            item to a list; an edge that is loaded twice counts twice.
        operations: block operations by name of the node that does them.
        starts: by name of the loop, how often its first iteration has a state that has seen nothing.
        flops: floating-point operations by name of the node, over valid elements only: 2 m n k for
            a Dot, one for each scalar operation and element of a Pointwise, one for each element
            that a Collapse or a Rank reads.
        matrix_flops: those of Dots, by the wider type of the two operands.
        copied: bytes that each Stage and Fill copies, by its name.
        lists: bytes of the whole of each edge, each element once.
        shared: the edges that lie in global memory: inputs, outputs and lists between kernels. All
            others are local to one iteration of a grid.
        iterations: of the grid, the unit of parallelism; 1 for a kernel that has none.
    """

    loaded: Counts
    stored: Counts
    operations: Counts
    starts: Counts
    flops: Counts
    matrix_flops: Mapping[DType, int]
    copied: Counts
    lists: Counts
    shared: frozenset[str]
    iterations: int

    @property
    def local(self) -> frozenset[str]:
        """The edges that never leave an iteration of the grid."""
        return frozenset((*self.loaded, *self.stored)) - self.shared


def traffic(program: BlockProgram, sizes: Mapping[str, int]) -> Traffic:
    """Count what one run of `program` moves and does, all kernels together.

    Args:
        program: with places (a schedule was applied); a loop without a tile covers its range.
        sizes: elements of each space, by name; all at least 1.
    """
    parts, values = _walked(program, sizes)
    loaded, stored = _summed(p.loaded for p in parts), _summed(p.stored for p in parts)
    _join(program.graph, stored)
    for name, kind in program.inputs:
        if not kind.lists:
            loaded[name] += kind.dtype.bytes
    lists = Counter({name: size for p in parts for name, size in p.lists.items()})
    _join(program.graph, lists)
    for name in program.graph.outputs:
        if not values[name].lists:
            stored[name] += values[name].dtype.bytes
    return Traffic(
        loaded=loaded,
        stored=stored,
        operations=_summed(p.operations for p in parts),
        starts=_summed(p.starts for p in parts),
        flops=_summed(p.flops for p in parts),
        matrix_flops=_summed(p.matrix_flops for p in parts),
        copied=_summed(p.copied for p in parts),
        lists=lists,
        shared=frozenset(name for name, _ in program.inputs).union(program.graph.outputs, *(p.shared for p in parts)),
        iterations=sum(p.iterations for p in parts),
    )


def _join(graph: Graph, counter: Counter[str]) -> None:
    """Count the parts of a list, which kernels write, as the list."""
    for node in graph.nodes:
        for part in operands(node) if isinstance(node, Join) else ():
            if part in counter:
                counter[node.name] += counter.pop(part)


def by_kernel(program: BlockProgram, sizes: Mapping[str, int]) -> tuple[Traffic, ...]:
    """Count what one run moves and does for each of `weft.schedule.kernels(program)`.

    Inputs, outputs and values between kernels that are a single number are left out here: a kernel
    takes them as arguments.
    """
    return _walked(program, sizes)[0]


# How a nest is walked.


@dataclass(frozen=True, slots=True)
class CurrentBlock:
    """Iterations that are alike: how many elements are valid, and the first (where it matters)."""

    base: int
    valid: int


@dataclass(frozen=True, slots=True)
class _Value:
    """A list called `name`, or where `lists` is empty an item; `initial` is one that a loop's state begins with, unchanged."""

    name: str
    lists: tuple[Axis, ...]
    dims: tuple[Axis, ...]
    dtype: DType
    initial: bool = False


_Values: TypeAlias = dict[str, _Value]
CurrentBlocks: TypeAlias = Mapping[Axis, CurrentBlock]


def _walked(program: BlockProgram, sizes: Mapping[str, int]) -> tuple[tuple[Traffic, ...], _Values]:
    """Return the traffic of each kernel, and the values at the top when all have run."""
    values = {n: _Value(n, kind.lists, kind.dims, kind.dtype) for n, kind in program.inputs}
    lists = {name: prod(a.space.size(sizes) for a in kind.lists) * kind.dtype.bytes for name, kind in program.inputs}
    numbered = numbered_axes(program.graph)
    parts: list[Traffic] = []
    for kernel in kernels(program):
        walk = _Walk(sizes, numbered)
        values = walk.graph(Graph((), kernel.nodes, ()), values, {}, 1)
        lists.update(walk.stored)
        shared = frozenset((*kernel.reads, *kernel.writes))
        parts.append(walk.result(lists, shared))
        for join in kernel.joins:
            if join.rest in kernel.writes:
                values[join.name] = replace(values[join.rest], name=join.name)
                lists[join.name] = lists.pop(join.first, 0) + lists.pop(join.rest, 0)
    return tuple(parts), values


def numbered_axes(graph: Graph) -> frozenset[Axis]:
    """Return the axes whose iterations differ by where they begin: other ranges are measured from there.

    All others fall into classes; these are walked one by one.
    """
    found: set[Axis] = set()
    nodes = list(maps(graph))
    for node in reversed(nodes):  # inner maps speak of outer ones
        around = node.range
        outer = around.through if node.axis in found else around.beside
        found.update(axis for axis in (outer, around.segment and around.segment[0]) if axis is not None)
    return frozenset(found)


@dataclass(slots=True)
class _Walk:
    sizes: Mapping[str, int]
    numbered: frozenset[Axis]
    loaded: Counter[str] = field(default_factory=Counter[str])
    stored: Counter[str] = field(default_factory=Counter[str])
    operations: Counter[str] = field(default_factory=Counter[str])
    starts: Counter[str] = field(default_factory=Counter[str])
    flops: Counter[str] = field(default_factory=Counter[str])
    matrix_flops: Counter[DType] = field(default_factory=Counter[DType])
    copied: Counter[str] = field(default_factory=Counter[str])
    iterations: int = 0

    def result(self, lists: Mapping[str, int], shared: frozenset[str]) -> Traffic:
        """Return what was counted, without zeros, for a kernel that shares the edges `shared`."""
        loaded, stored = +self.loaded, +self.stored
        return Traffic(
            loaded=loaded,
            stored=stored,
            operations=+self.operations,
            starts=+self.starts,
            flops=+self.flops,
            matrix_flops=+self.matrix_flops,
            copied=+self.copied,
            lists={name: lists[name] for name in (*loaded, *stored)},
            shared=shared & frozenset((*loaded, *stored)),
            iterations=max(1, self.iterations),
        )

    def graph(self, graph: Graph, values: _Values, scope: CurrentBlocks, times: int) -> _Values:
        """Compute every value of `graph`, which runs `times` times in this scope."""
        values = dict(values)
        for node in graph.nodes:
            if isinstance(node, Map):
                values.update(self.loop(node, values, scope, times))
            elif isinstance(node, Join):
                self.named(node.name, values[node.first])
                values[node.name] = self.named(node.name, values[node.rest])
            else:
                values |= self.operator(node, values, scope, times)
                self.operations[node.name] += times
        return values

    def operator(self, node: BlockNode, values: _Values, scope: CurrentBlocks, times: int) -> _Values:
        """Return the items that an operator gives, and count its work."""
        match node:
            case Pointwise(name, expr, _, dims, dtype):
                self.flops[name] += times * elements(dims, scope) * operations(expr)
                return {name: _item(dims, dtype)}
            case Dot(name, left, right, over, dims, dtype):
                work = 2 * times * elements((*dims, over), scope)
                operand = max(values[left].dtype, values[right].dtype, key=lambda d: d.bytes)
                self.flops[name] += work
                self.matrix_flops[operand] += work
                return {name: _item(dims, dtype)}
            case Collapse(name, _, arg, over):
                item = values[arg]
                self.flops[name] += times * elements(item.dims, scope)
                return {name: _item(tuple(a for a in item.dims if a != over), item.dtype.accumulator)}
            case Rank(name, places, arg):
                self.flops[name] += times * elements(values[arg].dims, scope)
                return {name: _item(node.dims, node.dtype), places: _item(node.dims, DType.int64)}
            case _:
                same = copied(node)
                item = (
                    _item(getattr(node, "dims", ()), getattr(node, "dtype", DType.int64))
                    if same is None
                    else values[same]
                )
                self.copied[node.name] += 0 if same is None else times * elements(item.dims, scope) * item.dtype.bytes
                return {node.name: item}

    def loop(self, node: Map, values: _Values, scope: CurrentBlocks, times: int) -> _Values:
        """Return the outputs of a map, with all its iterations counted."""
        state: _Values = {}
        if node.state is not None:
            resumed = {f.inner: values[f.outer].initial for f in node.inputs}
            first = [resumed[name] for name in node.state.resume or ()]
            state = {
                c.name: replace(_item(c.dims, c.dtype), initial=initial)
                for c, initial in zip(node.state.components, chain(first, repeat(True)), strict=False)
            }
        stacked: _Values = {}
        alike = classes(node, scope, self.sizes, self.numbered)
        if all(value.initial for value in state.values()):
            self.starts[node.name] += times if state and any(count for count, _ in alike) else 0
        for count, step in alike:
            inner, often = {**scope, node.axis: step}, times * count
            if node.place is Place.grid and not _is_grid(node.body):
                self.iterations += often
            fed = {f.inner: self.access(node, f.access, values[f.outer], inner, often) for f in node.inputs}
            body = self.graph(node.body, fed, inner, often)
            if node.state is not None:
                names = node.state.update.inputs[len(state) :]
                given = {**state, **{n: body[f] for n, f in zip(names, node.state.feeds, strict=True)}}
                after = self.graph(node.state.update, given, inner, often)
                if count:
                    state = {c: after[out] for c, out in zip(state, node.state.update.outputs, strict=True)}
            for output in node.outputs:
                if isinstance(output, Stacked):
                    stacked[output.outer] = self.stack(node, output.outer, body[output.inner], inner, often)
                elif isinstance(output, Once):
                    stacked[output.outer] = self.named(output.outer, body[output.inner])
        if node.state is not None:
            finished = self.graph(node.state.finish, state, scope, times)
            stacked.update({o.outer: finished[o.inner] for o in node.outputs if isinstance(o, Final)})
        return stacked

    def access(
        self, node: Map, access: Iterate | Broadcast | Grouped, value: _Value, scope: CurrentBlocks, times: int
    ) -> _Value:
        """Return what an iteration sees of `value`; an item that is left of a list is loaded now."""
        match access:
            case Broadcast():
                return value
            case Iterate(over) | Grouped(over, _):
                lists = tuple(a for a in value.lists if a != over)
                dims = tuple(node.axis if a == over else a for a in value.dims)
            case _:
                assert_never(access)
        if not lists:
            self.loaded[value.name] += times * elements(dims, scope) * value.dtype.bytes
        return _Value(value.name, lists, dims, value.dtype)

    def stack(self, node: Map, name: str, value: _Value, scope: CurrentBlocks, times: int) -> _Value:
        """Stack a body's value into the list `name`: an item is stored now, a list becomes part of it."""
        if not value.lists:
            self.stored[name] += times * elements(value.dims, scope) * value.dtype.bytes
            return _Value(name, (node.axis,), value.dims, value.dtype)
        value = self.named(name, value)
        lists = value.lists if sub_blocks(node) & set(value.lists) else (node.axis, *value.lists)
        return _Value(name, lists, value.dims, value.dtype)

    def named(self, name: str, value: _Value) -> _Value:
        """Return `value`, where it is a list, as (part of) the list `name`; an item has no name."""
        if not value.lists:
            return value
        for counter in (self.loaded, self.stored):
            if value.name in counter and value.name != name:
                counter[name] += counter.pop(value.name)
        return replace(value, name=name)


def classes(
    node: Map, scope: CurrentBlocks, sizes: Mapping[str, int], numbered: frozenset[Axis]
) -> list[tuple[int, CurrentBlock]]:
    """Group the iterations of `node` as (how many, alike in what); one class of none if there are none."""
    space = node.axis.space
    tile = node.tile if node.tile is not None else 1 if node.unit else space.size(sizes)
    bounds = node.range.bounds(space, None if node.place is Place.whole else tile)
    first, stop = value(bounds.start, sizes, scope), value(bounds.stop, sizes, scope)
    if node.place is Place.whole:
        tile = max(1, stop - first)
    else:
        first, last = (value(each, sizes, scope) for each in node.range.blocks(space, tile))
        stop = min(stop, first - (first - last) // tile * tile)
    full, rest = divmod(max(0, stop - first), tile)
    alike = [(full, first)] if full else []
    if node.axis in numbered:
        alike = [(1, first + i * tile) for i in range(full)]
    found = [(count, CurrentBlock(base, tile)) for count, base in alike]
    if rest:
        found.append((1, CurrentBlock(first + full * tile, rest)))
    return found or [(0, CurrentBlock(first, 0))]


def _item(dims: tuple[Axis, ...], dtype: DType) -> _Value:
    return _Value("", (), dims, dtype)


def elements(dims: tuple[Axis, ...], scope: CurrentBlocks) -> int:
    """Count the valid elements of an item."""
    return prod(scope[a].valid for a in dims)


def _is_grid(body: Graph) -> bool:
    """Tell whether the body is another map of the grid: one iteration there is one here."""
    return any(isinstance(n, Map) and n.place is Place.grid for n in body.nodes)


def _summed(parts: Iterable[Mapping[K, int]]) -> Counter[K]:
    total: Counter[K] = Counter()
    for part in parts:
        total.update(part)
    return total
