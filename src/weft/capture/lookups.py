"""Calls that read a tensor where integers say: embeddings, gathers, indexing by tensors."""

from __future__ import annotations

from typing import Any

from weft.capture.arguments import Arguments, Handler
from weft.capture.operations import CHECK
from weft.capture.recording import Slot
from weft.capture.sizes import expression
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg, Lit, apply

_INDICES = (DType.int64, DType.int32)


def _integers(index: Ref) -> Ref:
    if index.dtype not in _INDICES:
        raise UnsupportedError(f"weft does not index by {index.dtype} tensors")
    return index


def _is_number(size: Any) -> bool:
    return isinstance(size, int)


def _embedding(b: Builder, a: Arguments) -> Ref:
    if a.flag("sparse"):
        raise UnsupportedError("weft does not support its argument sparse")
    return b.lookup(a.ref("weight"), [_integers(a.ref("indices"))], a.location)


def _index_select(b: Builder, a: Arguments) -> Ref:
    ref, index = a.ref("self"), _integers(a.ref("index"))
    if not ref.dims:
        raise UnsupportedError("its operand has no dimensions")
    index = index if index.dims else b.unsqueeze(index, 0)
    return b.lookup(ref, [*[None] * (a.integer("dim") % len(ref.dims)), index], a.location)


def _gather(b: Builder, a: Arguments) -> Ref:
    ref, index, dim = a.ref("self"), _integers(a.ref("index")), a.integer("dim")
    if not ref.dims or len(ref.dims) != len(index.dims):
        raise UnsupportedError("its operand has no dimensions")
    dim %= len(ref.dims)
    sizes = zip(a.fake_of("self").shape, a.fake_of("index").shape, strict=True)
    for d, (old, new) in enumerate(sizes):
        if d == dim or expression(old) == expression(new):
            continue
        if not (_is_number(old) and _is_number(new)):
            raise UnsupportedError("its index has other sizes than its operand, which are read at each call")
        ref = b.slice(ref, d, 0, new, 1, a.location)
    return b.gather(ref, dim, index, a.location)


def _index(b: Builder, a: Arguments) -> Ref:
    """Indexes by one or several tensors, whose negative elements count from the end."""
    ref, given = a.ref("self"), a.plain("indices")
    found: list[Ref | None] = []
    for dim, slot in enumerate(given):
        if slot is not None and not isinstance(slot, Slot):
            raise UnsupportedError("indices are not made of tensors")
        index = None if slot is None else _integers(a.at(slot))
        if index is not None and b.number(index) != 0:
            index = b.from_the_end(index, ref.dims[dim], a.location)
        found.append(index)
    if not any(found):
        raise UnsupportedError("no dimension is indexed")
    return b.lookup(ref, found, a.location)


def _in_range(b: Builder, a: Arguments) -> Ref:
    """Gives the indices themselves, which a kernel checks where it reads them."""
    index, size = _integers(a.ref("index")), a.size(a.plain("size"))
    if size == 0:
        raise UnsupportedError("no integer is an index of a dimension without elements")
    if not a.has("ignored"):
        return b.cast(b.bounded(index, size, a.location), a.dtype, None, a.location)
    ignored = apply("eq", Arg(0), Lit(a.integer("ignored")))
    some = b.elementwise(apply("where", ignored, Lit(0), Arg(0)), (index,), index.dtype, a.location)
    made = b.cast(b.bounded(some, size, a.location), a.dtype, None, a.location)
    return b.elementwise(apply("where", ignored, Arg(0), Arg(1)), (index, made), a.dtype, a.location)


CHECKS: dict[str, Handler] = {CHECK: _in_range}
"""What parts of calls are recorded with, so that indices are checked; none of PyTorch's own."""
LOOKUPS: dict[str, Handler] = {
    "aten.embedding": _embedding,
    "aten.gather": _gather,
    "aten.index": _index,
    "aten.index_select": _index_select,
}
