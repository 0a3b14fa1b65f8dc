"""Which elements an accident of roundings, or of the order of sums, makes a number or none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply
from weft.verify.eager import TypedDomain


class AccidentalDomain(TypedDomain):
    """Numbers, but 0 where rounding decides what is left of terms that cancel, and `poison` where the order of a sum or a product,
    or whether its terms are rounded, decides whether it leaves the range of its type on the way.

    Where a result is NaN here with NaN as poison, and is not with 0, it may be no number in a right program.

    Args:
        terms: of the longest sum whose rounding may be what is left.
        poison: NaN or 0.
    """

    def __init__(self, terms: int, poison: float = math.nan) -> None:
        self._room, self._accident = 4.0 * math.sqrt(terms), poison

    @property
    def _scale(self) -> float:
        """Returns a power of 2 that keeps sums of products of two in the range of fp64."""
        return 2.0**-520 if self._of is DType.float64 else 1.0

    def contract(
        self,
        left: Array,
        left_axes: Sequence[int],
        right: Array,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> Array:
        """Multiplies and sums, as a sum is."""
        labels = (left_axes, right_axes, out_axes)

        def product(a: Array, b: Array) -> Array:
            return super(AccidentalDomain, self).contract(a, labels[0], b, labels[1], labels[2])

        found = product(left, right)
        if found.dtype.kind != "f":
            return found
        (up, down), (plus, minus) = (_sides(v * self._scale) for v in (left, right))
        with np.errstate(all="ignore"):
            above, below = product(up, plus) + product(down, minus), product(up, minus) + product(down, plus)
        return self._inside(self._left(found, product(np.abs(left), np.abs(right))), above, below, self._scale**2)

    def reduce(self, monoid: Monoid, v: Array, dims: Sequence[int]) -> Array:
        """Reduces; what leaves the range in some order and not in another one is poison."""
        found = super().reduce(monoid, v, dims)
        if v.dtype.kind != "f" or monoid in (Monoid.max, Monoid.min):
            return found
        if monoid is Monoid.sum:
            above, below = (super(AccidentalDomain, self).reduce(monoid, a, dims) for a in _sides(v * self._scale))
            found = self._left(found, super().reduce(monoid, np.abs(v), dims))
            return self._inside(found, above, below, self._scale)
        most, largest = super().reduce(monoid, np.maximum(np.abs(v), 1.0), dims), -self._of.lowest
        return np.where((np.abs(found) <= largest) & (most > largest), self._accident, found)

    def _inside(self, found: Array, above: Array, below: Array, scale: float) -> Array:
        """Returns `found`, the sum of terms; poison where partial sums leave the range on one side and it does not, or on both.

        Of the terms, `above` are those above 0 and `below` the magnitudes of the others, each summed up and times `scale`.
        """
        with np.errstate(all="ignore"):
            largest, total = -self._of.lowest * scale, above - below
            either = (above > largest) & ((below > largest) | (total <= largest))
            either |= (below > largest) & (total >= -largest)
            return np.where(either & np.isfinite(above + below), self._accident, found)

    def _left(self, found: Array, of_all: Array) -> Array:
        """Returns `found`; 0 where it is no more than what rounding of terms of this size leaves."""
        with np.errstate(all="ignore"):
            return np.where(np.isfinite(of_all) & (np.abs(found) <= self._room * self._of.eps * of_all), 0.0, found)

    def _applied(self, expr: Apply, operands: Sequence[Array]) -> Array:
        found = super()._applied(expr, operands)
        if found.dtype.kind != "f":
            return found
        with np.errstate(all="ignore"):
            match expr.op:
                case "add" | "sub":
                    return self._left(found, np.abs(operands[0]) + np.abs(operands[1]))
                case "fma":
                    return self._left(found, np.abs(operands[0] * operands[1]) + np.abs(operands[2]))
                case "log":  # of what rounding alone tells from 1
                    return self._left(found, np.ones_like(found))
                case _:
                    return found


def _sides(values: Array) -> tuple[Array, Array]:
    """Returns how far values are above 0, and how far below."""
    return np.maximum(values, 0.0), np.maximum(-values, 0.0)
