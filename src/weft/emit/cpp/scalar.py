"""Scalar expressions and element types as C++."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, assert_never

from weft.emit.kinds import Kind, kind_of, kind_of_literal, promoted, truth_of_literal
from weft.emit.text import is_word, stripped
from weft.tensor import optable
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, arguments

CTYPE: dict[Kind, str] = {"float": "float", "double": "double", "int": "i64", "bool": "bool"}

HELD: dict[Kind, DType] = {
    "float": DType.float32,
    "double": DType.float64,
    "int": DType.int64,
    "bool": DType.bool,
}
"""The element type of a variable of each kind."""

_WRAPPING = ("add", "sub", "mul", "neg")
"""Operations that C++ leaves undefined where signed integers overflow, and that wrap in eager: done on unsigned ones."""

_THROUGH_INT32 = (DType.int32, DType.int16, DType.int8)

_ELEMENT = {
    DType.float64: "double",
    DType.float32: "float",
    DType.bfloat16: "weft::bf16",
    DType.float16: "weft::f16",
    DType.float8_e4m3fn: "weft::e4m3",
    DType.float8_e5m2: "weft::e5m2",
    DType.int64: "int64_t",
    DType.int32: "int32_t",
    DType.int16: "int16_t",
    DType.int8: "int8_t",
    DType.uint8: "uint8_t",
    DType.bool: "bool",
}


class Text(NamedTuple):
    """An expression and what it computes as."""

    text: str
    kind: Kind


def element(dtype: DType) -> str:
    """Return the C++ type of an element in memory."""
    return _ELEMENT[dtype]


def number(value: float | int | bool, kind: Kind) -> str:
    """Spell a literal."""
    match kind:
        case "bool":
            return "true" if truth_of_literal(value) else "false"
        case "int":
            low, high = DType.int64.bounds
            if math.isinf(value) or not low < int(value) <= high:
                return "INT64_MIN" if value < 0 else "INT64_MAX"
            return f"(i64){int(value)}" if int(value) >= 0 else f"(i64)({int(value)})"
        case "float" | "double":
            if math.isnan(value):
                return "WEFT_NAN"
            suffix = "f" if kind == "float" else ""
            infinity = "WEFT_INFINITY" if kind == "float" else "(double)WEFT_INFINITY"
            text = infinity if math.isinf(value) else f"{abs(float(value))!r}{suffix}"
            return f"(-{text})" if math.copysign(1.0, value) < 0 else text
        case _:
            assert_never(kind)


def coerced(value: Text, kind: Kind) -> str:
    """Convert `value` to a `kind`."""
    if value.kind == kind:
        return value.text
    if kind == "int" and value.kind in ("float", "double"):
        return f"weft::whole<i64>({stripped(value.text)})"
    inner = value.text if is_word(value.text) else f"({stripped(value.text)})"
    return f"({inner} != 0)" if kind == "bool" else f"({CTYPE[kind]}){inner}"


def bits(at: str, dtype: DType) -> str:
    """Spell the element at `at` as it lies there, to be moved to another of the same type."""
    return f"{at}.bits" if dtype.is_float and dtype.bytes < 4 else at


def loaded(at: str, dtype: DType) -> Text:
    """Spell the element at `at`, as it is computed with."""
    match dtype:
        case DType.float64 | DType.float32 | DType.int64:
            return Text(at, kind_of(dtype))
        case DType.bool:
            return Text(f"weft::is_set({at})", "bool")
        case DType.bfloat16 | DType.float16 | DType.float8_e4m3fn | DType.float8_e5m2:
            return Text(f"weft::load({at})", "float")
        case _:
            return Text(f"(i64){at}", "int")


def stored(at: str, dtype: DType, value: Text) -> str:
    """Spell the statement that puts `value` in memory at `at`."""
    if dtype.kind == "int" and value.kind in ("float", "double"):
        return f"{at} = ({element(dtype)})({stripped(_converted(value, dtype).text)});"
    text = stripped(coerced(value, kind_of(dtype)))
    match dtype:
        case DType.float64 | DType.float32 | DType.int64 | DType.bool:
            return f"{at} = {text};"
        case DType.bfloat16 | DType.float16 | DType.float8_e4m3fn | DType.float8_e5m2:
            return f"weft::store(&{at}, {text});"
        case _:
            return f"{at} = ({element(dtype)})({text});"


def expression(expr: Scalar, args: Sequence[Text], steady: frozenset[int] = frozenset()) -> Text:
    """Spell `expr`, its arguments spelled `args`; those in `steady` are the same in all iterations of the loop that it stands in.

    Types are promoted as in eager: a number takes the kind of what it is combined with, and what an operation does not
    do on integers it does in float.
    """
    match expr:
        case Arg(index):
            return args[index]
        case Lit(value):
            kind = kind_of_literal(value)
            return Text(number(value, kind), kind)
        case Convert(DType.float64, Lit(value)):
            return Text(number(value, "double"), "double")
        case Convert(dtype, inner):
            return _converted(expression(inner, args, steady), dtype)
        case Apply(op, inner):
            return _applied(op, inner, args, steady)
        case _:
            assert_never(expr)


def combined(monoid: Monoid, left: str, right: str, kind: Kind) -> str:
    """Spell one step of a reduction."""
    return stripped(_applied(monoid.value, (Arg(0), Arg(1)), (Text(left, kind), Text(right, kind))).text)


def reduction_clause(monoid: Monoid, kind: Kind, name: str) -> str:
    """Spell OpenMP's clause for a loop that reduces into `name`; of floats, the largest and least keep NaN."""
    plain = {Monoid.sum: "+", Monoid.prod: "*", Monoid.max: "max", Monoid.min: "min"}[monoid]
    operator = f"weft::weft_{plain}" if kind in ("float", "double") and monoid in (Monoid.max, Monoid.min) else plain
    return f"reduction({operator} : {name})"


