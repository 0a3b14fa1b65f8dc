"""A ranking of sums that are made inside the kernel."""

from __future__ import annotations

from weft.tensor.builder import Builder
from weft.tensor.dtypes import DType
from weft.tensor.order import Order
from weft.tensor.program import TensorProgram
from weft.tensor.scalar import Arg
from weft.tensor.scalar import apply as applied


def of_sums(count: int, order: Order) -> TensorProgram:
    """The ranking along the columns of what a loop computes first, and its sum."""
    b = Builder()
    x = b.input("x", (7, 5), DType.float32)
    y = b.input("y", (7, 5), DType.float32)
    sums = b.elementwise(applied("add", Arg(0), Arg(1)), (x, y))
    return b.finish([*b.ranking(sums, 0, count, order), b.elementwise(applied("mul", Arg(0), Arg(0)), (sums,))])
