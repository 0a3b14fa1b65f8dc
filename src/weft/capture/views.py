"""Reindexing: the same elements in another arrangement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from weft.capture.arguments import Arguments, Handler
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


def _reshape(b: Builder, a: Arguments) -> Ref:
    """Reshapes to the result's shape, where dimensions of size 1 come and go, and those merge that eager would repeat in memory."""
    old: list[Any] = list(a.fake_of("self").shape)
    new: list[Any] = list(a.fake.shape)
    if _long(old) != _long(new):
        runs = _runs(_long(old), new)
        if runs is None or not _repeats(b, a.ref("self"), runs):
            raise UnsupportedError(f"a reshape from {old} to {new} splits or merges dimensions")
        return b.merge(a.ref("self"), runs)
    rest = iter(b.squeeze(a.ref("self")).dims)
    return replace(a.ref("self"), dims=tuple(None if expression(n) == 1 else next(rest) for n in new))


def kept_dims(old: Sequence[Any], new: Sequence[Any]) -> dict[int, int]:
    """Maps dimensions of a reshape's result to that of its operand with the same index, whatever the sizes are.

    That is as long, and has as many elements in a step, or as many steps before it. Dimensions of size 1 are none.
    """
    places = {key: d for d, *keys in _steps(old) for key in keys}
    found = {d: [places[key] for key in keys if key in places] for d, *keys in _steps(new)}
    return {d: same[0] for d, same in found.items() if same}


def _steps(shape: Sequence[Any]) -> Iterator[tuple[int, tuple[Any, ...], tuple[Any, ...]]]:
    """Yields each dimension longer than 1; its size with the product of the sizes before it, and of those after it."""
    sizes = [expression(n) for n in shape]
    for dim, size in enumerate(sizes):
        if size != 1:
            yield dim, ("after", prod(sizes[:dim]), size), ("before", prod(sizes[dim + 1 :]), size)


def _long(shape: list[Any]) -> list[Any]:
    return [expression(n) for n in shape if expression(n) != 1]


def _runs(old: list[Any], new: list[Any]) -> list[int] | None:
    """Counts the sizes `old`, none 1, that are multiplied to each of `new`; None where that is not all, whatever the sizes are."""
    runs: list[int] = []
    for size in new:
        place, found, wanted = sum(runs), 1, expression(size)
        run = 0
        while found != wanted and place + run < len(old):
            found = found * old[place + run]
            run += 1
        if found != wanted:
            return None
        runs.append(run)
    return runs if sum(runs) == len(old) else None


def _repeats(b: Builder, ref: Ref, runs: list[int]) -> bool:
    """Tells whether each dimension that is merged of several has elements that memory holds once."""
    return all(b.expanded(ref, sum(runs[:i]), run) for i, run in enumerate(runs) if run > 1)


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
    "aten._unsafe_view": _reshape,
    "aten.alias": _identity,
    "aten.broadcast_to": _expand,
    "aten.clone": _identity,
    "aten.contiguous": _identity,
    "aten.detach": _identity,
    "aten.expand": _expand,
    "aten.expand_as": _expand,
    "aten.flatten": _reshape,
    "aten.flip": lambda b, a: b.flip(a.ref("self"), a.dims("dims") or (), a.location),
    "aten.lift_fresh": _identity,
    "aten.mT": lambda b, a: b.transpose(a.ref("self"), -2, -1),
    "aten.numpy_T": _t,
    "aten.permute": lambda b, a: b.permute(a.ref("self"), a.dims("dims") or ()),
    "aten.positive": _identity,
    "aten.reshape": _reshape,
    "aten.select": lambda b, a: b.select(a.ref("self"), a.integer("dim"), a.integer("index"), a.location),
    "aten.slice": _slice,
    "aten.squeeze": _reshape,
    "aten.swapaxes": _transpose,
    "aten.swapdims": _transpose,
    "aten.t": _t,
    "aten.to": _cast,
    "aten.transpose": _transpose,
    "aten.type_as": _cast,
    "aten.unflatten": _reshape,
    "aten.unsqueeze": _reshape,
    "aten.view": _reshape,
    "aten.view_as": _reshape,
}

RESHAPES = frozenset(name for name, handler in VIEWS.items() if handler is _reshape)
"""Views of the same elements in the same order, in other dimensions."""
