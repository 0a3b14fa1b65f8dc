"""A concrete schedule of one launch on one chip: its configuration table, what fits, and the cycles of its units (A.5.2, A.5.3).

In: a launch of an applied program, sizes, a `Chip`, and the blocks that the caller wants. Out: a `ConcreteSchedule`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf

from weft.cost.chip import Chip, OnChip
from weft.cost.concrete.blocks import BlockSizes, blocks, every, products
from weft.cost.concrete.columns import Column, ColumnWriter, Engine
from weft.cost.concrete.operations import Operation, Operations
from weft.cost.concrete.variables import Variable
from weft.errors import UnsupportedError
from weft.schedule import KernelNodes
from weft.tensor.dtypes import DType


@dataclass(frozen=True, slots=True)
class ConcreteSchedule:
    """A launch as loops over columns.

    Attributes:
        columns: in order.
        variables: in order of appearance; those of the thread block are there once, the others for each thread group.
        blocks: sizes, and what they are multiples of.
        groups: thread groups that compute, of `blocks.group` threads: as many as registers, shared memory and threads allow.
        producers: thread groups left over that move data for them.
    """

    chip: Chip
    columns: tuple[Column, ...]
    variables: tuple[Variable, ...]
    blocks: BlockSizes
    groups: int
    producers: int

    @property
    def group_name(self) -> str:
        """Say what a thread group is called."""
        size, warp = self.blocks.group, self.chip.warp
        return {warp: "warp", 4 * warp: "warpgroup"}.get(size, f"group of {size} threads")

    @property
    def loops(self) -> tuple[str, ...]:
        """Names of the loops that have columns, in order; "" for what is outside of all."""
        return tuple(dict.fromkeys(column.loop for column in self.columns))

    def bytes(self, memory: OnChip, *, shared: bool = False) -> int:
        """Return the bytes of a thread group's variables in `memory`; with `shared`, of those that all groups share."""
        return sum(v.bytes for v in self.variables if v.kind.memory is memory and v.kind.shared is shared)

    def fits(self, memory: OnChip) -> float:
        """Return how many thread groups `memory` has room for, in full and parts."""
        return _fits(self.chip, self.variables, memory)

    def cycles(self, loop: str) -> Mapping[Engine, float]:
        """Return the cycles that an iteration of `loop` keeps each unit of a multiprocessor busy, all thread groups together.

        The paper counts matrix units, exponentials, and multiplications with additions of rows; shared memory it leaves out.
        """
        found: dict[Engine, float] = {}
        for column in self.columns:
            for unit, cycles in self.column_cycles(column).items() if column.loop == loop else ():
                found[unit] = found.get(unit, 0.0) + cycles
        return found

    def column_cycles(self, column: Column) -> Mapping[Engine, float]:
        """Return those of one column of an iteration."""
        found: dict[Engine, float] = {}
        for work in column.work:
            if work.unit is not Engine.device:
                amount = work.amount * (1 if work.once else self.groups)
                found[work.unit] = found.get(work.unit, 0.0) + amount / self.rate(work.unit, work.dtype)
        return found

    def rate(self, unit: Engine, dtype: DType) -> float:
        """Return what `unit` of one multiprocessor does in a cycle: FLOPs of blocks, operations, results, or bytes."""
        chip = self.chip
        match unit:
            case Engine.matrix:
                known = chip.unit_of(dtype)
                assert known is not None, "matmuls without a unit are refused before"
                return known.flops
            case Engine.vector:
                return chip.vector.get(dtype, chip.vector[DType.float32]) / 2
            case Engine.special:
                return chip.special
            case Engine.shared | Engine.device:
                level = chip.level(unit.value)
                return level.bytes_per_second / chip.multiprocessors / chip.hertz

    def busiest(self, loop: str, units: Sequence[Engine] = tuple(Engine)) -> float:
        """Return the cycles of an iteration of `loop` where all of `units` work at the same time: those of the busiest.

        Columns of one thread group follow each other, so that needs as many at different places as `pipelines` says.
        """
        return max((c for unit, c in self.cycles(loop).items() if unit in units), default=0.0)

    def pipelines(self, loop: str, units: Sequence[Engine] = tuple(Engine)) -> int:
        """Return how many groups must be at different columns for the busiest of `units` never to wait."""
        found = [c for unit, c in self.cycles(loop).items() if unit in units]
        return ceil(sum(found) / max(found)) if found else 0

    def flops(self, loop: str) -> float:
        """Return the FLOPs of matrix units of one multiprocessor in an iteration of `loop`."""
        work = (w for c in self.columns if c.loop == loop for w in c.work if w.unit is Engine.matrix)
        return self.groups * sum(w.amount for w in work)

    def flops_per_second(self, loop: str, units: Sequence[Engine] = tuple(Engine)) -> float:
        """Return those of one multiprocessor in a second, where `units` work at the same time."""
        return self.flops(loop) / self.busiest(loop, units) * self.chip.hertz

    def moved(self, loop: str) -> float:
        """Return the bytes that one multiprocessor loads and stores in an iteration of `loop`."""
        return sum(self.column_bytes(column) for column in self.columns if column.loop == loop)

    def column_bytes(self, column: Column) -> float:
        """Return those of one column of an iteration."""
        return sum(w.amount * (1 if w.once else self.groups) for w in column.work if w.unit is Engine.device)

    def bandwidth(self, loop: str, units: Sequence[Engine] = tuple(Engine)) -> float:
        """Return the bytes a second that one multiprocessor must get from device memory not to wait for it in `loop`."""
        return self.moved(loop) / self.busiest(loop, units) * self.chip.hertz


