"""The interpreter: moves blocks as the program says, in any value domain, and counts what moves.

It is the judge of every rewrite and the meaning of an applied program: padding is real here, and holds poison unless the
program filled it, so that a program that reads what nobody wrote is caught.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import isfinite, prod
from typing import Generic, TypeVar, assert_never

import numpy as np

from weft.block.guard import Guard, is_number
from weft.block.items import Items, ItemValue, MemoryValue
from weft.block.iterations import AT_ONCE, Around, LoopStep, LoopSteps
from weft.block.moves import joined, transposed
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
from weft.block.residency import NO_FRAME, Frame, LiveBytes, LoopFrame, NoLoopFrame
from weft.block.transfers import with_transfers
from weft.block.walk import every, ranks, results, worked_axes
from weft.tensor.axes import Axis, Space
from weft.tensor.domain import Array, Domain, at, both, broadcast, scanned
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Lit, parts

V = TypeVar("V")
_DRAWS = Axis("draws", Space("draws"))
"""Of the loop over inputs that a program is run on side by side: it is around the program, and in none."""


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


def interpret(
    program: BlockProgram,
    inputs: Mapping[str, V],
    sizes: Mapping[str, int],
    domain: Domain[V],
    blocks: Mapping[str, int] | None = None,
    *,
    on_chip: bool = False,
    watch: Callable[[BlockNode], None] | None = None,
    at_once: int = AT_ONCE,
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
        watch: called with each operator before it is computed, once for the iterations that are side by side.
        at_once: at most so many iterations are computed side by side; with 1 they follow each other, and all else is the same.

    Returns:
        The outputs, with dimensions in the order of `output_axes`, and what moved.
    """
    run = Interpreted(program)
    return run(inputs, sizes, domain, blocks, on_chip=on_chip, watch=watch, at_once=at_once)


class Interpreted:
    """A program that is run several times: what is found about its loops and operators is found once."""

    def __init__(self, program: BlockProgram) -> None:
        self._program = with_transfers(program)
        self._ranks = ranks(self._program.graph)
        self._loops: dict[object, LoopSteps] = {}
        self._worked: dict[int, tuple[Axis, ...]] = {}

    def __call__(
        self,
        inputs: Mapping[str, V],
        sizes: Mapping[str, int],
        domain: Domain[V],
        blocks: Mapping[str, int] | None = None,
        *,
        on_chip: bool = False,
        watch: Callable[[BlockNode], None] | None = None,
        at_once: int = AT_ONCE,
        draws: int = 0,
    ) -> tuple[tuple[V, ...], Observed]:
        """Run it as `interpret` does; with `draws`, on so many inputs side by side, as if in a loop over them.

        Then each input has them along a first dimension, and so has each output. At least two, and without `on_chip`.
        """
        program, loops = self._program, self._loops_at(sizes, blocks or {}, at_once)
        run = _Interpreter(domain, loops, Items(domain, loops), self._worked, Observed(), on_chip, watch)
        around = Around().inside(_DRAWS, LoopStep(np.arange(draws), 1, 1, draws)) if draws else Around()
        values: _Values[V] = {}
        for name, kind in program.inputs:
            if kind.lists:
                values[name] = MemoryValue(name, inputs[name], kind.lists, runs=around.runs)
            else:
                values[name] = ItemValue(inputs[name], (), kind.dtype, runs=around.runs)
                run.traffic.loaded[name] += kind.dtype.bytes
        frame = Frame(run.memory, program.graph, {}) if on_chip else NO_FRAME
        values = run.graph(program.graph, values, around, frame)
        run.traffic.on_chip = run.memory.peak
        results: list[V] = []
        for name, axes in zip(program.graph.outputs, program.output_axes, strict=True):
            value = values[name]
            own = value.axes if isinstance(value, MemoryValue) else value.dims
            if isinstance(value, ItemValue):
                run.traffic.stored[name] += value.dtype.bytes
            runs = len(value.runs)
            array = domain.lift(transposed((*range(runs), *(runs + own.index(a) for a in axes))), value.array)
            results.append(array if runs == len(around.runs) else domain.lift(_repeated(draws), array))
        return tuple(results), run.traffic

    def numbers(self) -> tuple[float, ...]:
        """List the numbers in it, in order, each once."""
        found: set[float] = set()
        for node in every(self._program.graph.nodes):
            match node:
                case Pointwise():
                    found.update(float(each.value) for each in parts(node.expr) if isinstance(each, Lit))
                case Literal() | Fill():
                    found.add(float(node.value))
                case Map(state=State() as state):
                    found.update(float(each.init) for each in state.components)
                case _:
                    pass
        return tuple(sorted(number for number in found if isfinite(number)))

    def _loops_at(self, sizes: Mapping[str, int], blocks: Mapping[str, int], at_once: int) -> LoopSteps:
        key = tuple(sizes.items()), tuple(blocks.items()), at_once
        if key not in self._loops:
            self._loops[key] = LoopSteps(dict(sizes), dict(blocks), self._ranks, at_once)
        return self._loops[key]


