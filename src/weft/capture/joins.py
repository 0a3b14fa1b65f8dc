"""Tensors joined along a dimension: an element of the result is one of those at its place in each of them.

    cat((a, b), -1)[.., i]   =   where(g == 0, a[.., j], b[.., j]),  i = (g, j)           tensors of one length, close together
    cat((a, b), -1)[.., i]   =   where(i < n, a[.., i], b[.., i - n])                     others; n is the length of a

In the first form the joined dimension is a merged one (`weft.tensor.builder.merge`): what reads it runs over both digits. In the
second one, what lies beside a tensor is not read (`Lookup.masked`), so that no element is read twice. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from weft.capture.arguments import Arguments, Handler
from weft.capture.sizes import symbolic
from weft.errors import UnsupportedError
from weft.tensor.axes import Axis, present
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg, Lit, Scalar, apply

_FEW = 4
"""So many tensors are chosen among by a digit at most: an element of the result is one of as many that are read."""
_MANY = 8
"""So many are joined at most where but one is read: the result still takes as many comparisons."""
_NEAR = 1024
"""Elements from one tensor's to the next one's in the result, at most, where all are read: they are so together, from cache."""


def _cat(b: Builder, a: Arguments) -> Ref:
    refs = [b.cast(ref, a.dtype, None, a.location) for ref in a.refs("tensors")]
    dim = a.integer("dim") % max(len(refs[0].dims), 1)
    if len(refs) == 1:
        return refs[0]
    along = [present(ref.dims[dim : dim + 1]) for ref in refs]
    lengths = {b.length(axis) for axes in along for axis in axes} | {1 for axes in along if not axes}
    if len(lengths) > 1 or not all(isinstance(length, int) for length in lengths) or not _few_and_near(b, refs, dim):
        return _one_after_the_other(b, a, refs, dim)
    for axis in (axis for axes in along for axis in axes):
        b.pin(axis)
    made = _joined(b, a, refs, dim)
    runs = [0 if axis is None else 1 for axis in made.dims]
    runs[dim : dim + 2] = [sum(runs[dim : dim + 2])]
    return b.merge(made, runs)


def _one_after_the_other(b: Builder, a: Arguments, refs: Sequence[Ref], dim: int) -> Ref:
    """Joins `refs`, of any lengths, along dimension `dim`.

    Raises:
        UnsupportedError: there are many.
    """
    if len(refs) > _MANY:
        raise UnsupportedError(f"it joins more than {_MANY} tensors, which PyTorch copies")
    along = [ref.dims[dim] for ref in refs]
    counted = b.iota(whole_axis(b, a, dim, present(along), along.count(None)))
    beside = [None] * (len(refs[0].dims) - dim - 1)
    ends = list(_ends(b, refs, dim))
    parts = [_from(b, a, ref, dim, counted, end) for ref, end in zip(refs, [None, *ends[:-1]], strict=True)]
    args = [*parts, replace(counted, dims=(*counted.dims, *beside))]
    chosen: Scalar = Arg(len(parts) - 1)
    for number in reversed(range(len(parts) - 1)):
        args.append(ends[number])
        chosen = apply("where", apply("lt", Arg(len(parts)), Arg(len(args) - 1)), Arg(number), chosen)
    return b.elementwise(chosen, args, a.dtype, a.location)


def whole_axis(b: Builder, a: Arguments, dim: int, axes: Sequence[Axis], plus: int) -> Axis:
    """Returns an axis as long as dimension `dim` of the result: that of a tensor before it, or a new one, as long as `axes` and
    `plus` elements together.

    Raises:
        UnsupportedError: it has size 1.
    """
    size = a.fake.shape[dim]
    known = symbolic(size) and a.is_size(size)
    found = b.axis(a.axis(size)) if known else b.longer_axis(axes, plus)
    if found is None:
        raise UnsupportedError("its result has one element along the dimension")
    return found


def _ends(b: Builder, refs: Sequence[Ref], dim: int) -> Iterator[Ref]:
    """Yields for each of `refs` how many elements there are up to its end along dimension `dim`, a number without dimensions."""
    known, read = 0, list[Ref]()
    for ref in refs:
        axis = ref.dims[dim]
        if axis is None or b.is_fixed(axis):
            known += b.shape(ref)[dim]
        else:
            read.append(b.extent(axis, DType.int64))
        expr: Scalar = Lit(known)
        for number in range(len(read)):
            expr = apply("add", expr, Arg(number)) if number or known else Arg(0)
        yield b.elementwise(expr, read, DType.int64) if read else b.constant(known, DType.int64)


def _from(b: Builder, a: Arguments, ref: Ref, dim: int, counted: Ref, start: Ref | None) -> Ref:
    """Returns `ref` along dimension `dim` at what is `counted`, from `start` on; what is expanded there is so again."""
    if ref.dims[dim] is None:
        return ref
    if start is not None:
        counted = b.elementwise(apply("sub", Arg(0), Arg(1)), (counted, start), DType.int64)
    return b.window(ref, dim, counted, a.location)


def _stack(b: Builder, a: Arguments) -> Ref:
    refs = [b.cast(ref, a.dtype, None, a.location) for ref in a.refs("tensors")]
    dim = a.integer("dim") % (len(refs[0].dims) + 1)
    if _few_and_near(b, refs, dim):
        return _joined(b, a, refs, dim)
    return _one_after_the_other(b, a, [b.unsqueeze(ref, dim) for ref in refs], dim)


def _few_and_near(b: Builder, refs: Sequence[Ref], dim: int) -> bool:
    """Tells whether elements of `refs` along a new dimension `dim` may be chosen among when all are read; equal ones may."""
    inner = [b.length(axis) for axis in present(refs[0].dims[dim:])]
    numbers = [length for length in inner if isinstance(length, int)]
    near = len(refs) <= _FEW and len(numbers) == len(inner) and prod(numbers) <= _NEAR
    return near or all(ref == refs[0] for ref in refs)


def _joined(b: Builder, a: Arguments, refs: Sequence[Ref], dim: int) -> Ref:
    """Joins `refs`, of one shape, along a new dimension `dim`, by a digit."""
    if len(refs) == 1:
        return b.unsqueeze(refs[0], dim)
    rank = len(refs[0].dims) + 1
    wide = [b.unsqueeze(ref, dim) for ref in refs]
    if all(ref == refs[0] for ref in refs):
        made = b.expand(wide[0], [len(refs) if d == dim else -1 for d in range(rank)], a.location)
        b.tell(present(made.dims[dim : dim + 1])[0], len(refs))
        return made
    which = b.iota(len(refs), DType.int64)
    b.tell(present(which.dims)[0], len(refs))
    which = replace(which, dims=(*[None] * dim, *which.dims, *[None] * (rank - dim - 1)))
    chosen: Scalar = Arg(len(refs) - 1)
    for number in reversed(range(len(refs) - 1)):
        chosen = apply("where", apply("eq", Arg(len(refs)), Lit(number)), Arg(number), chosen)
    return b.elementwise(chosen, [*wide, which], a.dtype, a.location)


JOINS: dict[str, Handler] = {"aten.cat": _cat, "aten.stack": _stack}
