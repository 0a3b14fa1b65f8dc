"""Tensors of one shape joined along a dimension: the result's index there has a digit that says of which tensor an element is.

    cat((a, b), -1)[.., i]        =        where(g == 0, a[.., j], b[.., j]),  i = (g, j)

The joined dimension is a merged one (`weft.tensor.builder.merge`): what reads it runs over both digits, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from weft.capture.arguments import Arguments, Handler
from weft.errors import UnsupportedError
from weft.tensor.axes import present
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg, Lit, Scalar, apply

_FEW = 4
"""So many tensors are joined at most: an element of the result is chosen among as many."""
_NEAR = 1024
"""Elements from one tensor's to the next one's in the result, at most: those of all are then read together, from cache."""


def _cat(b: Builder, a: Arguments) -> Ref:
    refs = [b.cast(ref, a.dtype, None, a.location) for ref in a.refs("tensors")]
    dim = a.integer("dim") % max(len(refs[0].dims), 1)
    along = [present(ref.dims[dim : dim + 1]) for ref in refs]
    if len({b.length(axis) for axes in along for axis in axes} | {1 for axes in along if not axes}) > 1:
        raise UnsupportedError("it joins tensors of several lengths")
    for axis in (axis for axes in along for axis in axes):
        if not isinstance(b.length(axis), int):
            raise UnsupportedError("it joins tensors of a length that is read at each call")
        b.pin(axis)
    made = _joined(b, a, refs, dim)
    runs = [0 if axis is None else 1 for axis in made.dims]
    runs[dim : dim + 2] = [sum(runs[dim : dim + 2])]
    return b.merge(made, runs)


def _stack(b: Builder, a: Arguments) -> Ref:
    refs = [b.cast(ref, a.dtype, None, a.location) for ref in a.refs("tensors")]
    return _joined(b, a, refs, a.integer("dim") % (len(refs[0].dims) + 1))


def _joined(b: Builder, a: Arguments, refs: Sequence[Ref], dim: int) -> Ref:
    """Joins `refs`, of one shape, along a new dimension `dim`.

    Raises:
        UnsupportedError: to choose among so many tensors, or so large ones, costs more than a copy.
    """
    if len(refs) == 1:
        return b.unsqueeze(refs[0], dim)
    rank = len(refs[0].dims) + 1
    wide = [b.unsqueeze(ref, dim) for ref in refs]
    if all(ref == refs[0] for ref in refs):
        return b.expand(wide[0], [len(refs) if d == dim else -1 for d in range(rank)], a.location)
    inner = [b.length(axis) for axis in present(refs[0].dims[dim:])]
    numbers = [length for length in inner if isinstance(length, int)]
    if len(refs) > _FEW or len(numbers) < len(inner) or prod(numbers) > _NEAR:
        raise UnsupportedError("it joins many tensors, or large ones, which PyTorch copies")
    which = b.iota(len(refs), DType.int64)
    which = replace(which, dims=(*[None] * dim, *which.dims, *[None] * (rank - dim - 1)))
    chosen: Scalar = Arg(len(refs) - 1)
    for number in reversed(range(len(refs) - 1)):
        chosen = apply("where", apply("eq", Arg(len(refs)), Lit(number)), Arg(number), chosen)
    return b.elementwise(chosen, [*wide, which], a.dtype, a.location)


JOINS: dict[str, Handler] = {"aten.cat": _cat, "aten.stack": _stack}
