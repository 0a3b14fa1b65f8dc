"""What Triton kernels can do, by types, operators and loops of a placed program: asked before printing, and to choose schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.block.check import body_types, infer
from weft.block.places import Place
from weft.block.program import BlockNode, BlockProgram, BlockType, Buffer, Dot, Graph, Load, Map, Pointwise, Store
from weft.block.ranges import All
from weft.block.room import reach, room_of
from weft.block.scope import Scope, Types
from weft.block.subscripts import Subscript
from weft.block.typed import typed
from weft.block.walk import maps, results
from weft.emit.calls import grid_chain
from weft.emit.kinds import kind_of, powers_of_integers
from weft.emit.triton import prelude, rankings
from weft.emit.triton.scalar import POWERS_OF_INTEGERS, element
from weft.errors import UnsupportedError
from weft.schedule import KernelNodes
from weft.target import Target
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Convert, parts


def demand_legal(program: BlockProgram, kernel: KernelNodes, target: Target | None = None) -> None:
    """Raise UnsupportedError unless a Triton kernel can do what one launch does.

    What cannot be done: float64; matmuls of integers other than int8, and of items with more than two axes; rankings of bools;
    powers of integers other than squares; loops whose blocks have no known room, or whose number no launcher can count; a list
    that one loop of the kernel makes and another reads, where one of them goes over it block by block; types that `target`
    does not have: float8_e4m3fn before cuda:89.

    Args:
        program: applied (`weft.schedule.apply`).
        kernel: one of `weft.schedule.kernels(program)`.
        target: a GPU; None: any that has the types.
    """
    around = Scope({}, applied=True)
    types = infer(program.graph, dict(program.inputs), around)
    for name in (*kernel.reads, *kernel.writes):
        _demand_type(types[name].dtype, target)
    for node, known in typed(program, kernel.nodes):
        for name in results(node):
            _demand_type(known[name].dtype, target)
        _demand_operator(node, known)
    loops = {m.axis: m for m in maps(Graph((), kernel.nodes, ()))}
    for node in loops.values():
        _demand_lanes(node, loops)
    first = kernel.nodes[0]
    chain = grid_chain(first) if isinstance(first, Map) and first.place is Place.grid else []
    grid = frozenset(m.axis for m in chain)
    lists = {n: _List(grid) for n in kernel.writes if types[n].buffered}
    _Lists(loops).graph(Graph((), kernel.nodes, ()), types, lists, around)


def _demand_type(dtype: DType, target: Target | None) -> None:
    """Raise UnsupportedError where `target` has no such numbers."""
    element(dtype)
    nvidia = target is not None and target.kind == "cuda"
    if dtype is DType.float8_e4m3fn and nvidia and not prelude.converts_to_e4m3(target):
        raise UnsupportedError(
            f"{target} has no {dtype}: it came with compute capability 8.9",
            todo=f"keep the tensor in {DType.float8_e5m2} or a type of 16 bits on this GPU",
        )


def _demand_operator(node: BlockNode, types: Types) -> None:
    """Raise UnsupportedError where Triton has no such operator on values of these types."""
    match node:
        case Pointwise():
            powers = powers_of_integers(node.expr, [kind_of(types[a].dtype) for a in node.args])
            for part in parts(node.expr):
                if isinstance(part, Convert):
                    element(part.dtype)
            if not powers <= POWERS_OF_INTEGERS:
                raise UnsupportedError("a power of integers other than a square", where=node.location)
        case Dot():
            _demand_matmul(node, types[node.left], types[node.right])
        case Map():
            for component in () if node.state is None else node.state.components:
                element(component.dtype)
        case _:
            demand = rankings.DEMANDS.get(type(node))
            if demand is not None:
                demand(node)


def _demand_matmul(node: Dot, left: BlockType, right: BlockType) -> None:
    if DType.bool in (left.dtype, right.dtype):
        raise UnsupportedError(f"a matmul of {left.dtype} and {right.dtype}", where=node.location)
    if min(len(left.dims), len(right.dims)) == 1:  # a sum
        return
    if max(len(left.dims), len(right.dims)) > 2:
        raise UnsupportedError(f"a matmul of items with axes {left.dims} and {right.dims}: blocks are supported")
    if not (left.dtype.is_float and right.dtype.is_float) and not left.dtype is right.dtype is DType.int8:
        raise UnsupportedError(
            f"a matmul of blocks of {left.dtype} and {right.dtype}: matrix units multiply floats, and int8 by int8",
            where=node.location,
        )


# Loops.


def _demand_lanes(node: Map, loops: Mapping[Axis, Map]) -> None:
    """Raise UnsupportedError where no constant holds a block of `node`, or a launcher cannot count its blocks."""
    if node.place is Place.grid and not node.range.one_block:
        most = reach(node, loops)
        if most is None or (isinstance(most, Space) and most != node.axis.space):
            raise UnsupportedError(
                f"loop {node.name!r} on the grid covers a part of its space: its blocks cannot be counted"
            )
    if room_of(node, loops) is None:
        raise UnsupportedError(
            f"loop {node.name!r} covers a part of its space at once: no constant is known to hold it"
        )


# Lists between loops: registers hold those that one iteration makes, whole.


@dataclass(slots=True)
class _List:
    """A list that the kernel makes.

    Attributes:
        around: axes of the loops around those that make it.
        at: where its item was stored; None before.
        dims: the item's axes, where it is in registers whole; None where it is not.
    """

    around: frozenset[Axis]
    at: tuple[Subscript, ...] | None = None
    dims: tuple[Axis, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Lists:
    """Walks a kernel as it runs, and sees what it stores and loads again."""

    loops: Mapping[Axis, Map]

    def graph(self, graph: Graph, types: Types, lists: dict[str, _List], scope: Scope) -> None:
        """Walk a graph, given the lists that it sees by name: stores come after all else."""
        for node in graph.nodes:
            match node:
                case Map():
                    self.map(node, types, lists, scope)
                case Buffer(name):
                    lists[name] = _List(frozenset(scope.maps))
                case Load() if node.memory in lists:
                    self.load(lists[node.memory], node, scope)
                case _:
                    pass
        for node in graph.nodes:
            if isinstance(node, Store) and node.memory in lists:
                self.store(lists[node.memory], node, types[node.value].dims, scope)

    def map(self, node: Map, types: Types, lists: Mapping[str, _List], scope: Scope) -> None:
        """Walk an iteration of `node`."""
        inside = scope.inside(node)
        body = infer(node.body, body_types(node, types), inside)
        self.graph(node.body, body, {f.inner: lists[f.outer] for f in node.inputs if f.outer in lists}, inside)

    def store(self, made: _List, node: Store, dims: tuple[Axis, ...], scope: Scope) -> None:
        """Keep what is stored in registers if one iteration makes all of the list."""
        once = made.at is None and all(n.runs_once for a, n in scope.maps.items() if a not in made.around)
        made.at, made.dims = node.at, dims if once else None

    def load(self, made: _List, node: Load, scope: Scope) -> None:
        """Raise UnsupportedError where the list is not in registers, or read block by block."""
        if made.at is None or made.dims is None:
            raise UnsupportedError(f"list {node.memory!r} would have to stay in a Triton kernel between two loops")
        for stored, read in zip(made.at, node.at, strict=True):
            one, other = stored.plain, read.plain
            if one is None or other is None or not self.alike(one, other, made, made.dims, scope):
                loop = self.loops[next(iter(read.axes))].name
                raise UnsupportedError(
                    f"list {node.memory!r} would have to stay in a Triton kernel where loop {loop!r} goes over it block by block"
                )

    def alike(self, made: Axis, read: Axis, held: _List, dims: tuple[Axis, ...], scope: Scope) -> bool:
        """Tell whether the block of `read` is that of `made`, whose lanes a list with axes `dims` has in registers."""
        if made == read:
            return True
        node = scope.maps[read]
        one = self.loops[made]
        same = made not in dims or (one.runs_once and room_of(one, self.loops) == room_of(node, self.loops))
        return read not in held.around and node.runs_once and node.range == All() and same
