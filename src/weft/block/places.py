"""Where a loop's iterations run, and what its target asks of them: `apply` decides it, cost models and emitters read it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Place(Enum):
    """Where the iterations of a loop run: one per thread block of the grid, one after the other, or one that covers the range."""

    grid = "grid"
    loop = "loop"
    whole = "whole"


class Layout(Enum):
    """How a staged item lies in local memory: row by row, or as the panel a matrix unit wants for its right operand."""

    rows = "rows"
    panel = "panel"


@dataclass(frozen=True, slots=True)
class LoopDemands:
    """The blocks and iterations of a loop with a place, as its target wants them.

    Attributes:
        least: the fewest elements that a block has room for; fewer are padded.
        covering: the same of a block that covers its space; lists between loops have blocks with the same room.
        unroll: iterations that run as one, so that what they load is asked for at once.
        pipelined: as many iterations as a launch has stages may have their loads in flight.
        chain: what so many iterations add to the loop's state is merged into what all before them came to; 0: each adds to that.
    """

    least: int = 1
    covering: int = 1
    unroll: int = 1
    pipelined: bool = False
    chain: int = 0

    def __str__(self) -> str:
        """Return what a listing says of it: "" of a loop of which nothing is asked."""
        room = max(self.least, self.covering)
        parts = [f"room for {room}"] if room > 1 else []
        parts += [f"{self.unroll} at once"] if self.unroll > 1 else []
        parts += ["pipelined"] if self.pipelined else []
        return ", ".join(parts)


NO_DEMANDS = LoopDemands()
"""Of a loop of which a target asks nothing."""
