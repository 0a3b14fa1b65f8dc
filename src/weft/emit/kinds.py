"""What values are computed as in a kernel, whatever it is printed in, and the promotion between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, assert_never

from weft.tensor import optable
from weft.tensor.dtypes import DType
from weft.tensor.optable import Row
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar

Kind: TypeAlias = Literal["float", "double", "int", "bool"]
"""What a value is computed as: a float32, a float64, a 64-bit integer or a bool."""


def kind_of(dtype: DType) -> Kind:
    """Return the kind that values of `dtype` are computed as."""
    if dtype is DType.float64:
        return "double"
    return "float" if dtype.is_float else "bool" if dtype is DType.bool else "int"


def kind_of_literal(value: float | int | bool) -> Kind:
    """Return the kind that a number in an expression is computed as by itself."""
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"


def truth_of_literal(value: float | int | bool) -> bool:
    """Return what a number is as a bool; -inf, which the greatest of no elements is, is False as the least bool is."""
    return bool(value) and value != -math.inf


def promoted(row: Row, kinds: Sequence[Kind]) -> tuple[tuple[Kind, ...], Kind]:
    """Return the kinds to which an operation converts its arguments, and that of the result.

    As in eager, an operation that is not defined on integers is done in float.
    """
    values = [i for i, s in enumerate(row.samples) if s != "bool"]
    floats = not row.closed or any(kinds[i] == "float" for i in values)
    doubles = any(kinds[i] == "double" for i in values)
    masks = bool(values) and all(kinds[i] == "bool" for i in values)
    number: Kind = "double" if doubles else "float" if floats else "int"
    common: Kind = "bool" if masks and not floats and row.name in ("where", "eq", "ne") else number
    wanted: tuple[Kind, ...] = tuple(common if i in values else "bool" for i in range(row.arity))
    return wanted, "bool" if row.result == "bool" else common


def kind_of_result(expr: Scalar, kinds: Sequence[Kind]) -> Kind:
    """Return the kind that `expr` is computed as, its arguments being of `kinds`."""
    match expr:
        case Arg(index):
            return kinds[index]
        case Lit(value):
            return kind_of_literal(value)
        case Convert(dtype):
            return kind_of(dtype)
        case Apply(op, args):
            return promoted(optable.row(op), [kind_of_result(each, kinds) for each in args])[1]
        case _:
            assert_never(expr)


def powers_of_integers(expr: Scalar, kinds: Sequence[Kind]) -> frozenset[float | None]:
    """Return the exponents that integers are raised to in `expr`, its arguments being of `kinds`; None for one that is computed."""
    match expr:
        case Apply(op, args):
            inner = frozenset[float | None]().union(*(powers_of_integers(each, kinds) for each in args))
            if op != "pow" or kind_of_result(expr, kinds) != "int":
                return inner
            return inner | {args[1].value if isinstance(args[1], Lit) else None}
        case Convert(_, arg):
            return powers_of_integers(arg, kinds)
        case _:
            return frozenset()
