"""Sums, products and extrema of all elements up to each."""

from __future__ import annotations

from dataclasses import replace

from weft.capture.arguments import Arguments, Handler
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.merge import of_exponentials
from weft.tensor.program import Monoid
from weft.tensor.scalar import Arg, Lit, Scalar, apply


def _scan(monoid: Monoid) -> Handler:
    def scan(b: Builder, a: Arguments) -> Ref:
        return _scanned(b, a, monoid, a.element("dtype") or a.dtype)

    return scan


def _scanned(b: Builder, a: Arguments, monoid: Monoid, dtype: DType) -> Ref:
    if dtype is DType.bool:
        raise UnsupportedError("weft does not add or order bool tensors as bools")
    return b.scan(monoid, a.ref("self"), a.integer("dim"), dtype, a.location)


def _extremum(monoid: Monoid) -> Handler:
    def extremum(b: Builder, a: Arguments) -> Ref | tuple[Ref, ...]:
        made = _scanned(b, a, monoid, a.ref("self").dtype)
        wanted = any(slot is not None for slot in a.call.results[1:])
        return (made, _places(b, a, made)) if wanted else made

    return extremum


def _places(b: Builder, a: Arguments, extrema: Ref) -> Ref:
    """Gives where the extrema up to each element are: the last number of those elements that are one themselves, NaN included.

    x          3  1  3  NaN  5
    cummax     3  3  3  NaN  NaN
    is one     y  n  y  y    n
    number     0  0  2  3    3     the largest number up to each of those that are one
    """
    ref = a.ref("self")
    dim = a.integer("dim") % max(len(ref.dims), 1)
    axis = ref.dims[dim] if ref.dims else None
    if axis is None:
        return b.elementwise(Lit(0), (ref,), DType.int64, a.location)
    counted = b.iota(axis)
    counted = replace(counted, dims=(*counted.dims, *[None] * (len(ref.dims) - dim - 1)))
    alike: Scalar = apply("eq", Arg(0), Arg(1))
    if ref.dtype.is_float:
        alike = apply("logical_or", alike, apply("isnan", Arg(0)))
    numbers = b.elementwise(apply("where", alike, Arg(2), Lit(0)), (ref, extrema, counted), DType.int64, a.location)
    return b.scan(Monoid.max, numbers, dim, DType.int64, a.location)


def _logcumsumexp(b: Builder, a: Arguments) -> Ref:
    """Gives the logarithms of sums of exponentials: the greatest element up to each, and the sum beside it.

    The sum has a term of 1 where the greatest is finite; where that is -inf, the result is, whatever the sum is.
    """
    ref = a.ref("self")
    dim = a.integer("dim") % max(len(ref.dims), 1)
    if not ref.dims or ref.dims[dim] is None:  # each element comes first
        return b.elementwise(Arg(0), (ref,), ref.dtype, a.location)
    kind = ref.dtype.accumulator
    states = b.scan_states(of_exponentials(1), (Arg(0), Lit(1.0)), ref, dim, (kind, kind), a.location)
    return b.elementwise(apply("add", Arg(0), apply("log", Arg(1))), states, a.dtype, a.location)


SCANS: dict[str, Handler] = {
    "aten.cummax": _extremum(Monoid.max),
    "aten.cummin": _extremum(Monoid.min),
    "aten.cumprod": _scan(Monoid.prod),
    "aten.cumsum": _scan(Monoid.sum),
    "aten.logcumsumexp": _logcumsumexp,
}
