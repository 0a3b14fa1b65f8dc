"""Elementwise ATen calls: rows of the operation table, applied."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import assert_never

import numpy as np
import torch

from weft.capture.arguments import Arguments
from weft.capture.numbers import computed
from weft.errors import Location, UnsupportedError
from weft.tensor.builder import Builder, Ref, promote
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import rounded
from weft.tensor.optable import MASK_ATEN, DerivedRow, Row, derived, primitive, row
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, applied, apply, operands, rewritten, substitute
from weft.tensor.scalar import arguments as scalar_arguments

ALIASES = {
    "aten.absolute": "aten.abs",
    "aten.arccos": "aten.acos",
    "aten.arccosh": "aten.acosh",
    "aten.arcsin": "aten.asin",
    "aten.arcsinh": "aten.asinh",
    "aten.arctan": "aten.atan",
    "aten.arctan2": "aten.atan2",
    "aten.arctanh": "aten.atanh",
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
    "aten.sgn": "aten.sign",
    "aten.special_erf": "aten.erf",
    "aten.special_erfc": "aten.erfc",
    "aten.special_exp2": "aten.exp2",
    "aten.special_expit": "aten.sigmoid",
    "aten.special_expm1": "aten.expm1",
    "aten.special_log1p": "aten.log1p",
    "aten.subtract": "aten.sub",
    "aten.true_divide": "aten.div",
    "aten.__and__": "aten.bitwise_and",
    "aten.__lshift__": "aten.bitwise_left_shift",
    "aten.__rshift__": "aten.bitwise_right_shift",
    "aten.__or__": "aten.bitwise_or",
    "aten.__xor__": "aten.bitwise_xor",
}
"""Other names of operations that have a row; every overload means the same."""

_ON_MASKS = {"aten.add": "logical_or", "aten.mul": "logical_and"}
"""What arithmetic means where the result is a mask too."""

_WRAPPED = ("add", "sub", "mul", "bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide", "trunc_divide", "fmod")
"""The operations in which eager makes a number that the integer type does not have one that it has, modulo."""

_LARGE = 8
"""Operations in a part of a formula that is made once: one of fewer is written out wherever it is read."""

_SELECTS = ("where", "maximum", "minimum")
"""The operations of result "same" that are right on masks: they only return arguments."""


def is_elementwise(packet: str) -> bool:
    """Tells whether the table has a row for the overload packet."""
    name = ALIASES.get(packet, packet)
    return name in MASK_ATEN or primitive(name) is not None or derived(name) is not None


def elementwise(builder: Builder, arguments: Arguments) -> Ref:
    """Makes the call one Elementwise node over the table's primitives.

    Raises:
        UnsupportedError: the row says nothing about these element types or parameters.
    """
    name = ALIASES.get(arguments.call.packet, arguments.call.packet)
    operands = _Operands(builder, arguments)
    found = _row_of(name, arguments)
    scalars = operands.read(arguments.names[: found.arity])
    dtype = arguments.dtype
    match found:
        case Row():
            expr = _primitive(found, scalars, arguments)
            if found.result == "bool":
                return _comparison(builder, found, expr, operands)
        case DerivedRow():
            if "nonzero" in found.samples and len(scalars) == 2:
                _check_divisor(scalars[1], dtype)
            expr = found.expand(*scalars, integral=dtype.kind == "int", **_parameters(found, arguments))
        case _:
            assert_never(found)
    if not dtype.is_float:
        expr = integral(expr, dtype, wraps=isinstance(found, Row) and found.name in _WRAPPED)
    _check_closed(expr, dtype)
    refs = [
        ref if kind == "bool" else _of_kind(builder, ref, dtype, arguments)
        for ref, kind in zip(operands.refs, operands.kinds(found.samples), strict=True)
    ]
    return _in_parts(builder, expr, refs, dtype, arguments.location)


def _in_parts(builder: Builder, expr: Scalar, refs: Sequence[Ref], dtype: DType, location: Location | None) -> Ref:
    """Makes a node of `expr` over `refs`, after nodes of its large parts that are read more than once.

    A formula with names for its parts is small. Written out wherever they are read, a series of a quotient is thousands of
    operations, which the check and the laws would go through.
    """
    reads, sizes = _reads_and_sizes(expr)
    given, made = list(refs), dict[int, Scalar]()

    def node(whole: Scalar, kind: DType) -> Ref:
        read = sorted(scalar_arguments(whole))
        return builder.elementwise(
            substitute(whole, lambda i: Arg(read.index(i))), [given[i] for i in read], kind, location
        )

    def part(each: Scalar) -> Scalar:
        if not isinstance(each, Apply):
            return each
        if id(each) not in made:
            whole = rewritten(each, part)
            if each is not expr and reads[id(each)] > 1 and sizes[id(each)] > _LARGE and scalar_arguments(whole):
                given.append(node(whole, DType.bool if row(each.op).result == "bool" else dtype.accumulator))
                whole = Arg(len(given) - 1)
            made[id(each)] = whole
        return made[id(each)]

    return node(part(expr), dtype)


def _reads_and_sizes(expr: Scalar) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Counts, by identity of each part of `expr`, the other parts that read it, and its operations where all are written out."""
    reads, sizes = Counter[int](), dict[int, int]()

    def size(part: Scalar) -> int:
        reads[id(part)] += 1
        if id(part) not in sizes:
            sizes[id(part)] = isinstance(part, Apply) + sum(map(size, operands(part)))
        return sizes[id(part)]

    size(expr)
    return reads, sizes


