"""Scalar expressions and element types as Triton."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, assert_never

from weft.emit.kinds import Kind, kind_of, kind_of_literal, promoted, truth_of_literal
from weft.emit.text import is_word, stripped
from weft.emit.triton.text import call
from weft.errors import UnsupportedError
from weft.tensor import optable
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, constant_factor

COMPUTED: dict[Kind, DType] = {"float": DType.float32, "double": DType.float64, "int": DType.int64, "bool": DType.bool}
"""The element type in which each kind is computed."""


class Text(NamedTuple):
    """An expression and what it computes as.

    Attributes:
        text: it.
        kind: what it computes as.
        shared: many elements of the result are made of each of its elements.
        bytes: of bools that were loaded, the bytes that they lie in, each 0 or 1.
    """

    text: str
    kind: Kind
    shared: bool = False
    bytes: str = ""


class Exact(NamedTuple):
    """What is as exact as eager, at a cost, in a kernel.

    Attributes:
        quotients: are rounded once; else they may be wrong by two units in the last place.
        subnormals: exponentials below the normal numbers are numbers, whose logarithm may follow; else they are 0.
    """

    quotients: bool
    subnormals: bool


NOTHING_EXACT = Exact(quotients=False, subnormals=False)


_NAMES = {DType.bool: "int1", DType.float8_e4m3fn: "float8e4nv", DType.float8_e5m2: "float8e5"}
# What is too large becomes 448 or infinity in weft and eager, and else on one machine or another: functions of the prelude round.
_ROUNDING = {DType.float8_e4m3fn: "weft_e4m3", DType.float8_e5m2: "weft_e5m2"}
_NARROWING = {DType.float8_e4m3fn: "weft_to_e4m3", DType.float8_e5m2: "weft_to_e5m2"}


def element(dtype: DType) -> str:
    """Return Triton's name of an element type.

    Raises:
        UnsupportedError: for float64, as what these kernels call computes in float32.
    """
    if dtype is DType.float64:
        raise UnsupportedError(f"Triton kernels compute in float32, not in {dtype}")
    return f"tl.{_NAMES.get(dtype, dtype.name)}"


def number(value: float | int | bool, kind: Kind) -> str:
    """Spell a literal."""
    match kind:
        case "bool":
            return str(truth_of_literal(value))
        case "int":
            least, most = DType.int64.bounds
            whole = (most if value > 0 else least) if math.isinf(value) else max(least, min(int(value), most))
            return str(whole) if whole >= 0 else f"({whole})"
        case "float" | "double":
            text = repr(float(value)) if math.isfinite(value) else f"float('{float(value)!r}')"
            return f"({text})" if text.startswith("-") else text
        case _:
            assert_never(kind)


def cast(text: str, dtype: DType) -> str:
    """Convert `text` to `dtype`."""
    if dtype in _NARROWING:
        return call(_NARROWING[dtype], stripped(text))
    return call("tl.cast", stripped(text), element(dtype))


def coerced(value: Text, kind: Kind) -> str:
    """Convert `value` to a `kind`."""
    if value.kind == kind:
        return value.text
    return f"({value.text} != 0)" if kind == "bool" else cast(value.text, COMPUTED[kind])


def expression(expr: Scalar, args: Sequence[Text], hold: Callable[[str], str], *, exact: Exact) -> Text:
    """Spell `expr`, its arguments spelled `args`.

    hold: gives a name to an expression that is to be read more than once.
    exact: what is as exact as eager, at a cost.
    """
    match expr:
        case Arg(index):
            return args[index]
        case Lit(value):
            kind = kind_of_literal(value)
            return Text(number(value, kind), kind, shared=True)
        case Convert(dtype, inner):
            kind = kind_of(dtype)
            part = expression(inner, args, hold, exact=exact)
            text = coerced(part, kind)
            if dtype in _ROUNDING:
                text = call(_ROUNDING[dtype], stripped(text))
            elif dtype is not COMPUTED[kind]:
                text = cast(cast(text, dtype), COMPUTED[kind])
            return Text(text, kind, part.shared)
        case Apply(op, inner):
            return _applied(op, inner, args, hold, exact=exact)
        case _:
            assert_never(expr)


def jumps(expr: Scalar) -> bool:
    """Tell whether a rounding to few numbers is in it, where the last bit of an argument decides between two of them."""
    match expr:
        case Convert(dtype, inner):
            return not dtype.is_float or dtype.is_kept or jumps(inner)
        case Apply(op, inner):
            return op in ("floor", "ceil", "trunc", "round") or any(map(jumps, inner))
        case Arg() | Lit():
            return False


_LOG2_OF_E = 1.4426950408889634


def _decay(inner: Scalar, args: Sequence[Text], hold: Callable[[str], str], *, exact: Exact) -> Text:
    """Spell exp of `inner` as a power of 2, for which machines have an instruction: constant factors join log2(e) in one."""
    factor, inner = constant_factor(inner)
    factor *= _LOG2_OF_E
    part = expression(inner, args, hold, exact=exact)
    text = number(inner.value, "float") if isinstance(inner, Lit) else coerced(part, "float")
    return Text(call("tl.exp2", f"{text} * {number(factor, 'float')}"), "float")


def _applied(
    op: str, inner: Sequence[Scalar], args: Sequence[Text], hold: Callable[[str], str], *, exact: Exact
) -> Text:
    row = optable.row(op)
    if op in _DECAYS and not (exact.subnormals and op == "decay"):
        return _decay(inner[0], args, hold, exact=exact)
    parts = [expression(a, args, hold, exact=exact) for a in inner]
    wanted, result = promoted(row, [p.kind for p in parts])
    texts = [_as(source, p, kind) for source, p, kind in zip(inner, parts, wanted, strict=True)]
    if all(isinstance(a, Lit) for a in inner):
        # A function of numbers alone has no type to go by.
        texts[0] = cast(texts[0], COMPUTED[wanted[0]])
    if result == "int" and op in ("floor", "ceil", "trunc", "round"):
        return Text(texts[0], result)
    power = inner[1].value if op == "pow" and isinstance(inner[1], Lit) else None
    if power is not None and power in (_POWERS if result == "float" else POWERS_OF_INTEGERS):
        return Text(_POWERS[power].format(_held(texts[0], hold)), result)
    shared = all(p.shared for p in parts)
    if exact.quotients and op == "div" and result == "float":
        corrected = parts[1].shared and not shared
        return Text(call("weft_quotient" if corrected else "tl.div_rn", *map(stripped, texts)), result, shared)
    if op == "where" and result == "float" and parts[0].bytes:
        return Text(call("weft_either", parts[0].bytes, *map(stripped, texts[1:])), result, shared)
    template = row.triton
    texts = [_held(t, hold) if template.count(f"{{{i}}}") > 1 else t for i, t in enumerate(texts)]
    if template.startswith(("tl.", "weft_")):
        texts = [stripped(t) for t in texts]
    text = template.format(*texts)
    return Text(cast(text, DType.int64) if result == "int" else text, result, shared)


_DECAYS = frozenset({"decay", "coarse_decay"})

# Powers that are exact, or nearly, without a logarithm.
POWERS_OF_INTEGERS = frozenset[float | None]((1, 2))
"""Exponents that integers are raised to."""

_POWERS = {
    2.0: "({0} * {0})",
    1.0: "{0}",
    0.5: "tl.sqrt({0})",
    -0.5: "tl.rsqrt({0})",
    -1.0: "(1.0 / {0})",
    -2.0: "(1.0 / ({0} * {0}))",
}


def _held(text: str, hold: Callable[[str], str]) -> str:
    return text if is_word(text) else hold(stripped(text))


def _as(source: Scalar, part: Text, kind: Kind) -> str:
    """Convert `part` to a `kind`; a number is written as one."""
    return number(source.value, kind) if isinstance(source, Lit) else coerced(part, kind)
