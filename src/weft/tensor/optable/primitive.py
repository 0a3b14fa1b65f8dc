"""The primitive rows. Adding an operation is adding a row; a test walks all its columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np

from weft.tensor.optable import intervals, meanings
from weft.tensor.optable.row import Array, Interval, Row, Samples
from weft.tensor.optable.whole import WHOLE

_Unary: TypeAlias = Callable[[Array], Array]
_Binary: TypeAlias = Callable[[Array, Array], Array]
_Bounds1: TypeAlias = Callable[[Interval], Interval]
_Bounds2: TypeAlias = Callable[[Interval, Interval], Interval]


def _sympy(name: str) -> Callable[..., Any]:
    """Returns SymPy's function `name`; imported when called, since few rooms need SymPy."""

    def call(*args: Any) -> Any:
        return getattr(import_module("sympy"), name)(*args)

    return call


def _sympy_false(_: object) -> Any:
    """Returns false: no real number is infinite or NaN."""
    return import_module("sympy").false


def _sympy_trunc(x: Any) -> Any:
    sympy = import_module("sympy")
    return sympy.sign(x) * sympy.floor(sympy.Abs(x))


def _sympy_round(x: Any) -> Any:
    """Rounds half to even: one less than floor(x + 1/2) where x + 1/2 is odd."""
    sympy = import_module("sympy")
    up = x + sympy.Rational(1, 2)
    return sympy.floor(up) - sympy.Piecewise((1, sympy.Eq(sympy.Mod(up, 2), 1)), (0, True))


def _sympy_where(mask: Any, true: Any, false: Any) -> Any:
    return import_module("sympy").Piecewise((true, mask), (false, True))


def _fused(a: Array, b: Array, c: Array) -> Array:
    """Computes a * b + c, as floats."""
    return np.asarray(np.multiply(a, b, dtype=np.float64) + c)


def _fused_condition(a: Array, b: Array, c: Array) -> Array:
    return _ratio(2.0 * np.abs(a * b) + np.abs(c), a * b + c)


