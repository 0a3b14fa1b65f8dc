"""Which share of the iterations of guarded loops is expected to have something to do, and what is left of their operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

from weft.block.program import BlockProgram, Dot, Graph, Map
from weft.block.walk import every, results
from weft.cost.traffic import Traffic
from weft.masks import Question, Sparsity, questions, share_of, typical
from weft.tensor.axes import Axis


@dataclass(frozen=True, slots=True)
class GuardedShare:
    """What is expected of a guarded loop.

    Attributes:
        share: of its iterations, in (0, 1], that has something to do.
        beforehand: it is told which, and does not ask.
    """

    share: float
    beforehand: bool


ALL_BUSY = GuardedShare(1.0, beforehand=True)
_OF_COLUMNS = 1
"""The class of a mask of columns alone, as of padding: it leaves a share of 2 ** (-1 / 2)."""


def guarded_shares(
    applied: BlockProgram, sizes: Mapping[str, int], masks: Mapping[str, Sparsity]
) -> dict[str, GuardedShare]:
    """Find which share of the iterations of guarded loops of `applied`, by name, is expected to have something to do.

    Args:
        applied: with places.
        sizes: elements of each space, by name.
        masks: the classes of inputs, by name; of others it is the one that is typical.
    """
    lengths = {asked.loop.name: asked.loop.axis.space.size(sizes) for asked in questions(applied)}
    blocks = {m.axis: _block(m, sizes) for m in every(applied.graph.nodes) if isinstance(m, Map)}
    return {
        asked.loop.name: GuardedShare(_share(asked, blocks, lengths[asked.loop.name], masks), asked.beforehand)
        for asked in questions(applied)
        if not asked.loop.runs_once
    }


def _share(asked: Question, blocks: Mapping[Axis, int], length: int, masks: Mapping[str, Sparsity]) -> float:
    columns = blocks[asked.loop.axis]
    rows = prod(blocks.get(axis, 1) for axis in asked.axes if axis != asked.loop.axis)
    if asked.of_columns:
        known = [masks[name].of(idle)[0] for name, idle in asked.inputs.items() if name in masks]
        return 2.0 ** (-max(known, default=_OF_COLUMNS) / 2)
    usual = typical(length)
    return min(share_of(masks.get(name, usual).of(idle), rows, columns) for name, idle in asked.inputs.items())


def _block(node: Map, sizes: Mapping[str, int]) -> int:
    """Return the elements of a block of a loop."""
    length = node.axis.space.size(sizes)
    return length if node.tile is None else min(node.tile, length)


def of_busy(counted: Traffic, applied: BlockProgram, guards: Mapping[str, GuardedShare]) -> Traffic:
    """Return what a launch does in iterations that are expected to have something to do: operations alone change."""
    left = _left(applied.graph, guards, 1.0)
    flops = {name: round(count * left.get(name, 1.0)) for name, count in counted.flops.items()}
    dots = {n.name for n in every(applied.graph.nodes) if isinstance(n, Dot)}
    before = sum(count for name, count in counted.flops.items() if name in dots)
    share = sum(count for name, count in flops.items() if name in dots) / max(1, before)
    operations = {
        (name, lengths): ceil(times * left.get(name, 1.0)) for (name, lengths), times in counted.operations.items()
    }
    matrices = {dtype: round(count * share) for dtype, count in counted.matrix_flops.items()}
    return replace(counted, operations=operations, flops=flops, matrix_flops=matrices)


def _left(graph: Graph, guards: Mapping[str, GuardedShare], share: float) -> dict[str, float]:
    """Find of what is done in guarded loops which share is left, by name of the operator."""
    found: dict[str, float] = {}
    for node in graph.nodes:
        if isinstance(node, Map):
            own = share * guards.get(node.name, ALL_BUSY).share
            found |= _left(node.body, guards, own)
            found |= {} if node.state is None else _left(node.state.update, guards, own)
        elif share < 1:
            found |= dict.fromkeys(results(node), share)
    return found
