"""Guards: which iterations of a loop with a state leave it as it is, and which of the others need no mask."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from weft.tensor.axes import Axis
from weft.tensor.scalar import Apply, Arg, ExactNumbers, Lit, Scalar


class GuardedBlocks(Enum):
    """Which iterations of a guarded loop are done: all that change the state, or those of them with full or with other blocks."""

    busy = "busy"
    full = "full"
    partial = "partial"


@dataclass(frozen=True, slots=True, eq=False)
class Guard(ExactNumbers):
    """An iteration is left out where all valid elements of the body's value `value` are `idle`.

    Attributes:
        value: an item of the body.
        idle: what all of its elements are where the iteration leaves the state as it is.
        full: what all of them are where the iteration needs no mask; None: it is not asked.
        blocks: which blocks the loop goes over. Where it is `full`, others are left out; where it is `partial`, full ones are, too.
        rows: an axis of `value`, the only one, of whose elements those that are `idle` need not be done either (`weft.block.rows`).
    """

    value: str
    idle: float | bool
    full: float | bool | None = None
    blocks: GuardedBlocks = GuardedBlocks.busy
    rows: Axis | None = None

    @property
    def left_out(self) -> tuple[tuple[float | bool, bool], ...]:
        """List (number, alike): an iteration is left out if it is true of one of them that all elements are this number, or (not
        `alike`) that some are not.
        """
        match self.blocks, self.full:
            case GuardedBlocks.full, float() | bool() | int() as full:
                return ((full, False),)
            case GuardedBlocks.partial, float() | bool() | int() as full:
                return ((self.idle, True), (full, True))
            case _:
                return ((self.idle, True),)


def is_number(number: float | bool) -> Scalar:
    """Return the condition that an element, `Arg(0)`, is `number`."""
    if isinstance(number, bool):
        return Arg(0) if number else Apply("logical_not", (Arg(0),))
    return Apply("eq", (Arg(0), Lit(number)))
