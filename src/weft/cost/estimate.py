"""The time of a kernel: its floor, and what is predicted.

Floors are a roofline. Predictions add up instead: blocks are moved, then worked on. What is loaded again comes from the level that
holds it, threads idle in the last wave of the grid, functions cost more than additions, and copies and block operations
are not free. Levels and loads
are those of "FlashAttention on a Napkin" (a transfer rate for each level of the hierarchy), counted
on the applied program rather than on a diagram.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from weft.block.program import BlockProgram, Collapse, Graph, Map, Pointwise
from weft.cost.machine import Machine
from weft.cost.traffic import Traffic, by_kernel
from weft.tensor import optable
from weft.tensor.axes import Axis
from weft.tensor.scalar import applied, operations


@dataclass(frozen=True, slots=True)
class Cost:
    """What one kernel costs.

    Attributes:
        bytes_read, bytes_written: what crosses between global memory and blocks: an element that is
            loaded twice counts twice.
        flops: floating-point operations.
        unique_bytes: of the kernel's inputs and outputs, each element once.
        floor_seconds: `unique_bytes` and `flops` at the machine's rates as the model has them,
            whichever takes longer: what no schedule can improve on.
        predicted_seconds: for this schedule.
        device_read, device_written: bytes between a GPU's memory and its second-level cache, which is empty before
            (`weft.cost.gpu_bytes`); 0 where they were not asked for, and on a CPU.
    """

    bytes_read: int
    bytes_written: int
    flops: int
    unique_bytes: int
    floor_seconds: float
    predicted_seconds: float
    device_read: int = 0
    device_written: int = 0

    def __str__(self) -> str:
        return (
            f"reads {_bytes(self.bytes_read)}, writes {_bytes(self.bytes_written)} "
            f"({_bytes(self.unique_bytes)} once), {self.flops:,} flops; "
            f"predicted {self.predicted_seconds * 1e3:.3g} ms, "
            f"floor {self.floor_seconds * 1e3:.3g} ms"
        )


_NONE: Mapping[str, float] = {}


def estimate(program: BlockProgram, sizes: Mapping[str, int], machine: Machine) -> tuple[Cost, ...]:
    """Estimates the cost of each kernel of an applied program, in the order of `weft.schedule.kernels`.

    Args:
        program: with places.
        sizes: elements of each space, by name; all at least 1.
        machine: where it would run.
    """
    heavy, along = dict(_heavy(program.graph)), frozenset(_along(program.graph))
    return tuple(cost_of(part, machine, heavy, along) for part in by_kernel(program, sizes))


def _along(graph: Graph) -> Iterator[str]:
    """Yields the operators that are computed along with others, in their loops.

    Those are what is a number a row beside whole rows, what runs over the elements of the one before, and sums of what is made.
    """
    items = [frozenset(n.dims) for n in graph.nodes if isinstance(n, Pointwise)]
    made: set[str] = set()
    met: set[frozenset[Axis]] = set()
    for node in graph.nodes:
        if isinstance(node, Map):
            yield from _along(node.body)
            if node.state is not None:
                yield from _along(node.state.update)
        elif isinstance(node, Pointwise):
            own = frozenset(node.dims)
            if own in met or any(own < other for other in items):
                yield node.name
            met.add(own)
            made.add(node.name)
        elif isinstance(node, Collapse) and node.arg in made:
            yield node.name


def _heavy(graph: Graph) -> Iterator[tuple[str, float]]:
    """Yields for each elementwise operator the average cost of its operations, in flops, beyond 1."""
    for node in graph.nodes:
        if isinstance(node, Map):
            yield from _heavy(node.body)
            if node.state is not None:
                yield from _heavy(node.state.update)
        elif isinstance(node, Pointwise) and operations(node.expr):
            extra = sum(optable.row(op).cpu - 1 for op in applied(node.expr))
            if extra:
                yield node.name, extra / operations(node.expr)


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
    )


def cost_of(
    part: Traffic, machine: Machine, heavy: Mapping[str, float] = _NONE, along: Collection[str] = frozenset()
) -> Cost:
    """Estimates the cost of one kernel that moves and does `part`.

    Args:
        part, machine: what, and where.
        heavy: of operators, how much more than a flop one of theirs is.
        along: operators that need no loop of their own.
    """
    read = {name: size for name, size in part.loaded.items() if name in part.shared}
    written = {name: size for name, size in part.stored.items() if name in part.shared}
    # A kernel that visits only some of a list reads less than the list.
    once = {name: min(part.lists[name], size) for name, size in read.items()}
    unique = sum(once.values()) + sum(written.values())
    working = _working_seconds(part, machine)
    home = machine.holding(unique)
    first_touch = unique / home.bytes_per_second
    again = sum((size - once[name]) / machine.holding(once[name]).bytes_per_second for name, size in read.items())
    moving = first_touch + again + _local_seconds(part, machine)
    rounds = -(-part.iterations // machine.cores)
    busy = part.iterations / (rounds * machine.cores)
    weighing = sum(part.flops[n] * more for n, more in heavy.items() if n in part.flops) / machine.vector_flops
    copying = _copying_seconds(part, machine)
    calls = (
        sum(n for name, n in part.operations.items() if name not in along) * machine.operation_seconds / machine.cores
    )
    predicted = machine.launch_seconds + (working + weighing + moving + copying + calls) / busy
    floor = max(working, first_touch)
    flops = sum(part.flops.values())
    return Cost(sum(read.values()), sum(written.values()), flops, unique, floor, predicted)


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


def _copying_seconds(part: Traffic, machine: Machine) -> float:
    """Computes the seconds of staged panels and filled edges: written to and read from the second level, beside the work."""
    near = machine.levels[min(1, len(machine.levels) - 1)]
    return 2 * sum(part.copied.values()) / near.bytes_per_second


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
