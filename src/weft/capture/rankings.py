"""Which elements of a row come first, and where they are: argmax, argmin, topk, max and min along a dimension."""

from __future__ import annotations

from weft.capture.arguments import Arguments, Handler
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.program import Order
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
            raise UnsupportedError("of several dimensions at once")
        if ref.dtype is DType.bool:
            raise UnsupportedError("of bools")
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
        raise UnsupportedError(f"of {count}, which is more than {MOST}" if count else "of none")
    if ref.dtype is DType.bool:
        raise UnsupportedError("of bools")
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
