"""What every kernel is called with, in whichever language it is printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.block.check import infer
from weft.block.places import Place
from weft.block.program import BlockProgram, BlockType, Bounded, Extent, Map
from weft.block.scope import Scope
from weft.block.size import spaces_of
from weft.block.walk import every
from weft.emit.text import times
from weft.errors import InvalidProgramError
from weft.schedule import KernelNodes
from weft.tensor.axes import Axis, Space

Dims = Mapping[str, tuple[Axis | None, ...]]
"""For each tensor, its dimensions in memory order; None for one of size 1."""


def size_names(program: BlockProgram, kernel: KernelNodes) -> tuple[str, ...]:
    """Name the run-time sizes that `kernel` is called with: names of spaces, in order of appearance."""
    types = infer(program.graph, dict(program.inputs), Scope({}, applied=True))
    spaces: dict[Space, None] = {}
    for name in kernel.reads:
        spaces.update(dict.fromkeys(a.space for a in types[name].lists))
    for node in every(kernel.nodes):
        if isinstance(node, Map):
            spaces.setdefault(node.axis.space)
            limits = node.range.bounds(node.axis.space, node.tile)
            ends = [limits.start, limits.stop]
            ends += [
                end for run in node.range.runs(node.axis.space, node.tile) for end in (run.first, run.last, run.stop)
            ]
            spaces.update(dict.fromkeys(space for end in ends for space in spaces_of(end)))
        elif isinstance(node, Bounded | Extent):
            spaces.setdefault(node.space)
    return tuple(s.name for s in spaces if s.fixed is None)


def list_dims(kind: BlockType) -> tuple[Axis, ...]:
    """Return the dimensions in memory of a list that goes from one launch to another: items lie together.

    A list axis that items do not have is as long as its space, whatever the blocks: an item lies at its first element.
    """
    return (*(a for a in kind.lists if a not in kind.dims), *kind.dims)


def grid_chain(first: Map) -> list[Map]:
    """List the grid maps, each all that the one before holds."""
    chain = [first]
    while len(chain[-1].body.nodes) == 1:
        inner = chain[-1].body.nodes[0]
        if not isinstance(inner, Map) or inner.place is not Place.grid:
            break
        chain.append(inner)
    return chain


def row_major(dims: Sequence[Axis], extents: Sequence[str]) -> dict[Axis, str]:
    """Return the strides of a dense array, the last dimension innermost."""
    return {a: times(*extents[place + 1 :]) for place, a in enumerate(dims)}


def written_strides(
    name: str, kind: BlockType, dims: Sequence[Axis | None], size: Callable[[Space], str]
) -> dict[Axis, str]:
    """Return the strides of the tensor `name` that a kernel writes, which is contiguous; `size` spells how long a space is.

    Raises:
        InvalidProgramError: its dimensions are not the axes of its list.
    """
    axes = [a for a in dims if a is not None]
    if set(axes) != {*kind.lists, *kind.dims}:
        raise InvalidProgramError(
            f"dimensions {axes} for a list of {kind}", node=name, condition="a tensor has its list's axes"
        )
    return row_major(axes, [size(a.space) for a in axes])
