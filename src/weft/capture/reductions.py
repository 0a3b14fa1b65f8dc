"""Sums, means, extrema, and the normalisations that are made of them, as if the user had typed them."""

from __future__ import annotations

from math import inf

from weft.capture.arguments import Arguments, Handler
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.order import Order
from weft.tensor.program import Monoid
from weft.tensor.scalar import Arg, Lit, apply

MOST = 64
"""How many elements of a row weft keeps in order as it goes; beyond that sorting the row is cheaper."""


def rank_one(b: Builder, a: Arguments, largest: bool) -> tuple[Ref, Ref]:
    """Finds the first element along `dim` and its index, as max and min give them: NaN comes before all numbers."""
    ref, dims = a.ref("self"), a.dims("dim")
    assert dims is not None, "the overload with indices has a dimension"
    values, places = b.ranking(_ordered(b, ref, a), dims[0], None, Order(largest, True), a.flag("keepdim"), a.location)
    return _typed(b, values, ref.dtype, a), places


def _place(largest: bool) -> Handler:
    """Finds the index of the first element along `dim`, or of all elements, row after row."""

    def place(b: Builder, a: Arguments) -> Ref:
        ref, dims = a.ref("self"), a.dims("dim")
        keepdim = a.flag("keepdim")
        if dims is None and sum(d is not None for d in ref.dims) > 1:
            raise UnsupportedError("weft searches along one dimension, not several at once")
        if ref.dtype is DType.bool:
            raise UnsupportedError("weft does not order bool tensors")
        if dims is not None:
            return b.ranking(ref, dims[0], None, Order(largest, True), keepdim, a.location)[1]
        only = next((i for i, d in enumerate(ref.dims) if d is not None), 0)
        found = b.ranking(ref, only, None, Order(largest, True), True, a.location)[1]
        return found if keepdim else b.squeeze(found)

    return place


def _topk(b: Builder, a: Arguments) -> tuple[Ref, Ref]:
    """Finds the first k in order: sorted also where that is not asked for. NaN is taken for the greatest."""
    ref, count, largest = a.ref("self"), a.integer("k"), a.flag("largest")
    if not 0 < count <= MOST:
        raise UnsupportedError(f"k is {count}, but weft supports only k from 1 to {MOST}")
    if ref.dtype is DType.bool:
        raise UnsupportedError("weft does not order bool tensors")
    return b.ranking(ref, a.integer("dim"), count, Order(largest, largest), False, a.location)


def _ordered(b: Builder, ref: Ref, a: Arguments) -> Ref:
    """Returns `ref` as numbers: True is greater than False."""
    if ref.dtype is not DType.bool:
        return ref
    return b.elementwise(apply("where", Arg(0), Lit(1.0), Lit(0.0)), (ref,), DType.float32, a.location)


def _typed(b: Builder, ref: Ref, dtype: DType, a: Arguments) -> Ref:
    if dtype is not DType.bool:
        return ref
    return b.elementwise(apply("gt", Arg(0), Lit(0.0)), (ref,), DType.bool, a.location)


RANKINGS: dict[str, Handler] = {
    "aten.argmax": _place(largest=True),
    "aten.argmin": _place(largest=False),
    "aten.topk": _topk,
}


def _reducer(monoid: Monoid) -> Handler:
    def reducer(b: Builder, a: Arguments) -> Ref | tuple[Ref, ...]:
        ref = a.ref("self")
        if "other" in a.names:
            expr = apply(monoid.value, Arg(0), Arg(1))
            return b.elementwise(expr, (ref, a.ref("other")), a.dtype, a.location)
        if any(slot is not None for slot in a.call.results[1:]):
            return rank_one(b, a, monoid is Monoid.max)
        dtype = a.element("dtype")
        if monoid in (Monoid.max, Monoid.min) and ref.dtype is DType.bool:
            return _test(monoid)(b, a)
        return b.reduce(monoid, ref, a.dims("dim"), a.flag("keepdim"), dtype, a.location)

    return reducer


def _test(monoid: Monoid) -> Handler:
    """Tests whether any element, or every one, is not 0: the extremum of numbers above 0 and others, of which those that decide
    nothing are the extremum's identity, so that blocks in which nothing decides can be left out.
    """
    true, false = (1.0, -inf) if monoid is Monoid.max else (inf, 0.0)

    def test(b: Builder, a: Arguments) -> Ref:
        ref = a.ref("self")
        if ref.dtype is not DType.bool:  # looked at in its own type: fp64 has numbers that fp32 takes for 0
            ref = b.elementwise(apply("ne", Arg(0), Lit(0)), (ref,), DType.bool, a.location)
        ones = b.elementwise(apply("where", Arg(0), Lit(true), Lit(false)), (ref,), DType.float32, a.location)
        best = b.reduce(monoid, ones, a.dims("dim"), a.flag("keepdim"), None, a.location)
        made = b.elementwise(apply("gt", Arg(0), Lit(0.0)), (best,), DType.bool, a.location)
        return b.cast(made, a.dtype, None, a.location)

    return test