def _row_of(name: str, arguments: Arguments) -> Row | DerivedRow:
    """Finds the row that the call means, for the types that it has.

    Raises:
        UnsupportedError: none does.
    """
    if name in MASK_ATEN and (name == "aten.logical_xor" or arguments.dtype is DType.bool):
        return row(MASK_ATEN[name])
    if arguments.dtype is DType.bool and name in _ON_MASKS:
        return row(_ON_MASKS[name])
    if name == "aten.div" and arguments.has("rounding_mode"):
        return _rounded_division(arguments)
    found = primitive(name) or derived(name)
    whole = isinstance(found, Row) and "int" in found.samples
    if found is None or (whole and arguments.dtype.kind != "int"):
        raise UnsupportedError(f"weft does not compute {name} on {arguments.dtype}")
    return found


def _truncated_quotient(a: Scalar, b: Scalar) -> Scalar:
    return apply("trunc", apply("div", a, b))


def _rounded_division(arguments: Arguments) -> Row | DerivedRow:
    """Finds the row that `torch.div(.., rounding_mode=..)` means."""
    mode = arguments.plain("rounding_mode")
    if arguments.dtype.kind == "int":
        return row("floor_divide" if mode == "floor" else "trunc_divide")
    if mode == "trunc":
        return DerivedRow("div", (), ("real", "nonzero"), _truncated_quotient)
    raise UnsupportedError("weft does not compute floor division of floating-point numbers")


class _Operands:
    """The operands of a call: tensors, which become arguments, and numbers, which become literals."""

    def __init__(self, builder: Builder, arguments: Arguments) -> None:
        self._builder = builder
        self.arguments = arguments
        self._positions: list[int] = []
        self.refs: list[Ref] = []
        self.numbers: list[bool | int | float] = []

    def read(self, names: Sequence[str]) -> list[Scalar]:
        """Reads one scalar per name."""
        return [self._scalar(position, name) for position, name in enumerate(names)]

    def kinds(self, samples: Sequence[str]) -> list[str]:
        """Lists what the table says about the argument, per tensor."""
        return [samples[position] for position in self._positions]

    def _scalar(self, position: int, name: str) -> Scalar:
        value = self.arguments.plain(name)
        if isinstance(value, bool | int | float):
            self.numbers.append(value)
            return Lit(value)
        if isinstance(value, torch.SymInt):
            dtype = self.arguments.dtype
            if not self.arguments.is_size(value):
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
        """Returns a number that Python computed from sizes, as precise as sums are."""
        dtype = self.arguments.dtype
        if isinstance(value, torch.SymFloat) and not dtype.is_float:
            raise UnsupportedError(
                f"weft does not use a number that is computed from sizes in a result of type {dtype}"
            )
        return computed(self._builder, self.arguments, value, dtype.accumulator if dtype.is_float else DType.int64)


def _primitive(found: Row, scalars: list[Scalar], arguments: Arguments) -> Scalar:
    extra = [n for n in arguments.names[found.arity :] if arguments.given(n) and n != "rounding_mode"]
    if found.name in ("add", "sub") and extra == ["alpha"]:
        alpha = Lit(arguments.number("alpha"))
        if arguments.dtype.is_float and alpha.value != 1:  # PyTorch rounds once
            return apply("fma", scalars[1], alpha if found.name == "add" else Lit(-alpha.value), scalars[0])
        if arguments.dtype.kind == "int":
            alpha = _whole(alpha, arguments.dtype, wraps=False)
        scalars[1] = apply("mul", alpha, scalars[1])
    elif extra:
        raise UnsupportedError(f"weft does not support its argument {', '.join(extra)}")
    if "divisor" in found.samples or found.name == "fmod":
        _check_divisor(scalars[1], arguments.dtype)
    match found.name, scalars:
        case "pow", (_, Lit(exponent)) if arguments.dtype.kind == "int" and exponent < 0:
            raise UnsupportedError("weft does not compute negative powers of integers")
        case "pow", (base, Lit(exponent)):
            return _power(base, exponent)
        case _:
            return Apply(found.name, tuple(scalars))


def _power(base: Scalar, exponent: float) -> Scalar:
    """Spells the powers that PyTorch computes by multiplication and square root, and the fourth, which is a moment;
    others by pow.
    """
    square = apply("mul", base, base)
    by = {
        1.0: base,
        2.0: square,
        3.0: apply("mul", square, base),
        4.0: apply("mul", square, square),
        0.5: apply("sqrt", base),
        -0.5: apply("div", Lit(1.0), apply("sqrt", base)),
        -1.0: apply("div", Lit(1.0), base),
        -2.0: apply("div", Lit(1.0), square),
    }
    return by.get(exponent, apply("pow", base, Lit(exponent)))


