"""Graphs: operators in order, each printed when something needs its value in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.block.program import (
    BlockNode,
    BlockType,
    Bounded,
    Collapse,
    Dot,
    Extent,
    Fill,
    Graph,
    Index,
    Layout,
    Literal,
    Load,
    Pointwise,
    Stage,
)
from weft.block.scope import Scope as Around
from weft.emit.cpp import nests, places
from weft.emit.cpp.dots import dot, free_axis, stage
from weft.emit.cpp.frame import Frame, part
from weft.emit.cpp.invariant import split
from weft.emit.cpp.plan import Put
from weft.emit.cpp.values import Gather, IndexPlace, ItemMemory, Lazy, ListMemory, Panel, Value, resolved
from weft.emit.ranges import Scope
from weft.errors import InvalidProgramError
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType


class Accumulator(NamedTuple):
    """A matmul goes straight into `memory`; it is added to what is there where the expression `add` is true."""

    memory: ItemMemory
    add: str


@dataclass
class Body:
    """A graph being printed: one iteration of a loop, an update, or the top of a kernel.

    Attributes:
        scope: current blocks of the loops around, in C++.
        around: the same loops as the checker sees them; `types`: of the graph's values.
        values: what each name stands for.
        reductions: those that nothing has needed yet; a nest that is printed anyway computes them too.
        homes: where values will lie in the end, by name.
        memories: the lists in memory, by name.
    """

    frame: Frame
    scope: Scope
    around: Around
    graph: Graph
    types: Mapping[str, BlockType]
    values: dict[str, Value]
    reductions: list[Lazy] = field(default_factory=list[Lazy])
    homes: dict[str, ItemMemory] = field(default_factory=dict[str, ItemMemory])
    memories: dict[str, ListMemory] = field(default_factory=dict[str, ListMemory])

    def operator(self, node: BlockNode, accumulators: Mapping[str, Accumulator]) -> None:
        """Note what `node` computes; print it where it is a matmul or a copy."""
        match node:
            case Pointwise():
                made = split(node, places.in_loops(self.scope, node.dims)[-1:], [self.item(a) for a in node.args])
                made.home = self.homes.get(node.name)
                self.values[node.name] = made
            case Collapse():
                arg = self.item(node.arg)
                lazy = self._lazy(
                    node, (node.arg,), tuple(a for a in arg.dims if a != node.over), arg.dtype.accumulator
                )
                self.reductions.append(lazy)
            case Index():
                self._lazy(node, (), node.dims, DType.int64)
            case Bounded():
                index = self.item(node.arg)
                self.values[node.name] = Lazy(self._place(node.name, node.space), (index,), index.dims, DType.int64)
            case Literal() | Extent():
                self._lazy(node, (), (), node.dtype)
            case Fill():
                # Loops run over valid elements only: nothing reads the others.
                self.values[node.name] = self.values[node.arg]
            case Stage():
                self._stage(node)
            case Dot():
                self._dot(node, accumulators.get(node.name))
            case _:
                raise AssertionError(node)

    def in_memory(
        self, wanted: Mapping[str, tuple[Axis, ...] | None], stores: Sequence[Put] = ()
    ) -> dict[str, ItemMemory]:
        """Return the named items in memory, by name: printed now if they were not; `stores` are done along with them.

        Args:
            wanted: for each name the order of its axes in memory that suits, where it is put there now.
        """
        found: dict[str, ItemMemory] = {}
        todo = list(stores)
        for name, dims in wanted.items():
            value = self.item(name)
            there = _there(value)
            if there is not None:
                found[name] = there
            else:
                assert isinstance(value, Lazy)
                store = places.in_place(self.frame, self.scope, value, dims or places.in_loops(self.scope, value.dims))
                todo.append(store)
                found[name] = store.target
        if todo:
            nests.run(self.frame, self.scope, todo, self.reductions)
            self.reductions.clear()
        return found

    def item(self, name: str) -> ItemMemory | Lazy:
        """Return the value of `name`, which is an item in its own layout."""
        value = self.values[name]
        if isinstance(value, Panel):
            raise InvalidProgramError("only a matmul reads a panel", node=name)
        return value

    def look_up(self, node: Load) -> None:
        """Note what `node` reads where indices say; where one that is none is an error, its place is worked out, and checked,
        by itself.
        """
        frame, memory, kind = self.frame, self.memories[node.memory], self.types[node.memory]
        places: list[Value] = []
        strides, sizes = list[str](), list[str]()
        for subscript, stride, axis in zip(node.at, memory.strides, kind.lists, strict=True):
            if subscript.index is not None:
                index = self.item(node.indices[subscript.index])
                if node.masked:
                    sizes.append(frame.size(axis.space))
                else:
                    index = Lazy(self._place(f"{node.name}_at", axis.space), (index,), index.dims, DType.int64)
                places.append(index)
                strides.append(stride)
        along = tuple(a for s in node.at for a in s.axes if a in node.dims)
        lying = part(frame, memory, node.at, along, self.scope)
        gather = Gather(node.name, lying, tuple(strides), node.location, tuple(sizes))
        self.values[node.name] = Lazy(gather, tuple(places), node.dims, node.dtype)

    def _place(self, name: str, space: Space) -> IndexPlace:
        """Return what makes an integer an index of `space`; that the kernel has such is noted."""
        size = self.frame.size(space)
        self.frame.looked_up[size] = None
        return IndexPlace(name, size)

    def _lazy(
        self,
        node: Collapse | Index | Literal | Extent,
        args: tuple[str, ...],
        dims: tuple[Axis, ...],
        dtype: DType,
    ) -> Lazy:
        lazy = Lazy(node, tuple(self.item(a) for a in args), dims, dtype)
        self.values[node.name] = lazy
        return lazy

    def _stage(self, node: Stage) -> None:
        value = self.item(node.arg)
        if node.layout is Layout.rows and _there(value) is None:
            self.values[node.name] = self.in_memory({node.arg: node.dims})[node.arg]
            return
        source = self.in_memory({node.arg: node.dims})[node.arg]
        self.values[node.name] = stage(self.frame, self.scope, node, source)

    def _dot(self, node: Dot, accumulator: Accumulator | None) -> None:
        right = self.values[node.right]
        wanted: dict[str, tuple[Axis, ...] | None] = {node.left: _with_last(self.item(node.left).dims, node.over)}
        if not isinstance(right, Panel):
            wanted[node.right] = _columns(right, node.over)
        stores: list[Put] = []
        if accumulator is None:
            accumulator = Accumulator(self._accumulator(node), "false" if node.acc is None else "true")
        if node.acc is not None and resolved(self.values[node.acc]) is not accumulator.memory:
            stores.append(Put(accumulator.memory, self.values[node.acc]))
        there = self.in_memory(wanted, stores)
        operand = right if isinstance(right, Panel) else there[node.right]
        dot(self.frame, self.scope, node, there[node.left], operand, accumulator.memory, accumulator.add)
        self.values[node.name] = accumulator.memory

    def _accumulator(self, node: Dot) -> ItemMemory:
        if node.dims:
            return self.frame.array(node.name, node.dtype.accumulator, node.dims, self.scope)
        return places.variable(self.frame, node.name, node.dtype.accumulator, None)


def _there(value: ItemMemory | Lazy) -> ItemMemory | None:
    """Return the memory where `value` lies in its own element type, if it lies anywhere."""
    if isinstance(value, ItemMemory):
        return value
    found = resolved(value)
    if not isinstance(found, ItemMemory) or frozenset(found.dims) != frozenset(value.dims):
        return None
    return found if found.variable or found.dtype is value.dtype else None


def _columns(right: ItemMemory | Lazy, over: Axis) -> tuple[Axis, ...]:
    """Return the order of axes that suits a matmul's right operand in memory: by rows, but along `over` where it will lie so in
    the end. Either way is read as it lies, and filling it across its home would gather what is a copy along it.
    """
    rest = tuple(a for a in right.dims if a != over)
    home = right.home if isinstance(right, Lazy) else None
    return (over, *rest) if home is None or home.strides.get(over) != "1" else (*rest, over)


def _with_last(dims: tuple[Axis, ...], over: Axis) -> tuple[Axis, ...]:
    free = free_axis(dims, over)
    return (over,) if free is None else (free, over)
