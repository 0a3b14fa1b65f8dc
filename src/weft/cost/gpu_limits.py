"""What one thread block of a GPU's grid takes of its multiprocessor, and whether it fits: known before anything is compiled."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from math import ceil, prod, sqrt

from weft.block.program import BlockProgram
from weft.block.room import power_of_two
from weft.block.walk import maps
from weft.cost.gpu_regions import LoadedItem, LoopWork, Matmul, ThreadBlockWork
from weft.cost.gpu_work import work_of
from weft.cost.gpus import Gpu
from weft.cost.traffic import by_kernel
from weft.schedule import KernelNodes, LevelPlace, Schedule, kernels

LARGEST_BLOCK = 1 << 20
"""Elements of a block that Triton takes at most."""

MOST_UNROLLED = 8192
"""Instructions, of 16 bytes each, that the cache for them holds; Triton takes minutes to compile more of a matmul."""

_REGISTERS_OF_A_THREAD = 255
# What a kernel needs beside its blocks: pointers, strides, counters, predicates.
_OTHER_REGISTERS = 24
# Threads whose blocks do not fit and that multiply nothing are taken to keep so many registers. Seen in binaries of ptxas 12.8 for
# sm_90, of rows that are added to, squared and scaled, in 2 to 8 warps: at 128 elements a thread 255 registers and 16 to 32 bytes
# spilled, at 256 elements 32 registers and 7,400 to 7,800 bytes. One warp kept 255 at 256 elements (464 bytes): it is priced too
# high.
_KEPT_BESIDE_SPILLS = 32
# Rows of a matmul that a warp has to itself at least.
_ROWS_OF_A_WARP = 16
# Registers of operands of a matmul on vector units, for each one of its results: seen in the binaries of many blocks.
_OPERANDS_HELD = 2.5
# Thread blocks of a multiprocessor at most (CUDA Programming Guide 13, table of compute capabilities).
_MOST_RESIDENT = 32
# Of addresses and operands, which can be made and read again, the share that a thread keeps where registers are short: seen in the
# binaries of many blocks.
_USEFUL_KEPT = 0.5
# Operands of a warp's own unit are read this deep at once.
_DEPTH_HELD = 32
# Bytes a thread of a block that changes its layout at once: a larger one goes in pieces.
_PIECE_BYTES = 128
# Blocks that want more registers than this many times what a thread can have are not worth compiling.
_FAR_BEYOND = 3.0
# Bytes of shared memory that the hardware keeps for each thread block.
_RESERVED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Resources:
    """What a launch takes.

    Attributes:
        thread_blocks: of its grid.
        threads: of a thread block.
        shared_bytes: of shared memory of a thread block: operands of matmuls, once for each block in flight, and
            what changes its layout.
        registers: of a thread, as many as are of use; spilled: those that it needs and cannot have.
        resident: thread blocks that a multiprocessor holds at once.
        waves: rounds in which the grid runs; last_wave: how full the last one is, in (0, 1].
        largest_block: elements of the largest block, padding included.
        unrolled: instructions of a thread for one matmul of blocks on vector units, which has no loop.
    """

    thread_blocks: int
    threads: int
    shared_bytes: int
    registers: int
    spilled: int
    resident: int
    waves: int
    last_wave: float
    largest_block: int
    unrolled: int


def resources(
    applied: BlockProgram, part: KernelNodes, sizes: Mapping[str, int], gpu: Gpu, warps: int = 4, stages: int = 1
) -> Resources:
    """Estimates what the launch `part` of `applied` takes as a Triton kernel on `gpu`.

    Args:
        applied: with places (a schedule was applied).
        part: one of `weft.schedule.kernels(applied)`.
        sizes: elements of each space, by name; all at least 1.
        warps, stages: of the schedule.
    """
    counted = by_kernel(applied, sizes)[kernels(applied).index(part)]
    return resources_of(work_of(applied, part, counted, sizes), gpu, warps, stages)


def resources_of(work: ThreadBlockWork, gpu: Gpu, warps: int, stages: int) -> Resources:
    """Estimates what a launch takes, from what its thread block is known to do."""
    threads = warps * gpu.warp
    shared = shared_bytes(work.body, gpu, warps, stages)
    registers, needed = _registers(work, gpu, warps, stages)
    given = min(registers, _REGISTERS_OF_A_THREAD)
    resident = min(
        gpu.threads // threads,
        _MOST_RESIDENT,
        gpu.registers // (8 * ceil(given / 8) * threads),
        gpu.shared_bytes // (shared + _RESERVED_BYTES),
    )
    places = max(1, resident) * gpu.multiprocessors
    waves = ceil(work.thread_blocks / places)
    return Resources(
        thread_blocks=work.thread_blocks,
        threads=threads,
        shared_bytes=shared,
        registers=registers,
        spilled=_spilled(needed, multiplies=any(r.matmuls for r in work.body.all())),
        resident=max(1, resident),
        waves=waves,
        last_wave=(work.thread_blocks - (waves - 1) * places) / places,
        largest_block=work.largest,
        unrolled=max((_unrolled(p, gpu, warps) for r in work.body.all() for p in r.matmuls), default=0),
    )


def unfit(found: Resources, gpu: Gpu) -> str | None:
    """Says why a launch that takes this does not fit `gpu`; None where it does."""
    if found.shared_bytes > gpu.thread_block_bytes:
        return f"{found.shared_bytes} bytes of shared memory, where a thread block of {gpu.name} has {gpu.thread_block_bytes}"
    registers = unfit_registers(found.registers)
    if registers is not None:
        return registers
    if found.largest_block > LARGEST_BLOCK:
        return f"a block of {found.largest_block} elements, where Triton takes {LARGEST_BLOCK}"
    if found.unrolled > MOST_UNROLLED:
        return f"{found.unrolled} instructions in a row for a matmul on vector units, where {MOST_UNROLLED} are kept on chip"
    return None


def excess(found: Resources, gpu: Gpu) -> float:
    """Returns what a launch takes as a share of what `gpu` has, of what it is shortest of: above 1 where `unfit` says why."""
    return max(
        found.shared_bytes / gpu.thread_block_bytes,
        found.registers / (_FAR_BEYOND * _REGISTERS_OF_A_THREAD),
        found.largest_block / LARGEST_BLOCK,
        found.unrolled / MOST_UNROLLED,
    )


def least_registers(program: BlockProgram, schedule: Schedule, sizes: Mapping[str, int], gpu: Gpu, warps: int) -> int:
    """Bounds from below the registers of a thread, by `resources`, of a program without places: those that a loop's state takes.

    Args:
        program: without places.
        schedule: that would be applied.
        sizes: elements of each space, by name.
        warps: of a thread block.
    """
    last = {node.axis: (schedule.of(node.name).levels[-1], node.axis.space.size(sizes)) for node in maps(program.graph)}
    lanes = {
        axis: power_of_two(length if level.place is LevelPlace.whole else min(level.size, length))
        for axis, (level, length) in last.items()
    }
    held = (
        prod(lanes[axis] for axis in component.dims) * max(4, component.dtype.bytes)
        for node in maps(program.graph)
        if node.state is not None and last[node.axis][0].place is LevelPlace.loop
        for component in node.state.components
        if component.dims
    )
    return ceil(max(held, default=0) / 4 / (warps * gpu.warp)) + _OTHER_REGISTERS


def unfit_registers(registers: int, times: float = 1.0) -> str | None:
    """Says why a launch whose threads want so many registers does not fit, by so many times; None where it may."""
    if registers > times * _FAR_BEYOND * _REGISTERS_OF_A_THREAD:
        return f"{registers} registers in each thread, which has {_REGISTERS_OF_A_THREAD}"
    return None


def pipelined(region: LoopWork, stages: int) -> bool:
    """Tells whether the compiler has several iterations of the loop in flight: one that multiplies blocks it loads."""
    return region.pipelined and stages > 1 and any(load.matmuls for load in region.loads)


def copied_ahead(region: LoopWork, gpu: Gpu, stages: int) -> bool:
    """Tells whether the compiler has several iterations in flight of a loop that loads and multiplies no blocks."""
    lone = gpu.copies_ahead and region.pipelined
    return lone and stages > 1 and bool(region.loads) and not any(load.matmuls for load in region.loads)


def is_staged(body: LoopWork) -> bool:
    """Tells whether a launch's stages may matter: it has a loop for a pipeline, or operands that loops inside read."""
    return any(r.pipelined or any(load.matmuls and load.within for load in r.loads) for r in body.all())


