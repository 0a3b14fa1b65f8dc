"""Spaces and axes: what a dimension *is*, apart from how long it happens to be.

A `Space` is an index set (the rows of x); an `Axis` is an iterator over a space. Two axes may run over one
space (self-attention's queries and keys), and two spaces may have equal sizes without being the same: identity is
by what operations constrain, never by size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Space:
    """An index set.

    Attributes:
        name: unique within a program; also the name of its size at run time.
        fixed: the size where the program itself says it (an arange, a segment count), else None: a run-time symbol.
        example: the size in the example, where there is one: a hint for schedules, no part of what the space is.
    """

    name: str
    fixed: int | None = None
    example: int | None = field(default=None, compare=False, repr=False)

    def size(self, sizes: Mapping[str, int]) -> int:
        """Returns the number of elements, given the run-time `sizes` by space name."""
        return self.fixed if self.fixed is not None else sizes[self.name]

    def __hash__(self) -> int:
        """Hash the name, whose hash Python keeps: spaces and axes are keys everywhere, and one name is nearly always one space."""
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Axis:
    """An iterator over a space; distinct axes of one space have distinct names."""

    name: str
    space: Space

    def __hash__(self) -> int:
        """Hash the name, as a space does."""
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Affine:
    """An affine index `sum(coefficient * axis) + offset` into one dimension of a source value.

    Attributes:
        terms: (axis, coefficient) pairs, no axis twice, no zero coefficient.
        offset: added to the sum, in elements.
        from_end: the offset counts from the last element (flip, negative slice starts), so that it holds for any size.
    """

    terms: tuple[tuple[Axis, int], ...] = ()
    offset: int = 0
    from_end: bool = False

    @staticmethod
    def of(axis: Axis) -> Affine:
        """Returns the index that is the axis itself."""
        return Affine(((axis, 1),))

    @property
    def axis(self) -> Axis | None:
        """The axis, where the index is exactly one axis; None where it is not."""
        match self:
            case Affine(((axis, 1),), 0, False):
                return axis
            case _:
                return None

    def __str__(self) -> str:
        parts = [str(a) if c == 1 else f"{c}*{a}" for a, c in self.terms]
        if self.from_end:
            parts.insert(0, "last")
        if self.offset or not parts:
            parts.append(str(self.offset))
        return " + ".join(parts).replace("+ -", "- ")


def present(dims: Iterable[Axis | None]) -> tuple[Axis, ...]:
    """Returns the axes among `dims`: all but those of size 1."""
    return tuple(d for d in dims if d is not None)
