"""The primitive rows that are for integers: bits, shifts, quotients without a remainder; and fmod, which is exact on all numbers.

Integers are carried in 64 bits and wrap; a cast to the narrower type that eager has follows each operation. No row traps: what
divides by 0 gives 0 here, and is left to PyTorch, which raises, wherever a divisor may be 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.tensor.arrays import as_array
from weft.tensor.optable import intervals
from weft.tensor.optable.row import Array, Interval, Row, Samples


def _whole(meaning: Callable[..., Array]) -> Callable[..., Array]:
    """Applies `meaning` to int64, whatever integers or bools it is given."""

    def on_integers(*args: Array) -> Array:
        with np.errstate(all="ignore"):
            return as_array(meaning(*(as_array(a).astype(np.int64) for a in args)))

    return on_integers


def _left_shift(a: Array, by: Array) -> Array:
    return np.where((by < 0) | (by > 63), 0, a << np.clip(by, 0, 63))


def _right_shift(a: Array, by: Array) -> Array:
    return a >> np.where((by < 0) | (by > 63), 63, by)


def _trunc_divide(a: Array, b: Array) -> Array:
    # Towards 0 is towards minus infinity, and one more where there is a rest and the signs differ.
    quotient = np.floor_divide(a, b)
    rest = a - quotient * b
    return np.where(b == 0, 0, quotient + ((rest != 0) & ((a < 0) != (b < 0))))


def _fmod(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        return as_array(np.fmod(a, b))


def _at_points(meaning: Callable[..., Array]) -> Callable[..., Interval]:
    """Bounds exactly where every argument is one integer; else says nothing."""

    def interval(*args: Interval) -> Interval:
        if all(low == high and low.is_integer() and abs(low) < 2.0**53 for low, high in args):
            value = float(meaning(*(np.asarray(int(low)) for low, _ in args)))
            return (value, value)
        return intervals.EVERYTHING

    return interval


def _row(
    name: str, samples: tuple[Samples, ...], meaning: Callable[..., Array], cpp: str, triton: str, gpu: float = 1.0
) -> Row:
    """Makes a row that is exact on integers, and a random function of anything else. ATen's name is the row's, where it has one."""
    on_integers = _whole(meaning)
    return Row(
        name=name,
        aten=() if name == "trunc_divide" else (f"aten.{name}",),
        samples=samples,
        closed=True,
        meaning=on_integers,
        field=None,
        cpp=cpp,
        triton=triton,
        interval=_at_points(on_integers),
        rounding="exact",
        cpu=1.0,
        gpu=gpu,
    )


_TWO: tuple[Samples, Samples] = ("int", "int")
_QUOTIENT: tuple[Samples, Samples] = ("int", "divisor")
_FLOORED = "(({0} - ((({0} % {1}) + {1}) % {1})) // {1})"

WHOLE: tuple[Row, ...] = (
    _row("bitwise_and", _TWO, np.bitwise_and, "({0} & {1})", "({0} & {1})"),
    _row("bitwise_or", _TWO, np.bitwise_or, "({0} | {1})", "({0} | {1})"),
    _row("bitwise_xor", _TWO, np.bitwise_xor, "({0} ^ {1})", "({0} ^ {1})"),
    _row("bitwise_not", ("int",), np.bitwise_not, "(~{0})", "(~{0})"),
    _row(
        "bitwise_left_shift",
        _TWO,
        _left_shift,
        "weft::bitwise_left_shift({0}, {1})",
        "tl.where(({1} < 0) | ({1} > 63), 0, {0} << ({1} & 63))",
    ),
    _row(
        "bitwise_right_shift",
        _TWO,
        _right_shift,
        "weft::bitwise_right_shift({0}, {1})",
        "({0} >> tl.where(({1} < 0) | ({1} > 63), 63, {1}))",
    ),
    _row("floor_divide", _QUOTIENT, np.floor_divide, "weft::floor_divide({0}, {1})", _FLOORED, 28.0),
    _row("trunc_divide", _QUOTIENT, _trunc_divide, "weft::trunc_divide({0}, {1})", "({0} // {1})", 28.0),
    Row(
        name="fmod",
        aten=("aten.fmod",),
        samples=("real", "nonzero"),
        closed=True,
        meaning=_fmod,
        field=None,
        cpp="weft::fmod({0}, {1})",
        triton="({0} % {1})",
        interval=_at_points(_fmod),
        rounding="exact",
        cpu=4.0,
        gpu=36.0,
    ),
)
