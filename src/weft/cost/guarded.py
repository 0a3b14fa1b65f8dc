"""Which share of the iterations of guarded loops is expected to have something to do, and what is left of their operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

from weft.block.guard import GuardedBlocks
from weft.block.program import BlockProgram, Dot, Graph, Load, Map
from weft.block.walk import asked, every, results
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


_LEAST = 2.0**-8
"""A share that is not known better than in steps is not 0."""
ALL_BUSY = GuardedShare(1.0, beforehand=True)


def guarded_shares(
    applied: BlockProgram, sizes: Mapping[str, int], masks: Mapping[str, Sparsity]
) -> dict[str, GuardedShare]:
    """Find which share of the iterations of guarded loops of `applied`, by name, is expected to have something to do.

    Args:
        applied: with places.
        sizes: elements of each space, by name.
        masks: the classes of inputs, by name; of others it is the one that is typical.
    """
    blocks = {m.axis: _block(m, sizes) for m in every(applied.graph.nodes) if isinstance(m, Map)}
    return {
        each.loop.name: GuardedShare(_share(each, blocks, sizes, masks), each.beforehand)
        for each in questions(applied)
        if not each.loop.runs_once
    }


def _share(
    each: Question, blocks: Mapping[Axis, int], sizes: Mapping[str, int], masks: Mapping[str, Sparsity]
) -> float:
    if each.of_groups:
        return _of_groups(each, blocks, sizes)
    length, columns = each.loop.axis.space.size(sizes), blocks[each.loop.axis]
    rows = prod(blocks.get(axis, 1) for axis in each.axes if axis != each.loop.axis)
    if each.of_columns:
        # Numbers for columns of which nothing is known leave nothing out: a bias of a layer is such, and so is a mask of one token.
        # What is known is where they begin or end, so that the share of blocks is that of columns.
        known = [(masks[name], idle) for name, idle in each.inputs.items() if name in masks]
        busy = min((mask.busy(idle)[0] for mask, idle in known), default=1.0)
        return _of_blocks(each.blocks, busy, busy if known else 0.0)
    usual = typical(length)
    found = [(masks.get(name, usual), idle) for name, idle in each.inputs.items()]
    busy = min(share_of(mask.busy(idle), rows, columns) for mask, idle in found)
    full = min(share_of(mask.full(idle), rows, columns) for mask, idle in found)
    return _of_blocks(each.blocks, busy, min(busy, full))


def _of_groups(each: Question, blocks: Mapping[Axis, int], sizes: Mapping[str, int]) -> float:
    """Return the share of iterations where each is of a group of rows that lie side by side: n groups end in n - 1 blocks.

    Where an iteration does its own rows alone, it is as if each had a block for them.
    """
    counts = {a: ceil(max(1, a.space.size(sizes)) / max(1, blocks.get(a, 1))) for a in each.axes}
    if each.loop.guard is not None and each.loop.guard.rows is not None:
        return max(_LEAST, 1 / max(1, counts[each.loop.axis]))
    groups = counts.pop(each.loop.axis)
    parts = prod(counts.values())
    pairs = max(1, parts * groups)
    return _of_blocks(each.blocks, min(1.0, (parts + groups - 1) / pairs), max(0, parts - groups + 1) / pairs)


def _of_blocks(blocks: GuardedBlocks, busy: float, full: float) -> float:
    """Return the share of iterations that a loop over these blocks does, where so many are busy, and so many full."""
    match blocks:
        case GuardedBlocks.busy:
            return max(_LEAST, busy)
        case GuardedBlocks.full:
            return max(_LEAST, full)
        case GuardedBlocks.partial:
            return max(_LEAST, busy - full)


def _block(node: Map, sizes: Mapping[str, int]) -> int:
    """Return the elements of a block of a loop."""
    length = node.axis.space.size(sizes)
    return length if node.tile is None else min(node.tile, length)


def of_busy(counted: Traffic, applied: BlockProgram, guards: Mapping[str, GuardedShare]) -> Traffic:
    """Return what a launch loads and does in iterations that are expected to have something to do; what it stores is the same."""
    homes = {
        name: name for name in (*dict(applied.inputs), *(n for each in applied.graph.nodes for n in results(each)))
    }
    elements = Counter[str]()
    for (name, lengths), times in counted.operations.items():
        elements[name] += times * prod(lengths)
    left, loads = dict[str, float](), dict[str, list[str]]()
    _left(applied.graph, guards, 1.0, homes, left, loads)
    # Of a list that is loaded at several places, each has its own share.
    read = {
        home: sum(left[n] * elements[n] for n in names) / max(1, sum(elements[n] for n in names))
        for home, names in loads.items()
    }
    flops = {name: round(count * left.get(name, 1.0)) for name, count in counted.flops.items()}
    dots = {n.name for n in every(applied.graph.nodes) if isinstance(n, Dot)}
    before = sum(count for name, count in counted.flops.items() if name in dots)
    share = sum(count for name, count in flops.items() if name in dots) / max(1, before)
    return replace(
        counted,
        loaded={name: ceil(size * read.get(name, 1.0)) for name, size in counted.loaded.items()},
        operations={
            (name, lengths): ceil(times * left.get(name, 1.0)) for (name, lengths), times in counted.operations.items()
        },
        flops=flops,
        matrix_flops={dtype: round(count * share) for dtype, count in counted.matrix_flops.items()},
    )


def _left(
    graph: Graph,
    guards: Mapping[str, GuardedShare],
    share: float,
    homes: Mapping[str, str],
    left: dict[str, float],
    loads: dict[str, list[str]],
) -> None:
    """Find which share is `left` of what is done in guarded loops, by name of the operator, and by which `loads` lists are read."""
    for node in graph.nodes:
        match node:
            case Map():
                own = share * guards.get(node.name, ALL_BUSY).share
                inner = {f.inner: homes[f.outer] for f in node.inputs if f.outer in homes}
                first, rest = asked(node)
                # Whether a block is full is known at the first element that is not; what is left is asked whether it is idle.
                full = node.guard is not None and node.guard.blocks is GuardedBlocks.full
                _left(replace(node.body, nodes=first), guards, own if full else share, inner, left, loads)
                _left(replace(node.body, nodes=rest), guards, own, inner, left, loads)
                if node.state is not None:
                    _left(node.state.update, guards, own, {}, left, loads)
            case Load(memory=memory):
                left[node.name] = share
                loads.setdefault(homes.get(memory, memory), []).append(node.name)
            case _:
                left.update(dict.fromkeys(results(node), share))