def _applied(op: str, inner: Sequence[Scalar], args: Sequence[Text], steady: frozenset[int] = frozenset()) -> Text:
    row = optable.row(op)
    parts = [expression(a, args, steady) for a in inner]
    wanted, result = promoted(row, [p.kind for p in parts])
    texts = [_as(source, p, kind) for source, p, kind in zip(inner, parts, wanted, strict=True)]
    if op in _WRAPPING and result == "int":
        return Text(f"(i64){row.cpp.format(*(f'(uint64_t)({stripped(t)})' for t in texts))}", result)
    if op == "div" and result == "float" and _pays_inverse(inner, steady):
        return Text(f"weft::over({', '.join(map(stripped, texts))})", result)
    if op == "where" and result in ("float", "double") and _is_steady(inner, steady):
        return Text(f"weft::either({', '.join(map(stripped, texts))})", result)
    return Text(row.cpp.format(*texts), result)


def _is_steady(choice: Sequence[Scalar], steady: frozenset[int]) -> bool:
    """Tell whether a condition is the same all along a loop, and not what it chooses: compilers make no vector code of such."""
    condition, *chosen = map(arguments, choice)
    return condition <= steady and not set().union(*chosen) <= steady


def _pays_inverse(quotient: Sequence[Scalar], steady: frozenset[int]) -> bool:
    """Tell whether many are divided by one number; a compiler itself multiplies where that is a power of two."""
    numerator, divisor = quotient
    if isinstance(divisor, Lit):
        return abs(math.frexp(divisor.value)[0]) != 0.5 and not arguments(numerator) <= steady
    return arguments(divisor) <= steady and not arguments(numerator) <= steady


def _as(source: Scalar, part: Text, kind: Kind) -> str:
    """Convert `part` to a `kind`; a number is written as one."""
    return number(source.value, kind) if isinstance(source, Lit) else coerced(part, kind)


def _converted(value: Text, dtype: DType) -> Text:
    kind = kind_of(dtype)
    if value.kind in ("float", "double") and dtype in _THROUGH_INT32:
        # As eager: the machine's conversion to 32 bits, whose low bits are kept.
        return Text(f"(i64)({element(dtype)})weft::whole<int32_t>({stripped(value.text)})", kind)
    text = coerced(value, kind)
    match dtype:
        case DType.bfloat16 | DType.float16 | DType.float8_e4m3fn | DType.float8_e5m2:
            return Text(f"weft::rounded<{element(dtype)}>({stripped(text)})", kind)
        case DType.float64 | DType.float32 | DType.int64 | DType.bool:
            return Text(text, kind)
        case _:
            return Text(f"(i64)({element(dtype)})({stripped(text)})", kind)
