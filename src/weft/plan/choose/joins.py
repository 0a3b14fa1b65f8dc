"""Matmuls that read what other matmuls of a region make: how many, which sum along what was reduced, and how much work they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from weft.tensor.program import Contraction, Reduction, TensorProgram, axes_of, uses

# Columns of the largest block of a matmul: where there are more, what it reads is made again for each block of them.
_COLUMNS = 256


def joins(program: TensorProgram) -> tuple[int, int]:
    """Counts the matmuls of `program` that read what others of them made: doubtful ones, and those that sum along what
    was reduced before.
    """
    found = [whole_rows for _, whole_rows in _joined(program)]
    return found.count(False), found.count(True)


def crowded(program: TensorProgram, lengths: Mapping[str, int]) -> float:
    """Returns the share of the multiplications that are in doubtful joins of many columns, and in what these read.

    Args:
        program: with a matmul at least.
        lengths: elements of each space, by name.
    """
    matmuls = {node.name: node for node in program.nodes if isinstance(node, Contraction)}
    work = {n: prod(a.space.size(lengths) for a in dict.fromkeys(axes_of(node))) for n, node in matmuls.items()}
    made_of: dict[str, frozenset[str]] = {}
    for node in program.nodes:
        own = frozenset((node.name,)) if node.name in matmuls else frozenset[str]()
        made_of[node.name] = own.union(*(made_of.get(v, ()) for v in uses(node)))
    found: set[str] = set()
    for node, whole_rows in _joined(program):
        for read in (node.left, node.right):
            columns = prod(a.space.size(lengths) for a in node.axes if a not in read.axes)
            if not whole_rows and made_of.get(read.value) and columns > _COLUMNS:
                found |= {node.name, *made_of[read.value]}
    return sum(work[name] for name in found) / max(1, sum(work.values()))


def _joined(program: TensorProgram) -> Iterator[tuple[Contraction, bool]]:
    """Yields the matmuls that read what others made, each with whether it sums along what was reduced before."""
    before: dict[str, bool] = {}
    for node in program.nodes:
        before[node.name] = isinstance(node, Contraction) or any(before.get(v, False) for v in uses(node))
    for node in program.nodes:
        if isinstance(node, Contraction) and any(before.get(v, False) for v in uses(node)):
            summed = {a.space for a in node.over}
            own = _reading(program, node.name)
            known = {a.space for n in program.nodes if isinstance(n, Reduction) and n.name not in own for a in n.over}
            yield node, not summed.isdisjoint(known)


def _reading(program: TensorProgram, name: str) -> set[str]:
    """Returns the values that depend on `name`."""
    found = {name}
    for node in program.nodes:
        if not found.isdisjoint(uses(node)):
            found.add(node.name)
    return found
