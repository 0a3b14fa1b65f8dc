"""ColumnWriter: a launch as loops over steps, each with what is alive in it (FlashAttention on a Napkin, section 5.3 and figures
26, 27).

In: operations in order, their blocks, a chip. Out: `Column`s and the variables that they use. The rules are those of the
paper's own schedules:

- what moves with a loop comes through shared memory, once for the thread block if all its thread groups read it;
- a matrix unit's left operand that stays, and that nothing else reads, lies where the unit reads it; any other operand is
  brought there
  block by block; the right one wants its columns side by side, and is turned if it has not;
- a result that is reduced, or joins a state that is, goes through shared memory: a unit's registers know no rows. Then each
  thread has a
  row, which it takes in pieces;
- what is computed element by element lies where its operand lay; a state stays in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from math import prod

from weft.block.program import Buffer, Load, Store
from weft.cost.chip import Chip, OnChip
from weft.cost.concrete.blocks import BlockSizes, UnitMatmul, every
from weft.cost.concrete.operations import ColumnLoop, ColumnValue, Operation, made
from weft.cost.concrete.variables import Arrangement, Variable, VariableKind, Variables
from weft.tensor import optable
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Convert, Scalar

_SPECIAL_CYCLES = 8
"""Of a row's column `gpu`: cycles for each special function in it."""


class Engine(Enum):
    """What does the work of a column."""

    matrix = "matrix units"
    vector = "vector units"
    special = "special functions"
    shared = "shared memory"
    device = "device memory"


