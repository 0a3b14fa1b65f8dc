"""Eager's rules for the element type of a result."""

from __future__ import annotations

from functools import reduce

from weft.tensor.builder.merge import Ref
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Number


def promote(*operands: Ref | Number) -> DType:
    """Returns the type in which eager combines `operands`: tensors, and Python numbers.

    Numbers count less than tensors without dimensions, and those less than tensors with: a lower
    category decides only if it is of a higher kind (bool < int < float). Python floats are float32
    where they decide (PyTorch's default type), ints int64. As `torch.result_type`.
    """
    ranks: tuple[list[DType], list[DType], list[DType]] = ([], [], [])
    for operand in operands:
        match operand:
            case bool():
                ranks[2].append(DType.bool)
            case int():
                ranks[2].append(DType.int64)
            case float():
                ranks[2].append(DType.float32)
            case _:
                ranks[0 if operand.dims else 1].append(operand.dtype)
    present = [reduce(promote_types, rank) for rank in ranks if rank]
    assert present, "promotion of nothing"
    return reduce(_across, reversed(present))


_ORDER = {"bool": 0, "int": 1, "float": 2}


def _across(lower: DType, higher: DType) -> DType:
    """Combines two types, where `higher` is of the category that counts more."""
    return promote_types(lower, higher) if _ORDER[lower.kind] > _ORDER[higher.kind] else higher


def promote_types(first: DType, second: DType) -> DType:
    """Returns the smallest type that holds both, as `torch.promote_types` does; of int and float the float."""
    if first is second:
        return first
    if first.kind != second.kind:
        return max(first, second, key=lambda t: _ORDER[t.kind])
    if {first, second} == {DType.float16, DType.bfloat16}:
        return DType.float32
    if {first, second} == {DType.int8, DType.uint8}:
        return DType.int16
    return max(first, second, key=lambda t: t.bytes)
