"""A lower bound on the time of a tensor program, before it has a block program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from weft.cost.machine import Machine
from weft.tensor.axes import Axis
from weft.tensor.laws import in_one_memory
from weft.tensor.program import Contraction, Iota, Lookup, Node, Reindex, TensorProgram, axes_of, uses


def least_seconds(
    program: TensorProgram, sizes: Mapping[str, int], machine: Machine, *, cached: bool, reached: float = 1.0
) -> float:
    """Bounds from below the seconds of `program`: the longer of its inputs and outputs, and its matmuls, at full rate;
    no launch.

    Comparisons of indices may leave out parts of inputs and of matmuls: with indices, only what is written counts.

    Args:
        program: one region.
        sizes: elements of each space, by name.
        machine: whose rates count.
        reached: how much of their full rate the matmuls reach at best.
        cached: inputs may be in any level of the memory that has room for them; else they come from the last one.
    """
    values, stored = program.values(), dict(program.rounded)

    def moving(size: int) -> float:
        levels = [level for level in machine.levels if size <= level.bytes] if cached else []
        return size / max(level.bytes_per_second for level in levels or machine.levels[-1:])

    both = in_one_memory(program)
    outputs = [values[v] for v in dict.fromkeys(program.outputs) if v not in both]
    written = [node for node in outputs if not isinstance(node, Reindex)]  # those are views
    moved = sum(moving(_size(node.axes, sizes) * stored.get(node.name, node.dtype).bytes) for node in written)
    if any(isinstance(n, Iota) for n in program.nodes):
        return moved
    read = {n.name: _size(n.axes, sizes) for n in program.inputs}
    parts = dict.fromkeys(read, 0)
    for node in program.nodes:  # of an input that is only looked at in part, no more is read
        for value in set(uses(node)).intersection(read):
            parts[value] += _size(node.axes, sizes) if _is_part(node, value) else read[value]
    if written:
        moved += sum(
            moving(min(read[n.name], parts[n.name]) * stored.get(n.name, n.dtype).bytes) for n in program.inputs
        )
    working = 0.0
    for node in program.nodes:
        if isinstance(node, Contraction):
            rates = [machine.matrix_rate(values[use.value].dtype) for use in (node.left, node.right)]
            working += 2 * _size(axes_of(node), sizes) / max(*rates, machine.vector_flops)
    return max(moved, working / reached)


def _is_part(node: Node, value: str) -> bool:
    """Tells whether `node` reads no more elements of `value` than it has itself."""
    return isinstance(node, Reindex) or (isinstance(node, Lookup) and value == node.source)


def _size(axes: Iterable[Axis], sizes: Mapping[str, int]) -> int:
    return prod(axis.space.size(sizes) for axis in dict.fromkeys(axes))
