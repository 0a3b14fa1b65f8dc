"""ATen calls that create tensors from numbers alone."""

from __future__ import annotations

import torch

from weft.capture.arguments import Arguments, Handler
from weft.capture.sizes import symbolic
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Number, Ref
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg, Lit, Scalar, apply

_PARTS = 256
"""Numbers that are so many parts of 1, or a multiple, are sums without rounding."""


def _full(b: Builder, a: Arguments, value: Number) -> Ref:
    exact = {"float": float, "int": int, "bool": bool}[a.dtype.kind](value)
    if a.dtype.kind == "int":
        exact = a.dtype.wraps(int(exact))
    return b.expand(b.constant(exact, a.dtype), [a.size(n) for n in a.fake.shape], a.location)


def _full_of(value: Number | str) -> Handler:
    """Fills with a number, or with the one that an argument gives, by its name."""
    return lambda b, a: _full(b, a, a.number(value) if isinstance(value, str) else value)


def _arange(b: Builder, a: Arguments) -> Ref:
    given = [a.plain(name) for name in ("start", "step") if name in a.names]
    fractions = [number for number in given if isinstance(number, float)]
    if fractions and not (a.dtype.kind == "int" and all(number.is_integer() for number in fractions)):
        return _of_fractions(b, a)
    first = a.plain("start") if "start" in a.names else 0
    start = 0 if isinstance(first, torch.SymInt) else int(a.number("start")) if "start" in a.names else 0
    step = int(a.number("step")) if "step" in a.names else 1
    if "end" not in a.names:
        raise UnsupportedError("weft needs the end of a range")
    (size,) = a.fake.shape
    made = b.iota(a.size(size), DType.int64)
    expr: Scalar = Arg(0) if step == 1 else apply("mul", Arg(0), Lit(step))
    expr = expr if start == 0 else apply("add", expr, Lit(start))
    if expr != Arg(0):
        made = b.elementwise(expr, (made,), DType.int64, a.location)
    if isinstance(first, torch.SymInt):
        past = b.extent(a.axis(first), DType.int64)
        made = b.elementwise(apply("add", Arg(0), Arg(1)), (made, past), DType.int64, a.location)
    return b.cast(made, a.dtype, None, a.location)


def _of_fractions(b: Builder, a: Arguments) -> Ref:
    """Numbers from one on that need not be whole, as far as fp32 holds each of them exactly.

    Raises:
        UnsupportedError: it may not, as those a tenth apart, which eager computes in fp64.
    """
    start = float(a.number("start"))
    step = float(a.number("step")) if "step" in a.names else 1.0
    (size,) = a.fake.shape
    exact = all((number * _PARTS).is_integer() for number in (start, step))
    if not exact or not a.dtype.is_float or symbolic(size) or (abs(start) + abs(step) * size) * _PARTS > 2**24:
        raise UnsupportedError("its numbers are rounded")
    made = b.cast(b.iota(a.size(size), DType.int64), DType.float32, None, a.location)
    expr = apply("add", apply("mul", Arg(0), Lit(step)), Lit(start))
    return b.cast(b.elementwise(expr, (made,), DType.float32, a.location), a.dtype, None, a.location)


def _eye(b: Builder, a: Arguments) -> Ref:
    """Makes 1 where the row's number is the column's, else 0."""
    rows, columns = (b.iota(a.size(size), DType.int64) for size in a.fake.shape)
    one, none = {"float": (1.0, 0.0), "int": (1, 0), "bool": (True, False)}[a.dtype.kind]
    expr = apply("where", apply("eq", Arg(0), Arg(1)), Lit(one), Lit(none))
    return b.elementwise(expr, (b.unsqueeze(rows, 1), columns), a.dtype, a.location)


CREATION: dict[str, Handler] = {
    "aten.arange": _arange,
    "aten.eye": _eye,
    "aten.fill": _full_of("value"),
    "aten.full": _full_of("fill_value"),
    "aten.full_like": _full_of("fill_value"),
    "aten.new_full": _full_of("fill_value"),
    "aten.new_ones": _full_of(1),
    "aten.new_zeros": _full_of(0),
    "aten.ones": _full_of(1),
    "aten.ones_like": _full_of(1),
    "aten.scalar_tensor": _full_of("s"),
    "aten.zero": _full_of(0),
    "aten.zeros": _full_of(0),
    "aten.zeros_like": _full_of(0),
}
