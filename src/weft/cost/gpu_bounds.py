"""What bounds the time of a launch on a GPU, and what its predicted time is made of."""

from __future__ import annotations

from dataclasses import dataclass

from weft.cost.gpu_limits import Resources

# How well what bounds a launch as a whole overlaps: two bounds that are equal take 2 ** (1 / 4) as long as one.
_OVERLAP = 4


def together(*bounds: float) -> float:
    """Return what takes as long as several bounds that overlap, the more the further they are apart."""
    return sum(bound**_OVERLAP for bound in bounds) ** (1 / _OVERLAP)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds that a launch takes at least, without what starts it.

    Attributes:
        memory: to move what comes from memory and goes there (`weft.cost.device_bytes`).
        arithmetic: to do all operations at full rate.
        cache: to move all bytes from the second-level cache.
        waves: of all waves of the grid, by what thread blocks wait for.
    """

    memory: float
    arithmetic: float
    cache: float
    waves: float

    @property
    def seconds(self) -> float:
        """The seconds that are predicted."""
        return together(self.waves, max(self.memory, self.arithmetic), self.cache)


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of a thread block that is alone, in all its iterations: each part as if nothing else hid it."""

    matmuls: float
    waiting: float
    vectors: float
    accesses: float


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What the predicted time of a launch is made of; `launch_seconds` is the part of `predicted_seconds` that starts it."""

    predicted_seconds: float
    launch_seconds: float
    bounds: Bounds
    cycles: Cycles
    found: Resources
    warps: int
    stages: int
