"""The interpreter: moves blocks as the program says, in any value domain, and counts what moves.

It is the judge of every rewrite and the meaning of an applied program: padding is real here, and holds poison unless the
program filled it, so that a program that reads what nobody wrote is caught.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Generic, TypeVar, assert_never

import numpy as np

from weft.block.moves import joined, taken, transposed, written
from weft.block.program import (
    BlockNode,
    BlockProgram,
    Broadcast,
    Collapse,
    Dot,
    Extent,
    Fill,
    Final,
    Graph,
    Grouped,
    Index,
    Iterate,
    Join,
    Literal,
    Map,
    Once,
    Place,
    Pointwise,
    Rank,
    Stacked,
    Stage,
    State,
)
from weft.block.residency import NO_FRAME, Frame, LiveBytes, LoopFrame, NoLoopFrame, global_lists
from weft.block.size import value
from weft.block.walk import ranks, results, sub_blocks
from weft.tensor.axes import Axis
from weft.tensor.domain import Domain, at, broadcast
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Arg

V = TypeVar("V")


@dataclass
class Observed:
    """What an interpretation moved and did.

    Attributes:
        loaded, stored: bytes by buffered edge: what crossed from a list to an item, and from an item to a list.
        operations: block operations by name of the node that did them.
        starts: by name of the loop, how often its first iteration had a state that had seen nothing.
        on_chip: the most bytes that were alive at once in an iteration of the grid (`weft.block.residency`); 0 unless asked for.
    """

    loaded: Counter[str] = field(default_factory=Counter[str])
    stored: Counter[str] = field(default_factory=Counter[str])
    operations: Counter[str] = field(default_factory=Counter[str])
    starts: Counter[str] = field(default_factory=Counter[str])
    on_chip: int = 0

    def rename(self, old: str, new: str) -> None:
        """Rename an inner list that turned out to be part of the list `new`."""
        for counter in (self.loaded, self.stored):
            if old in counter and old != new:
                counter[new] += counter.pop(old)


@dataclass(frozen=True, slots=True)
class _Step:
    """The current iteration of a loop: its first element, how many are valid, and how many a whole block has."""

    base: int
    valid: int
    tile: int

    @property
    def lanes(self) -> int:
        """The number of elements that items have along the axis: one of padding is enough to see who reads it."""
        return min(self.tile, self.valid + 1)


@dataclass(frozen=True, slots=True)
class _Item(Generic[V]):
    """A block, vector or scalar: an array of its axes' lanes, of which each axis's step says how much is valid.

    `initial` is one that a loop's state begins with, and that no iteration has changed.
    """

    array: V
    dims: tuple[Axis, ...]
    dtype: DType
    initial: bool = False


@dataclass(frozen=True, slots=True)
class _List(Generic[V]):
    """A list of items, stored flat: an array over `axes`, holding valid elements only.

    `lists` are the axes it is still a list over; `origin` gives, for each of them, the element (or, for an axis that items do
    not have, the block) that comes first.
    """

    array: V
    axes: tuple[Axis, ...]
    lists: tuple[Axis, ...]
    dims: tuple[Axis, ...]
    origin: Mapping[Axis, int]
    dtype: DType
    name: str


def interpret(
    program: BlockProgram,
    inputs: Mapping[str, V],
    sizes: Mapping[str, int],
    domain: Domain[V],
    blocks: Mapping[str, int] | None = None,
    *,
    on_chip: bool = False,
    watch: Callable[[BlockNode], None] | None = None,
) -> tuple[tuple[V, ...], Observed]:
    """Run `program`.

    Args:
        program: with or without places.
        inputs: one array per input, with the dimensions of its type's lists, in that order.
        sizes: elements of each space, by name; all at least 1.
        domain: what values are (fp64 numbers, field elements).
        blocks: elements per block of each space, by name; only read for loops that no schedule has placed, and not for those over
            a ranking. They should divide
            the sizes: only a schedule fills the padding of edges with what reductions need.
        on_chip: whether to count what is alive at once, which takes a third more time.
        watch: called with each operator, at each iteration, before it is computed.

    Returns:
        The outputs, with dimensions in the order of `output_axes`, and what moved.
    """
    run = _Interpreter(
        domain, sizes, blocks or {}, Observed(), ranks(program.graph), global_lists(program), on_chip, watch
    )
    values: dict[str, _Item[V] | _List[V]] = {}
    for name, kind in program.inputs:
        stacked = tuple(a for a in kind.lists if a not in kind.dims)
        order = [kind.lists.index(a) for a in (*stacked, *kind.dims)]
        array = domain.lift(transposed(tuple(order)), inputs[name])
        if kind.lists:
            values[name] = _List(
                array, (*stacked, *kind.dims), kind.lists, kind.dims, dict.fromkeys(kind.lists, 0), kind.dtype, name
            )
        else:
            values[name] = _Item(array, (), kind.dtype)
            run.traffic.loaded[name] += kind.dtype.bytes
    values = run.graph(program.graph, values, {}, Frame(run.memory, program.graph, {}, {}) if on_chip else NO_FRAME)
    run.traffic.on_chip = run.memory.peak
    results: list[V] = []
    for name, axes in zip(program.graph.outputs, program.output_axes, strict=True):
        value = values[name]
        own = value.axes if isinstance(value, _List) else value.dims
        order = tuple(own.index(a) for a in axes)
        if isinstance(value, _Item):
            run.traffic.stored[name] += value.dtype.bytes
        results.append(domain.lift(transposed(order), value.array))
    return tuple(results), run.traffic


_Values = dict[str, "_Item[V] | _List[V]"]
_Scope = Mapping[Axis, _Step]


@dataclass
class _Interpreter(Generic[V]):
    domain: Domain[V]
    sizes: Mapping[str, int]
    blocks: Mapping[str, int]
    traffic: Observed
    ranks: frozenset[Axis]
    own: frozenset[str]
    on_chip: bool
    watch: Callable[[BlockNode], None] | None
    memory: LiveBytes = field(default_factory=LiveBytes)

    def graph(self, graph: Graph, values: _Values[V], scope: _Scope, frame: Frame) -> _Values[V]:
        """Compute every value of `graph`; `frame` accounts for those that live in it."""
        values = dict(values)
        for number, node in enumerate(graph.nodes):
            if isinstance(node, Map):
                frame.enter(number, node)
                made, held = self.loop(node, values, scope)
                values.update(made)
                frame.leave(number, node, held)
            elif isinstance(node, Join):
                values[node.name] = self.join(node, values)
                frame.joined(number, node)
            else:
                if self.watch is not None:
                    self.watch(node)
                items = self.ranking(node, values, scope) if isinstance(node, Rank) else ()
                items = items or (self.operator(node, values, scope),)
                values.update(zip(results(node), items, strict=True))
                self.traffic.operations[node.name] += 1
                frame.made(number, node, self.bytes(dict(zip(results(node), items, strict=True)), scope))
        return values

    def bytes(self, values: Mapping[str, _Item[V]] | _Values[V], scope: _Scope) -> dict[str, int]:
        """Count the bytes of the valid elements of the items among `values`, if what is alive is counted."""
        if not self.on_chip:
            return {}
        items = ((name, v) for name, v in values.items() if isinstance(v, _Item))
        return {name: prod(scope[a].valid for a in item.dims) * item.dtype.bytes for name, item in items}

    def operator(self, node: BlockNode, values: _Values[V], scope: _Scope) -> _Item[V]:
        """Apply one functional operator to one item each."""
        domain = self.domain
        match node:
            case Pointwise():
                shape = tuple(scope[a].lanes for a in node.dims)
                args = [self.aligned(self.item(values, n), node.dims) for n in node.args]
                array = domain.elementwise(node.expr, args, node.dtype)
                array = array if domain.shape(array) == shape else domain.lift(broadcast(shape), array)
                return _Item(array, node.dims, node.dtype)
            case Dot():
                left, right = self.item(values, node.left), self.item(values, node.right)
                label = {a: i for i, a in enumerate(dict.fromkeys((*left.dims, *right.dims)))}
                array = domain.contract(
                    left.array,
                    [label[a] for a in left.dims],
                    right.array,
                    [label[a] for a in right.dims],
                    [label[a] for a in node.dims],
                )
                if node.acc is not None:
                    acc = self.aligned(self.item(values, node.acc), node.dims)
                    array = domain.elementwise(Apply("add", (Arg(0), Arg(1))), [acc, array], node.dtype)
                return _Item(array, node.dims, node.dtype)
            case Collapse():
                item = self.item(values, node.arg)
                array = domain.reduce(node.monoid, item.array, [item.dims.index(node.over)])
                return _Item(array, tuple(a for a in item.dims if a != node.over), item.dtype.accumulator)
            case Index(_, axis, unit):
                step = scope[axis]
                numbers = domain.iota(step.base + step.lanes, DType.int64)
                own = step.base if unit else slice(step.base, None)
                return _Item(domain.lift(at(own), numbers), node.dims, DType.int64)
            case Literal(_, value, dtype):
                return _Item(domain.constant(value, dtype), (), dtype)
            case Extent(_, space, dtype, axis):
                size = space.size(self.sizes) if axis is None else scope[axis].valid
                return _Item(domain.constant(size, dtype), (), dtype)
            case Fill():
                item = self.item(values, node.arg)
                return self.filled(
                    item, scope, domain.full(tuple(scope[a].lanes for a in item.dims), node.value, item.dtype)
                )
            case Stage():
                item = self.item(values, node.arg)
                return _Item(self.aligned(item, node.dims), node.dims, item.dtype)
            case Map() | Join() | Rank():
                raise AssertionError(node.name)
            case _:
                assert_never(node)

    def ranking(self, node: Rank, values: _Values[V], scope: _Scope) -> tuple[_Item[V], _Item[V]]:
        """Return the two results of a ranking."""
        kept = tuple(a for a in node.dims if a != node.rank)
        lanes = tuple(scope[a].lanes for a in kept)

        def rows(name: str, last: Axis | None) -> V:
            item = self.item(values, name)
            array = self.aligned(item, kept if last is None else (*kept, last))
            array = self.domain.lift(at((..., None)), array) if last is None else array
            return self.domain.lift(broadcast((*lanes, self.domain.shape(array)[-1])), array)

        def both(so_far: str, new: str) -> V:
            return self.domain.lift(joined(-1), rows(so_far, node.rank), rows(new, node.over))

        def made(part: V, dtype: DType) -> _Item[V]:
            array = self.domain.lift(at((..., 0)), part) if node.rank is None else part
            item = _Item(array, kept if node.rank is None else (*kept, node.rank), dtype)
            return _Item(self.aligned(item, node.dims), node.dims, dtype)

        elements, numbers = both(node.acc[0], node.arg), both(node.acc[1], node.numbers)
        first, second = self.domain.ranked(elements, numbers, node.count, node.order)
        return made(first, node.dtype), made(second, DType.int64)

    def item(self, values: _Values[V], name: str) -> _Item[V]:
        """Return the item called `name`; the checker has made sure that it is one."""
        value = values[name]
        assert isinstance(value, _Item), name
        return value

    def aligned(self, item: _Item[V], dims: tuple[Axis, ...]) -> V:
        """Return the item's array with one dimension per axis of `dims`, of size 1 where the item lacks it."""
        if item.dims == dims:
            return item.array
        order = tuple(item.dims.index(a) for a in dims if a in item.dims)
        present = tuple(slice(None) if a in item.dims else None for a in dims)
        array = item.array if order == tuple(range(len(order))) else self.domain.lift(transposed(order), item.array)
        return self.domain.lift(at(present), array)

    def filled(self, item: _Item[V], scope: _Scope, padding: V) -> _Item[V]:
        """Return `item` with its padding replaced by that of `padding`, an array of the same lanes."""
        if all(scope[a].valid == scope[a].lanes for a in item.dims):
            return item
        window = tuple(slice(0, scope[a].valid) for a in item.dims)

        valid = self.domain.lift(at(window), item.array)
        return _Item(self.domain.lift(written(window), padding, valid), item.dims, item.dtype)

    def steps(self, node: Map, scope: _Scope) -> list[_Step]:
        """Return the iterations of `node`, in order."""
        space = node.axis.space
        size = space.size(self.sizes)
        blocks = size if node.axis in self.ranks else self.blocks.get(space.name, size)
        tile = node.tile if node.tile is not None else 1 if node.unit else blocks
        bounds = node.range.bounds(space, None if node.place is Place.whole else tile)
        stop = value(bounds.stop, self.sizes, scope)
        if node.place is Place.whole:
            start = value(bounds.start, self.sizes, scope)
            return [_Step(start, stop - start, stop - start)] if stop > start else []
        first, last = (value(each, self.sizes, scope) for each in node.range.blocks(space, tile))
        return [_Step(base, min(tile, stop - base), tile) for base in range(first, last, tile)]

    def loop(self, node: Map, values: _Values[V], scope: _Scope) -> tuple[_Values[V], dict[str, int]]:
        """Run a map, and return its outputs and how many bytes of each are alive now."""
        results: _Values[V] = {}
        stacked: dict[str, list[tuple[_Step, _Item[V] | _List[V]]]] = {
            o.outer: [] for o in node.outputs if isinstance(o, Stacked)
        }
        state = {} if node.state is None else self.first_state(node, node.state, values, scope)
        steps = self.steps(node, scope)
        if state and steps and all(item.initial for item in state.values()):
            self.traffic.starts[node.name] += 1
        frame = (LoopFrame if self.on_chip else NoLoopFrame)(self.memory, node, self.own, self.bytes(state, scope))
        for step in steps:
            inner = {**scope, node.axis: step}
            fed: _Values[V] = {f.inner: self.access(node, f.access, values[f.outer], step, inner) for f in node.inputs}
            during = frame.body(
                self.bytes({f.inner: fed[f.inner] for f in node.inputs if isinstance(values[f.outer], _List)}, inner)
            )
            body = self.graph(node.body, fed, inner, during)
            after = None
            if node.state is not None:
                after = frame.update(during)
                state = self.updated(node.state, state, body, inner, after)
            for output in node.outputs:
                if isinstance(output, Stacked):
                    stacked[output.outer].append((step, body[output.inner]))
                elif isinstance(output, Once):
                    results[output.outer] = self.once(output.outer, body[output.inner])
            frame.end(during, after)
        last = None
        if node.state is not None:
            last = frame.finish()
            finished = self.graph(node.state.finish, dict(state), scope, last)
            results.update({o.outer: finished[o.inner] for o in node.outputs if isinstance(o, Final)})
        for name, parts in stacked.items():
            if parts or node.range.follows is None:  # a part of a list may be empty
                results[name] = self.stack(node, name, parts, scope)
        return results, frame.results(last)

    def updated(
        self, state: State, items: Mapping[str, _Item[V]], body: _Values[V], scope: _Scope, frame: Frame
    ) -> dict[str, _Item[V]]:
        """Compute the components after an iteration whose body has these values."""
        names = state.update.inputs[len(items) :]
        given: _Values[V] = {**items, **{n: body[f] for n, f in zip(names, state.feeds, strict=True)}}
        after = self.graph(state.update, given, scope, frame)
        return {c: self.item(after, out) for c, out in zip(items, state.update.outputs, strict=True)}

    def first_state(self, node: Map, state: State, values: _Values[V], scope: _Scope) -> dict[str, _Item[V]]:
        """Return the state that the loop `node` begins with."""
        resumed = {f.inner: f.outer for f in node.inputs}
        start = dict(zip((c.name for c in state.components), state.resume or (), strict=False))
        first: dict[str, _Item[V]] = {}
        for c in state.components:
            if c.name in start:
                first[c.name] = self.item(values, resumed[start[c.name]])
            else:
                shape = tuple(scope[a].lanes for a in c.dims)
                first[c.name] = _Item(self.domain.full(shape, c.init, c.dtype), c.dims, c.dtype, initial=True)
        return first

    def once(self, name: str, value: _Item[V] | _List[V]) -> _Item[V] | _List[V]:
        """Return the value that the only iteration of a map hands out as `name`."""
        if isinstance(value, _Item):
            return value
        self.traffic.rename(value.name, name)
        return replace(value, name=name)

    def join(self, node: Join, values: _Values[V]) -> _List[V]:
        """Join the list of two parts, of which the second is not there where the first block is all."""
        first = values[node.first]
        assert isinstance(first, _List)
        self.traffic.rename(first.name, node.name)
        new = dict(node.axes)
        axes, lists, dims = (tuple(new.get(a, a) for a in of) for of in (first.axes, first.lists, first.dims))
        whole = _List(
            first.array, axes, lists, dims, {new.get(a, a): o for a, o in first.origin.items()}, first.dtype, node.name
        )
        rest = values.get(node.rest)
        if rest is None:
            return whole
        assert isinstance(rest, _List)
        self.traffic.rename(rest.name, node.name)
        turned = self.domain.lift(transposed(tuple(axes.index(a) for a in rest.axes)), first.array)
        array = self.domain.lift(joined(rest.axes.index(node.axes[0][1])), turned, rest.array)
        return replace(rest, array=array, origin=whole.origin, name=node.name)

    def access(
        self, node: Map, access: Iterate | Broadcast | Grouped, value: _Item[V] | _List[V], step: _Step, scope: _Scope
    ) -> _Item[V] | _List[V]:
        """Return the part of `value` that one iteration sees."""
        match access:
            case Broadcast():
                return value
            case Iterate(over):
                first, valid = step.base, step.valid
            case Grouped(over, group):
                first, valid = step.base // group, 1
            case _:
                assert_never(access)
        assert isinstance(value, _List)
        where = value.axes.index(over)
        lists = tuple(a for a in value.lists if a != over)
        if over in value.dims:
            begin = first - value.origin[over]
            array = self.domain.lift(taken(slice(begin, begin + valid), where), value.array)
            axes = tuple(node.axis if a == over else a for a in value.axes)
        else:
            number = first // step.tile - value.origin[over]
            array = self.domain.lift(taken(number, where), value.array)
            axes = tuple(a for a in value.axes if a != over)
        dims = tuple(node.axis if a == over else a for a in value.dims)
        part = _List(
            array, axes, lists, dims, {a: o for a, o in value.origin.items() if a in lists}, value.dtype, value.name
        )
        return part if lists else self.load(part, scope)

    def load(self, part: _List[V], scope: _Scope) -> _Item[V]:
        """Load the one item that is left, padded to its axes' lanes."""
        shape = self.domain.shape(part.array)
        self.traffic.loaded[part.name] += int(np.prod(shape, dtype=np.int64)) * part.dtype.bytes
        lanes = tuple(scope[a].lanes for a in part.dims)
        if shape == lanes:
            return _Item(part.array, part.dims, part.dtype)
        window = tuple(slice(0, n) for n in shape)

        padded = self.domain.lift(written(window), self.domain.poison(lanes, part.dtype), part.array)
        return _Item(padded, part.dims, part.dtype)

    def stack(self, node: Map, name: str, parts: list[tuple[_Step, _Item[V] | _List[V]]], scope: _Scope) -> _List[V]:
        """Stack the list of a map: valid elements only, flat."""
        lists = [self.as_list(name, {**scope, node.axis: step}, value) for step, value in parts]
        first, base = lists[0], parts[0][0]
        inner = _nested_axis(node, first.lists)
        if inner is not None or node.axis in first.dims:
            along = first.axes.index(inner if inner is not None else node.axis)
            array = self.domain.lift(joined(along), *(p.array for p in lists))
            axes = first.axes
        else:
            array = self.domain.lift(joined(None), *(p.array for p in lists))
            axes = (node.axis, *first.axes)
        if inner is not None:
            return _List(array, axes, first.lists, first.dims, first.origin, first.dtype, name)
        start = base.base if node.axis in first.dims else base.base // base.tile
        return _List(
            array, axes, (node.axis, *first.lists), first.dims, {**first.origin, node.axis: start}, first.dtype, name
        )

    def as_list(self, name: str, scope: _Scope, value: _Item[V] | _List[V]) -> _List[V]:
        """Return `value` as part of the list `name`: an item's valid elements are stored now, a list was stored before."""
        if isinstance(value, _List):
            self.traffic.rename(value.name, name)
            return value
        window = tuple(slice(0, scope[a].valid) for a in value.dims)
        whole = all(scope[a].valid == scope[a].lanes for a in value.dims)
        array = value.array if whole else self.domain.lift(at(window), value.array)
        self.traffic.stored[name] += int(np.prod(self.domain.shape(array), dtype=np.int64)) * value.dtype.bytes
        return _List(array, value.dims, (), value.dims, {}, value.dtype, name)


def _nested_axis(node: Map, lists: tuple[Axis, ...]) -> Axis | None:
    """Return the axis among `lists` whose map runs within the blocks of `node`'s: stacking then joins parts of one list."""
    inside = sub_blocks(node)
    return next((a for a in lists if a in inside), None)