def _sympy_fused(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


def _ratio(numerator: Array, denominator: Array) -> Array:
    return np.asarray(np.abs(numerator) / np.abs(denominator))


def _operator(  # noqa: PLR0913 - the columns
    name: str,
    symbol: str,
    meaning: _Binary,
    interval: _Bounds2,
    sympy: Callable[[Any, Any], Any],
    conditioning: str,
    condition: _Binary,
    *,
    closed: bool = True,
    second: Samples = "real",
) -> Row:
    """Makes the row of a binary arithmetic operator, spelled alike in C++ and Triton."""
    text = f"({{0}} {symbol} {{1}})"
    aten = (f"aten.{name}",)
    samples: tuple[Samples, ...] = ("real", second)
    return Row(
        name,
        aten,
        samples,
        "same",
        closed,
        meaning,
        name,
        text,
        text,
        interval,
        sympy,
        name,
        conditioning,
        condition,
    )


def _unary(  # noqa: PLR0913 - the columns
    name: str,
    meaning: _Unary,
    interval: _Bounds1,
    sympy: Callable[[Any], Any],
    conditioning: str,
    condition: _Unary | None = None,
    *,
    samples: Samples = "real",
    field: str | None = None,
    closed: bool = False,
    cpp: str | None = None,
    triton: str | None = None,
) -> Row:
    """Makes the row of a function of one argument; `weft::name` and `tl.name` unless spelled otherwise."""
    return Row(
        name,
        (f"aten.{name}",),
        (samples,),
        "same",
        closed,
        meaning,
        field,
        f"weft::{name}({{0}})" if cpp is None else cpp,
        f"tl.{name}({{0}})" if triton is None else triton,
        interval,
        sympy,
        name,
        conditioning,
        condition,
    )


def _extremum(name: Literal["maximum", "minimum"], sympy: str, interval: _Bounds2) -> Row:
    return Row(
        name,
        (f"aten.{name}",),
        ("real", "real"),
        "same",
        True,
        np.maximum if name == "maximum" else np.minimum,
        name,
        f"weft::{name}({{0}}, {{1}})",
        f"tl.{name}({{0}}, {{1}}, propagate_nan=tl.PropagateNan.ALL)",
        interval,
        _sympy(sympy),
        name,
        "exact: returns an argument, so it magnifies nothing",
        _ones,
    )


def _comparison(
    name: str,
    symbol: str,
    meaning: _Binary,
    interval: _Bounds2,
    sympy: str,
) -> Row:
    return Row(
        name,
        (f"aten.{name}",),
        ("real", "real"),
        "bool",
        True,
        meaning,
        name,
        f"({{0}} {symbol} {{1}})",
        f"({{0}} {symbol} {{1}})",
        interval,
        _sympy(sympy),
        name,
        "jumps where the arguments are equal: a rounding error of an argument may flip it",
    )


def _negated(interval: _Bounds2) -> _Bounds2:
    def negated(a: Interval, b: Interval) -> Interval:
        low, high = interval(a, b)
        return (1.0 - high, 1.0 - low)

    return negated


def _swapped(interval: _Bounds2) -> _Bounds2:
    return lambda a, b: interval(b, a)


def _ones(a: Array, b: Array) -> Array:
    return np.ones(np.broadcast_shapes(np.shape(a), np.shape(b)))


def _symbolic_power(base: Any, exponent: Any) -> Any:
    return base**exponent


def _logical(
    name: str,
    arity: int,
    meaning: Callable[..., Array],
    interval: Callable[..., Interval],
    cpp: str,
    triton: str,
    sympy: str,
) -> Row:
    samples: tuple[Samples, ...] = ("bool",) * arity
    aten = (f"aten.{name}",)
    words = "exact on masks"
    return Row(
        name,
        aten,
        samples,
        "bool",
        True,
        meaning,
        name,
        cpp,
        triton,
        interval,
        _sympy(sympy),
        name,
        words,
    )


def _test(name: str, meaning: _Unary, interval: _Bounds1, triton: str) -> Row:
    aten = (f"aten.{name}",)
    cpp = f"weft::{name}({{0}})"
    words = "exact"
    return Row(
        name,
        aten,
        ("real",),
        "bool",
        True,
        meaning,
        name,
        cpp,
        triton,
        interval,
        _sympy_false,
        name,
        words,
    )


def _one(x: Array) -> Array:
    return np.ones_like(x)


def _pow_condition(a: Array, b: Array) -> Array:
    return np.abs(b) + np.abs(b * np.log(a))


_ARITHMETIC = (
    _operator(
        "add",
        "+",
        meanings.arithmetic(np.add),
        intervals.add,
        lambda a, b: a + b,
        "cancels where the arguments are nearly opposite",
        lambda a, b: _ratio(np.abs(a) + np.abs(b), a + b),
    ),
    _operator(
        "sub",
        "-",
        meanings.arithmetic(np.subtract),
        intervals.sub,
        lambda a, b: a - b,
        "cancels where the arguments are nearly equal",
        lambda a, b: _ratio(np.abs(a) + np.abs(b), a - b),
    ),
    _operator(
        "mul",
        "*",
        meanings.arithmetic(np.multiply),
        intervals.mul,
        lambda a, b: a * b,
        "relative errors add; overflows and underflows",
        lambda a, b: 2.0 * _ones(a, b),
    ),
    _operator(
        "div",
        "/",
        meanings.arithmetic(np.true_divide),
        intervals.div,
        lambda a, b: a / b,
        "relative errors add; overflows for small divisors",
        lambda a, b: 2.0 * _ones(a, b),
        closed=False,
        second="nonzero",
    ),
    Row(
        "pow",
        ("aten.pow",),
        ("positive", "real"),
        "same",
        True,
        meanings.power,
        "pow",
        "weft::pow({0}, {1})",
        "weft_pow({0}, {1})",
        intervals.power,
        _symbolic_power,
        "pow",
        "magnifies the base's error by |b| and the exponent's by |b log a|",
        _pow_condition,
    ),
    _unary(
        "neg",
        meanings.arithmetic(np.negative),
        intervals.neg,
        lambda x: -x,
        "exact",
        _one,
        field="neg",
        closed=True,
        cpp="(-{0})",
        triton="(-{0})",
    ),
    _unary(
        "abs",
        meanings.arithmetic(np.abs),
        intervals.absolute,
        _sympy("Abs"),
        "exact",
        _one,
        field="abs",
        closed=True,
    ),
    _unary(
        "sign",
        meanings.sign,
        intervals.steps(meanings.sign),
        _sympy("sign"),
        "jumps at 0",
        field="sign",
        closed=True,
        triton="tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0))",
    ),
)

_FUNCTIONS = (
    _unary(
        "exp",
        np.exp,
        intervals.increasing(np.exp, bounds=(0.0, np.inf)),
        _sympy("exp"),
        "magnifies by |x|; overflows above 88 in fp32",
        np.abs,
        field="exp",
    ),
    _unary(
        "exp2",
        np.exp2,
        intervals.increasing(np.exp2, bounds=(0.0, np.inf)),
        lambda x: 2**x,
        "magnifies by 0.7 |x|: a row of its own, since exp(x log 2) would round the product too",
        lambda x: np.abs(x) * np.log(2.0),
    ),
    _unary(
        "expm1",
        np.expm1,
        intervals.increasing(np.expm1, bounds=(-1.0, np.inf)),
        lambda x: _sympy("exp")(x) - 1,
        "good near 0, where exp(x) - 1 cancels; magnifies by about |x| for large x",
        lambda x: _ratio(x * np.exp(x), np.expm1(x)),
        samples="nonzero",
        field="expm1",
        triton="weft_expm1({0})",
    ),
    _unary(
        "log",
        np.log,
        intervals.increasing(np.log, (0.0, np.inf)),
        _sympy("log"),
        "cancels near 1; undefined below 0",
        lambda x: _ratio(np.ones_like(x), np.log(x)),
        samples="positive",
    ),
    _unary(
        "log1p",
        np.log1p,
        intervals.increasing(np.log1p, (-1.0, np.inf)),
        lambda x: _sympy("log")(1 + x),
        "good near 0, where log(1 + x) cancels",
        lambda x: _ratio(x / (1.0 + x), np.log1p(x)),
        samples="positive",
        field="log1p",
        triton="weft_log1p({0})",
    ),
    _unary(
        "sqrt",
        np.sqrt,
        intervals.increasing(np.sqrt, (0.0, np.inf), (0.0, np.inf)),
        _sympy("sqrt"),
        "halves relative errors; undefined below 0",
        lambda x: 0.5 * _one(x),
        samples="positive",
    ),
    _unary(
        "tanh",
        np.tanh,
        intervals.increasing(np.tanh, bounds=(-1.0, 1.0)),
        _sympy("tanh"),
        "at most 1; 0 where it saturates",
        lambda x: _ratio(x / np.cosh(x) ** 2, np.tanh(x)),
        samples="nonzero",
        triton="weft_tanh({0})",
    ),
    _unary(
        "erf",
        meanings.erf,
        intervals.increasing(meanings.erf, bounds=(-1.0, 1.0)),
        _sympy("erf"),
        "at most 1; 0 where it saturates",
        lambda x: _ratio(x * 2.0 / np.sqrt(np.pi) * np.exp(-(x**2)), meanings.erf(x)),
        samples="nonzero",
    ),
    _unary(
        "sin",
        np.sin,
        intervals.sin,
        _sympy("sin"),
        "|x / tan x|: bad at its zeros and for large x",
        lambda x: _ratio(x * np.cos(x), np.sin(x)),
        samples="nonzero",
    ),
    _unary(
        "cos",
        np.cos,
        intervals.cos,
        _sympy("cos"),
        "|x tan x|: bad at its zeros and for large x",
        lambda x: _ratio(x * np.sin(x), np.cos(x)),
    ),
)

_ROUNDING = (
    _unary(
        "floor",
        meanings.rounding(np.floor),
        intervals.steps(np.floor),
        _sympy("floor"),
        "jumps at integers",
        field="floor",
        closed=True,
    ),
    _unary(
        "ceil",
        meanings.rounding(np.ceil),
        intervals.steps(np.ceil),
        _sympy("ceiling"),
        "jumps at integers",
        field="ceil",
        closed=True,
    ),
    _unary(
        "trunc",
        meanings.rounding(np.trunc),
        intervals.steps(np.trunc),
        _sympy_trunc,
        "jumps at integers",
        field="trunc",
        closed=True,
        triton="weft_trunc({0})",
    ),
    _unary(
        "round",
        meanings.rounding(np.rint),
        intervals.steps(np.rint),
        _sympy_round,
        "jumps at halves; half goes to even",
        field="round",
        closed=True,
        triton="weft_round({0})",
    ),
)

_CHOICE = (
    _extremum("maximum", "Max", intervals.maximum),
    _extremum("minimum", "Min", intervals.minimum),
    _comparison("lt", "<", np.less, intervals.less, "Lt"),
    _comparison("le", "<=", np.less_equal, _negated(_swapped(intervals.less)), "Le"),
    _comparison("gt", ">", np.greater, _swapped(intervals.less), "Gt"),
    _comparison("ge", ">=", np.greater_equal, _negated(intervals.less), "Ge"),
    _comparison("eq", "==", np.equal, intervals.equal, "Eq"),
    _comparison("ne", "!=", np.not_equal, _negated(intervals.equal), "Ne"),
    _logical(
        "logical_and",
        2,
        np.logical_and,
        intervals.logical_and,
        "({0} && {1})",
        "({0} & {1})",
        "And",
    ),
    _logical("logical_or", 2, np.logical_or, intervals.logical_or, "({0} || {1})", "({0} | {1})", "Or"),
    _logical("logical_not", 1, np.logical_not, intervals.logical_not, "(!{0})", "({0} == 0)", "Not"),
    Row(
        "where",
        ("aten.where",),
        ("bool", "real", "real"),
        "same",
        True,
        meanings.where,
        "where",
        "({0} ? {1} : {2})",
        "tl.where({0}, {1}, {2})",
        intervals.where,
        _sympy_where,
        "where",
        "exact: returns an argument; jumps where the mask does",
    ),
    _test("isnan", np.isnan, lambda _: intervals.UNKNOWN, "({0} != {0})"),
    _test("isinf", np.isinf, intervals.isinf, "(tl.abs({0}) == float('inf'))"),
)

# exp(x) for x <= 0, as significands are made. On a GPU, in kernels with products, what would be below the normal numbers is 0: a
# power of 2 is one instruction then, where exp takes four more.
_DECAY = replace(
    _FUNCTIONS[0],
    name="decay",
    aten=(),
    cpp="weft::decay({0})",
    triton="tl.exp({0})",
    abstract="exp",
)
# The same to 2^-18 of its value, and a quotient to 1.5 units in the last place: where 16 bits are kept, half the work is enough.
_COARSE_DECAY = replace(_DECAY, name="coarse_decay", cpp="weft::coarse_decay({0})")
_COARSE_DIV = replace(
    next(row for row in _ARITHMETIC if row.name == "div"), name="coarse_div", aten=(), cpp="({0} * (1.0f / {1}))"
)

# What PyTorch rounds once, an `add` with an alpha among it, where the two roundings of a product and a sum would cancel to another.
_FMA = Row(
    "fma",
    (),
    ("real", "real", "real"),
    "same",
    False,
    _fused,
    "fma",
    "weft::fma({0}, {1}, {2})",
    "tl.fma({0}, {1}, {2})",
    intervals.fma,
    _sympy_fused,
    "fma",
    "cancels where the product is near minus the sum's other part",
    _fused_condition,
)

PRIMITIVES: tuple[Row, ...] = (
    *(*_ARITHMETIC, _FMA, *_FUNCTIONS, _DECAY, _COARSE_DECAY, _COARSE_DIV),
    *(*_ROUNDING, *_CHOICE),
    *WHOLE,
)
