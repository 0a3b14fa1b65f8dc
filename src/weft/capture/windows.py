"""Tensors read at places that follow from the element's number: padding and rolling.

    pad(x, (p, q))[.., i]     =    x[.., i - p]                               0 beside x, where nothing is read
    roll(x, s, -1)[.., i]     =    x[.., where(i < s, i - s + n, i - s)]      n is the length of x

Reflected and repeated edges are other indices. All are lookups (`weft.tensor.builder.lookup`), which move to what `x` is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.capture.arguments import Arguments, Handler
from weft.capture.joins import whole_axis
from weft.capture.sizes import symbolic
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Ref
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Arg, Lit, Scalar, apply

_Place = Callable[[Scalar, Scalar], Scalar]
"""From an index that may lie beside a dimension, and the dimension's length, the index of what is read there."""


def _pad(b: Builder, a: Arguments) -> Ref:
    """Pads with a number."""
    ref, value = a.ref("self"), a.number("value") if a.has("value") else 0
    exact = {"float": float, "int": int, "bool": bool}[ref.dtype.kind](value)
    inside: list[Ref] = []
    for dim, before, after in _sides(a, len(ref.dims)):
        ref, there = _padded(b, a, ref, dim, (before, after))
        inside += [there] if there is not None else []
    if not inside or exact == 0:
        return ref
    expr: Scalar = Arg(1)
    for number in range(2, len(inside) + 1):
        expr = apply("logical_and", expr, Arg(number))
    expr = apply("where", expr, Arg(0), Lit(exact))
    return b.elementwise(expr, (ref, *inside), ref.dtype, a.location)


def _padded(b: Builder, a: Arguments, ref: Ref, dim: int, sides: tuple[int, int]) -> tuple[Ref, Ref | None]:
    """Pads dimension `dim` with zeros, and cuts off what is less than none; returned with a mask of what is not padding."""
    before, after = (max(side, 0) for side in sides)
    if min(sides) < 0:
        first, last = (min(side, 0) for side in sides)
        ref = b.slice(ref, dim, -first, last or None, 1, a.location)
    if not before and not after:
        return ref, None
    index = _counted(b, a, ref, dim, (before, after))
    old = ref.dims[dim]
    beside = replace(index, dims=(*index.dims, *[None] * (len(ref.dims) - dim - 1)))
    within = apply("logical_and", apply("ge", Arg(0), Lit(0)), apply("lt", Arg(0), Arg(1)))
    inside = b.elementwise(within, (beside, b.extent(old, DType.int64)), DType.bool)
    return b.window(ref, dim, index, a.location), inside


def _counted(b: Builder, a: Arguments, ref: Ref, dim: int, sides: tuple[int, int]) -> Ref:
    """Numbers the elements of the result along `dim`, which is so much longer than `ref` at its sides, from below 0 on."""
    axis, before = ref.dims[dim], sides[0]
    counted = b.iota(whole_axis(b, a, dim, () if axis is None else (axis,), sum(sides) + (axis is None)))
    return counted if not before else b.elementwise(apply("sub", Arg(0), Lit(before)), (counted,), DType.int64)


def _sides(a: Arguments, rank: int) -> list[tuple[int, int, int]]:
    """Lists the dimensions that are padded, each with how many elements come before and after it."""
    amounts = a.dims("pad") if "pad" in a.names else a.dims("padding")
    assert amounts is not None
    pairs = zip(amounts[::2], amounts[1::2], strict=True)
    return [(rank - 1 - number, before, after) for number, (before, after) in enumerate(pairs) if before or after]


def _edges(place: _Place) -> Callable[[Builder, Arguments], Ref]:
    """Makes a handler that pads with elements of the tensor, those at `place`."""

    def padded(b: Builder, a: Arguments) -> Ref:
        ref = a.ref("self")
        for dim, before, after in _sides(a, len(ref.dims)):
            if min(before, after) < 0:
                raise UnsupportedError("it cuts elements off")
            index, size = _counted(b, a, ref, dim, (before, after)), b.extent(ref.dims[dim], DType.int64)
            index = b.elementwise(place(Arg(0), Arg(1)), (index, size), DType.int64)
            ref = b.window(ref, dim, index, a.location)
        return ref

    return padded


def _reflected(index: Scalar, size: Scalar) -> Scalar:
    index = apply("where", apply("lt", index, Lit(0)), apply("neg", index), index)
    after = apply("sub", apply("add", size, apply("sub", size, Lit(2))), index)
    return apply("where", apply("lt", index, size), index, after)


def _nearest(index: Scalar, size: Scalar) -> Scalar:
    index = apply("where", apply("lt", index, Lit(0)), Lit(0), index)
    return apply("where", apply("lt", index, size), index, apply("sub", size, Lit(1)))


def _circular(index: Scalar, size: Scalar) -> Scalar:
    after = apply("where", apply("ge", index, size), apply("sub", index, size), index)
    return apply("where", apply("lt", index, Lit(0)), apply("add", index, size), after)


def _pad_by_name(b: Builder, a: Arguments) -> Ref:
    """Pads by the mode that an argument names."""
    modes = {
        "constant": _pad,
        "reflect": _edges(_reflected),
        "replicate": _edges(_nearest),
        "circular": _edges(_circular),
    }
    return modes[str(a.plain("mode"))](b, a)


def _roll(b: Builder, a: Arguments) -> Ref:
    ref, shifts, dims = a.ref("self"), a.dims("shifts") or [], a.dims("dims")
    if not dims:
        raise UnsupportedError("it rolls all elements, not a dimension")
    for dim, shift in zip(dims, shifts, strict=True):
        ref = _rolled(b, a, ref, dim % len(ref.dims), shift)
    return ref


def _rolled(b: Builder, a: Arguments, ref: Ref, dim: int, shift: int) -> Ref:
    """Moves elements along `dim` by `shift`, and those that leave it at one end to the other."""
    axis, size = ref.dims[dim], a.fake.shape[dim]
    if axis is None:
        return ref
    if not symbolic(size):  # one that the graph was traced for
        moved = apply("sub", Arg(0), Lit(shift % size))
        place = apply("where", apply("lt", moved, Lit(0)), apply("add", moved, Arg(1)), moved)
    else:
        moved = apply("sub", Arg(0), Lit(shift))
        place = apply("sub", moved, apply("mul", apply("floor_divide", moved, Arg(1)), Arg(1)))
    index = b.elementwise(place, (b.iota(axis), b.extent(axis, DType.int64)), DType.int64)
    return b.window(ref, dim, index, a.location)


WINDOWS: dict[str, Handler] = {
    "aten.constant_pad_nd": _pad,
    "aten.pad": _pad_by_name,
    "aten.roll": _roll,
    **{f"aten.reflection_pad{n}d": _edges(_reflected) for n in (1, 2, 3)},
    **{f"aten.replication_pad{n}d": _edges(_nearest) for n in (1, 2, 3)},
}
