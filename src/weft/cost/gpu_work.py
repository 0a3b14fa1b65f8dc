"""What one thread block of a GPU's grid does, region by region: tiles that it multiplies, loads and computes, padding included.

A region is what stands between loops: the code of the thread block itself, or of one iteration of a loop. How often each runs is
read off `weft.cost.traffic`; here only the shape of the code is looked at, with blocks as Triton has them: powers of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, log2, prod

from weft.block.by_identity import ByIdentity
from weft.block.check import body_types, infer, update_types
from weft.block.places import Place
from weft.block.program import (
    BlockNode,
    BlockProgram,
    BlockType,
    Bounded,
    Buffer,
    Collapse,
    Dot,
    Fill,
    Graph,
    Load,
    Map,
    Pointwise,
    Prefix,
    Rank,
    Store,
)
from weft.block.residency import Frame, LiveBytes, LoopFrame, SharedBytes
from weft.block.room import room_of
from weft.block.scope import Scope, Types
from weft.block.walk import copied, every, operands, results
from weft.cost.gpu_cycles import CONVERT, SELECT, cycles_of
from weft.cost.gpu_regions import BlockReduction, LoadedItem, LoopWork, Matmul, StoredItem, ThreadBlockWork
from weft.cost.guarded import ALL_BUSY, GuardedShare
from weft.cost.load_places import blocks_of, decided_by, moving, part_of
from weft.cost.traffic import Traffic
from weft.schedule import KernelNodes, added_apart, multiplied
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import exactly_equal, operations

# Bytes that memory moves at least, and that a thread loads at once.
_SECTOR_BYTES = 32
_ACCESS_BYTES = 16


def work_of(
    applied: BlockProgram,
    part: KernelNodes,
    counted: Traffic,
    sizes: Mapping[str, int],
    innermost: Mapping[str, int | None] | None = None,
    guards: Mapping[str, GuardedShare] | None = None,
) -> ThreadBlockWork:
    """Find out what a thread block of the launch `part` of `applied` does, on average.

    Args:
        counted: of this launch, one of `weft.cost.by_kernel(applied, sizes)`.
        sizes: elements of each space, by name; all at least 1.
        innermost: for inputs, by name, the dimension of stride 1; of others it is the last one.
        guards: of guarded loops, by name, which share of their iterations is expected to have something to do.
    """
    around = Scope({}, applied=True)
    types = infer(applied.graph, dict(applied.inputs), around)
    body = LoopWork(loop=False, runs=1.0, entries=1.0)
    walk = _Walk(counted, sizes, body, guards or {})
    values: _Values = {}
    for name in part.reads:
        kind, innermost_dim = types[name], (innermost or {}).get(name)
        last = kind.lists[-1 if innermost_dim is None else innermost_dim] if kind.lists else None
        values[name] = _Value(name, kind.dims, kind.dtype, raw=kind.buffered, last=last)
    values |= {n: _Value(n, types[n].dims, types[n].dtype) for n in part.writes if types[n].buffered}
    graph = Graph(part.reads, part.nodes, ())
    walk.graph(graph, types, values, around, {}, body, Frame(walk.memory, graph, {}))
    return ThreadBlockWork(counted.iterations, body, walk.memory.peak, walk.largest, tuple(walk.grid))


@dataclass(frozen=True, slots=True)
class _Value:
    """A value: a memory, or an item.

    Attributes:
        raw: it is global memory, or an item as it lies there.
        load: what loaded such an item.
        last: the axis along which elements of such a memory lie side by side; of an item, of the memory that it was loaded from,
            or that its largest argument was.
        wide: bytes of an element of that memory.
        multiplied: a matmul made it, or what it was made of element by element.
    """

    name: str
    dims: tuple[Axis, ...]
    dtype: DType
    raw: bool = False
    load: LoadedItem | None = None
    last: Axis | None = None
    wide: int = 4
    multiplied: bool = False


_Values = dict[str, _Value]
_Lanes = Mapping[Axis, int]


@dataclass
class _Walk:
    counted: Traffic
    sizes: Mapping[str, int]
    top: LoopWork
    guards: Mapping[str, GuardedShare] = field(default_factory=dict[str, GuardedShare])
    share: float = 1.0
    memory: LiveBytes = field(default_factory=LiveBytes)
    local: dict[str, SharedBytes] = field(default_factory=dict[str, SharedBytes])
    largest: int = 1
    around: list[tuple[Axis, LoopWork]] = field(default_factory=list[tuple[Axis, "LoopWork"]])
    inside: list[Map] = field(default_factory=list[Map])
    grid: list[tuple[Axis, int]] = field(default_factory=list[tuple[Axis, int]])

    def graph(
        self,
        graph: Graph,
        types: Types,
        values: _Values,
        scope: Scope,
        lanes: _Lanes,
        region: LoopWork,
        frame: Frame,
    ) -> _Values:
        """Compute the values of `graph`, of these types, its work added to `region` and its blocks held in `frame`."""
        values, passing = dict(values), _passing_of(graph)
        for number, node in enumerate(graph.nodes):
            match node:
                case Map():
                    frame.enter(number, node)
                    sizes = self.loop(node, types, values, scope, lanes, region)
                    frame.leave(number, node, sizes)
                    blocks, made = _multiplied(node), [(name, types[name]) for name in results(node)]
                    values |= {name: _Value(name, t.dims, t.dtype, multiplied=t.dims in blocks) for name, t in made}
                case Buffer():
                    values[node.name] = _Value(node.name, node.dims, node.dtype)
                    self.local[node.name] = frame.buffer(node)
                case Load():
                    values[node.name] = item = self.load(node, types, values[node.memory], lanes, region)
                    frame.made(number, node, {node.name: _held(item)})
                case Store():
                    item = values[node.value]
                    if item.dims:
                        region.stores.append(self.stored(node, item, types[node.memory], lanes))
                    sizes = {node.value: _held(item) if item.raw else self.registers(types[node.value], lanes)}
                    frame.stored(number, node, self.local.get(node.memory), sizes)
                case _:
                    self.operator(node, values, lanes, region)
                    none = {n for n in results(node) if n in passing or (n in values and values[n].raw)}
                    sizes = {n: 0 if n in none else self.registers(types[n], lanes) for n in results(node)}
                    frame.made(number, node, sizes)
                    for name in results(node):
                        values.setdefault(name, _Value(name, types[name].dims, types[name].dtype))
        return values

    def stored(self, node: Store, item: _Value, memory: BlockType, lanes: _Lanes) -> StoredItem:
        """Describe a block that is stored: memory is row-major, so that elements along its last axis lie side by side."""
        count = self.lanes_of(item.dims, lanes)
        if node.memory in self.local or not memory.lists:
            return StoredItem(count, item.dtype)
        beside = prod(lanes[a] for a in node.at[-1].axes if a in item.dims) * item.dtype.bytes
        return StoredItem(count, item.dtype, max(1.0, _SECTOR_BYTES / beside), min(_ACCESS_BYTES, beside))

    def registers(self, kind: BlockType, lanes: _Lanes) -> int:
        """Count the bytes of registers that a computed item takes, all threads together."""
        return _elements(kind.dims, lanes) * max(4, kind.dtype.bytes) if kind.dims else 0

    def fed(self, value: _Value, kind: BlockType, lanes: _Lanes) -> int:
        """Count the bytes of registers of what a loop is given; none of memory."""
        if kind.buffered:
            return 0
        return _held(value) if value.raw else self.registers(kind, lanes)

    def operator(self, node: BlockNode, values: _Values, lanes: _Lanes, region: LoopWork) -> None:
        """Add the work of one operator."""
        match node:
            case Pointwise(name, _, _, dims, dtype):
                self.lanes_of(dims, lanes)
                for axes, cycles in _cycles(node, *[values[a].dims for a in node.args]):
                    region.vectors.append((_elements(axes, lanes), cycles))
                values[name] = self.like(_Value(name, dims, dtype), [values[a] for a in node.args], lanes)
            case Dot():
                self.dot(node, values, lanes, region)
            case Collapse(name, monoid, arg, over):
                item = values[arg]
                rest = tuple(a for a in item.dims if a != over)
                region.vectors.append((self.lanes_of(item.dims, lanes), 1.0 if monoid is Monoid.sum else SELECT))
                region.reductions.append(_reduction(rest, over, item, lanes))
                values[name] = _Value(name, rest, item.dtype.accumulator)
            case Bounded(name, _, _, dims):
                region.vectors.append((self.lanes_of(dims, lanes), 2 * SELECT))
                values[name] = _Value(name, dims, DType.int64)
            case Fill(name, arg, value):
                item = values[arg]
                if item.raw and exactly_equal(value, 0.0):
                    values[name] = item
                else:
                    if item.dims:
                        region.vectors.append((self.lanes_of(item.dims, lanes), SELECT))
                    values[name] = replace(item, name=name, raw=False, load=None)
            case Prefix():
                # As many steps as the block's length has digits, each over all of it; and its whole.
                count, steps = self.lanes_of(node.dims, lanes), max(1.0, log2(lanes[node.over]))
                region.vectors.append((count, steps * sum(map(operations, node.merge.parts))))
                for name, total, arg, dtype in zip(node.names, node.totals, node.args, node.dtypes, strict=True):
                    region.reductions.append(_reduction(node.rows, node.over, values[arg], lanes))
                    values[name] = self.like(_Value(name, node.dims, dtype), [values[arg]], lanes)
                    values[total] = _Value(total, node.rows, dtype)
            case Rank():
                # The first that is left, as often as there are ranks: keys are of 64 bits, compared and selected in halves.
                count = self.lanes_of(values[node.arg].dims, lanes)
                region.vectors.append((count, 4 * SELECT * node.count))
                region.reductions += [
                    BlockReduction(_elements(node.dims, lanes), 1 if node.over is None else lanes[node.over])
                ] * node.count
                values |= {n: _Value(n, node.dims, node.dtype) for n in results(node)}
            case _:
                same = copied(node)
                values |= {} if same is None else dict.fromkeys(results(node), values[same])

    def like(self, made: _Value, args: Sequence[_Value], lanes: _Lanes) -> _Value:
        """Return `made` of `args`, its elements among threads as those of the largest argument that was loaded are."""
        made = replace(made, multiplied=any(arg.multiplied and arg.dims == made.dims for arg in args))
        loaded = [arg for arg in args if arg.last is not None]
        if not loaded:
            return made
        largest = max(loaded, key=lambda arg: _elements(arg.dims, lanes))
        return replace(made, last=largest.last, wide=largest.wide)

    def dot(self, node: Dot, values: _Values, lanes: _Lanes, region: LoopWork) -> None:
        """Add a matmul of blocks, or of a block and a vector, which is a sum."""
        left, right = values[node.left], values[node.right]
        values[node.name] = _Value(node.name, node.dims, node.dtype.accumulator)
        if len(node.dims) < 2:
            count = self.lanes_of((*node.dims, node.over), lanes)
            region.vectors.append((count, 2.0))
            block = self.like(_Value(node.name, (*node.dims, node.over), node.dtype), [left, right], lanes)
            region.reductions.append(_reduction(node.dims, node.over, block, lanes))
            return
        first, second = (left, right) if node.dims[0] in left.dims else (right, left)
        dtype = multiplied(left.dtype, right.dtype)[0]
        rows, columns = node.dims[:2]
        self.lanes_of(node.dims, lanes)
        for side in (first, second):
            if not side.raw and dtype.bytes < 4:
                region.vectors.append((self.lanes_of(side.dims, lanes), CONVERT))
        # No table of GPUs has rates of tf32. Of products of 8 bits a unit adds up few by itself.
        if node.acc is not None and (added_apart(dtype, tf32=False) or dtype.is_kept):
            region.vectors.append((_elements(node.dims, lanes), 1.0))
        made = [0 if side.raw else _elements(side.dims, lanes) * dtype.bytes for side in (first, second)]
        region.matmuls.append(
            Matmul(
                lanes[rows],
                lanes[columns],
                lanes[node.over],
                dtype,
                (made[0], made[1]),
                (first.load, second.load),
                (first.raw and first.dims[0] != rows, second.raw and second.dims[0] != node.over),
            )
        )

    def loop(
        self, node: Map, types: Mapping[str, BlockType], values: _Values, scope: Scope, lanes: _Lanes, region: LoopWork
    ) -> dict[str, int]:
        """Walk a map; registers of its results."""
        state = node.state
        components = () if state is None else state.components
        inside = scope.inside(node)
        inner_lanes = {**lanes, node.axis: self.room(node, inside)}
        inlined = node.place is Place.grid or node.runs_once
        if node.place is Place.grid:
            self.grid.append((node.axis, blocks_of(node, self.sizes)))
        own, guard, share = region, self.guards.get(node.name, ALL_BUSY), self.share
        self.share *= guard.share
        if not inlined:
            # A loop that is told beforehand has only the busy iterations.
            told = self.share if guard.beforehand else share
            own = LoopWork(
                loop=True,
                runs=told * self.counted.runs.get(node.name, 0) / self.counted.iterations,
                entries=region.runs,
                together=node.demands.unroll,
                pipelined=node.demands.pipelined,
                axis=node.axis,
                part=node.range.part,
                busy=1.0 if guard.beforehand else guard.share,
            )
            region.inner.append(own)
            self.around.append((node.axis, own))
        known = infer(node.body, body_types(node, types), inside)
        held = {c.name: _elements(c.dims, inner_lanes) * max(4, c.dtype.bytes) if c.dims else 0 for c in components}
        before = self.memory.peak
        if not inlined:
            fed = sum(self.fed(values[f.outer], types[f.outer], lanes) for f in node.inputs)
            own.across, self.memory.peak = max(0, self.memory.held - fed), self.memory.held
        frame = LoopFrame(self.memory, node, held)
        during = frame.body()
        self.inside.append(node)
        fed = {f.inner: values[f.outer] for f in node.inputs}
        after, start = None, {c.name: _Value(c.name, c.dims, c.dtype.accumulator) for c in components}
        fed |= {} if state is None else {inner: start[name] for name, inner in state.shown}
        body = self.graph(node.body, known, fed, inside, inner_lanes, own, during)
        if state is not None:
            after = frame.update(during)
            names = state.update.inputs[len(components) :]
            feeds = {n: body[f] for n, f in zip(names, state.feeds, strict=True)}
            types = infer(state.update, update_types(state, known), inside)
            self.graph(state.update, types, {**start, **feeds}, inside, inner_lanes, own, after)
        frame.end(during, after)
        self.share = share
        self.inside.pop()
        if not inlined:
            self.around.pop()
            own.held, self.memory.peak = self.memory.peak, max(before, self.memory.peak)
        last = None
        if state is not None:
            last = frame.finish()
            types = infer(state.finish, {c.name: BlockType((), c.dims, c.dtype) for c in components}, scope)
            self.graph(state.finish, types, dict(start), scope, lanes, region, last)
        return frame.results(last)

    def load(self, node: Load, types: Types, memory: _Value, lanes: _Lanes, region: LoopWork) -> _Value:
        """Add a load of a block; one that does not move with a loop around is loaded once, before it."""
        if not memory.raw or not node.dims:
            return replace(memory, dims=node.dims, last=None)
        matmuls, others, within = _uses(self.inside[-1], node.name)
        count = self.lanes_of(node.dims, lanes)
        along = moving(node, self.inside)
        home = next((r for axis, r in reversed(self.around) if axis in along), self.top)
        within = within or home is not region
        last = next(s for s, axis in zip(node.at, types[node.memory].lists, strict=True) if axis == memory.last)
        beside = prod(lanes[a] for a in last.axes if a in node.dims)
        spread = max(1.0, _SECTOR_BYTES / (beside * node.dtype.bytes))
        assert memory.last is not None
        row = memory.last.space.size(self.sizes) if len(types[node.memory].lists) > 1 else _ACCESS_BYTES
        width = max(node.dtype.bytes, gcd(_ACCESS_BYTES, min(row, beside) * node.dtype.bytes, row * node.dtype.bytes))
        reading = (decided_by(node, self.inside), part_of(node))
        load = LoadedItem(memory.name, count, node.dtype, matmuls, others, within, spread, width, *reading)
        home.loads.append(load)
        if others:
            home.vectors.append((count, CONVERT if node.dtype.bytes < 4 else 0.0))
        side = next((axis for axis in last.axes if axis in node.dims), None)
        return replace(memory, dims=node.dims, load=load, last=side, wide=node.dtype.bytes)

    def room(self, node: Map, scope: Scope) -> int:
        """Return the lanes of a block of `node`, which `scope` has beside those around it."""
        room = room_of(node, scope.maps)
        assert room is not None, node
        return room if isinstance(room, int) else room.of(self.sizes)

    def lanes_of(self, dims: Sequence[Axis], lanes: _Lanes) -> int:
        """Count the lanes of a block, which may be the largest."""
        count = _elements(dims, lanes)
        self.largest = max(self.largest, count)
        return count


def _multiplied(node: Map) -> frozenset[tuple[Axis, ...]]:
    """Return the axes of blocks that matmuls in `node` make."""
    return frozenset(each.dims for each in every((node,)) if isinstance(each, Dot) and len(each.dims) > 1)


def _reduction(results: Sequence[Axis], over: Axis, item: _Value, lanes: _Lanes) -> BlockReduction:
    """Describe the reduction of `item` over `over`."""
    beside = 1 if item.last is None or item.last not in results else lanes[item.last]
    return BlockReduction(_elements(results, lanes), lanes[over], beside, item.wide, item.multiplied)


def _passing(graph: Graph) -> frozenset[str]:
    """Return the values that no thread has all its elements of at once, where nothing is multiplied in blocks.

    Compilers go through chains of elementwise work one element after the other, and add up each as it comes. All elements of
    a value must be there only if an operator reads it beside what a reduction has made of it.
    """
    if any(isinstance(node, Dot) and len(node.dims) > 1 for node in every(graph.nodes)):
        return frozenset()
    behind: dict[str, frozenset[str]] = {}  # what a value depends on, and of that what came through a reduction
    reduced: dict[str, frozenset[str]] = {}
    whole = set(graph.outputs)
    for node in graph.nodes:
        read = operands(node)
        deep = frozenset[str]().union(*(reduced.get(name, frozenset()) for name in read))
        whole.update(name for name in read if name in deep or not isinstance(node, Pointwise | Fill | Collapse))
        reach = frozenset(read).union(*(behind.get(name, frozenset()) for name in read))
        for name in results(node):
            behind[name], reduced[name] = reach, reach if isinstance(node, Collapse) else deep
    return frozenset(n.name for n in graph.nodes if isinstance(n, Pointwise | Fill)) - whole


def _cycles_of(node: Pointwise, *args: tuple[Axis, ...]) -> list[tuple[frozenset[Axis], float]]:
    """List what `node` does to arguments with axes `args`."""
    return cycles_of(node.expr, args)


_cycles, _passing_of = ByIdentity(_cycles_of), ByIdentity(_passing)


def _held(item: _Value) -> int:
    """Count the bytes of registers of an item that was loaded: what products alone read stays in shared memory."""
    load = item.load
    if load is None or not load.others:
        return 0
    return load.bytes if load.matmuls else load.elements * max(4, load.dtype.bytes)


def _uses(node: Map, name: str) -> tuple[bool, bool, bool]:
    """Tell whether what `node`'s body loads as `name` is read by matmuls of blocks, by other code, and inside inner loops."""
    matmuls, others, within = _read(node.body, name)
    if node.state is not None:
        names = node.state.update.inputs[len(node.state.components) :]
        for inner, fed in zip(names, node.state.feeds, strict=True):
            for alias in _aliases(node.body, name):
                if fed == alias:
                    p, o, w = _read(node.state.update, inner)
                    matmuls, others, within = matmuls or p, others or o, within or w
    return matmuls, others, within


def _aliases(graph: Graph, name: str) -> list[str]:
    """List `name`, and the other names of the same block in `graph`."""
    found = [name]
    for node in graph.nodes:
        if copied(node) in found and not (isinstance(node, Fill) and node.value != 0.0):
            found += results(node)
    return found


def _read(graph: Graph, name: str) -> tuple[bool, bool, bool]:
    matmuls = others = within = False
    names = set(_aliases(graph, name))
    for node in graph.nodes:
        if not names & set(operands(node)):
            continue
        match node:
            case Dot(dims=dims):
                matmuls, others = matmuls or len(dims) == 2, others or len(dims) < 2
            case Map():
                for feed in node.inputs:
                    if feed.outer in names:
                        p, o, w = _uses(node, feed.inner)
                        matmuls, others, within = matmuls or p, others or o, within or w or not node.runs_once
            case _ if names.issuperset(results(node)):
                pass
            case _:
                others = True
    return matmuls, others, within


def _elements(dims: Iterable[Axis], lanes: _Lanes) -> int:
    return prod(lanes[a] for a in dims)