def _repeated(times: int) -> Callable[[Array], Array]:
    """Return the structural function that repeats an array along a first dimension."""
    return lambda array: np.broadcast_to(array, (times, *array.shape))


_Values = dict[str, "ItemValue[V] | MemoryValue[V]"]


@dataclass
class _Interpreter(Generic[V]):
    domain: Domain[V]
    loops: LoopSteps
    items: Items[V]
    worked: dict[int, tuple[Axis, ...]]
    traffic: Observed
    on_chip: bool
    watch: Callable[[BlockNode], None] | None
    memory: LiveBytes = field(default_factory=LiveBytes)

    def graph(self, graph: Graph, values: _Values[V], around: Around, frame: Frame) -> _Values[V]:
        """Compute every value of `graph`; `frame` accounts for those that live in it."""
        values, times = dict(values), around.times
        for number, node in enumerate(graph.nodes):
            match node:
                case Map():
                    frame.enter(number, node)
                    made, held = self.loop(node, values, around)
                    values.update(made)
                    frame.leave(number, node, held)
                case Buffer():
                    shape = (*around.counts(around.runs), *(a.space.size(self.loops.sizes) for a in node.axes))
                    local = frame.buffer(node) if around.steps else None
                    array = self.domain.poison(shape, node.dtype)
                    values[node.name] = MemoryValue(node.name, array, node.axes, local, around.runs)
                case Load():
                    memory = self.memory_of(values, node.memory)
                    item = self.items.load(node, memory, self.all(values, node.indices), around)
                    values[node.name] = item
                    self.traffic.loaded[memory.name] += times * prod(around.valid(node.dims)) * node.dtype.bytes
                    frame.made(number, node, self.bytes({node.name: item}, around))
                case Store():
                    memory, item = self.memory_of(values, node.memory), self.item(values, node.value)
                    self.items.store(node, memory, item, around)
                    self.traffic.stored[memory.name] += times * prod(around.valid(item.dims)) * item.dtype.bytes
                    frame.stored(number, node, memory.local, self.bytes({node.value: item}, around))
                case _:
                    items = self.computed(node, values, around)
                    values.update(items)
                    frame.made(number, node, self.bytes(items, around))
            if not isinstance(node, Map | Buffer):
                if id(node) not in self.worked:
                    self.worked[id(node)] = worked_axes(node, lambda name: self.item(values, name).dims)
                self.traffic.operations[node.name, around.valid(self.worked[id(node)])] += times
        return values

    def computed(self, node: BlockNode, values: _Values[V], around: Around) -> dict[str, ItemValue[V]]:
        """Return the items that a functional operator gives, by name."""
        if self.watch is not None:
            self.watch(node)
        match node:
            case Rank():
                items = self.ranking(node, values, around)
            case Prefix():
                items = self.prefix(node, values, around)
            case _:
                items = (self.operator(node, values, around),)
        return dict(zip(results(node), items, strict=True))

    def bytes(self, items: Mapping[str, ItemValue[V]], around: Around) -> dict[str, int]:
        """Count the bytes of the valid elements of `items`, if what is alive is counted."""
        if not self.on_chip:
            return {}
        return {name: prod(around.valid(item.dims)) * item.dtype.bytes for name, item in items.items()}

    def operator(self, node: BlockNode, values: _Values[V], around: Around) -> ItemValue[V]:
        """Apply one functional operator to one item each."""
        domain = self.domain
        match node:
            case Pointwise():
                args = self.all(values, node.args)
                runs = self.items.runs(args, around)
                shape = (*around.counts(runs), *around.lanes(node.dims))
                array = domain.elementwise(
                    node.expr, [self.items.aligned(a, node.dims, runs) for a in args], node.dtype
                )
                array = array if domain.shape(array) == shape else domain.lift(broadcast(shape), array)
                return ItemValue(array, node.dims, node.dtype, runs=runs)
            case Dot():
                return self.dot(node, values, around)
            case Collapse():
                item = self.item(values, node.arg)
                array = domain.reduce(node.monoid, item.array, [len(item.runs) + item.dims.index(node.over)])
                dims = tuple(a for a in item.dims if a != node.over)
                return ItemValue(array, dims, item.dtype.accumulator, runs=item.runs)
            case Index():
                return self.index(node, around)
            case Bounded(_, arg, space, dims):
                item = self.items.valid(self.item(values, arg), around)
                index = self.items.aligned(item, dims, item.runs)
                array = domain.lookup(domain.iota(space.size(self.loops.sizes), DType.int64), [index])
                return self.items.padded(ItemValue(array, dims, DType.int64, runs=item.runs), around)
            case Literal(_, value, dtype):
                return ItemValue(domain.full((), value, dtype), (), dtype)
            case Extent(_, space, dtype, axis):
                size = space.size(self.loops.sizes) if axis is None else around.steps[axis].valid
                return ItemValue(domain.full((), size, dtype), (), dtype)
            case Fill():
                return self.items.filled(self.item(values, node.arg), node.value, around)
            case Stage():
                item = self.item(values, node.arg)
                return ItemValue(self.items.aligned(item, node.dims, item.runs), node.dims, item.dtype, runs=item.runs)
            case Map() | Join() | Prefix() | Rank() | Buffer() | Load() | Store():
                raise AssertionError(node.name)
            case _:
                assert_never(node)

    def dot(self, node: Dot, values: _Values[V], around: Around) -> ItemValue[V]:
        """Return the result of a matmul."""
        left, right = self.all(values, (node.left, node.right))
        labels: dict[tuple[str, Axis], int] = {}

        def own(runs: tuple[Axis, ...], dims: tuple[Axis, ...]) -> list[int]:
            every = (*(("run", a) for a in runs), *(("dim", a) for a in dims))
            return [labels.setdefault(each, len(labels)) for each in every]

        runs = self.items.runs((left, right), around)
        first, second = own(left.runs, left.dims), own(right.runs, right.dims)
        array = self.domain.contract(left.array, first, right.array, second, own(runs, node.dims))
        if node.acc is None:
            return ItemValue(array, node.dims, node.dtype, runs=runs)
        acc, more = self.item(values, node.acc), ItemValue(array, node.dims, node.dtype, runs=runs)
        runs = self.items.runs((acc, more), around)
        terms = [self.items.aligned(each, node.dims, runs) for each in (acc, more)]
        array = self.domain.elementwise(Apply("add", (Arg(0), Arg(1))), terms, node.dtype)
        return ItemValue(array, node.dims, node.dtype, runs=runs)

    def index(self, node: Index, around: Around) -> ItemValue[V]:
        """Return the numbers of elements."""
        step = around[node.axis]
        lanes = np.arange(1 if node.unit else step.lanes)
        if isinstance(step.base, int):
            numbers = self.domain.iota(step.base + len(lanes), DType.int64)
            own = step.base if node.unit else slice(step.base, None)
            return ItemValue(self.domain.lift(at(own), numbers), node.dims, DType.int64)
        runs = tuple(a for a, count in zip(around.runs, step.base.shape, strict=True) if count > 1)
        base = step.base.reshape(around.counts(runs))
        numbers = self.domain.iota(int(base.max()) + len(lanes), DType.int64)
        places = base if node.unit else base[..., None] + lanes
        return ItemValue(self.domain.lift(at(places), numbers), node.dims, DType.int64, runs=runs)

    def ranking(self, node: Rank, values: _Values[V], around: Around) -> tuple[ItemValue[V], ItemValue[V]]:
        """Return the two results of a ranking."""
        kept = tuple(a for a in node.dims if a != node.rank)
        runs = self.items.runs(self.all(values, (node.arg, node.numbers, *node.acc)), around)
        lanes = (*around.counts(runs), *around.lanes(kept))

        def rows(name: str, last: Axis | None) -> V:
            item = self.item(values, name)
            array = self.items.aligned(item, kept if last is None else (*kept, last), runs)
            array = self.domain.lift(at((..., None)), array) if last is None else array
            return self.domain.lift(broadcast((*lanes, self.domain.shape(array)[-1])), array)

        def both(so_far: str, new: str) -> V:
            return self.domain.lift(joined, rows(so_far, node.rank), rows(new, node.over))

        def made(part: V, dtype: DType) -> ItemValue[V]:
            array = self.domain.lift(at((..., 0)), part) if node.rank is None else part
            item = ItemValue(array, kept if node.rank is None else (*kept, node.rank), dtype, runs=runs)
            return ItemValue(self.items.aligned(item, node.dims, runs), node.dims, dtype, runs=runs)

        elements, numbers = both(node.acc[0], node.arg), both(node.acc[1], node.numbers)
        first, second = self.domain.ranked(elements, numbers, node.count, node.order)
        return made(first, node.dtype), made(second, DType.int64)

    def prefix(self, node: Prefix, values: _Values[V], around: Around) -> tuple[ItemValue[V], ...]:
        """Return the results of a prefix: of each component the elements, then of each what they all come to."""
        every = (*node.rows, node.over)
        args, accs = self.all(values, node.args), self.all(values, node.accs)
        runs = self.items.runs((*args, *accs), around)
        states = [self.items.aligned(arg, every, runs) for arg in args]
        alike = np.broadcast_shapes(*map(self.domain.shape, states))
        shape = (*around.counts(runs), *alike[len(runs) :])

        def spread(v: V, to: tuple[int, ...] = shape) -> V:
            return self.domain.lift(broadcast(to), v)

        before = [spread(self.domain.lift(at((..., None)), self.items.aligned(acc, node.rows, runs))) for acc in accs]
        merged = scanned(self.domain, node.merge, node.dtypes, [spread(v, alike) for v in states])
        own = [spread(v) for v in merged]
        found, totals = list[ItemValue[V]](), list[ItemValue[V]]()
        arrays = both(self.domain, node.merge, node.dtypes, before, own)
        for array, acc, dtype in zip(arrays, accs, node.dtypes, strict=True):
            made = ItemValue(array, every, dtype, runs=runs)
            found.append(ItemValue(self.items.aligned(made, node.dims, runs), node.dims, dtype, runs=runs))
            totals.append(ItemValue(self.domain.lift(at((..., -1)), array), node.rows, acc.dtype, runs=runs))
        return (*found, *totals)

    def item(self, values: _Values[V], name: str) -> ItemValue[V]:
        """Return the item called `name`; the checker has made sure that it is one."""
        value = values[name]
        assert isinstance(value, ItemValue), name
        return value

    def all(self, values: _Values[V], names: Sequence[str]) -> list[ItemValue[V]]:
        """Return the items of these names."""
        return [self.item(values, name) for name in names]

    def memory_of(self, values: _Values[V], name: str) -> MemoryValue[V]:
        """Return the memory called `name`; the checker has made sure that it is one."""
        value = values[name]
        assert isinstance(value, MemoryValue), name
        return value

    def loop(self, node: Map, values: _Values[V], around: Around) -> tuple[_Values[V], dict[str, int]]:
        """Run a map, and return its outputs and how many bytes of each are alive now."""
        results: _Values[V] = {}
        state = {} if node.state is None else self.first_state(node, node.state, values, around)
        steps = self.loops.steps(node, around)
        if state and steps and all(item.initial for item in state.values()):
            self.traffic.starts[node.name] += around.times
        frame = (LoopFrame if self.on_chip else NoLoopFrame)(self.memory, node, self.bytes(state, around))
        total: dict[str, ItemValue[V]] | None = None
        for number, step in enumerate(steps):
            if node.state is not None and node.chain and number and number % node.chain == 0:
                total = state if total is None else self.merged(node.state, total, state, around)
                state = self.anew(node.state, around)
            with self.memory.repeated(step.count):
                inner, during = around.inside(node.axis, step), frame.body()
                given = {f.inner: values[f.outer] for f in node.inputs}
                given |= {} if node.state is None else {name: state[c] for c, name in node.state.shown}
                body = self.graph(node.body, given, inner, during)
                after = None
                if node.state is not None:
                    after = frame.update(during)
                    made = self.updated(node.state, state, body, inner, after)
                    state = made if node.guard is None else self.kept(node.guard, state, made, body, inner)
                results.update({o.outer: body[o.inner] for o in node.outputs if not isinstance(o, Final)})
                frame.end(during, after)
        last = None
        if node.state is not None:
            state = state if total is None else self.merged(node.state, total, state, around)
            last = frame.finish()
            finished = self.graph(node.state.finish, dict(state), around, last)
            results.update({o.outer: finished[o.inner] for o in node.outputs if isinstance(o, Final)})
        return results, frame.results(last)

    def kept(
        self,
        guard: Guard,
        before: Mapping[str, ItemValue[V]],
        after: Mapping[str, ItemValue[V]],
        body: _Values[V],
        around: Around,
    ) -> dict[str, ItemValue[V]]:
        """Return the state after an iteration: of those side by side that are left out, and of rows that are, as it was before."""
        item = self.item(body, guard.value)
        conditions = [self.left_out(guard, self.items.valid(item, around))]
        if guard.rows is not None:
            idle = self.domain.elementwise(is_number(guard.idle), [item.array], DType.bool)
            conditions.append(ItemValue(idle, item.dims, DType.bool, runs=item.runs))
        found: dict[str, ItemValue[V]] = {}
        for name, old in before.items():
            new = after[name]
            for condition in conditions:
                runs = self.items.runs((condition, old, new), around)
                args = [self.items.aligned(each, new.dims, runs) for each in (condition, old, new)]
                array = self.domain.elementwise(Apply("where", (Arg(0), Arg(1), Arg(2))), args, new.dtype)
                new = ItemValue(array, new.dims, new.dtype, runs=runs)
            found[name] = new
        return found

    def left_out(self, guard: Guard, item: ItemValue[V]) -> ItemValue[V]:
        """Say of each of the iterations side by side, whose elements `item` has, whether it is left out."""
        dims = list(range(len(item.runs), len(item.runs) + len(item.dims)))
        said = list[V]()
        for number, alike in guard.left_out:
            each = self.domain.elementwise(is_number(number), [item.array], DType.bool)
            all_are = self.domain.reduce(Monoid.min, each, dims)
            negated = Apply("logical_not", (Arg(0),))
            said.append(all_are if alike else self.domain.elementwise(negated, [all_are], DType.bool))
        either = Apply("logical_or", (Arg(0), Arg(1)))
        found = reduce(lambda a, b: self.domain.elementwise(either, [a, b], DType.bool), said)
        return ItemValue(found, (), DType.bool, runs=item.runs)

    def updated(
        self, state: State, items: Mapping[str, ItemValue[V]], body: _Values[V], around: Around, frame: Frame
    ) -> dict[str, ItemValue[V]]:
        """Compute the components after an iteration whose body has these values."""
        names = state.update.inputs[len(items) :]
        given: _Values[V] = {**items, **{n: body[f] for n, f in zip(names, state.feeds, strict=True)}}
        after = self.graph(state.update, given, around, frame)
        return {c: self.item(after, out) for c, out in zip(items, state.update.outputs, strict=True)}

    def merged(
        self, state: State, left: Mapping[str, ItemValue[V]], right: Mapping[str, ItemValue[V]], around: Around
    ) -> dict[str, ItemValue[V]]:
        """Compute the components of the whole, of which `left` and `right` are parts; it does not count as what the loop does."""
        given = dict(zip(state.merge.inputs, (*left.values(), *right.values()), strict=True))
        counted, self.traffic.operations = self.traffic.operations, Counter()
        after = self.graph(state.merge, {**given}, around, NO_FRAME)
        self.traffic.operations = counted
        return {c: self.item(after, out) for c, out in zip(left, state.merge.outputs, strict=True)}

    def anew(self, state: State, around: Around) -> dict[str, ItemValue[V]]:
        """Return the state of a loop that has seen nothing."""
        return {
            c.name: ItemValue(self.domain.full(around.lanes(c.dims), c.init, c.dtype), c.dims, c.dtype, initial=True)
            for c in state.components
        }

    def first_state(self, node: Map, state: State, values: _Values[V], around: Around) -> dict[str, ItemValue[V]]:
        """Return the state that the loop `node` begins with."""
        resumed = {f.inner: f.outer for f in node.inputs}
        start = dict(zip((c.name for c in state.components), state.resume or (), strict=False))
        first = self.anew(state, around)
        return {**first, **{name: self.item(values, resumed[inner]) for name, inner in start.items()}}