class Unit(Enum):
    """What multiplies blocks: what four warps share, which reads shared memory by itself; each warp's own; or the vector units."""

    warpgroup = "warpgroup"
    warp = "warp"
    vector = "vector"


def unit_of(matmul: Matmul, gpu: Gpu, warps: int) -> Unit:
    """Returns the unit that a matmul of blocks runs on."""
    if matmul.dtype not in gpu.flops:
        return Unit.vector
    return Unit.warpgroup if gpu.warpgroups and warps % 4 == 0 and matmul.rows >= 64 else Unit.warp


def shared_bytes(region: LoopWork, gpu: Gpu, warps: int, stages: int) -> int:
    """Counts the bytes of shared memory that `region` and what it holds need at once."""
    made = max((_passed(p, gpu, warps) for p in region.matmuls), default=0)
    stored = _stored(region, gpu, warps)
    if pipelined(region, stages):
        units = {unit_of(p, gpu, warps) for p in region.matmuls}
        operands = [load for load in region.loads if load.matmuls]
        kept = [load for load in operands if not (load.others and gpu.operands_in_registers)]
        passing = max((load.bytes for load in operands if load not in kept), default=0)
        # What operands are computed of is asked for as early as operands that are loaded.
        others = 0 if gpu.operands_in_registers else sum(load.bytes for load in region.loads if not load.matmuls)
        ahead = sum(load.bytes * _buffers(load, units, gpu, stages) for load in kept) + others * (stages - 1)
        return ahead + max(passing, made, stored)
    if copied_ahead(region, gpu, stages):
        return max((stages - 1) * sum(load.bytes for load in region.loads), stored)
    units = {unit_of(p, gpu, warps) for r in region.all() for p in r.matmuls}
    own = gpu.operands_in_registers or (stages == 1 and units == {Unit.warp})
    # Loops that go through parts of one range load the same block, which is there once.
    within = {(load.name, load.elements): load.bytes for load in region.loads if load.matmuls and load.within}
    lasting = 0 if own else sum(within.values())
    passing = max((_arriving(p, gpu, warps) for p in region.matmuls), default=0)
    inner = max((shared_bytes(r, gpu, warps, stages) for r in region.inner), default=0)
    # What a thread block stores at its end comes after all that its loops needed.
    return max(lasting + max(passing + made, inner), stored + (lasting if region.loop else 0))