def concrete_schedule(
    part: KernelNodes,
    chip: Chip,
    sizes: Mapping[str, int],
    *,
    computed: DType = DType.float32,
    given: Mapping[str, int] | None = None,
    streams: Mapping[str, int] | None = None,
) -> ConcreteSchedule:
    """Derive the concrete schedule of the launch `part` of an applied program on `chip`.

    Args:
        sizes: elements of each space, by name.
        computed: the type of all that the launch computes, states and results of matmuls too.
        given: blocks by the names of loops: of a thread group for loops on the grid, of an iteration for others; the least that
            are allowed for those it does not name.
        streams: elements of its loop's block that are loaded at once, by memory.

    Raises:
        UnsupportedError: an operator has no columns, a block is not allowed, the chip has no thread blocks or no unit for a matmul,
            or nothing fits.
    """
    if not chip.thread_block:
        raise UnsupportedError(f"{chip.name} has no thread blocks")
    listed = Operations()
    found = listed.of(part.nodes, (*part.reads, *part.writes))
    known = products(found, chip, computed)
    sized = blocks(found, listed.groups, known, chip, given or {}, sizes)
    readers: dict[int, list[Operation]] = {}
    for op in every(found):
        for value in op.inputs:
            readers.setdefault(id(value), []).append(op)
    walk = ColumnWriter(chip, sized, known, computed, sizes, streams or {}, readers)
    walk.walk(found)
    variables = tuple(walk.allocation.variables)
    limits = [_fits(chip, variables, memory) for memory in (OnChip.registers, OnChip.shared)]
    most = chip.thread_block // sized.group
    groups = floor(min(*limits, most))
    if groups < 1:
        raise UnsupportedError(f"a thread group's variables do not fit {chip.name}")
    producers = most - groups if chip.producers else 0
    return ConcreteSchedule(chip, tuple(walk.columns), variables, sized, groups, producers)


def _fits(chip: Chip, variables: Sequence[Variable], memory: OnChip) -> float:
    own, shared = (
        sum(v.bytes for v in variables if v.kind.memory is memory and v.kind.shared is each) for each in (False, True)
    )
    room = chip.thread_block_bytes if memory is OnChip.shared else chip.level("registers").bytes
    return (room - shared) / own if own else inf