def _mean(b: Builder, a: Arguments) -> Ref:
    dtype = a.element("dtype")
    return b.mean(a.ref("self"), a.dims("dim"), a.flag("keepdim"), dtype, a.location)


def _wide(b: Builder, a: Arguments, name: str) -> Ref:
    """Converts an operand to the type that a composite operation computes in: it rounds once, at its end."""
    dtype = a.element("dtype") or a.dtype
    return b.cast(a.ref(name), dtype.accumulator, None, a.location)


def _shifted(b: Builder, a: Arguments) -> tuple[Ref, Ref, Ref]:
    """Computes x - max(x), its exponential, and the sum of that."""
    if not a.dtype.is_float:
        raise UnsupportedError("weft computes it only for floating-point numbers")
    x, dim = _wide(b, a, "self"), a.integer("dim")
    if not x.dims:
        raise UnsupportedError("its operand has no dimensions")
    top = b.reduce(Monoid.max, x, [dim], True, None, a.location)
    shifted = b.elementwise(apply("sub", Arg(0), Arg(1)), (x, top), None, a.location)
    weight = b.elementwise(apply("exp", Arg(0)), (shifted,), None, a.location)
    return shifted, weight, b.reduce(Monoid.sum, weight, [dim], True, None, a.location)


def _softmax(b: Builder, a: Arguments) -> Ref:
    _, weight, total = _shifted(b, a)
    made = b.elementwise(apply("div", Arg(0), Arg(1)), (weight, total), None, a.location)
    return b.cast(made, a.dtype, None, a.location)


def _log_softmax(b: Builder, a: Arguments) -> Ref:
    shifted, _, total = _shifted(b, a)
    expr = apply("sub", Arg(0), apply("log", Arg(1)))
    made = b.elementwise(expr, (shifted, total), None, a.location)
    return b.cast(made, a.dtype, None, a.location)


def _scaled(b: Builder, a: Arguments, x: Ref, dims: list[int], epsilon: float) -> Ref:
    """Computes x / sqrt(mean of x squared + epsilon), times weight, plus bias, rounded."""
    square = b.elementwise(apply("mul", Arg(0), Arg(0)), (x,), None, a.location)
    mean = b.mean(square, dims, True, None, a.location)
    root = apply("sqrt", apply("add", Arg(1), Lit(epsilon)))
    made = b.elementwise(apply("div", Arg(0), root), (x, mean), None, a.location)
    for name, op in (("weight", "mul"), ("bias", "add")):
        if name in a.names and a.has(name):
            expr = apply(op, Arg(0), Arg(1))
            made = b.elementwise(expr, (made, a.ref(name)), x.dtype, a.location)
    return b.cast(made, a.dtype, None, a.location)


def _last(a: Arguments) -> list[int]:
    """Lists the dimensions that a normalised shape covers."""
    return list(range(-len(a.plain("normalized_shape")), 0))


def _layer_norm(b: Builder, a: Arguments) -> Ref:
    x, dims = _wide(b, a, "input"), _last(a)
    mean = b.mean(x, dims, True, None, a.location)
    centred = b.elementwise(apply("sub", Arg(0), Arg(1)), (x, mean), None, a.location)
    return _scaled(b, a, centred, dims, a.number("eps"))


def _rms_norm(b: Builder, a: Arguments) -> Ref:
    x = _wide(b, a, "input")
    epsilon = a.number("eps") if a.has("eps") else x.dtype.eps
    return _scaled(b, a, x, _last(a), epsilon)


REDUCTIONS: dict[str, Handler] = {
    **RANKINGS,
    "aten._log_softmax": _log_softmax,
    "aten._softmax": _softmax,
    "aten.all": _test(Monoid.min),
    "aten.amax": _reducer(Monoid.max),
    "aten.amin": _reducer(Monoid.min),
    "aten.any": _test(Monoid.max),
    "aten.layer_norm": _layer_norm,
    "aten.log_softmax": _log_softmax,
    "aten.max": _reducer(Monoid.max),
    "aten.mean": _mean,
    "aten.min": _reducer(Monoid.min),
    "aten.prod": _reducer(Monoid.prod),
    "aten.rms_norm": _rms_norm,
    "aten.softmax": _softmax,
    "aten.sum": _reducer(Monoid.sum),
}