def _buffers(load: LoadedItem, units: Collection[Unit], gpu: Gpu, stages: int) -> int:
    """Counts the blocks of a load that are there at once: one more where the unit still reads what the next iteration replaces."""
    return stages if Unit.warpgroup in units and (gpu.tensor_memory or not load.others) else stages - 1


def _arriving(matmul: Matmul, gpu: Gpu, warps: int) -> int:
    """Counts the bytes of operands that are loaded for one matmul alone; to the warps' own units some go in pieces."""
    pairs = zip(matmul.loaded, matmul.turned, strict=True)
    operands = [(o.bytes, turned or o.others) for o, turned in pairs if o is not None and not o.within]
    if gpu.operands_in_registers:
        return max((size for size, _ in operands), default=0)
    if unit_of(matmul, gpu, warps) is not Unit.warp:
        return sum(size for size, _ in operands)
    piece = _PIECE_BYTES * warps * gpu.warp
    pieces = [min(size, piece) for size, pieced in operands if pieced]
    return sum(size for size, pieced in operands if not pieced) + max(pieces, default=0)


def _stored(region: LoopWork, gpu: Gpu, warps: int) -> int:
    """Counts the bytes that a block passes through on its way to memory, in pieces."""
    return max((min(each.bytes, _PIECE_BYTES * warps * gpu.warp) for each in region.stores), default=0)


