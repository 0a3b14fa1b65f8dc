"""Chips as data: levels of memory, units that compute, and the sizes in which they want their data (Napkin, sections 4 and 5).

A `Chip` holds what its maker publishes, each figure with its source (docs/internals/machines.md), or what was measured
(`weft.cost.chip_file`). `weft.cost.Machine` and `weft.cost.Gpu` are what the models of time read: rates that programs
attain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from weft.tensor.dtypes import DType


class OnChip(Enum):
    """Where a multiprocessor has what it computes with."""

    registers = "registers"
    shared = "shared memory"
    tensor = "tensor memory"


@dataclass(frozen=True, slots=True)
class ChipLevel:
    """One level of memory.

    Attributes:
        name: for reports.
        bytes: of one instance; infinity where its size does not matter.
        instances: of the chip: one for each multiprocessor or core, or one.
        bytes_per_second: that the level below gets from it, all instances together; of cores alone, 0: it feeds the units.
    """

    name: str
    bytes: float
    instances: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """A unit that multiplies blocks, of rows x depth by depth x columns; larger ones by many of these.

    Attributes:
        flops: operations a cycle of one multiprocessor, two for each multiplication with its addition.
        rows, depth, columns: of the least block.
        threads: that ask for one block together: a warp's, or a warpgroup's.
        left, right, result: where it has its operands and its result.
    """

    flops: float
    rows: int
    depth: int
    columns: int
    threads: int
    left: OnChip = OnChip.registers
    right: OnChip = OnChip.registers
    result: OnChip = OnChip.registers

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return rows, depth and columns."""
        return self.rows, self.depth, self.columns


@dataclass(frozen=True, slots=True)
class Chip:
    """One chip, as published or as measured.

    Attributes:
        name: as it is sold.
        multiprocessors: that are enabled; cores of a CPU (of a measured one: threads that PyTorch uses).
        hertz: the clock that `flops` of its matrix units are published at.
        levels: of memory, from registers to what other chips have.
        matrix: its units for blocks, by the type of the operands; no entry where a type has none.
        vector: operations a cycle of one multiprocessor outside of them, by type; two for a multiplication with its addition.
        special: results a cycle of one multiprocessor of exponentials, logarithms, reciprocals and roots; 0: made of others.
        threads, thread_block: threads of a multiprocessor, and of one thread block, at most; 0 of a CPU.
        warp: threads that run in step.
        thread_block_bytes: of shared memory that one thread block can have.
        thread_registers: of 4 bytes, of a thread at most.
        transfer_bytes: in one piece of memory that a transfer between memory and a multiprocessor moves.
        producers: other warps than those that compute may move data: asynchronous copies and barriers between warpgroups.
    """

    name: str
    multiprocessors: int
    hertz: float
    levels: tuple[ChipLevel, ...]
    matrix: Mapping[DType, MatrixUnit]
    vector: Mapping[DType, float]
    special: int
    threads: int = 0
    thread_block: int = 0
    warp: int = 1
    thread_block_bytes: int = 0
    thread_registers: int = 0
    transfer_bytes: int = 64
    producers: bool = False

    def level(self, name: str) -> ChipLevel:
        """Return the level called `name`.

        Raises:
            KeyError: it has none.
        """
        found = {level.name: level for level in self.levels}
        return found[name]

    def unit_of(self, dtype: DType) -> MatrixUnit | None:
        """Return what multiplies blocks of `dtype`: 8-bit floats without a unit of their own are multiplied as half precision."""
        return self.matrix.get(DType.float16 if dtype.is_kept and dtype not in self.matrix else dtype)

    def matrix_flops(self, dtype: DType) -> float:
        """Return the operations a second of the whole chip's matrix units; of its vectors, where they have none for `dtype`."""
        unit = self.unit_of(dtype)
        each = self.vector.get(dtype, self.vector[DType.float32]) if unit is None else unit.flops
        return float(each) * self.multiprocessors * self.hertz
