"""What elementwise operations cost a GPU's scheduler, in cycles for each warp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from weft.tensor import optable
from weft.tensor.axes import Axis
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, constant_factor

_ROOT, _QUOTIENT = (optable.row(op).gpu for op in ("sqrt", "div"))
_POWERS = {2.0: 1.0, 1.0: 0.0, 0.5: _ROOT, -0.5: _ROOT + _QUOTIENT, -1.0: _QUOTIENT}
SPECIAL = 8.0
"""Cycles of a special function: the table's rows count so many for each (`weft.tensor.optable`)."""

SELECT = 2.0
"""Cycles of choosing one of two values."""

CONVERT = 2.0
"""Cycles of making another type of a value."""


def cycles_of(expr: Scalar, args: Sequence[tuple[Axis, ...]]) -> list[tuple[frozenset[Axis], float]]:
    """Lists (axes, cycles for each element) of every operation of `expr`, whose arguments have axes `args`; numbers cost nothing.

    An operation on numbers of rows is one for each row, wherever it stands.
    """
    found: list[tuple[frozenset[Axis], float]] = []

    def axes_of(part: Scalar) -> frozenset[Axis]:
        match part:
            case Arg(index):
                return frozenset(args[index])
            case Lit():
                return frozenset()
            case Apply(op, (base, Lit(value))) if op == "pow":
                axes, cycles = axes_of(base), _POWERS.get(float(value), optable.row(op).gpu)
            case Apply(
                "decay" | "coarse_decay" as op, (inner,)
            ):  # its argument is multiplied with log2(e), and with what else is there
                axes, cycles = axes_of(constant_factor(inner)[1]), optable.row(op).gpu
            case Apply("div" | "coarse_div", (inner, Lit())):  # multiplied with the reciprocal
                axes, cycles = axes_of(inner), 2.0
            case Apply(op, inner):
                axes, cycles = frozenset[Axis]().union(*map(axes_of, inner)), optable.row(op).gpu
            case Convert(_, inner):
                axes, cycles = axes_of(inner), CONVERT
            case _:
                assert_never(part)
        if axes:
            found.append((axes, cycles))
        return axes

    axes_of(expr)
    return found
