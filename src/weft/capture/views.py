"""Reindexing: the same elements in another arrangement."""

from __future__ import annotations

from typing import Any

from weft.capture.arguments import Arguments, Handler
from weft.capture.reshapes import reshape
from weft.capture.sizes import expression
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Ref
from weft.tensor.scalar import Arg


def _identity(b: Builder, a: Arguments) -> Ref:
    del b
    return a.ref("self")


def _cast(b: Builder, a: Arguments) -> Ref:
    return b.cast(a.ref("self"), a.dtype, None, a.location)


def _transpose(b: Builder, a: Arguments) -> Ref:
    first, second = a.names[1:3]
    return b.transpose(a.ref("self"), a.integer(first), a.integer(second))


def _t(b: Builder, a: Arguments) -> Ref:
    ref = a.ref("self")
    return b.permute(ref, tuple(reversed(range(len(ref.dims)))))


def _expand(b: Builder, a: Arguments) -> Ref:
    ref = a.ref("self")
    old: list[Any] = list(a.fake_of("self").shape)
    new: list[Any] = list(a.fake.shape)
    missing = len(new) - len(old)
    kept = [i >= missing and expression(old[i - missing]) == expression(n) for i, n in enumerate(new)]
    sizes = [-1 if keep else a.size(n) for keep, n in zip(kept, new, strict=True)]
    return b.expand(ref, sizes, a.location)


def _slice(b: Builder, a: Arguments) -> Ref:
    ref, dim = a.ref("self"), a.integer("dim")
    old, new = a.fake_of("self").shape[dim], a.fake.shape[dim]
    made = b.slice(ref, dim, a.bound("start"), a.bound("end"), a.integer("step"), a.location)
    if made.dims[dim] == ref.dims[dim] and expression(old) != expression(new):
        raise UnsupportedError("the slice is the whole tensor only at some sizes")
    return made


def copy(builder: Builder, ref: Ref) -> Ref:
    """Copies the tensor to a value of its own."""
    return builder.elementwise(Arg(0), (ref,), ref.dtype)


VIEWS: dict[str, Handler] = {
    "aten._to_copy": _cast,
    "aten._unsafe_view": reshape,
    "aten.alias": _identity,
    "aten.broadcast_to": _expand,
    "aten.clone": _identity,
    "aten.contiguous": _identity,
    "aten.detach": _identity,
    "aten.expand": _expand,
    "aten.expand_as": _expand,
    "aten.flatten": reshape,
    "aten.flip": lambda b, a: b.flip(a.ref("self"), a.dims("dims") or (), a.location),
    "aten.lift_fresh": _identity,
    "aten.mT": lambda b, a: b.transpose(a.ref("self"), -2, -1),
    "aten.numpy_T": _t,
    "aten.permute": lambda b, a: b.permute(a.ref("self"), a.dims("dims") or ()),
    "aten.positive": _identity,
    "aten.reshape": reshape,
    "aten.select": lambda b, a: b.select(a.ref("self"), a.integer("dim"), a.integer("index"), a.location),
    "aten.slice": _slice,
    "aten.squeeze": reshape,
    "aten.swapaxes": _transpose,
    "aten.swapdims": _transpose,
    "aten.t": _t,
    "aten.to": _cast,
    "aten.transpose": _transpose,
    "aten.type_as": _cast,
    "aten.unflatten": reshape,
    "aten.unsqueeze": reshape,
    "aten.view": reshape,
    "aten.view_as": reshape,
}

RESHAPES = frozenset(name for name, handler in VIEWS.items() if handler is reshape)
"""Views of the same elements in the same order, in other dimensions."""
