"""Numbers that Python computed from symbolic sizes, such as sqrt(x.shape[-1]), as expressions over sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from weft.errors import UnsupportedError
from weft.tensor.scalar import Lit, Scalar, apply

_TWO = {"FloatTrueDiv": "div", "IntTrueDiv": "div", "FloatPow": "pow", "PowByNatural": "pow", "Pow": "pow"}
"""The functions of two arguments that PyTorch and SymPy have for Python's operators."""
_SQRT = "OpaqueUnaryFn_sqrt"


def number_of_sizes(expr: Any, size: Callable[[Any], Scalar]) -> Scalar:
    """The scalar expression of a float that Python computed from sizes.

    Args:
        expr: SymPy's, in PyTorch's functions of symbolic shapes.
        size: gives the scalar of a symbol.

    Raises:
        UnsupportedError: it has another operation than sums, products, quotients, powers and square roots.
    """
    if expr.is_Symbol:
        return size(expr)
    if expr.is_number:
        return Lit(float(expr))
    function = type(expr).__name__
    args = [number_of_sizes(a, size) for a in expr.args]
    if function in ("Add", "Mul"):
        return reduce(lambda one, other: apply(function.lower(), one, other), args)
    if function in _TWO and len(args) == 2:
        if _TWO[function] == "pow" and args[1] in (Lit(0.5), Lit(-0.5)):
            root = apply("sqrt", args[0])
            return root if args[1] == Lit(0.5) else apply("div", Lit(1.0), root)
        return apply(_TWO[function], *args)
    if function == _SQRT:
        return apply("sqrt", *args)
    if function == "ToFloat":
        return args[0]
    raise UnsupportedError(f"{expr}, which Python computed from sizes")