def _passed(matmul: Matmul, gpu: Gpu, warps: int) -> int:
    """Counts the bytes of computed operands that go through shared memory: rows stay where they are if every warp has its own."""
    rows, columns = matmul.made
    unit = unit_of(matmul, gpu, warps)
    stays = unit is not Unit.vector and matmul.rows >= _ROWS_OF_A_WARP * warps
    stays = stays and not (unit is Unit.warpgroup and gpu.tensor_memory)
    return columns + (0 if stays else rows)


def _unrolled(matmul: Matmul, gpu: Gpu, warps: int) -> int:
    if unit_of(matmul, gpu, warps) is not Unit.vector:
        return 0
    return matmul.rows * matmul.columns * matmul.depth // (warps * gpu.warp)


def spilled_in(region: LoopWork, gpu: Gpu, warps: int, stages: int) -> int:
    """Estimates the registers of a thread that what an iteration of a loop reads and makes needs beyond those that it has."""
    most = max(
        needed + _USEFUL_KEPT * useful for needed, useful in (_beside(r, gpu, warps, stages) for r in region.all())
    )
    wanted = ceil((region.held - region.across + most) / 4 / (warps * gpu.warp)) + _OTHER_REGISTERS
    return max(0, wanted - _REGISTERS_OF_A_THREAD)


def _spilled(needed: int, *, multiplies: bool) -> int:
    """Estimates how many of the registers that a thread needs it cannot have."""
    if needed <= _REGISTERS_OF_A_THREAD:
        return 0
    return needed - (_REGISTERS_OF_A_THREAD if multiplies else _KEPT_BESIDE_SPILLS)


def _registers(work: ThreadBlockWork, gpu: Gpu, warps: int, stages: int) -> tuple[int, int]:
    """Estimates the registers of a thread, as many as are of use, and those that it cannot do without."""
    threads = warps * gpu.warp
    beside = [_beside(r, gpu, warps, stages) for r in work.body.all()]
    most = [max((needed + share * useful for needed, useful in beside), default=0) for share in (1.0, _USEFUL_KEPT)]
    wanted, needed = (ceil((work.held + each) / 4 / threads) + _OTHER_REGISTERS for each in most)
    return wanted, needed


def _beside(region: LoopWork, gpu: Gpu, warps: int, stages: int) -> tuple[int, int]:
    """Counts the bytes of registers of what is no block of items: what is needed, and what is of use.

    Of use are addresses and operands of the warps' own units, which can be made or read again.
    """
    threads = warps * gpu.warp
    addresses = [(load.width < 16, 8 * threads * accesses(load, threads)) for load in region.loads]
    useful = sum(size for narrow, size in addresses if not narrow)
    units = {p: unit_of(p, gpu, warps) for p in region.matmuls}
    parts = [
        (p.rows + p.columns) * min(p.depth, _DEPTH_HELD) * p.dtype.bytes for p, u in units.items() if u is Unit.warp
    ]
    operands = int(max(parts, default=0) * sqrt(warps))
    if Unit.warp in units.values() and not pipelined(region, stages):
        operands = max(operands, sum(load.bytes for load in region.loads if load.matmuls))
    by_vectors = [4 * p.rows * p.columns for p, u in units.items() if u is Unit.vector]
    needed = int(_OPERANDS_HELD * max(by_vectors, default=0)) + sum(size for narrow, size in addresses if narrow)
    # Products of 8 bits are added up apart from the sum so far.
    needed += max((4 * p.rows * p.columns for p in units if p.dtype.is_kept), default=0)
    # Results that do not fit are copied on their way from piece to piece.
    most = 4 * threads * (_REGISTERS_OF_A_THREAD - _OTHER_REGISTERS)
    needed += max((4 * p.rows * p.columns for p in units if 4 * p.rows * p.columns > most), default=0) // 2
    return needed, useful + operands


def accesses(load: LoadedItem, threads: int) -> int:
    """Counts the loads that one thread makes for a block."""
    return max(1, load.bytes // (load.width * threads))
