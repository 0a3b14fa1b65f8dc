"""Elementwise ATen calls: rows of the operation table, applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

import numpy as np
import torch

from weft.capture.arguments import Arguments, expression
from weft.capture.numbers import number_of_sizes
from weft.errors import UnsupportedError
from weft.tensor.builder import Builder, Ref, promote
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import rounded
from weft.tensor.optable import MASK_ATEN, DerivedRow, Row, derived, primitive, row
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, apply

_ALIASES = {
    "aten.absolute": "aten.abs",
    "aten.clip": "aten.clamp",
    "aten.divide": "aten.div",
    "aten.fix": "aten.trunc",
    "aten.greater": "aten.gt",
    "aten.greater_equal": "aten.ge",
    "aten.less": "aten.lt",
    "aten.less_equal": "aten.le",
    "aten.multiply": "aten.mul",
    "aten.negative": "aten.neg",
    "aten.not_equal": "aten.ne",
    "aten.special_erf": "aten.erf",
    "aten.special_expit": "aten.sigmoid",
    "aten.special_expm1": "aten.expm1",
    "aten.special_log1p": "aten.log1p",
    "aten.subtract": "aten.sub",
    "aten.true_divide": "aten.div",
    "aten.__and__": "aten.bitwise_and",
    "aten.__or__": "aten.bitwise_or",
    "aten.__xor__": "aten.bitwise_xor",
}
"""Other names of operations that have a row; every overload means the same."""

_SELECTS = ("where", "maximum", "minimum")
"""The operations of result "same" that are right on masks: they only return arguments."""


def is_elementwise(packet: str) -> bool:
    """Whether the table has a row for the overload packet."""
    name = _ALIASES.get(packet, packet)
    return name in MASK_ATEN or primitive(name) is not None or derived(name) is not None


def elementwise(builder: Builder, arguments: Arguments) -> Ref:
    """The call as one Elementwise node over the table's primitives.

    Raises:
        UnsupportedError: the row says nothing about these element types or parameters.
    """
    name = _ALIASES.get(arguments.call.packet, arguments.call.packet)
    mask = MASK_ATEN.get(name)
    found = row(mask) if mask is not None else primitive(name) or derived(name)
    if found is None:
        raise UnsupportedError(f"{name} has no row in the table of operations")
    operands = _Operands(builder, arguments)
    scalars = operands.read(arguments.names[: found.arity])
    if mask is not None and any(ref.dtype is not DType.bool for ref in operands.refs):
        raise UnsupportedError("bit operations on integers")
    match found:
        case Row():
            expr = _primitive(found, scalars, arguments)
            if found.result == "bool":
                return _comparison(builder, found, expr, operands)
        case DerivedRow():
            expr = found.expand(*scalars, **_parameters(found, arguments))
        case _:
            assert_never(found)
    dtype = arguments.dtype
    _check_closed(expr, dtype)
    refs = [
        ref if kind == "bool" else _of_kind(builder, ref, dtype, arguments)
        for ref, kind in zip(operands.refs, operands.kinds(found.samples), strict=True)
    ]
    return builder.elementwise(expr, refs, dtype, arguments.location)


class _Operands:
    """The operands of a call: tensors, which become arguments, and numbers, which become literals."""

    def __init__(self, builder: Builder, arguments: Arguments) -> None:
        self._builder = builder
        self.arguments = arguments
        self._positions: list[int] = []
        self.refs: list[Ref] = []
        self.numbers: list[bool | int | float] = []

    def read(self, names: Sequence[str]) -> list[Scalar]:
        """One scalar per name."""
        return [self._scalar(position, name) for position, name in enumerate(names)]

    def kinds(self, samples: Sequence[str]) -> list[str]:
        """What the table says about the argument, per tensor."""
        return [samples[position] for position in self._positions]

    def _scalar(self, position: int, name: str) -> Scalar:
        value = self.arguments.plain(name)
        if isinstance(value, bool | int | float):
            self.numbers.append(value)
            return Lit(value)
        if isinstance(value, torch.SymInt):
            dtype = self.arguments.dtype
            if dtype.is_float and not self.arguments.is_size(value):
                ref = self._computed(value)
            else:
                dtype = dtype.accumulator if dtype.is_float else DType.int64
                ref = self._builder.extent(self.arguments.axis(value), dtype)
        elif isinstance(value, torch.SymFloat):
            ref = self._computed(value)
        else:
            ref = self.arguments.ref(name)
        self._positions.append(position)
        self.refs.append(ref)
        return Arg(len(self.refs) - 1)

    def _computed(self, value: torch.SymInt | torch.SymFloat) -> Ref:
        """A number that Python computed from sizes: a value of its own, of rank 0, as precise as sums are."""
        dtype = self.arguments.dtype.accumulator
        if not dtype.is_float:
            raise UnsupportedError(f"a number that is computed from sizes, for a result of type {self.arguments.dtype}")
        sizes: list[Ref] = []

        def size(symbol: Any) -> Scalar:
            sizes.append(self._builder.extent(self.arguments.axis_of(symbol), dtype))
            return Arg(len(sizes) - 1)

        expr = number_of_sizes(expression(value), size)
        return self._builder.elementwise(expr, sizes, dtype, self.arguments.location)


def _primitive(found: Row, scalars: list[Scalar], arguments: Arguments) -> Scalar:
    extra = [n for n in arguments.names[found.arity :] if arguments.given(n)]
    if found.name in ("add", "sub") and extra == ["alpha"]:
        scalars[1] = apply("mul", Lit(arguments.number("alpha")), scalars[1])
    elif extra:
        raise UnsupportedError(f"with {', '.join(extra)}")
    match found.name, scalars:
        case "pow", (base, Lit(exponent)):
            return _power(base, exponent)
        case _:
            return Apply(found.name, tuple(scalars))


def _power(base: Scalar, exponent: float) -> Scalar:
    """The powers that PyTorch computes by multiplication and square root; others by pow."""
    square = apply("mul", base, base)
    by = {
        1.0: base,
        2.0: square,
        3.0: apply("mul", square, base),
        0.5: apply("sqrt", base),
        -0.5: apply("div", Lit(1.0), apply("sqrt", base)),
        -1.0: apply("div", Lit(1.0), base),
        -2.0: apply("div", Lit(1.0), square),
    }
    return by.get(exponent, apply("pow", base, Lit(exponent)))


def _parameters(found: DerivedRow, arguments: Arguments) -> dict[str, float | str | None]:
    """What ATen passes beside the operands, by name."""
    values: dict[str, float | str | None] = {}
    known = dict(found.parameters)
    for name in arguments.names[found.arity :]:
        value = arguments.plain(name)
        if name in known and (value is None or isinstance(value, int | float | str)):
            values[name] = value
        elif arguments.given(name):
            raise UnsupportedError(f"with {name}")
    return values


def _comparison(builder: Builder, found: Row, expr: Scalar, operands: _Operands) -> Ref:
    """A mask. Comparisons look at their operands in the type that these promote to."""
    arguments = operands.arguments
    refs = operands.refs
    if "bool" in found.samples:
        masks = [Arg(i) if ref.dtype is DType.bool else apply("ne", Arg(i), Lit(0)) for i, ref in enumerate(refs)]
        numbers = iter(masks)
        expr = Apply(found.name, tuple(next(numbers) for _ in refs))
    elif isinstance(expr, Apply):
        common = promote(*refs, *operands.numbers)
        refs = [_of_kind(builder, ref, common, arguments) for ref in refs]
        scalars = (_rounded(a, common) if isinstance(a, Lit) else a for a in expr.args)
        expr = Apply(expr.op, tuple(scalars))
    return builder.elementwise(expr, refs, DType.bool, arguments.location)


def _rounded(literal: Lit, dtype: DType) -> Lit:
    """The number nearest to `literal` that `dtype` has: eager compares with that one."""
    if not dtype.is_float:
        return literal
    return Lit(float(rounded(np.asarray(literal.value, np.float64), dtype)))


def _of_kind(builder: Builder, ref: Ref, dtype: DType, arguments: Arguments) -> Ref:
    """`ref`, converted where integers, bools and floats meet: C has other rules for these."""
    same = ref.dtype is dtype or (ref.dtype.is_float and dtype.is_float)
    return ref if same else builder.cast(ref, dtype, True, arguments.location)


def _check_closed(expr: Scalar, dtype: DType) -> None:
    """Whether the expression means on integers and masks what it means on numbers.

    Raises:
        UnsupportedError: it does not.
    """
    if dtype.is_float:
        return
    for name in _names(expr):
        found = row(name)
        fits = name in _SELECTS or found.result == "bool"
        if not fits and (dtype is DType.bool or not found.closed):
            raise UnsupportedError(f"{name} with a result of type {dtype}")


def _names(expr: Scalar) -> set[str]:
    match expr:
        case Arg() | Lit():
            return set()
        case Apply(op, args):
            return {op}.union(*(_names(a) for a in args))
        case Convert(_, inner):
            return _names(inner)
        case _:
            assert_never(expr)
