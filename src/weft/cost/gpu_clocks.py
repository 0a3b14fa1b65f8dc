"""What elementwise operations cost a GPU's scheduler, in clocks for each warp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from weft.tensor.axes import Axis
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar

# Clocks of a scheduler that one operation on a warp takes: 1 where all 32 lanes have a unit, 2 where half have (comparisons,
# selections, conversions), 8 where a quarter of 8 units is there (the special functions exp2, log2, reciprocal, square root).
_FUNCTION = 8.0
CLOCKS = {
    **dict.fromkeys(
        ("maximum", "minimum", "where", "abs", "sign", "floor", "ceil", "trunc", "round", "isnan", "isinf"), 2.0
    ),
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_not"), 2.0),
    **dict.fromkeys(("decay", "coarse_decay", "coarse_div"), _FUNCTION + 2),
    **dict.fromkeys(("exp", "exp2", "log"), _FUNCTION + 5),
    **dict.fromkeys(("div", "sqrt"), _FUNCTION + 6),
    **dict.fromkeys(("sin", "cos", "floor_divide", "trunc_divide"), _FUNCTION + 20),
    **dict.fromkeys(("expm1", "log1p", "tanh", "erf", "fmod"), 2 * _FUNCTION + 20),
    "pow": 3 * _FUNCTION + 20,
}
"""Clocks of an operation, by its row of the table; of those that are not here, 1."""

_POWERS = {2.0: 1.0, 1.0: 0.0, 0.5: CLOCKS["sqrt"], -0.5: CLOCKS["sqrt"] + CLOCKS["div"], -1.0: CLOCKS["div"]}
SELECT = 2.0
"""Clocks of choosing one of two values."""

CONVERT = 2.0
"""Clocks of making another type of a value."""


def clocks_of(expr: Scalar, args: Sequence[tuple[Axis, ...]]) -> list[tuple[frozenset[Axis], float]]:
    """Lists (axes, clocks for each element) of every operation of `expr`, whose arguments have axes `args`; numbers cost nothing.

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
                axes, clocks = axes_of(base), _POWERS.get(float(value), CLOCKS["pow"])
            case Apply(op, inner):
                axes, clocks = frozenset[Axis]().union(*map(axes_of, inner)), CLOCKS.get(op, 1.0)
            case Convert(_, inner):
                axes, clocks = axes_of(inner), CONVERT
            case _:
                assert_never(part)
        if axes:
            found.append((axes, clocks))
        return axes

    axes_of(expr)
    return found
