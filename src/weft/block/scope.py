"""What surrounds a graph while its types are worked out, and how a condition that it violates is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from weft.block.program import BlockType, Map
from weft.errors import InvalidProgramError
from weft.tensor.axes import Axis

Types = Mapping[str, BlockType]
"""The type of each value of a graph, by name."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What surrounds a graph: the maps around it by axis, and whether edges are real (a schedule was applied)."""

    maps: Mapping[Axis, Map]
    applied: bool
    seen: frozenset[tuple[Axis, bool, bool, bool]] = field(init=False, compare=False, repr=False)
    """All that types inside depend on: each axis, whether its map is a unit map, whether all its blocks are whole, and whether
    it has no tile."""

    def __post_init__(self) -> None:
        seen = [(a, n.unit, n.full, n.tile is None) for a, n in self.maps.items()]
        object.__setattr__(self, "seen", frozenset(seen))

    def inside(self, node: Map) -> Scope:
        """Return the scope of `node`'s body."""
        return Scope({**self.maps, node.axis: node}, self.applied)

    def may_be_partial(self, axis: Axis) -> bool:
        """Tell whether the current block of `axis` can have fewer valid elements than its size."""
        node = self.maps.get(axis)
        return node is None or not node.full


def demand(holds: bool, node: str, condition: str, found: object) -> None:
    if not holds:
        fail(node, condition, found)


def fail(node: str, condition: str, found: object) -> NoReturn:
    text = str(found)
    raise InvalidProgramError(
        f"malformed block program: {condition}" + (f" (found {text})" if text else ""), node=node, condition=condition
    )
