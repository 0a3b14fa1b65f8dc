"""Blocks for work without matmuls: a number of elements, shared out among the loops of a nest, those along memory first.

A nest of any depth has such blocks, however long its loops are: the product of the tiles of nested loops is never more than what is
shared out, so registers hold what is alive.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from weft.block.program import BlockProgram, Graph, Map
from weft.block.room import power_of_two
from weft.block.walk import maps
from weft.plan.targets.choose import inwards
from weft.plan.targets.matmuls import origins_of
from weft.tensor.axes import Axis


def along_memory(
    program: BlockProgram, sizes: Mapping[str, int], innermost: Mapping[str, int | None]
) -> dict[str, int]:
    """Counts for each loop that goes by blocks how many dimensions of the largest tensor that has it lie further inwards.

    0 is the dimension of stride 1. The loops come in that order, and of two alike the inner one first.
    """
    inputs = {name: kind.lists for name, kind in program.inputs}
    lengths = {m.axis: m.axis.space.size(sizes) for m in maps(program.graph)}
    found: dict[Axis, tuple[int, int]] = {}  # elements of the tensor, negative, and the dimensions inwards

    def seen(axis: Axis, elements: int, place: int) -> None:
        found[axis] = min(found.get(axis, (0, 0)), (-elements, place))

    sources = {name: {a: (name, d) for d, a in enumerate(lists)} for name, lists in inputs.items()}
    for axis, (name, dim) in origins_of(program.graph, sources):
        lists = inputs[name]
        elements = math.prod(a.space.size(sizes) for a in lists)
        seen(axis, elements, inwards(len(lists), innermost.get(name)).index(dim))
    for lists in program.output_axes:
        elements = math.prod(a.space.size(sizes) for a in lists)
        for place, axis in enumerate(reversed(lists)):
            if axis in lengths:
                seen(axis, elements, place)
    for node in maps(program.graph):  # over lists between loops, as loops over tensors of the same space
        if node.axis not in found:
            found[node.axis] = min((p for a, p in found.items() if a.space == node.axis.space), default=(0, 0))
    inner_first = [m for m in maps(program.graph) if not m.unit][::-1]
    return {m.name: found[m.axis][1] for m in sorted(inner_first, key=lambda m: found[m.axis][1])}


def shared_out(
    program: BlockProgram,
    order: Sequence[str],
    whole: Collection[str],
    pairs: Sequence[tuple[Axis, Axis]],
    lengths: Mapping[str, int],
    elements: int,
    most: Mapping[str, int],
) -> dict[str, int]:
    """Shares out tiles, powers of two: nested loops cover at most `elements` together, but for those that must be `whole`.

    Args:
        program: without matmuls of blocks.
        order: the loops that go by blocks, by name: each has what those before it leave.
        whole: names of the loops that have one block, whatever else there is.
        pairs: axes of loops that go by the same blocks.
        lengths: of all loops.
        elements: of a block, a power of two.
        most: the largest tile of some loops, a power of two.
    """
    tiles = dict.fromkeys(lengths, 1) | {name: power_of_two(lengths[name]) for name in whole}
    every = tuple(nests(program.graph))
    names = {m.axis: m.name for m in maps(program.graph)}
    for name in order:
        if name in whole:
            continue
        around = max(math.prod(tiles[n] for n in nest) for nest in every if name in nest)
        tiles[name] = max(1, min(power_of_two(lengths[name]), elements // around, most.get(name, elements)))
    for _ in pairs:  # as often as a chain of pairs is long
        for one, other in pairs:
            tiles[names[one]] = tiles[names[other]] = min(tiles[names[one]], tiles[names[other]])
    return tiles


def nests(graph: Graph, around: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the names of loops in one another, from the outermost to the innermost."""
    for node in graph.nodes:
        if isinstance(node, Map):
            own = (*around, node.name)
            yield from nests(node.body, own)
            if not any(isinstance(n, Map) for n in node.body.nodes):
                yield own
