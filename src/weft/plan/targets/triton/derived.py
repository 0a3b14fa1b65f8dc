"""A GPU schedule by the model alone: blocks, warps and stages of a kernel read off its concrete schedule on a chip (Napkin, 5.3).

Nothing is compiled or timed, and no measured constant is asked: a chip's published figures and the program decide. The tuner
does better where Triton's code differs from the columns; `benchmarks/derived.py` says by how much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from weft.block.program import BlockProgram
from weft.cost.chip import Chip, OnChip
from weft.cost.concrete import ConcreteSchedule, concrete_schedule
from weft.cost.concrete.columns import Engine
from weft.emit.triton import GRANULARITY
from weft.errors import UnsupportedError
from weft.plan.targets.triton.schedules import Blocks, LoopRole, parts, schedule
from weft.schedule import KernelNodes, Placing, Schedule, kernels

# Blocks of streams and of columns that are considered; Triton's are powers of two.
_STREAMS, _COLUMNS = (16, 32, 64, 128, 256), (64, 128, 256)
# Threads of a thread block at most: more leave a thread too few registers for what the compiler needs beside its variables.
_THREADS = 512
_STAGES = 4


@dataclass(frozen=True, slots=True)
class DerivedSchedule:
    """A schedule and the concrete schedule that it was read off."""

    schedule: Schedule
    concrete: ConcreteSchedule


def derived_schedule(
    fused: BlockProgram, sizes: Mapping[str, int], innermost: Mapping[str, int | None], chip: Chip
) -> DerivedSchedule:
    """Return the schedule of `fused`, which multiplies blocks in one launch, with the most FLOPs a cycle on `chip`.

    Args:
        fused: with canonical names.
        sizes: elements of each space, by name.
        innermost: for inputs, by name, the dimension of stride 1; of others it is the last one.

    Raises:
        UnsupportedError: it multiplies no blocks, or takes several launches, or nothing fits.
    """
    known = parts(fused, sizes, innermost)
    if not known.matmuls:
        raise UnsupportedError("nothing is multiplied in blocks: there is no matrix unit to keep busy")
    plain = Blocks(rows=GRANULARITY.matmul, columns=GRANULARITY.matmul, depth=GRANULARITY.matmul)
    launched = kernels(Placing(fused, GRANULARITY).apply(schedule(fused, known, plain, sizes)))
    if len(launched) != 1:
        raise UnsupportedError(f"{len(launched)} launches: only one has a concrete schedule")
    (launch,) = launched
    found: list[tuple[float, Blocks, ConcreteSchedule]] = []
    for depth, columns in product(_STREAMS, _COLUMNS if LoopRole.columns in known.of.values() else (1,)):
        by_role = {LoopRole.depth: depth, LoopRole.columns: columns}
        given = {name: by_role[role] for name, role in known.of.items() if role in by_role}
        for concrete in _concrete(launch, chip, sizes, given):
            rows = concrete.blocks.sizes[concrete.blocks.rows] if concrete.blocks.rows is not None else 1
            groups = _power_of_two(min(concrete.groups, _THREADS // concrete.blocks.group))
            blocks = Blocks(
                rows=groups * rows,
                columns=columns,
                depth=depth,
                warps=groups * concrete.blocks.group // chip.warp,
                stages=_stages(concrete, groups),
            )
            found.append((_speed(replace(concrete, groups=groups)), blocks, concrete))
    if not found:
        raise UnsupportedError(f"no block of its streams fits {chip.name}")
    _, blocks, concrete = max(found, key=lambda each: each[0])
    return DerivedSchedule(schedule(fused, known, blocks, sizes), concrete)


def _concrete(
    part: KernelNodes, chip: Chip, sizes: Mapping[str, int], given: Mapping[str, int]
) -> Iterator[ConcreteSchedule]:
    """Yield the concrete schedule with these blocks, if there is one."""
    try:
        yield concrete_schedule(part, chip, sizes, given=given)
    except UnsupportedError:
        return


def _speed(found: ConcreteSchedule) -> float:
    """Return the FLOPs of matrix units in a cycle, of all loops together; what comes from the second-level cache takes its time.

    Shared memory is left out, as the paper does: Triton keeps rows in registers.
    """
    chip, cache = found.chip, found.chip.level("L2")
    rate = cache.bytes_per_second / chip.multiprocessors / chip.hertz
    flops = cycles = 0.0
    for loop in dict.fromkeys(c.loop for c in found.columns if c.loop):
        busy = max(found.busiest(loop, (Engine.matrix, Engine.vector, Engine.special)), found.moved(loop) / rate)
        flops, cycles = flops + found.flops(loop), cycles + busy
    return flops / cycles if cycles else 0.0


def _stages(found: ConcreteSchedule, groups: int) -> int:
    """Return how many blocks of the streams may be in flight: what is left of shared memory has room for."""
    shared = found.bytes(OnChip.shared, shared=True)
    left = found.chip.thread_block_bytes - groups * found.bytes(OnChip.shared)
    return max(1, min(_STAGES, left // shared)) if shared else 1


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is no more than `number`."""
    return 1 << (number.bit_length() - 1)