def _parameters(found: DerivedRow, arguments: Arguments) -> dict[str, float | str | None]:
    """Reads what ATen passes beside the operands, by name."""
    values: dict[str, float | str | None] = {}
    known = dict(found.parameters)
    for name in arguments.names[found.arity :]:
        value = arguments.plain(name)
        if name in known and (value is None or isinstance(value, int | float | str)):
            values[name] = value
        elif arguments.given(name):
            raise UnsupportedError(f"weft does not support its argument {name}")
    return values


def _comparison(builder: Builder, found: Row, expr: Scalar, operands: _Operands) -> Ref:
    """Makes a mask. Comparisons look at their operands in the type that these promote to."""
    arguments = operands.arguments
    refs = operands.refs
    if not isinstance(expr, Apply):
        raise UnsupportedError(f"{found.name} has no tensor among its operands")
    if "bool" in found.samples or arguments.call.packet == "aten.logical_xor":
        expr = Apply(found.name, tuple(_mask(a, refs) for a in expr.args))
    else:
        common = promote(*refs, *operands.numbers)
        refs = [_of_kind(builder, ref, common, arguments, exact=True) for ref in refs]
        scalars = (_rounded(a, common) if isinstance(a, Lit) else a for a in expr.args)
        expr = Apply(expr.op, tuple(scalars))
    return builder.elementwise(expr, refs, DType.bool, arguments.location)


def _rounded(literal: Lit, dtype: DType) -> Lit:
    """Returns the number nearest to `literal` that `dtype` has, or the integer to which it wraps: eager compares with that one."""
    if not dtype.is_float:
        return _whole(literal, dtype, wraps=True) if dtype.kind == "int" else literal
    return Lit(float(rounded(np.asarray(literal.value, np.float64), dtype)))


def _mask(operand: Scalar, refs: Sequence[Ref]) -> Scalar:
    """Tells whether an operand of a logical operation is not 0."""
    match operand:
        case Lit(value):
            return Lit(value != 0)
        case Arg(index) if refs[index].dtype is DType.bool:
            return operand
        case _:
            return apply("ne", operand, Lit(0))


def _of_kind(builder: Builder, ref: Ref, dtype: DType, arguments: Arguments, *, exact: bool = False) -> Ref:
    """Converts `ref` where integers, bools and floats meet, or fp64 and others: C has other rules for these.

    A wider integer is converted too, for what it loses. `exact`: so is a wider float, which otherwise keeps its bits.
    """
    mine, other = ref.dtype, dtype
    if mine.kind == other.kind == "int":
        kept = other.bounds[0] <= mine.bounds[0] and mine.bounds[1] <= other.bounds[1]
    elif mine.is_float and other.is_float and mine.accumulator is other.accumulator:
        kept = not exact or other in (mine, DType.float32)
    else:
        kept = mine is other
    return ref if kept else builder.cast(ref, dtype, True, arguments.location)


def integral(expr: Scalar, dtype: DType, *, wraps: bool) -> Scalar:
    """Returns `expr`, computed in the integer type `dtype`, or on masks, with numbers truncated as eager does; as a
    mask, any but 0 is true.

    wraps: a number that the type does not have becomes the one that equals it modulo the number of its values.

    Raises:
        UnsupportedError: for such a number otherwise; PyTorch says what is wrong with it.
    """
    match expr:
        case Arg() | Convert():
            return expr
        case Lit():
            return _whole(expr, dtype, wraps=wraps)
        case Apply(op, args):
            return Apply(op, tuple(integral(a, dtype, wraps=wraps) for a in args))
        case _:
            assert_never(expr)


def _whole(literal: Lit, dtype: DType, *, wraps: bool) -> Lit:
    if isinstance(literal.value, bool):
        return literal
    if dtype is DType.bool:
        return Lit(literal.value != 0)
    if not math.isfinite(literal.value):
        raise UnsupportedError(f"{literal.value} has no value of type {dtype}")
    value = int(literal.value)
    low, high = DType.int64.bounds if wraps else dtype.bounds
    if not low <= value <= high:
        raise UnsupportedError(f"{value} is out of range for {dtype}")
    return Lit(dtype.wraps(value))


def _check_divisor(divisor: Scalar, dtype: DType) -> None:
    """Tells whether a divisor of integers is known not to be 0.

    Raises:
        UnsupportedError: it is not; PyTorch raises an error for 0.
    """
    if dtype.kind == "int" and not (isinstance(divisor, Lit) and dtype.wraps(int(divisor.value)) != 0):
        raise UnsupportedError("it divides integers by what may be 0, for which PyTorch raises an error")


def _check_closed(expr: Scalar, dtype: DType) -> None:
    """Tells whether the expression means on integers and masks what it means on numbers.

    Raises:
        UnsupportedError: it does not.
    """
    if dtype.is_float:
        return
    for name in set(applied(expr)):
        found = row(name)
        fits = name in _SELECTS or found.result == "bool"
        if not fits and (dtype is DType.bool or not found.closed):
            raise UnsupportedError(f"weft does not compute {name} with a result of type {dtype}")
