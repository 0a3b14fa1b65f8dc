"""Numbers that Python computed from symbolic sizes, such as sqrt(x.shape[-1]), or from run-time numbers, as expressions.

A Python float that is another one at another call comes into a graph as a tensor of one fp64 number, whose content it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from weft.capture.arguments import Arguments, Handler
from weft.capture.sizes import expression
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg, Lit, Scalar, apply

_TWO = {"FloatTrueDiv": "div", "IntTrueDiv": "div", "FloatPow": "pow", "PowByNatural": "pow", "Pow": "pow"}
"""The functions of two arguments that PyTorch and SymPy have for Python's operators."""
_SQRT = "OpaqueUnaryFn_sqrt"


def computed(builder: Builder, arguments: Arguments, value: torch.SymInt | torch.SymFloat, dtype: DType) -> Ref:
    """Returns a number that Python computed from sizes, as a value of rank 0 and of this type: int64, or a float.

    Where a float is computed from numbers of the run it is so in fp64, as Python does, and rounded once.

    Raises:
        UnsupportedError: it has another operation than sums and products; of a float, quotients, powers and square roots too.
    """
    refs: list[Ref] = []
    of_the_run = not arguments.contents.keys().isdisjoint(expression(value).free_symbols)
    wide = DType.float64 if of_the_run and dtype.is_float else dtype

    def known(symbol: Any) -> Scalar:
        content = arguments.contents.get(symbol)
        if content is None:
            refs.append(builder.extent(arguments.axis_of(symbol), wide))
        else:
            refs.append(builder.cast(content, wide, location=arguments.location))
        return Arg(len(refs) - 1)

    expr = _number_of_sizes(expression(value), known, integer=not dtype.is_float)
    return builder.cast(builder.elementwise(expr, refs, wide, arguments.location), dtype, location=arguments.location)


def _number_of_sizes(expr: Any, size: Callable[[Any], Scalar], *, integer: bool) -> Scalar:
    """Translates SymPy's `expr`, in PyTorch's functions of symbolic shapes, to a scalar expression; `size` gives that
    of a symbol.
    """
    if expr.is_Symbol:
        return size(expr)
    if expr.is_number and (expr.is_Integer or not integer):
        return Lit(int(expr) if integer else float(expr))
    function = type(expr).__name__
    args = [_number_of_sizes(a, size, integer=integer) for a in expr.args]
    if function in ("Add", "Mul"):
        return reduce(lambda one, other: apply(function.lower(), one, other), args)
    if integer:
        raise UnsupportedError(f"weft does not support {expr}, which Python computed from sizes")
    if function in _TWO and len(args) == 2:
        if _TWO[function] == "pow" and args[1] in (Lit(0.5), Lit(-0.5)):
            root = apply("sqrt", args[0])
            return root if args[1] == Lit(0.5) else apply("div", Lit(1.0), root)
        return apply(_TWO[function], *args)
    if function == _SQRT:
        return apply("sqrt", *args)
    if function == "ToFloat":
        return args[0]
    raise UnsupportedError(f"weft does not support {expr}, which Python computed from sizes")


# Operations that keep some elements by where they are: comparisons of the indices themselves.


def _triangle(keeps: str) -> Handler:
    """Keeps the elements for which `column - row` compares so with the diagonal's number; elsewhere 0."""

    def triangle(b: Builder, a: Arguments) -> Ref:
        x, diagonal = a.ref("self"), a.plain("diagonal")
        if len(x.dims) < 2:
            raise UnsupportedError("its operand has fewer than two dimensions")
        rows = b.unsqueeze(b.iota(x.dims[-2] or 1), 1)
        columns = b.iota(x.dims[-1] or 1)
        refs = [columns, rows, x]
        if isinstance(diagonal, torch.SymInt):
            refs.append(computed(b, a, diagonal, DType.int64))
            bound: Scalar = apply("add", Arg(1), Arg(3))
        else:
            bound = Arg(1) if diagonal == 0 else apply("add", Arg(1), Lit(diagonal))
        kept = apply(keeps, Arg(0), bound)
        nothing = {"float": 0.0, "bool": False, "int": 0}[x.dtype.kind]
        expr = apply("where", kept, Arg(2), Lit(nothing))
        return b.elementwise(expr, refs, x.dtype, a.location)

    return triangle


INDICES: dict[str, Handler] = {"aten.tril": _triangle("le"), "aten.triu": _triangle("ge")}
