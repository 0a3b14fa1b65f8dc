"""What an applied program moves and computes, in closed form: no value is computed, no loop is run.

The iterations of a loop fall into a few classes that are alike (the whole blocks; the one with less
than a block), so that a nest is walked once per combination of classes and multiplied out. What is
counted is defined by `weft.block.interpret`, and equal to what it counts, as long as no loop has more than 128 iterations that
differ by where they begin: of more, neighbours count as the middle one of them (`weft.cost.alike`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias, TypeVar

from weft.block.by_identity import ByIdentity
from weft.block.check import body_types, infer, update_types
from weft.block.places import Place
from weft.block.program import (
    BlockNode,
    BlockProgram,
    BlockType,
    Buffer,
    Dot,
    Final,
    Graph,
    Load,
    Map,
    Pointwise,
    Store,
)
from weft.block.residency import NO_FRAME, Frame, LiveBytes, LoopFrame, NoLoopFrame, SharedBytes
from weft.block.scope import Scope, Types
from weft.block.walk import copied, fed, operands, results, worked_axes
from weft.cost.alike import Numbered, Steps, classes, numbered_axes
from weft.schedule import kernels
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import operations

Counts: TypeAlias = Mapping[str, int]
WorkedBlock: TypeAlias = tuple[str, tuple[int, ...]]
"""A node by name, and the lengths of the blocks that it works on."""
K = TypeVar("K")
_MOST_KERNELS = 128
"""So many walks are kept, with the kernels: those of one region's schedules."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a program, or one kernel of it, moves and does.

    Attributes:
        loaded, stored: bytes by buffered edge: what crosses from a list to an item, and from an
            item to a list; an edge that is loaded twice counts twice.
        operations: how often the node of a name works on blocks of which lengths, in the order of the axes that it runs over
            (`weft.block.walk.worked_axes`), of valid elements.
        runs: iterations of maps, by name, in all.
        starts: by name of the loop, how often its first iteration has a state that has seen nothing.
        flops: floating-point operations by name of the node, over valid elements only: 2 m n k for
            a Dot, one for each scalar operation and element of a Pointwise, one for each element
            that a Collapse or a Rank reads.
        matrix_flops: those of Dots, by the wider type of the two operands.
        lists: bytes of the whole of each edge, each element once.
        shared: the edges that lie in global memory: inputs, outputs and lists between kernels. All
            others are local to one iteration of a grid.
        iterations: of the grid, the unit of parallelism; 1 for a kernel that has none.
    """

    loaded: Counts
    stored: Counts
    operations: Mapping[WorkedBlock, int]
    runs: Counts
    starts: Counts
    flops: Counts
    matrix_flops: Mapping[DType, int]
    lists: Counts
    shared: frozenset[str]
    iterations: int

    @property
    def times(self) -> Counter[str]:
        """Counts how often each node works, by its name."""
        found: Counter[str] = Counter()
        for (name, _), times in self.operations.items():
            found[name] += times
        return found

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
    parts, types = _walked(program, sizes)
    loaded, stored = _summed(p.loaded for p in parts), _summed(p.stored for p in parts)
    for name, kind in program.inputs:
        if not kind.lists:
            loaded[name] += kind.dtype.bytes
    for name in program.graph.outputs:
        if not types[name].lists:
            stored[name] += types[name].dtype.bytes
    return Traffic(
        loaded=loaded,
        stored=stored,
        operations=_summed(p.operations for p in parts),
        runs=_summed(p.runs for p in parts),
        starts=_summed(p.starts for p in parts),
        flops=_summed(p.flops for p in parts),
        matrix_flops=_summed(p.matrix_flops for p in parts),
        lists={name: size for p in parts for name, size in p.lists.items()},
        shared=frozenset(name for name, _ in program.inputs).union(program.graph.outputs, *(p.shared for p in parts)),
        iterations=sum(p.iterations for p in parts),
    )


def by_kernel(program: BlockProgram, sizes: Mapping[str, int]) -> tuple[Traffic, ...]:
    """Count what one run moves and does for each of `weft.schedule.kernels(program)`.

    Inputs, outputs and values between kernels that are a single number are left out here: a kernel
    takes them as arguments.
    """
    return _walked(program, sizes)[0]


# How a nest is walked.


def _walked(program: BlockProgram, sizes: Mapping[str, int]) -> tuple[tuple[Traffic, ...], Types]:
    """Return the traffic of each kernel, and the types of the values at the top."""
    around = Scope({}, applied=True)
    types = infer(program.graph, dict(program.inputs), around)
    lists = {name: prod(a.space.size(sizes) for a in kind.lists) * kind.dtype.bytes for name, kind in program.inputs}
    homes = {inside: home for inside, home in fed(program.graph).items() if inside not in lists and home in lists}
    parts, whole = list[tuple[_Walk, frozenset[str]]](), tuple(sizes.items())
    for kernel in kernels(program):
        names = dict.fromkeys(name for node in kernel.nodes for name in (*operands(node), *results(node)))
        walk = _of_kernel(kernel.nodes, tuple([(name, types[name]) for name in names if name in types]), whole)
        for name, size in walk.stored.items():
            home = homes.get(name, name)
            lists[home] = lists.get(home, 0) + size
        parts.append((walk, frozenset((*kernel.reads, *kernel.writes))))
    return tuple(walk.result(lists, homes, shared) for walk, shared in parts), types


@lru_cache(maxsize=_MOST_KERNELS)
def _of_kernel(
    nodes: tuple[BlockNode, ...], types: tuple[tuple[str, BlockType], ...], sizes: tuple[tuple[str, int], ...]
) -> _Walk:
    """Walk a kernel whose values at the top have `types`, as far as they have any. Schedules of a program share kernels: those that
    differ in one have the others alike, and where iterations differ in thousands of lengths, a walk takes half a second.
    """
    graph = Graph((), nodes, ())
    walk = _Walk(dict(sizes), numbered_axes(graph))
    walk.graph(graph, dict(types), Scope({}, applied=True), {}, 1, NO_FRAME, frozenset())
    walk.settle()
    return walk


def on_chip_bytes(program: BlockProgram, sizes: Mapping[str, int]) -> int:
    """Count the most bytes of items, and of lists of its own, that an iteration of the grid has at once; of kernels the greatest.

    Equal to `on_chip` of what the interpreter observes.

    Args:
        program: with places (a schedule was applied); checked.
        sizes: elements of each space, by name; all at least 1.
    """
    walk, around = _Walk(sizes, numbered_axes(program.graph), on_chip=True), Scope({}, applied=True)
    types = infer(program.graph, dict(program.inputs), around)
    walk.graph(program.graph, types, around, {}, 1, Frame(walk.memory, program.graph, {}), frozenset())
    return walk.memory.peak


_Count: TypeAlias = tuple[str, "str | DType", tuple[Axis, ...], int]
"""What is counted of `_Walk` (by field), under which key, of which item, and how many for each of its elements."""


def _counted(node: BlockNode, types: Types) -> tuple[tuple[Axis, ...], tuple[_Count, ...]]:
    """Return the axes that an operator without a body works on, and what it moves and does."""
    axes, counts = worked_axes(node, lambda name: types[name].dims), list[_Count]()
    match node:
        case Load(memory=memory, dims=dims, dtype=dtype):
            counts.append(("loaded", memory, dims, dtype.bytes))
        case Store(memory=memory, value=item):
            counts.append(("stored", memory, types[item].dims, types[item].dtype.bytes))
        case Pointwise(name, expr, _, dims):
            counts.append(("flops", name, dims, operations(expr)))
        case Dot(name, left, right, over, dims):
            operand = max(types[left].dtype, types[right].dtype, key=lambda d: d.bytes)
            counts += [("flops", name, (*dims, over), 2), ("matrix_flops", operand, (*dims, over), 2)]
        case _ if copied(node) is None:  # a reduction, or an order
            counts += [("flops", node.name, types[first].dims, 1) for first in operands(node)[:1]]
        case _:
            pass
    return axes, tuple(counts)


_work_of = ByIdentity(_counted)


@dataclass(frozen=True, slots=True)
class _Loop:
    """What a loop has in all of its iterations, wherever these are.

    Attributes:
        components: of its state, with their types.
        resumed: what its state begins with, by the names around it; none where that is nothing.
        fed: what is fed to its body, by the name in it and the one around.
        body, update, finish: types of the values of its graphs.
        holds_grid: its body is another map of the grid.
    """

    components: Types
    resumed: tuple[str, ...]
    fed: tuple[tuple[str, str], ...]
    inside: Scope
    body: Types
    update: Types
    finish: Types
    holds_grid: bool

    @staticmethod
    def of(node: Map, types: Types, scope: Scope) -> _Loop:
        """Look at `node` in `scope`, where values have `types`."""
        state, inside = node.state, scope.inside(node)
        body = infer(node.body, body_types(node, types), inside)
        fed, components = tuple((f.inner, f.outer) for f in node.inputs), dict[str, BlockType]()
        update, finish, resumed = dict[str, BlockType](), dict[str, BlockType](), ()
        if state is not None:
            components = {c.name: BlockType((), c.dims, c.dtype) for c in state.components}
            update = infer(state.update, update_types(state, body), inside)
            finish = infer(state.finish, components, scope)
            resumed = tuple(dict(fed)[name] for name in state.resume or ())
        return _Loop(components, resumed, fed, inside, body, update, finish, _is_grid(node.body))


_Alike: TypeAlias = "tuple[int, int, tuple[tuple[int, int], ...], frozenset[str]]"
"""A scope and a graph in it; of the blocks around, how long each is, and where it begins if the graph asks; what is as a loop's
state begins."""


@dataclass(slots=True)
class _Walk:
    """Goes over a program.

    Attributes:
        numbered: axes whose iterations are told apart.
        known: what graphs in loops count in one run, beside what those inside do, and those of their values that are as a loop's
            state begins.
        uses: how often these are run.
        begun: by graph, of which axes it asks where their blocks begin.
        loops: by node, what is the same in all iterations.
    """

    sizes: Mapping[str, int]
    numbered: Numbered
    on_chip: bool = False
    known: dict[_Alike, tuple[_Walk, frozenset[str]]] = field(
        default_factory=dict["_Alike", "tuple[_Walk, frozenset[str]]"]
    )
    uses: Counter[_Alike] = field(default_factory=Counter["_Alike"])
    begun: dict[int, frozenset[Axis]] = field(default_factory=dict[int, frozenset[Axis]])
    loops: dict[int, _Loop] = field(default_factory=dict[int, "_Loop"])
    loaded: Counter[str] = field(default_factory=Counter[str])
    stored: Counter[str] = field(default_factory=Counter[str])
    operations: Counter[WorkedBlock] = field(default_factory=Counter[WorkedBlock])
    runs: Counter[str] = field(default_factory=Counter[str])
    starts: Counter[str] = field(default_factory=Counter[str])
    flops: Counter[str] = field(default_factory=Counter[str])
    matrix_flops: Counter[DType] = field(default_factory=Counter[DType])
    iterations: int = 0
    memory: LiveBytes = field(default_factory=LiveBytes)
    local: dict[str, SharedBytes] = field(default_factory=dict[str, SharedBytes])

    def result(self, lists: Mapping[str, int], homes: Mapping[str, str], shared: frozenset[str]) -> Traffic:
        """Return what was counted, without zeros, for a kernel that shares the edges `shared`; `homes` are the names of edges that
        loops inside call otherwise.
        """
        loaded, stored = _at_home(self.loaded, homes), _at_home(self.stored, homes)
        return Traffic(
            loaded=loaded,
            stored=stored,
            operations=+self.operations,
            runs=+self.runs,
            starts=+self.starts,
            flops=+self.flops,
            matrix_flops=+self.matrix_flops,
            lists={name: lists[name] for name in (*loaded, *stored)},
            shared=shared & frozenset((*loaded, *stored)),
            iterations=max(1, self.iterations),
        )

    def repeated(
        self, graph: Graph, types: Types, scope: Scope, steps: Steps, times: int, frame: Frame, initial: frozenset[str]
    ) -> frozenset[str]:
        """Count what a graph in a loop does, as `graph` does; where iterations are told apart by where they begin, those in which
        it does the same are walked once.

        Lengths of blocks tell all but how long loops inside are, and these ask where few of the blocks around begin.
        """
        if self.on_chip or not self.numbered:
            return self.graph(graph, types, scope, steps, times, frame, initial)
        asked = self.begun.get(id(graph))
        if asked is None:
            asked = self.begun[id(graph)] = frozenset(numbered_axes(graph))
        blocks = tuple([(step.valid, step.base if axis in asked else 0) for axis, step in steps.items()])
        key = id(scope), id(graph), blocks, initial
        found = self.known.get(key)
        if found is None:
            walk = _Walk(self.sizes, self.numbered, known=self.known, begun=self.begun, loops=self.loops)
            left = walk.graph(graph, types, scope, steps, 1, frame, initial)
            found = self.known[key] = walk, left
        self.uses[key] += times
        return found[1]

    def settle(self) -> None:
        """Add what the graphs that were walked once count, as often as they run."""
        uses = self.uses
        for key, (walk, _) in reversed(self.known.items()):  # each is known after those that it uses
            times = uses[key]
            for inner, often in walk.uses.items():
                uses[inner] += times * often
            for own, other in zip(self.counters, walk.counters, strict=True):
                for name, count in other.items():
                    own[name] += times * count
            self.iterations += times * walk.iterations
        for each in (self.known, self.uses, self.begun, self.loops):  # whoever keeps this walk needs the counts alone
            each.clear()

    @property
    def counters(self) -> tuple[Counter[Any], ...]:
        """Return what is counted by name."""
        return (self.loaded, self.stored, self.operations, self.runs, self.starts, self.flops, self.matrix_flops)

    def graph(
        self, graph: Graph, types: Types, scope: Scope, steps: Steps, times: int, frame: Frame, initial: frozenset[str]
    ) -> frozenset[str]:
        """Count what `graph` does, whose values have `types`, where it runs `times` times in this scope.

        Args:
            frame: accounts for its values.
            initial: those of its inputs that a loop's state begins with, unchanged.

        Returns:
            Those of its values that are so too.
        """
        for number, node in enumerate(graph.nodes):
            match node:
                case Map():
                    frame.enter(number, node)
                    held, started = self.loop(node, types, scope, steps, times, initial)
                    frame.leave(number, node, held)
                    initial |= started
                case Buffer():
                    if steps:
                        self.local[node.name] = frame.buffer(node)
                case _:
                    axes, counts = _work_of(node, types)
                    self.operations[node.name, tuple([steps[a].valid for a in axes])] += times
                    for what, key, dims, each in counts:
                        getattr(self, what)[key] += times * each * elements(dims, steps)
                    if self.on_chip:
                        self.held(number, node, types, steps, frame)
        return initial

    def held(self, number: int, node: BlockNode, types: Types, steps: Steps, frame: Frame) -> None:
        """Account in `frame` for the results of an operator, or for what it stores."""
        if isinstance(node, Store):
            size = _bytes(types[node.value], steps)
            frame.stored(number, node, self.local.get(node.memory), {node.value: size})
        else:
            frame.made(number, node, {name: _bytes(types[name], steps) for name in results(node)})

    def loop(
        self, node: Map, types: Types, scope: Scope, steps: Steps, times: int, initial: frozenset[str]
    ) -> tuple[dict[str, int], frozenset[str]]:
        """Count all iterations of a map; returns the bytes of its results, and which of these no iteration has changed."""
        state, loop = node.state, self.loops.get(id(node))
        if loop is None:
            loop = self.loops[id(node)] = _Loop.of(node, types, scope)
        components, inside = loop.components, loop.inside
        first = [name in initial for name in loop.resumed] or [True] * len(components)
        untouched = frozenset([c for c, unchanged in zip(components, first, strict=True) if unchanged])
        frame = (LoopFrame if self.on_chip else NoLoopFrame)(
            self.memory, node, {name: _bytes(kind, steps) for name, kind in components.items()}
        )
        # The most that is on the chip at once may be of a single iteration.
        found = classes(node, steps, self.sizes, self.numbered, exact=self.on_chip)
        alike = [(count, step) for count, step in found if count]
        if alike and components and len(untouched) == len(components):
            self.starts[node.name] += times
        fed = frozenset([inner for inner, outer in loop.fed if outer in initial])
        walked = self.graph if self.numbered.get(node.axis, ()) is None else self.repeated  # none is as another one
        for count, step in alike:
            here, often = {**steps, node.axis: step}, times * count
            self.runs[node.name] += often
            if node.place is Place.grid and not loop.holds_grid:
                self.iterations += often
            with self.memory.repeated(count):
                during = frame.body()
                walked(node.body, loop.body, inside, here, often, during, fed)
                after = None
                if state is not None:
                    after = frame.update(during)
                    self.repeated(state.update, loop.update, inside, here, often, after, untouched)
                    left = zip(components, state.update.outputs, strict=True)
                    untouched = frozenset([c for c, out in left if out in untouched])
                frame.end(during, after)
        last, unchanged = None, frozenset[str]()
        if state is not None:
            last = frame.finish()
            left = self.graph(state.finish, loop.finish, scope, steps, times, last, untouched)
            unchanged = frozenset(o.outer for o in node.outputs if isinstance(o, Final) and o.inner in left)
        return frame.results(last), unchanged


def elements(dims: tuple[Axis, ...], scope: Steps) -> int:
    """Count the valid elements of an item."""
    return prod([scope[a].valid for a in dims])


def _bytes(kind: BlockType, steps: Steps) -> int:
    """Count the bytes of the valid elements of an item."""
    return elements(kind.dims, steps) * kind.dtype.bytes


def _is_grid(body: Graph) -> bool:
    """Tell whether the body is another map of the grid: one iteration there is one here."""
    return any(isinstance(n, Map) and n.place is Place.grid for n in body.nodes)


def _at_home(counted: Mapping[str, int], homes: Mapping[str, str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for name, count in counted.items():
        found[homes.get(name, name)] += count
    return +found


def _summed(parts: Iterable[Mapping[K, int]]) -> Counter[K]:
    total: Counter[K] = Counter()
    for part in parts:
        total.update(part)
    return total
