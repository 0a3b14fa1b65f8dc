"""ATen calls that create tensors from numbers alone."""

from __future__ import annotations

import torch

from weft.capture.arguments import Arguments, Handler
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Number, Ref
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg, Lit, Scalar, apply


def _full(b: Builder, a: Arguments, value: Number) -> Ref:
    exact = {"float": float, "int": int, "bool": bool}[a.dtype.kind](value)
    if a.dtype.kind == "int":
        exact = a.dtype.wraps(int(exact))
    return b.expand(b.constant(exact, a.dtype), [a.size(n) for n in a.fake.shape], a.location)


def _zeros(b: Builder, a: Arguments) -> Ref:
    return _full(b, a, 0)


def _ones(b: Builder, a: Arguments) -> Ref:
    return _full(b, a, 1)


def _filled(b: Builder, a: Arguments) -> Ref:
    return _full(b, a, a.number("fill_value"))


def _fill(b: Builder, a: Arguments) -> Ref:
    return _full(b, a, a.number("value"))


def _scalar(b: Builder, a: Arguments) -> Ref:
    return _full(b, a, a.number("s"))


def _arange(b: Builder, a: Arguments) -> Ref:
    first = a.plain("start") if "start" in a.names else 0
    start = 0 if isinstance(first, torch.SymInt) else a.integer("start") if "start" in a.names else 0
    step = a.integer("step") if "step" in a.names else 1
    if "end" not in a.names:
        raise UnsupportedError("without an end")
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


def _eye(b: Builder, a: Arguments) -> Ref:
    """Makes 1 where the row's number is the column's, else 0."""
    rows, columns = (b.iota(a.size(size), DType.int64) for size in a.fake.shape)
    one, none = {"float": (1.0, 0.0), "int": (1, 0), "bool": (True, False)}[a.dtype.kind]
    expr = apply("where", apply("eq", Arg(0), Arg(1)), Lit(one), Lit(none))
    return b.elementwise(expr, (b.unsqueeze(rows, 1), columns), a.dtype, a.location)


CREATION: dict[str, Handler] = {
    "aten.arange": _arange,
    "aten.eye": _eye,
    "aten.fill": _fill,
    "aten.full": _filled,
    "aten.full_like": _filled,
    "aten.new_full": _filled,
    "aten.new_ones": _ones,
    "aten.new_zeros": _zeros,
    "aten.ones": _ones,
    "aten.ones_like": _ones,
    "aten.scalar_tensor": _scalar,
    "aten.zero": _zeros,
    "aten.zeros": _zeros,
    "aten.zeros_like": _zeros,
}
