"""Variables: memory that columns use, allocated once at its largest size, and used again by what comes when it is free
(section 5.3).

In: what is taken and given back, in order. Out: `Variable`s. What lies in another place, in another type or in another layout does
not share one: the layout of a matrix unit's operand is the unit's own, and a program cannot use such registers otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import prod

from weft.cost.chip import OnChip
from weft.tensor.dtypes import DType


class Arrangement(Enum):
    """How elements lie in a variable."""

    memory = "as in memory"
    rows = "a row for each thread"
    left = "left operand"
    right = "right operand"
    result = "result of a matmul"


@dataclass(frozen=True, slots=True)
class VariableKind:
    """What two arrays must have in common to share a variable.

    Attributes:
        shared: one for the thread block; else one for each thread group.
        shape: of the block of the matrix unit whose operand or result it is.
    """

    memory: OnChip
    layout: Arrangement
    dtype: DType
    shared: bool = False
    shape: tuple[int, int, int] | None = None


@dataclass(slots=True, eq=False)
class Variable:
    """Memory of a thread group, or of a thread block.

    Attributes:
        sizes: of the largest array that it ever holds, dimension by dimension.
        axes: names of these dimensions; () of a block of a matrix unit.
        holds: what, in order of appearance.
    """

    kind: VariableKind
    sizes: tuple[int, ...]
    axes: tuple[str, ...] = ()
    holds: list[str] = field(default_factory=list[str])

    @property
    def values(self) -> int:
        """Return how many values fit."""
        return prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Return its bytes."""
        return self.values * self.kind.dtype.bytes


@dataclass(slots=True)
class Variables:
    """All variables of a kernel; `live`: those in use now."""

    variables: list[Variable] = field(default_factory=list[Variable])
    live: list[Variable] = field(default_factory=list[Variable])

    def take(self, kind: VariableKind, sizes: tuple[int, ...], what: str, axes: tuple[str, ...] = ()) -> Variable:
        """Return a variable for `what`: a free one of that kind whose size is nearest, which may grow, or a new one."""
        free = [v for v in self.variables if v.kind == kind and v not in self.live and len(v.sizes) == len(sizes)]
        found = min(free, key=lambda v: abs(v.values - prod(sizes)), default=None)
        if found is None:
            found = Variable(kind, sizes, axes)
            self.variables.append(found)
        if prod(sizes) > found.values:
            found.sizes, found.axes = sizes, axes
        if what not in found.holds:
            found.holds.append(what)
        self.live.append(found)
        return found

    def give(self, variable: Variable) -> None:
        """Let others use it."""
        if variable in self.live:
            self.live.remove(variable)
