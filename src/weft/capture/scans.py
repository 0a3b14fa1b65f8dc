"""Sums, products and extrema of all elements up to each."""

from __future__ import annotations

from weft.capture.arguments import Arguments, Handler
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid


def _scan(monoid: Monoid) -> Handler:
    def scan(b: Builder, a: Arguments) -> Ref:
        dtype = a.element("dtype") or a.dtype
        if dtype is DType.bool:
            raise UnsupportedError("weft does not add or order bool tensors as bools")
        return b.scan(monoid, a.ref("self"), a.integer("dim"), dtype, a.location)

    return scan


def _extremum(monoid: Monoid) -> Handler:
    values = _scan(monoid)

    def extremum(b: Builder, a: Arguments) -> Ref | tuple[Ref, ...]:
        if any(slot is not None for slot in a.call.results[1:]):
            raise UnsupportedError("weft gives the extrema up to each element, but not where they are")
        return values(b, a)

    return extremum


SCANS: dict[str, Handler] = {
    "aten.cummax": _extremum(Monoid.max),
    "aten.cummin": _extremum(Monoid.min),
    "aten.cumprod": _scan(Monoid.prod),
    "aten.cumsum": _scan(Monoid.sum),
}
