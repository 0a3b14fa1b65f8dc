"""What decides where iterations of the grid, and of loops in them, read memory: who reads the same, and how far apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from weft.block.program import Load, Map, Store
from weft.block.subscripts import Subscript
from weft.tensor.axes import Axis

At: TypeAlias = "tuple[tuple[Axis, int], ...]"
"""Axes whose current blocks decide where an item lies, each with how many elements in a row lie at the same place."""

PartOfList: TypeAlias = "tuple[tuple[tuple[tuple[int, int, int | None, str], ...], int], ...]"
"""What part of a list loads read, whichever loops they stand in: for each dimension factors and digits of a space's elements, and
where it begins. Loads with equal parts read the same, one after the other; others something else."""


def part_of(node: Load) -> PartOfList:
    """Tell which part of its list `node` loads in all."""

    def digits(subscript: Subscript) -> tuple[tuple[int, int, int | None, str], ...]:
        if subscript.index is not None:  # equal indices have one name
            return ((1, 1, None, f"[{node.indices[subscript.index]}]"),)
        return tuple((factor, d.div, d.mod, d.axis.space.name) for factor, d in subscript.terms)

    return tuple((digits(subscript), subscript.offset) for subscript in node.at)


def decided_by(node: Load, around: Sequence[Map]) -> At:
    """List the axes on whose current blocks it depends what `node` loads, in the maps `around` it, outermost first.

    A block that lies in another one, or in a segment, depends on that one's axis, too.
    """
    found = {digit.axis: digit.div for subscript in node.at for _, digit in subscript.terms}
    found |= {axis: 1 for axis in moving(node, around) if axis not in found}
    for outer in reversed(around):
        if outer.axis in found:
            numbered = None if outer.range.segment is None else outer.range.segment[0]
            found |= {axis: 1 for axis in (outer.range.through, numbered) if axis is not None and axis not in found}
    return tuple(found.items())


def moving(node: Load | Store, around: Sequence[Map]) -> set[Axis]:
    """Return the axes with whose blocks it moves what `node` loads or stores.

    What indices say depends on the blocks that they are of: of the item's own axes, and of loops by single elements, of which items
    have no axis.
    """
    found = {axis for subscript in node.at for axis in subscript.axes}
    if isinstance(node, Load) and node.indices:
        found.update(node.dims, (m.axis for m in around if m.unit))
    return found


def blocks_of(node: Map, sizes: Mapping[str, int]) -> int:
    """Count the blocks of a loop of the grid."""
    tile = node.tile or (1 if node.unit else None)
    return 1 if node.range.one_block or tile is None else -(-node.axis.space.size(sizes) // tile)
