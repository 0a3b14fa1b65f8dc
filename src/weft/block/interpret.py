"""The interpreter: moves blocks as the program says, in any value domain, and counts what moves.

It is the judge of every rewrite and the meaning of an applied program: padding is real here, and holds poison unless the
program filled it, so that a program that reads what nobody wrote is caught.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Generic, TypeVar, assert_never

import numpy as np

from weft.block.moves import joined, stacked, transposed, written
from weft.block.places import Place
from weft.block.program import (
    BlockNode,
    BlockProgram,
    Bounded,
    Buffer,
    Collapse,
    Dot,
    Extent,
    Fill,
    Final,
    Graph,
    Index,
    Join,
    Literal,
    Load,
    Map,
    Pointwise,
    Prefix,
    Rank,
    Stage,
    State,
    Store,
)
from weft.block.residency import NO_FRAME, Frame, LiveBytes, LoopFrame, NoLoopFrame, SharedBytes
from weft.block.size import value
from weft.block.transfers import with_transfers
from weft.block.walk import ranks, results, worked_axes
from weft.tensor.axes import Axis
from weft.tensor.domain import Array, Domain, at, broadcast, looked_up
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Arg

V = TypeVar("V")


@dataclass
class Observed:
    """What an interpretation moved and did.

    Attributes:
        loaded, stored: bytes by buffered edge: what crossed from a list to an item, and from an item to a list.
        operations: how often the node of a name worked on blocks of which lengths (`weft.block.walk.worked_axes`).
        starts: by name of the loop, how often its first iteration had a state that had seen nothing.
        on_chip: the most bytes that were alive at once in an iteration of the grid (`weft.block.residency`); 0 unless asked for.
    """

    loaded: Counter[str] = field(default_factory=Counter[str])
    stored: Counter[str] = field(default_factory=Counter[str])
    operations: Counter[tuple[str, tuple[int, ...]]] = field(default_factory=Counter[tuple[str, tuple[int, ...]]])
    starts: Counter[str] = field(default_factory=Counter[str])
    on_chip: int = 0


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


@dataclass
class _Memory(Generic[V]):
    """A list in memory: an array over its axes, of which what nobody stored is poison.

    Attributes:
        name: of its buffer, or of the input.
        local: bytes of it that are held by an iteration of the grid; None of global memory.
    """

    name: str
    array: V
    axes: tuple[Axis, ...]
    local: SharedBytes | None = None


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
    program = with_transfers(program)
    run = _Interpreter(domain, sizes, blocks or {}, Observed(), ranks(program.graph), on_chip, watch)
    values: _Values[V] = {}
    for name, kind in program.inputs:
        if kind.lists:
            values[name] = _Memory(name, inputs[name], kind.lists)
        else:
            values[name] = _Item(inputs[name], (), kind.dtype)
            run.traffic.loaded[name] += kind.dtype.bytes
    values = run.graph(program.graph, values, {}, Frame(run.memory, program.graph, {}) if on_chip else NO_FRAME)
    run.traffic.on_chip = run.memory.peak
    results: list[V] = []
    for name, axes in zip(program.graph.outputs, program.output_axes, strict=True):
        value = values[name]
        own = value.axes if isinstance(value, _Memory) else value.dims
        if isinstance(value, _Item):
            run.traffic.stored[name] += value.dtype.bytes
        results.append(domain.lift(transposed(tuple(own.index(a) for a in axes)), value.array))
    return tuple(results), run.traffic


_Values = dict[str, "_Item[V] | _Memory[V]"]
_Scope = Mapping[Axis, _Step]


@dataclass
class _Interpreter(Generic[V]):
    domain: Domain[V]
    sizes: Mapping[str, int]
    blocks: Mapping[str, int]
    traffic: Observed
    ranks: frozenset[Axis]
    on_chip: bool
    watch: Callable[[BlockNode], None] | None
    memory: LiveBytes = field(default_factory=LiveBytes)

    def graph(self, graph: Graph, values: _Values[V], scope: _Scope, frame: Frame) -> _Values[V]:
        """Compute every value of `graph`; `frame` accounts for those that live in it."""
        values = dict(values)
        for number, node in enumerate(graph.nodes):
            match node:
                case Map():
                    frame.enter(number, node)
                    made, held = self.loop(node, values, scope)
                    values.update(made)
                    frame.leave(number, node, held)
                case Buffer():
                    array = self.domain.poison([a.space.size(self.sizes) for a in node.axes], node.dtype)
                    local = frame.buffer(node) if scope else None
                    values[node.name] = _Memory(node.name, array, node.axes, local)
                case Load():
                    indices = [self.item(values, name) for name in node.indices]
                    values[node.name] = item = self.load(node, self.memory_of(values, node.memory), scope, indices)
                    frame.made(number, node, self.bytes({node.name: item}, scope))
                case Store():
                    memory, item = self.memory_of(values, node.memory), self.item(values, node.value)
                    self.store(node, memory, item, scope)
                    frame.stored(number, node, memory.local, self.bytes({node.value: item}, scope))
                case _:
                    items = self.computed(node, values, scope)
                    values.update(items)
                    frame.made(number, node, self.bytes(items, scope))
            if not isinstance(node, Map | Buffer):
                axes = worked_axes(node, lambda name: self.item(values, name).dims)
                self.traffic.operations[node.name, tuple(scope[a].valid for a in axes)] += 1
        return values

    def computed(self, node: BlockNode, values: _Values[V], scope: _Scope) -> dict[str, _Item[V]]:
        """Return the items that a functional operator gives, by name."""
        if self.watch is not None:
            self.watch(node)
        match node:
            case Rank():
                items = self.ranking(node, values, scope)
            case Prefix():
                items = self.prefix(node, values)
            case _:
                items = (self.operator(node, values, scope),)
        return dict(zip(results(node), items, strict=True))

    def bytes(self, items: Mapping[str, _Item[V]], scope: _Scope) -> dict[str, int]:
        """Count the bytes of the valid elements of `items`, if what is alive is counted."""
        if not self.on_chip:
            return {}
        return {name: prod(scope[a].valid for a in item.dims) * item.dtype.bytes for name, item in items.items()}

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
            case Bounded(_, arg, space, dims):
                item = self.item(values, arg)
                valid = domain.lift(at(tuple(slice(0, scope[a].valid) for a in item.dims)), item.array)
                index = self.aligned(_Item(valid, item.dims, item.dtype), dims)
                array = domain.lookup(domain.iota(space.size(self.sizes), DType.int64), [index])
                return self.padded(array, dims, DType.int64, scope)
            case Literal(_, value, dtype):
                return _Item(domain.full((), value, dtype), (), dtype)
            case Extent(_, space, dtype, axis):
                size = space.size(self.sizes) if axis is None else scope[axis].valid
                return _Item(domain.full((), size, dtype), (), dtype)
            case Fill():
                item = self.item(values, node.arg)
                return self.filled(
                    item, scope, domain.full(tuple(scope[a].lanes for a in item.dims), node.value, item.dtype)
                )
            case Stage():
                item = self.item(values, node.arg)
                return _Item(self.aligned(item, node.dims), node.dims, item.dtype)
            case Map() | Join() | Prefix() | Rank() | Buffer() | Load() | Store():
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
            return self.domain.lift(joined, rows(so_far, node.rank), rows(new, node.over))

        def made(part: V, dtype: DType) -> _Item[V]:
            array = self.domain.lift(at((..., 0)), part) if node.rank is None else part
            item = _Item(array, kept if node.rank is None else (*kept, node.rank), dtype)
            return _Item(self.aligned(item, node.dims), node.dims, dtype)

        elements, numbers = both(node.acc[0], node.arg), both(node.acc[1], node.numbers)
        first, second = self.domain.ranked(elements, numbers, node.count, node.order)
        return made(first, node.dtype), made(second, DType.int64)

    def prefix(self, node: Prefix, values: _Values[V]) -> tuple[_Item[V], _Item[V]]:
        """Return the two results of a prefix: its elements, and what they all come to."""
        kept = tuple(a for a in node.dims if a != node.over)
        own = self.domain.prefixes(node.monoid, self.aligned(self.item(values, node.arg), (*kept, node.over)))
        acc = self.item(values, node.acc)
        shape = self.domain.shape(own)
        before = self.domain.lift(broadcast(shape), self.domain.lift(at((..., None)), self.aligned(acc, kept)))
        array = self.domain.reduce(node.monoid, self.domain.lift(stacked, before, own), [len(shape)])
        made = _Item(array, (*kept, node.over), node.dtype)
        total = self.domain.lift(at((..., -1)), array)
        return _Item(self.aligned(made, node.dims), node.dims, node.dtype), _Item(total, kept, acc.dtype)

    def item(self, values: _Values[V], name: str) -> _Item[V]:
        """Return the item called `name`; the checker has made sure that it is one."""
        value = values[name]
        assert isinstance(value, _Item), name
        return value

    def memory_of(self, values: _Values[V], name: str) -> _Memory[V]:
        """Return the memory called `name`; the checker has made sure that it is one."""
        value = values[name]
        assert isinstance(value, _Memory), name
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
        found: list[_Step] = []
        for run in node.range.runs(space, None if node.place is Place.whole else tile):
            first, last, stop = (value(each, self.sizes, scope) for each in (run.first, run.last, run.stop))
            if node.place is Place.whole:
                found += [_Step(first, stop - first, stop - first)] if stop > first else []
            else:
                found += [_Step(base, min(tile, stop - base), tile) for base in range(first, last, tile)]
        return found

    def loop(self, node: Map, values: _Values[V], scope: _Scope) -> tuple[_Values[V], dict[str, int]]:
        """Run a map, and return its outputs and how many bytes of each are alive now."""
        results: _Values[V] = {}
        state = {} if node.state is None else self.first_state(node, node.state, values, scope)
        steps = self.steps(node, scope)
        if state and steps and all(item.initial for item in state.values()):
            self.traffic.starts[node.name] += 1
        frame = (LoopFrame if self.on_chip else NoLoopFrame)(self.memory, node, self.bytes(state, scope))
        for step in steps:
            inner, during = {**scope, node.axis: step}, frame.body()
            given = {f.inner: values[f.outer] for f in node.inputs}
            given |= {} if node.state is None else {name: state[c] for c, name in node.state.shown}
            body = self.graph(node.body, given, inner, during)
            after = None
            if node.state is not None:
                after = frame.update(during)
                state = self.updated(node.state, state, body, inner, after)
            results.update({o.outer: body[o.inner] for o in node.outputs if not isinstance(o, Final)})
            frame.end(during, after)
        last = None
        if node.state is not None:
            last = frame.finish()
            finished = self.graph(node.state.finish, dict(state), scope, last)
            results.update({o.outer: finished[o.inner] for o in node.outputs if isinstance(o, Final)})
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

    def load(self, node: Load, memory: _Memory[V], scope: _Scope, indices: Sequence[_Item[V]] = ()) -> _Item[V]:
        """Load an item, padded to its axes' lanes; where `indices` say, if there are any."""
        if indices:
            array = self.looked_up(node, memory, scope, indices)
        else:
            array = self.domain.lift(at(self.window(node, memory, node.dims, scope)), memory.array)
            own = [axis for subscript in node.at for axis in subscript.axes if axis in node.dims]
            array = self.domain.lift(transposed(tuple(own.index(a) for a in node.dims)), array)
        shape = self.domain.shape(array)
        self.traffic.loaded[memory.name] += prod(shape) * node.dtype.bytes
        return self.padded(array, node.dims, node.dtype, scope)

    def padded(self, array: V, dims: tuple[Axis, ...], dtype: DType, scope: _Scope) -> _Item[V]:
        """Return the item whose valid elements `array` holds, with nothing known in its other lanes."""
        shape, lanes = self.domain.shape(array), tuple(scope[a].lanes for a in dims)
        if shape == lanes:
            return _Item(array, dims, dtype)
        padding = self.domain.poison(lanes, dtype)
        return _Item(self.domain.lift(written(tuple(map(slice, shape))), padding, array), dims, dtype)

    def looked_up(self, node: Load, memory: _Memory[V], scope: _Scope, indices: Sequence[_Item[V]]) -> V:
        """Return the elements of `memory` where `indices` say, for the valid elements of the axes of `node`."""
        places: list[V | Array] = []
        for subscript, part in zip(node.at, self.window(node, memory, node.dims, scope), strict=True):
            if subscript.index is not None:
                item = indices[subscript.index]
                valid = self.domain.lift(at(tuple(slice(0, scope[a].valid) for a in item.dims)), item.array)
                places.append(self.aligned(_Item(valid, item.dims, item.dtype), node.dims))
            elif isinstance(part, slice):
                along = next(a for a in subscript.axes if a in node.dims)
                numbers: Array = np.arange(int(part.start), int(part.stop))
                places.append(numbers.reshape([-1 if a == along else 1 for a in node.dims]))
            else:
                places.append(np.array(part))
        checked = [d for d, each in enumerate(node.at) if each.index is not None] if node.masked else []
        array = looked_up(self.domain, memory.array, places, checked, node.dtype)
        shape = tuple(scope[a].valid for a in node.dims)
        return array if self.domain.shape(array) == shape else self.domain.lift(broadcast(shape), array)

    def store(self, node: Store, memory: _Memory[V], item: _Item[V], scope: _Scope) -> None:
        """Store the valid elements of an item."""
        window = self.window(node, memory, item.dims, scope)
        own = [axis for subscript in node.at for axis in subscript.axes if axis in item.dims]
        array = self.domain.lift(at(tuple(slice(0, scope[a].valid) for a in item.dims)), item.array)
        array = self.domain.lift(transposed(tuple(item.dims.index(a) for a in own)), array)
        self.traffic.stored[memory.name] += prod(self.domain.shape(array)) * item.dtype.bytes
        memory.array = self.domain.lift(written(window), memory.array, array)

    def window(
        self, node: Load | Store, memory: _Memory[V], dims: tuple[Axis, ...], scope: _Scope
    ) -> tuple[slice | int, ...]:
        """Return the part of `memory` that an item with axes `dims` is; an element out of bounds is an error."""
        found: list[slice | int] = []
        for subscript, axis in zip(node.at, memory.axes, strict=True):
            if subscript.index is not None:
                found.append(slice(None))
                continue
            first, count = subscript.offset, 1
            for factor, digit in subscript.terms:
                step = scope[digit.axis]
                count = step.valid if digit.axis in dims else count
                number = step.base // digit.div
                first += factor * (number if digit.mod is None else number % digit.mod)
            if first < 0 or first + count > axis.space.size(self.sizes):
                raise IndexError(f"elements {first} to {first + count - 1} of {axis.space} in {memory.name}")
            own = not set(subscript.axes).isdisjoint(dims)
            found.append(slice(first, first + count) if own else first)
        return tuple(found)
