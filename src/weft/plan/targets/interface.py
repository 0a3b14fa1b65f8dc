"""The interface of a region's kernels: the order of dimensions of inputs and outputs, and where sizes are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.block.check import infer
from weft.block.program import BlockProgram, BlockType, Bounded, Load
from weft.block.scope import Scope
from weft.block.walk import every
from weft.emit.calls import list_dims, size_names
from weft.run.launch import InputSpec, KernelSignature, OutputSpec, SizeSpec
from weft.schedule import KernelNodes, overwriting
from weft.tensor.axes import Axis, Space


def given(part: KernelNodes) -> tuple[int, ...]:
    """Returns the writes of a kernel into a tensor that an earlier kernel has begun, by place."""
    return tuple(i for i, name in enumerate(part.writes) if name in part.begun)


def dims_of(applied: BlockProgram, part: KernelNodes) -> dict[str, tuple[Axis, ...]]:
    """Returns the axes of each tensor that a kernel reads or writes, in memory order."""
    return {name: _axes_of(applied, name) for name in (*part.reads, *part.writes)}


def _axes_of(applied: BlockProgram, name: str) -> tuple[Axis, ...]:
    for known, kind in applied.inputs:
        if known == name:
            return kind.lists
    for known, axes in zip(applied.graph.outputs, applied.output_axes, strict=True):
        if known == name:
            return axes
    return list_dims(_top_types(applied)[name])


def _top_types(applied: BlockProgram) -> Mapping[str, BlockType]:
    return infer(applied.graph, dict(applied.inputs), Scope({}, applied=False))


def signature(
    applied: BlockProgram, part: KernelNodes, name: str, dims: Mapping[str, tuple[Axis, ...]]
) -> KernelSignature:
    """Returns the interface of the kernel called `name`."""
    types = _top_types(applied)
    reads = tuple(InputSpec(n, len(dims[n]), types[n].dtype) for n in part.reads)
    sizes: list[SizeSpec] = []
    for space in size_names(applied, part):
        where = next(
            ((i, d) for i, n in enumerate(part.reads) for d, a in enumerate(dims[n]) if a.space.name == space), None
        )
        sizes.append(SizeSpec(space) if where is None else SizeSpec(space, *where))
    outputs = tuple(OutputSpec(tuple(map(size_of, dims[n])), types[n].dtype) for n in part.writes)
    looks_up = any(
        isinstance(node, Bounded) or (isinstance(node, Load) and node.indices and not node.masked)
        for node in every(part.nodes)
    )
    over = tuple(
        (part.writes.index(write), part.reads.index(read))
        for write, read in overwriting(part)
        if types[write].dtype is types[read].dtype and _spaces(dims[write]) == _spaces(dims[read])
    )
    return KernelSignature(name, reads, tuple(sizes), outputs, given(part), looks_up, over)


def _spaces(axes: Sequence[Axis]) -> list[Space]:
    return [axis.space for axis in axes]


def size_of(axis: Axis) -> str | int:
    """Returns the length of a dimension: the name of a size, or a number."""
    return axis.space.name if axis.space.fixed is None else axis.space.fixed
