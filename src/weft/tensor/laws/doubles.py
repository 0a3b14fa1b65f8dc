"""The law of doubles: a number in an operation of float64 that meets no other number of that type is one itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.tensor import optable
from weft.tensor.dtypes import DType
from weft.tensor.passes import tensor_pass
from weft.tensor.program import Elementwise, TensorProgram
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar


@tensor_pass()
def numbers_as_doubles(program: TensorProgram) -> TensorProgram:
    """Makes numbers doubles where nothing that they are combined with is one.

        y: float64 = where(mask, 0.1, 0.0)    ==>    y: float64 = where(mask, float64(0.1), float64(0.0))

    Kernels compute with a number in the type of what it meets, and in float32 where that is no float; what follows in the same
    kernel would be so too. Condition: the result is float64. Conditioning: exact.
    """
    values = program.values()
    nodes = [
        replace(node, expr=_spelled(node.expr, [values[use.value].dtype is DType.float64 for use in node.args]))
        if isinstance(node, Elementwise) and node.dtype is DType.float64
        else node
        for node in program.nodes
    ]
    return replace(program, nodes=tuple(nodes))


def _spelled(expr: Scalar, doubles: Sequence[bool]) -> Scalar:
    """Returns `expr` with its numbers spelled as doubles; `doubles` tells which arguments are of float64."""
    match expr:
        case Lit():
            return Convert(DType.float64, expr) if isinstance(expr.value, float) else expr
        case Apply(op, args):
            met = any(_is_double(each, doubles) for each in args)
            return Apply(op, tuple(a if met and isinstance(a, Lit) else _spelled(a, doubles) for a in args))
        case Convert(dtype, arg) if not isinstance(arg, Lit):
            return Convert(dtype, _spelled(arg, doubles))
        case _:
            return expr


def _is_double(expr: Scalar, doubles: Sequence[bool]) -> bool:
    match expr:
        case Arg(index):
            return doubles[index]
        case Convert(dtype):
            return dtype is DType.float64
        case Apply(op, args):
            return optable.row(op).result != "bool" and any(_is_double(each, doubles) for each in args)
        case _:
            return False
