"""Where an item lies in memory: for each dimension a sum of coefficients times digits of element numbers, and an offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from weft.block.roles import AXES
from weft.tensor.axes import Axis


@dataclass(frozen=True, slots=True)
class Digit:
    """`(number of the element along axis // div) % mod`: of each of a block; of the first where items lack the axis."""

    axis: Axis = field(metadata=AXES)
    div: int = 1
    mod: int | None = None


@dataclass(frozen=True, slots=True)
class Subscript:
    """Where an item lies along one dimension of memory: the sum of coefficients times digits, and `offset`.

    Attributes:
        index: of a load whose elements lie where integers say, which of its `indices` says so here; then there is nothing else.
    """

    terms: tuple[tuple[int, Digit], ...] = field(metadata=AXES)
    offset: int = 0
    index: int | None = None

    @staticmethod
    def of(axis: Axis, div: int = 1) -> Subscript:
        """Make the subscript of the elements of the current block of `axis`, `div` after one another at the same place."""
        return Subscript(((1, Digit(axis, div)),))

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes whose current blocks decide it."""
        return tuple(digit.axis for _, digit in self.terms)

    @property
    def plain(self) -> Axis | None:
        """The axis whose element numbers it is, if it is nothing but those."""
        match self:
            case Subscript(((1, Digit(axis, 1, None)),), 0):
                return axis
            case _:
                return None

    def spelled(self, name: Callable[[Axis], str]) -> str:
        """Write it as a listing does, with these names of the elements along each axis."""
        texts: list[str] = []
        for factor, digit in self.terms:
            text = name(digit.axis) if digit.div == 1 else f"{name(digit.axis)}/{digit.div}"
            text = text if digit.mod is None else f"{text}%{digit.mod}"
            part = text if digit.div == 1 and digit.mod is None else f"({text})"
            texts.append(text if factor == 1 else f"{factor}*{part}")
        return "+".join((*texts, *((str(self.offset),) if self.offset or not texts else ())))