@dataclass(frozen=True, slots=True)
class ColumnWork:
    """Work of a column in one iteration of its loop.

    Attributes:
        amount: FLOPs of matrix units, multiplications with additions of vectors, results of special functions, bytes.
        dtype: of the operands.
        once: done once for the thread block; else by each thread group.
    """

    unit: Engine
    amount: float
    dtype: DType
    once: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One step.

    Attributes:
        what: for readers.
        loop: the loop whose iteration it is part of; "" outside of all.
        inside: sub-loops around it, as "axis by piece".
        live: numbers of the variables in use.
    """

    what: str
    loop: str
    inside: tuple[str, ...]
    work: tuple[ColumnWork, ...]
    live: tuple[int, ...]


@dataclass(slots=True)
class _Home:
    """Where a value is.

    Attributes:
        variable: that has it as memory has it, or as a unit has it.
        rows: registers that have a piece of it, a row for each thread.
        whole: `variable` has all of it where and as the unit wants it.
    """

    variable: Variable | None = None
    rows: Variable | None = None
    whole: bool = False


@dataclass(slots=True)
class ColumnWriter:
    """Walks operations and writes down columns.

    Attributes:
        known: matmuls of blocks by `id` of their operation.
        computed: the type of all that is computed.
        streams: elements of its loop's block that are loaded at once, by memory; all of them where it says nothing.
        readers: what reads each value, by `id`.
    """

    chip: Chip
    blocks: BlockSizes
    known: Mapping[int, UnitMatmul]
    computed: DType
    sizes: Mapping[str, int]
    streams: Mapping[str, int]
    readers: Mapping[int, Sequence[Operation]]
    allocation: Variables = field(default_factory=Variables)
    columns: list[Column] = field(default_factory=list[Column])
    homes: dict[int, _Home] = field(default_factory=dict[int, _Home])
    waiting: dict[int, Operation] = field(default_factory=dict[int, Operation])
    loops: list[ColumnLoop] = field(default_factory=list[ColumnLoop])

    def walk(self, found: Sequence[Operation | ColumnLoop], kept: Set[int] = frozenset()) -> None:
        """Write down the columns of `found`; the values `kept` stay alive at its end."""
        last: dict[int, int] = {}
        for number, each in enumerate(found):
            last |= dict.fromkeys((id(v) for v in each.inputs), number)
        for number, each in enumerate(found):
            ends = {i for i, at in last.items() if at == number and i not in kept}
            if isinstance(each, ColumnLoop):
                self.loop(each)
            else:
                self.operation(each, ends)
            for value in (*each.inputs, *made(each)):
                if last.get(id(value), -1) <= number and id(value) not in kept:
                    self.drop(value)

    def loop(self, loop: ColumnLoop) -> None:
        """Write down a loop: what does not move with it is there before."""
        loads = [op for op in every(loop.body) if isinstance(op.node, Load)]
        for op in loads:
            assert isinstance(op.node, Load)
            if id(op.reads[0]) not in self.homes and loop.node.axis not in {
                axis for subscript in op.node.at for axis in subscript.axes
            }:
                self.bring(op)
        lasting = {id(op.makes[0]) for op in loads if id(op.makes[0]) in self.homes}
        for before, _ in loop.carried:
            self.homes[id(before)] = self.state(before, loop)
        self.loops.append(loop)
        self.walk(loop.body, lasting | {id(after) for _, after in loop.carried} | set(map(id, loop.inputs)))
        self.loops.pop()
        ended = [self.homes.pop(id(after), _Home()) for _, after in loop.carried]
        for (before, _), home in zip(loop.carried, ended, strict=True):
            self.homes[id(before)] = home
        for op in loads:
            self.drop(op.makes[0])

    def state(self, before: ColumnValue, loop: ColumnLoop) -> _Home:
        """Take the variable of a component: as results of matmuls lie, where nothing but a matmul goes on from it."""
        after = [op for op in self.readers.get(id(before), ()) if op in loop.body]
        product = self.known.get(id(after[0])) if len(after) == 1 and after[0].onto is before else None
        if product is None:
            return _Home(rows=self.row_variable(before, f"{before.name}, a state"))
        kind = VariableKind(product.unit.result, Arrangement.result, self.computed, shape=product.unit.shape)
        sizes, what = self.elements(before.dims), f"{before.name}, a state"
        return _Home(self.allocation.take(kind, sizes, what, _names(before.dims)), whole=True)

    def operation(self, op: Operation, ends: Set[int]) -> None:
        """Write down one operation, after which the values `ends` are not read again."""
        match op.node:
            case Buffer():
                kind = VariableKind(OnChip.shared, Arrangement.memory, self.computed)
                memory, sizes = op.makes[0], self.elements(op.makes[0].dims)
                self.homes[id(memory)] = _Home(self.allocation.take(kind, sizes, memory.name, _names(memory.dims)))
            case Load() if id(op.reads[0]) in self.homes:  # of memory between loops
                self.homes[id(op.makes[0])] = _Home(self.homes[id(op.reads[0])].variable)
            case Load():
                if id(op.makes[0]) not in self.homes:
                    self.waiting[id(op.makes[0])] = op
            case Store() if id(op.reads[0]) in self.homes:
                self.column(
                    f"keep {op.reads[1].name}", (self.copied(self.count(op.reads[1])),), self.pieces(op.reads[1])
                )
            case _ if id(op) in self.known:
                self.product(self.known[id(op)])
            case _ if op.is_work:
                self.row_by_row(op, ends)
            case Store():
                amount = max(prod(self.elements(v.dims)) * v.dtype.bytes for v in op.reads)
                self.column(f"store {op.node.memory}", (ColumnWork(Engine.device, float(amount), self.computed),))
            case _:  # numbers of elements, and of axes: made where they are read
                pass

    # What is loaded.

    def bring(self, op: Operation) -> _Home:
        """Load a block: to where the unit reads it if it is a left operand alone, else to shared memory."""
        node, value = op.node, op.makes[0]
        assert isinstance(node, Load)
        products = [self.known.get(id(each)) for each in self.readers.get(id(value), ())]
        left = [p for p in products if p is not None and p.left is value]
        own = self.blocks.rows in node.dims
        sizes = self.elements(node.dims, node.memory)
        stays = not any(loop.node.axis in subscript.axes for loop in self.loops for subscript in node.at)
        whole = own and stays and 0 < len(left) == len(products) and _is_last(op, left[0].over)
        kind = VariableKind(
            left[0].unit.left if whole else OnChip.shared,
            Arrangement.left if whole else Arrangement.memory,
            node.dtype,
            not own,
        )
        variable = self.allocation.take(kind, sizes, node.memory, _names(node.dims))
        found = self.homes[id(value)] = _Home(variable, whole=whole)
        self.waiting.pop(id(value), None)
        amount = float(prod(self.elements(node.dims)) * node.dtype.bytes)
        self.column(f"load {node.memory}", (ColumnWork(Engine.device, amount, node.dtype, not own),))
        return found

    def home(self, value: ColumnValue) -> _Home:
        """Return where `value` is, loading it where it has waited for that."""
        waiting = self.waiting.get(id(value))
        return self.homes.setdefault(id(value), _Home()) if waiting is None else self.bring(waiting)

    # Matmuls.

    def product(self, product: UnitMatmul) -> None:
        """Write down a matmul: its operands come to the unit block by block, its result goes to its rows."""
        op, unit = product.operation, product.unit
        result, rows, columns = op.makes[0], product.rows, product.columns
        onto = None if op.onto is None else self.homes[id(op.onto)]
        borrowed = [self.operand(product, product.left, Arrangement.left)]
        turned = self.turned(product)
        borrowed += [self.operand(product, product.right, Arrangement.right, turned), turned]
        flops = 2.0 * self.block(rows) * self.block(columns) * self.block(product.over)
        streamed = columns in {loop.node.axis for loop in self.loops}
        part = self.block(columns) if streamed else min(self.block(columns), self.blocks.parts[columns])
        inside = (*self.pieces(), *(() if part == self.block(columns) else (f"{columns} by {part}",)))
        if streamed:
            inside = ()
        multiplied = ColumnWork(Engine.matrix, flops, product.dtype)
        label = f"{result.name} = {product.left.name} x {product.right.name}"
        if onto is not None and onto.whole:
            self.column(label, (multiplied,))
            self.homes[id(result)] = onto
            self.give(*borrowed)
            return
        kind = VariableKind(unit.result, Arrangement.result, self.computed, shape=unit.shape)
        accumulator = self.allocation.take(kind, (unit.rows, unit.columns), result.name)
        self.column(label, (multiplied,), inside)
        self.give(*borrowed)
        sizes, axes = (self.block(rows), part), _names((rows, columns))
        cache = self.allocation.take(self.rows_in_shared, sizes, result.name, axes)
        self.column(f"{result.name} to rows", (self.copied(2 * self.count(result) * self.updates(result)),), inside)
        self.give(accumulator)
        if streamed and onto is None:
            self.homes[id(result)] = _Home(cache)
            return
        if onto is not None:
            added = ColumnWork(Engine.vector, float(self.count(result) * self.updates(result)), self.computed)
            self.column(f"{result.name} is added", (added,), inside)
        self.give(cache)
        self.homes[id(result)] = onto or _Home(rows=self.row_variable(result, result.name))

    @property
    def rows_in_shared(self) -> VariableKind:
        """Say what rows are on their way to a unit, or from it."""
        return VariableKind(OnChip.shared, Arrangement.rows, self.computed)

    def operand(
        self, product: UnitMatmul, value: ColumnValue, side: Arrangement, turned: Variable | None = None
    ) -> Variable | None:
        """Bring a block of an operand to the unit; None where all of it lies there."""
        home, unit = self.home(value), product.unit
        if home.whole and side is Arrangement.left:
            return None
        if home.rows is not None:  # computed row by row: the unit reads it from shared memory
            home.variable = home.variable or self.allocation.take(
                self.rows_in_shared, home.rows.sizes, value.name, home.rows.axes
            )
            self.column(f"{value.name} to shared memory", (self.copied(self.count(value)),), self.pieces(value))
        place = unit.left if side is Arrangement.left else unit.right
        sizes = (unit.rows, unit.depth) if side is Arrangement.left else (unit.depth, unit.columns)
        found = self.allocation.take(VariableKind(place, side, product.dtype, shape=unit.shape), sizes, value.name)
        moved = ColumnWork(Engine.shared, float(self.count(value) * product.dtype.bytes), product.dtype)
        name = value.name if turned is None else f"{value.name}, turned"
        self.column(f"a block of {name}", (moved,), self.pieces(value))
        return found

    def turned(self, product: UnitMatmul) -> Variable | None:
        """Turn a right operand whose columns do not lie side by side, in shared memory; None where they do."""
        value = product.right
        load = next((op for op in self.loaded if op.makes[0] is value), None)
        home = self.home(value)
        if load is None or not _is_last(load, product.over) or home.variable is None:
            return None
        of = home.variable
        found = self.allocation.take(of.kind, of.sizes[::-1], f"{value.name}, turned", of.axes[::-1])
        amount = 2.0 * self.count(value) * value.dtype.bytes
        self.column(f"turn {value.name}", (ColumnWork(Engine.shared, amount, value.dtype, of.kind.shared),))
        return found

    @property
    def loaded(self) -> Iterator[Operation]:
        """The loads among all operations that something reads."""
        return (op for found in self.readers.values() for op in found if isinstance(op.node, Load))

    # Row by row.

    def row_by_row(self, op: Operation, ends: Set[int]) -> None:
        """Write down work on rows: each thread has one, a piece of which it takes at once."""
        result = op.makes[0]
        read = [v for v in op.inputs if v.dims]
        for value in read:
            self.to_rows(value, reduced=op.reduction is not None)
        over = next((v for v in ([op.onto] if op.onto else read) if self.ends_as(v, result, ends)), None)
        if over is not None:
            self.homes[id(result)] = self.homes.pop(id(over))
        else:
            self.homes[id(result)] = _Home(rows=self.row_variable(result, result.name))
        self.column(_said(op), self.counted(op), self.pieces(*read))

    def to_rows(self, value: ColumnValue, *, reduced: bool) -> None:
        """Let each thread have its row of `value`: a piece at once, or what it shares with others where it lies."""
        home = self.home(value)
        if home.rows is not None or home.variable is None or self.blocks.rows not in value.dims:
            return
        if home.whole and home.variable.kind.layout is Arrangement.result and not reduced:
            return  # element by element it does not matter whose registers they are
        if home.whole:
            self.column(f"{value.name} to rows", (self.copied(2 * self.count(value)),))
            home.variable, home.whole = None, False
        home.rows = self.row_variable(value, value.name)
        self.column(f"a piece of {value.name}", (self.copied(self.count(value)),), self.pieces(value))

    def ends_as(self, value: ColumnValue, result: ColumnValue, ends: Set[int]) -> bool:
        """Tell whether `result` may lie where `value` does, which is read for the last time."""
        home = self.homes.get(id(value))
        there = home is not None and (home.rows is not None or home.whole)
        return there and id(value) in ends and value.dims == result.dims

    def counted(self, op: Operation) -> list[ColumnWork]:
        """Count the work of `op` for a thread group in an iteration."""
        node = op.elementwise
        if node is None:
            widest = max(self.count(v) * self.updates(v) for v in (*op.inputs, *op.makes))
            return [ColumnWork(Engine.vector, float(widest), self.computed)]
        special, vector = operations_of(node.expr)
        after = self.readers.get(id(op.makes[0]), ())
        if isinstance(node.expr, Apply) and node.expr.op == "mul" and any(r.onto is op.makes[0] for r in after):
            vector -= 1  # multiplied and added to at once
        own = self.count(op.makes[0]) * self.updates(op.makes[0])
        return [
            ColumnWork(Engine.special, special * own, self.computed),
            ColumnWork(Engine.vector, vector * own, self.computed),
        ]

    # Sizes.

    def block(self, axis: Axis, memory: str = "") -> int:
        """Return the elements of a block of `axis`; of `memory`, those that are loaded at once."""
        found = self.blocks.sizes.get(axis, axis.space.size(self.sizes))
        streamed = any(loop.node.axis == axis for loop in self.loops)
        return min(found, self.streams.get(memory, found)) if streamed else found

    def piece(self, axis: Axis) -> int:
        """Return the elements of `axis` that a thread takes of its row at once."""
        streamed = any(loop.node.axis == axis for loop in self.loops)
        return min(self.block(axis), self.blocks.pieces.get(axis, self.block(axis))) if streamed else self.block(axis)

    def elements(self, dims: Sequence[Axis], memory: str = "") -> tuple[int, ...]:
        """Return the sizes of an item's block."""
        return tuple(self.block(a, memory) for a in dims)

    def count(self, value: ColumnValue) -> int:
        """Count the elements of `value` in an iteration."""
        return prod(self.elements(value.dims))

    def pieces(self, *values: ColumnValue) -> tuple[str, ...]:
        """Return the sub-loops in which work on rows is done: a loop's state is brought up to date piece by piece of its block."""
        own = {loop.node.axis for loop in self.loops[-1:]}
        axes = dict.fromkeys((*own, *(a for v in values for a in v.dims)))
        return tuple(f"{a} by {self.piece(a)}" for a in axes if self.piece(a) < self.block(a))

    def updates(self, value: ColumnValue) -> int:
        """Return how often an iteration makes `value`: once for each piece of the loop's block, if it does not lie along it."""
        axes = [loop.node.axis for loop in self.loops[-1:] if loop.node.axis not in value.dims]
        return prod(self.block(a) // self.piece(a) for a in axes)

    def row_variable(self, value: ColumnValue, what: str) -> Variable:
        """Take registers for a piece of `value`, a row for each thread."""
        sizes = tuple(self.piece(a) for a in value.dims)
        kind = VariableKind(OnChip.registers, Arrangement.rows, self.computed)
        return self.allocation.take(kind, sizes, what, _names(value.dims))

    # Writing down.

    def copied(self, count: float) -> ColumnWork:
        """Return the work of writing so many computed values to shared memory, or of reading them."""
        return ColumnWork(Engine.shared, float(count) * self.computed.bytes, self.computed)

    def column(self, what: str, work: Sequence[ColumnWork], inside: tuple[str, ...] = ()) -> None:
        """Write down a step, with what is alive now."""
        live = tuple(
            i for i, v in enumerate(self.allocation.variables) if any(v is each for each in self.allocation.live)
        )
        loop = self.loops[-1].node.name if self.loops else ""
        self.columns.append(Column(what, loop, inside, tuple(w for w in work if w.amount), live))

    def give(self, *variables: Variable | None) -> None:
        """Let others use these."""
        for variable in variables:
            if variable is not None:
                self.allocation.give(variable)

    def drop(self, value: ColumnValue) -> None:
        """Give back what held `value` alone."""
        home = self.homes.pop(id(value), None)
        held = [v for other in self.homes.values() for v in (other.variable, other.rows)]
        for variable in () if home is None else (home.variable, home.rows):
            if variable is not None and not any(variable is each for each in held):
                self.allocation.give(variable)


def _is_last(op: Operation, axis: Axis) -> bool:
    """Tell whether elements along `axis` lie side by side in the memory that is loaded."""
    assert isinstance(op.node, Load)
    return op.node.at[-1].plain == axis


def _names(dims: Sequence[Axis]) -> tuple[str, ...]:
    return tuple(axis.name for axis in dims)


def _said(op: Operation) -> str:
    """Say what work on rows makes of what."""
    names = ", ".join(v.name for v in op.reads)
    if op.reduction is not None:
        return f"{op.makes[0].name} = {op.reduction.monoid.value} of {names} along {op.reduction.over}"
    if op.elementwise is not None and isinstance(op.elementwise.expr, Apply):
        return f"{op.makes[0].name} = {op.elementwise.expr.op} of {names}"
    return f"{op.makes[0].name} = {names}"


def operations_of(expr: Scalar) -> tuple[float, float]:
    """Count the special functions of `expr` for an element, and the other operations."""
    match expr:
        case Apply(op, inner):
            special, rest = divmod(optable.row(op).gpu, _SPECIAL_CYCLES)
        case Convert(_, part):
            special, rest, inner = 0.0, 1.0, (part,)
        case _:
            return 0.0, 0.0
    parts = [operations_of(each) for each in inner]
    return special + sum(s for s, _ in parts), rest + sum(v for _, v in parts)
