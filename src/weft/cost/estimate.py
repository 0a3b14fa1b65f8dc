"""The time of a CPU's kernel: its floor, and what is predicted.

Floors are a roofline. Predictions add up instead: blocks are moved, then worked on. How long an operator works on a block depends
on its lengths, and on which of its elements lie side by side (`weft.cost.cpu_cycles`); what is loaded again comes from the level
that holds it, rows far apart are waited for, and threads idle in the last wave of the grid. Levels and loads are those of
"FlashAttention on a Napkin" (a transfer rate for each level of the hierarchy), counted on the applied program rather than on a
diagram.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from weft.block.program import BlockProgram
from weft.cost.cpu_cycles import cycles_of
from weft.cost.cpu_work import BlockMove, OperatorWork, works_of
from weft.cost.guarded import guarded_shares, of_busy
from weft.cost.kernel_cost import Cost
from weft.cost.machine import Machine, MemoryLevel
from weft.cost.one_hots import in_one_row
from weft.cost.traffic import Traffic, by_kernel
from weft.masks import Sparsity

# Cycles of an iteration of a loop beside its operators.
_STEP = 15.0
_NONE: Mapping[str, Any] = {}


def estimate(
    program: BlockProgram,
    sizes: Mapping[str, int],
    machine: Machine,
    innermost: Mapping[str, int | None] | None = None,
    masks: Mapping[str, Sparsity] | None = None,
) -> tuple[Cost, ...]:
    """Estimates the cost of each kernel of an applied program on a CPU, in the order of `weft.schedule.kernels`.

    Args:
        program: with places.
        sizes: elements of each space, by name; all at least 1.
        machine: where it would run.
        innermost: for inputs, by name, the dimension of stride 1; of others it is the last one.
        masks: the classes of inputs, by name: guarded loops do the share of their iterations that is expected of these; of others,
            what is typical.
    """
    works, guards = works_of(program, innermost or {}), guarded_shares(program, sizes, masks or {})
    counts = (of_busy(each, program, guards) if guards else each for each in by_kernel(program, sizes))
    return tuple(cost_of(in_one_row(part, works), machine, works, sizes) for part in counts)


def total(costs: Iterable[Cost]) -> Cost:
    """Adds up kernels that run one after the other."""
    costs = tuple(costs)
    return Cost(
        sum(c.bytes_read for c in costs),
        sum(c.bytes_written for c in costs),
        sum(c.flops for c in costs),
        sum(c.unique_bytes for c in costs),
        sum(c.floor_seconds for c in costs),
        sum(c.predicted_seconds for c in costs),
        sum(c.device_read for c in costs),
        sum(c.device_written for c in costs),
        max((c.thread_blocks for c in costs), default=0),
    )


def cost_of(
    part: Traffic, machine: Machine, works: Mapping[str, OperatorWork] = _NONE, sizes: Mapping[str, int] = _NONE
) -> Cost:
    """Estimates the cost of one kernel.

    Args:
        part, machine: what it moves and does, and where.
        works: what its operators do, by name; those that are not there take no time.
        sizes: elements of each space, by name.
    """
    read = {name: size for name, size in part.loaded.items() if name in part.shared}
    written = {name: size for name, size in part.stored.items() if name in part.shared}
    # A kernel that visits only some of a list reads less than the list.
    once = {name: min(part.lists[name], size) for name, size in read.items()}
    unique = sum(once.values()) + sum(written.values())
    home = machine.holding(unique)
    first_touch = unique / home.bytes_per_second
    again = _again(part, once, machine, works)
    moving = first_touch + again.moving_seconds(part, machine) + _local_seconds(part, machine)
    cycles = _STEP * sum(part.runs.values())
    for (name, lengths), times in part.operations.items():
        if name in works:
            cycles += times * cycles_of(works[name], lengths, sizes, machine)
    working = cycles * machine.cycle_seconds / machine.cores
    rounds = -(-part.iterations // machine.cores)
    busy = part.iterations / (rounds * machine.cores)
    predicted = machine.launch_seconds + (working + moving + _rows_seconds(part, machine, works, sizes, again)) / busy
    floor = max(_working_seconds(part, machine), first_touch)
    flops = sum(part.flops.values())
    return Cost(sum(read.values()), sum(written.values()), flops, unique, floor, predicted)


@dataclass(frozen=True, slots=True)
class _Again:
    """What a kernel reads again of its lists.

    Attributes:
        once: bytes of each list that are read, each element once.
        within: of what is read of a list, the share that an iteration of the grid has read before.
        near: the level that holds all that the cores' iterations read.
    """

    once: Mapping[str, int]
    within: Mapping[str, float]
    near: MemoryLevel

    def moving_seconds(self, part: Traffic, machine: Machine) -> float:
        """Computes the seconds of what is read again, from `near` by the same iteration, from what holds the list by another."""
        seconds = 0.0
        for name, size in self.once.items():
            within = part.loaded[name] * self.within[name]
            seconds += within / self.near.bytes_per_second
            seconds += max(0.0, part.loaded[name] - size - within) / machine.holding(size).bytes_per_second
        return seconds

    def row_seconds(self, part: Traffic, machine: Machine, memory: str) -> float:
        """Computes the seconds of a core until a row of a list is there."""
        within = self.within.get(memory, 0.0)
        far = machine.holding(part.lists[memory]).row_seconds
        return within * self.near.row_seconds + (1 - within) * far


def _again(part: Traffic, once: Mapping[str, int], machine: Machine, works: Mapping[str, OperatorWork]) -> _Again:
    """Finds out what is read again."""
    parts = dict.fromkeys(once, 1)
    for name, _ in part.operations:
        match works.get(name):
            case BlockMove(memory=memory, grid=grid) if memory in parts:
                parts[memory] = max(parts[memory], _parts(grid, part.runs))
            case _:
                pass
    each = {name: size / parts[name] for name, size in once.items()}
    within = {name: max(0.0, 1 - part.iterations * own / part.loaded[name]) for name, own in each.items()}
    return _Again(once, within, machine.holding(machine.cores * sum(each.values())))


def _parts(grid: Sequence[tuple[str, bool]], runs: Mapping[str, int]) -> int:
    """Counts the parts that iterations of the grid read of a list: blocks of the loops that it depends on."""
    found, around = 1, 1
    for name, decides in grid:
        found *= runs.get(name, around) // around if decides else 1
        around = runs.get(name, around)
    return found


def _rows_seconds(
    part: Traffic, machine: Machine, works: Mapping[str, OperatorWork], sizes: Mapping[str, int], again: _Again
) -> float:
    """Computes the seconds in which rows of blocks, each somewhere else in a list that no cache of a core holds, are waited for."""
    seconds = 0.0
    for (name, lengths), times in part.operations.items():
        match works.get(name):
            case BlockMove(memory=memory, side=side, row=row) if memory in part.lists and lengths:
                beside = 1 if side is None else max(1, lengths[side])
                whole = side is not None and row is not None and beside >= sizes.get(row, beside + 1)
                rows = 1 if whole else prod(lengths) / beside
                seconds += times * rows * again.row_seconds(part, machine, memory)
            case _:
                pass
    return seconds / machine.cores


def _working_seconds(part: Traffic, machine: Machine) -> float:
    """Computes the seconds of arithmetic at full rates: matmuls in the matrix units, all else in vectors of fp32."""
    matmuls = sum(work / machine.matrix_rate(d) for d, work in part.matrix_flops.items())
    rest = sum(part.flops.values()) - sum(part.matrix_flops.values())
    return matmuls + rest / machine.vector_flops


def _local_seconds(part: Traffic, machine: Machine) -> float:
    """Computes the seconds of lists that live and die in an iteration of the grid, one for each core at a time."""
    seconds = 0.0
    for name in part.local:
        held = part.stored.get(name, 0) / part.iterations * machine.cores
        moved = part.stored.get(name, 0) + part.loaded.get(name, 0)
        seconds += moved / machine.holding(held).bytes_per_second
    return seconds
