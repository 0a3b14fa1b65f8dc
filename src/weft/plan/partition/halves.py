"""Cutting a region in two, where its parts are likely to be faster apart, or to have kernels at all."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.plan.partition.partition import Region, summed_over, with_local
from weft.tensor.axes import Space
from weft.tensor.made_again import stored_uses
from weft.tensor.program import Contraction, Node, Ranking, Reduction, Scan, TensorProgram


def before_reductions(program: TensorProgram, region: Region) -> tuple[Region, ...]:
    """Cut `region` in two: what is made before results of matmuls, or of reductions along other axes, are reduced or
    multiplied; and the rest.

    The first part makes its values block by block, or row by row; the second reads whole rows, or all of them.
    """
    local = program.local
    members = [n for n in region.program.nodes if n.name not in local]
    along, late = dict[str, frozenset[Space]](), set[str]()
    for node in members:
        own: frozenset[Space] = frozenset()
        if isinstance(node, Contraction | Reduction | Ranking | Scan):
            own = summed_over(node)
        before = frozenset[Space]().union(*(along.get(v, frozenset[Space]()) for v in stored_uses(program, node)))
        others = isinstance(node, Reduction | Ranking | Scan) and not before <= own
        if others or (isinstance(node, Contraction) and before) or not late.isdisjoint(stored_uses(program, node)):
            late.add(node.name)
        along[node.name] = before | own
    return _in_two(program, members, late, region)


def before_matmuls(program: TensorProgram, region: Region) -> tuple[Region, ...]:
    """Cut `region` in two: what its matmuls read of it, and the matmuls with what follows."""
    local = program.local
    members = [n for n in region.program.nodes if n.name not in local]
    read = {name for n in members if isinstance(n, Contraction) for name in stored_uses(program, n)}
    early = set[str]()
    for node in reversed(members):
        if not isinstance(node, Contraction) and (node.name in read or node.name in early):
            early.update((node.name, *stored_uses(program, node)))
    matmuls = {n.name for n in members if isinstance(n, Contraction)}
    if not early.isdisjoint(matmuls):
        return (region,)
    parts = [[n for n in members if (n.name in early) is which] for which in (True, False)]
    return tuple(with_local(program, part, local) for part in parts) if all(parts) else (region,)


def beside_matmuls(program: TensorProgram, region: Region) -> tuple[Region, ...]:
    """Cut `region` in two: what depends on none of its matmuls, as a mask of their results, and the matmuls with what follows."""
    local = program.local
    members = [n for n in region.program.nodes if n.name not in local]
    late = set[str]()
    for node in members:
        if isinstance(node, Contraction) or not late.isdisjoint(stored_uses(program, node)):
            late.add(node.name)
    return _in_two(program, members, late, region)


def before_wider(program: TensorProgram, region: Region) -> tuple[Region, ...]:
    """Cut `region` in two: what has fewer axes than its widest values, and these with what depends on them.

    A vector that is read along both axes of a matrix is whole in each thread block, where it is made in the same kernel.
    """
    local = program.local
    members = [n for n in region.program.nodes if n.name not in local]
    widest = max((len(n.axes) for n in members), default=0)
    late = set[str]()
    for node in members:
        if len(node.axes) == widest or not late.isdisjoint(stored_uses(program, node)):
            late.add(node.name)
    return _in_two(program, members, late, region)


def before_repeats(program: TensorProgram, region: Region) -> tuple[Region, ...]:
    """Cut `region` into what makes the results of matmuls, and what repeats them along axes that they do not have, in connected
    parts, with what follows and what only that reads.

    In one kernel each block along such an axis, as the words of a cache that a new word's keys are added to, would multiply again.
    """
    members = [n for n in region.program.nodes if n.name not in program.local]
    reached, late = dict[str, frozenset[Space]](), set[str]()  # the axes of matmuls' results that values are made of
    for node in members:
        read = stored_uses(program, node)
        made = [reached[v] for v in read if v in reached]
        there = frozenset[Space]().union(*made)
        own = {a.space for a in node.axes}
        # What ranks has an axis of its own for the places, which repeats nothing.
        if not late.isdisjoint(read) or (made and not isinstance(node, Ranking) and not own <= there):
            late.add(node.name)
        elif made or isinstance(node, Contraction):
            reached[node.name] = there | own
    if not late or not reached:
        return (region,)
    readers: dict[str, set[str]] = {}
    for node in reversed(members):
        for value in stored_uses(program, node):
            readers.setdefault(value, set()).add(node.name)
        asked = readers.get(node.name, set())
        if (
            asked
            and asked <= late
            and not (node.name in reached or node.name in program.outputs or isinstance(node, Ranking))
        ):
            late.add(node.name)
    first, second = ([n for n in members if (n.name in late) is which] for which in (False, True))
    return tuple(with_local(program, part, program.local) for part in (first, *_connected(program, second)))


def _connected(program: TensorProgram, members: Sequence[Node]) -> list[list[Node]]:
    """Part `members` where none reads of the other; both results of a ranking stay together. In order of their last nodes."""
    parts: list[list[Node]] = []
    for node in members:
        read = set(stored_uses(program, node))
        both = node.both if isinstance(node, Ranking) else None
        own = [
            p for p in parts if any(n.name in read or (both and isinstance(n, Ranking) and n.both == both) for n in p)
        ]
        parts = [part for part in parts if part not in own]
        parts.append([*(n for part in own for n in part), node])
    return parts


def _in_two(
    program: TensorProgram, members: Sequence[Node], late: Collection[str], region: Region
) -> tuple[Region, ...]:
    """Cut `members` in two, the second of those that are `late`; `region` itself where one part has none."""
    parts = [[n for n in members if (n.name in late) is which] for which in (False, True)]
    return tuple(with_local(program, part, program.local) for part in parts) if all(parts) else (region,)
