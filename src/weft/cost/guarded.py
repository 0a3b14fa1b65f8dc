"""Which share of the iterations of guarded loops is expected to have something to do, and what is left of their operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

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
    lengths = {each.loop.name: each.loop.axis.space.size(sizes) for each in questions(applied)}
    blocks = {m.axis: _block(m, sizes) for m in every(applied.graph.nodes) if isinstance(m, Map)}
    return {
        each.loop.name: GuardedShare(_share(each, blocks, lengths[each.loop.name], masks), each.beforehand)
        for each in questions(applied)
        if not each.loop.runs_once
    }


def _share(each: Question, blocks: Mapping[Axis, int], length: int, masks: Mapping[str, Sparsity]) -> float:
    columns = blocks[each.loop.axis]
    rows = prod(blocks.get(axis, 1) for axis in each.axes if axis != each.loop.axis)
    if each.of_columns:
        # Numbers for columns of which nothing is known leave nothing out: a bias of a layer is such, and so is a mask of one token.
        known = [masks[name].of(idle)[0] for name, idle in each.inputs.items() if name in masks]
        return 2.0 ** (-max(known, default=0) / 2)
    usual = typical(length)
    return min(share_of(masks.get(name, usual).of(idle), rows, columns) for name, idle in each.inputs.items())


def _block(node: Map, sizes: Mapping[str, int]) -> int:
    """Return the elements of a block of a loop."""
    length = node.axis.space.size(sizes)
    return length if node.tile is None else min(node.tile, length)


def of_busy(counted: Traffic, applied: BlockProgram, guards: Mapping[str, GuardedShare]) -> Traffic:
    """Return what a launch loads and does in iterations that are expected to have something to do; what it stores is the same."""
    homes = {
        name: name for name in (*dict(applied.inputs), *(n for each in applied.graph.nodes for n in results(each)))
    }
    left, read = dict[str, float](), dict[str, float]()
    _left(applied.graph, guards, 1.0, homes, left, read)
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
    read: dict[str, float],
) -> None:
    """Find of what is done in guarded loops which share is `left`, by name of the operator, and of lists is `read`.

    Of a list that is loaded at several places it is the largest share: what is asked is read in each iteration.
    """
    for node in graph.nodes:
        match node:
            case Map():
                own = share * guards.get(node.name, ALL_BUSY).share
                inner = {f.inner: homes[f.outer] for f in node.inputs if f.outer in homes}
                first, rest = asked(node)
                _left(replace(node.body, nodes=first), guards, share, inner, left, read)
                _left(replace(node.body, nodes=rest), guards, own, inner, left, read)
                if node.state is not None:
                    _left(node.state.update, guards, own, {}, left, read)
            case Load(memory=memory):
                left[node.name] = share
                read[homes.get(memory, memory)] = max(share, read.get(homes.get(memory, memory), 0.0))
            case _:
                left.update(dict.fromkeys(results(node), share))
