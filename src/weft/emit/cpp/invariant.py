"""Parts of an elementwise expression that are the same along its innermost axis, as values of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias, assert_never

from weft.block.program import Pointwise
from weft.emit.cpp.scalar import HELD, Text, expression
from weft.emit.cpp.values import ItemMemory, Lazy
from weft.emit.kinds import kind_of
from weft.tensor.axes import Axis
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, arguments, substitute

Item: TypeAlias = ItemMemory | Lazy


def split(node: Pointwise, innermost: tuple[Axis, ...], args: Sequence[Item]) -> Lazy:
    """Split off the parts of `node` that are the same along its innermost axis: each becomes an argument.

        forall i, j: x[i,j] * exp(m[i])    becomes    forall i: e = exp(m[i]);  forall j: x[i,j] * e

    A compiler moves such a part out of a loop itself only in pieces, and makes no vector code of what is left. Parts are
    computed in the type that the expression computes them in: nothing is rounded.

    Args:
        node: of a body.
        innermost: the axis of its innermost loop, if it has any.
        args: what it reads.
    """
    found = list(args)

    def taken(expr: Apply | Convert) -> Arg | None:
        read = sorted(arguments(expr))
        axes = {a for i in read for a in args[i].dims}
        if not read or not innermost or axes.issuperset(innermost):
            return None
        dims = tuple(a for a in node.dims if a in axes)
        dtype = HELD[expression(expr, [Text("", kind_of(a.dtype)) for a in args]).kind]
        found.append(_made(replace(node, name=f"{node.name}_part", expr=expr, dims=dims, dtype=dtype), args))
        return Arg(len(found) - 1)

    def outside(expr: Scalar) -> Scalar:
        match expr:
            case Arg() | Lit():
                return expr
            case Convert(dtype, inner):
                return taken(expr) or Convert(dtype, outside(inner))
            case Apply(op, inner):
                return taken(expr) or Apply(op, tuple(map(outside, inner)))
            case _:
                assert_never(expr)

    return _made(replace(node, expr=outside(node.expr)), found)


def _made(node: Pointwise, args: Sequence[Item]) -> Lazy:
    """Return the value of `node`, with those of `args` that it reads."""
    read = sorted(arguments(node.expr))
    expr = substitute(node.expr, lambda i: Arg(read.index(i)))
    return Lazy(replace(node, expr=expr), tuple(args[i] for i in read), node.dims, node.dtype)
