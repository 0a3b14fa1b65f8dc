"""Room: how many lanes the blocks of a placed program's loops have, where a target has them in powers of two.

Legality, cost models and emitters ask here, so that a block has as many for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.block.program import Map
from weft.block.size import Elements, Most, Size, spaces_of, value
from weft.tensor.axes import Axis, Space


@dataclass(frozen=True, slots=True)
class Room:
    """As many lanes as the elements of `space` need at run time, and at least `least`."""

    space: Space
    least: int

    def of(self, sizes: Mapping[str, int]) -> int:
        """Return the lanes, given the size of each space by name."""
        return lanes_for(self.space.size(sizes), self.least)


def power_of_two(number: int) -> int:
    """Return the least power of two that is at least `number`: blocks have no other sizes on a GPU."""
    return 1 << max(0, number - 1).bit_length()


def lanes_for(elements: int, least: int) -> int:
    """Return the lanes of a block of at most so many elements, of which its target asks at least `least`."""
    return max(least, power_of_two(elements))


def room_of(node: Map, loops: Mapping[Axis, Map]) -> int | Room | None:
    """Return the lanes of a block of `node`; None where neither a number nor the size of its own space says how many.

    A block with room for its whole space has what lists between loops ask for, too (`LoopDemands.covering`).

    Args:
        node: a loop with a place.
        loops: those around it, at least.
    """
    match known(node.most, loops):
        case None:
            return None
        case Space() as space:
            return Room(space, node.demands.covering) if space == node.axis.space else None
        case elements:
            covers = node.most == node.axis.space.fixed
            return lanes_for(elements, node.demands.covering if covers else node.demands.least)


def reach(node: Map, loops: Mapping[Axis, Map]) -> int | Space | None:
    """Return the most elements that `node` goes over, block by block, as `known` does; `loops`: those around it, at least."""
    return known(node.range.bounds(node.axis.space, node.tile).most, loops)


def known(size: Size, loops: Mapping[Axis, Map]) -> int | Space | None:
    """Return `size` as a number, or as the space that has so many elements; None where it is neither."""
    match size:
        case Most(axis):
            return known(loops[axis].most, loops)
        case Elements(space) if space.fixed is None:
            return space
        case _ if all(space.fixed is not None for space in spaces_of(size)):
            return value(size, {}, {})
        case _:
            return None
