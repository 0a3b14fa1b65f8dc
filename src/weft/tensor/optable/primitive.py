"""The primitive rows. Adding an operation is adding a row; a test walks all its columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from weft.tensor.optable import intervals, meanings
from weft.tensor.optable.row import Array, Interval, Rounding, Row, Samples
from weft.tensor.optable.whole import WHOLE
from weft.tensor.scalar import Apply, Arg, Lit, apply

_SPECIAL = 8.0  # cycles of a special function on a GPU, for a warp


def _operator(
    symbol: str, name: str, meaning: np.ufunc, interval: Callable[..., Interval], *, divides: bool = False
) -> Row:
    """Makes the row of a binary arithmetic operator, spelled alike in C++ and Triton."""
    text = f"({{0}} {symbol} {{1}})"
    return Row(
        name=name,
        aten=(f"aten.{name}",),
        samples=("real", "nonzero" if divides else "real"),
        closed=not divides,
        meaning=meanings.arithmetic(meaning),
        field=name,
        cpp=text,
        triton=text,
        interval=interval,
        rounding="rounds",
        cpu=4.0 if divides else 1.0,
        gpu=_SPECIAL + 6 if divides else 1.0,
    )


def _whole(
    name: str,
    meaning: Callable[[Array], Array],
    rounding: Rounding,
    *,
    interval: Callable[[Interval], Interval] | None = None,
    cpp: str | None = None,
    triton: str | None = None,
    gpu: float = 2.0,
) -> Row:
    """Makes the row of an operation on one argument that gives integers of integers."""
    return Row(
        name=name,
        aten=(f"aten.{name}",),
        samples=("real",),
        closed=True,
        meaning=meaning,
        field=name,
        cpp=cpp or f"weft::{name}({{0}})",
        triton=triton or f"tl.{name}({{0}})",
        interval=interval or intervals.steps(meaning),
        rounding=rounding,
        cpu=1.0,
        gpu=gpu,
    )


def _function(  # noqa: PLR0913 - the columns
    name: str,
    meaning: Callable[[Array], Array],
    interval: Callable[[Interval], Interval],
    gpu: float,
    *,
    samples: Samples = "real",
    field: str | Apply | None = None,
    triton: str = "tl",
    rounding: Rounding = "function",
    exact_at: float | None = 0.0,
    cpu: float = 20.0,
) -> Row:
    """Makes the row of a function of one argument: `weft::name` in C++, in Triton its own or, with "weft", the prelude's."""
    return Row(
        name=name,
        aten=(f"aten.{name}",),
        samples=(samples,),
        closed=False,
        meaning=meaning,
        field=field,
        cpp=f"weft::{name}({{0}})",
        triton=f"{triton}{'_' if triton == 'weft' else '.'}{name}({{0}})",
        interval=interval,
        rounding=rounding,
        exact_at=exact_at,
        cpu=cpu,
        gpu=gpu,
    )


def _extremum(name: str, meaning: np.ufunc, interval: Callable[..., Interval]) -> Row:
    return Row(
        name=name,
        aten=(f"aten.{name}",),
        samples=("real", "real"),
        closed=True,
        meaning=meaning,
        field=name,
        cpp=f"weft::{name}({{0}}, {{1}})",
        triton=f"tl.{name}({{0}}, {{1}}, propagate_nan=tl.PropagateNan.ALL)",
        interval=interval,
        rounding="chooses",
        cpu=1.0,
        gpu=2.0,
    )


def _decision(
    name: str,
    meaning: np.ufunc,
    interval: Callable[..., Interval],
    cpp: str,
    triton: str | None = None,
    *,
    samples: tuple[Samples, ...] = ("real", "real"),
    field: Apply | None = None,
) -> Row:
    """Makes a row whose result is a bool, spelled alike in C++ and Triton unless both are given."""
    return Row(
        name=name,
        aten=(f"aten.{name}",),
        samples=samples,
        result="bool",
        closed=True,
        meaning=meaning,
        field=field or name,
        cpp=cpp,
        triton=triton or cpp,
        interval=interval,
        rounding="exact",
        cpu=1.0,
        gpu=2.0,
    )


_TWO_MASKS: tuple[Samples, Samples] = ("bool", "bool")

_ARITHMETIC = (
    _operator("+", "add", np.add, intervals.add),
    _operator("-", "sub", np.subtract, intervals.sub),
    _operator("*", "mul", np.multiply, intervals.mul),
    _operator("/", "div", np.true_divide, intervals.div, divides=True),
    Row(
        name="pow",
        aten=("aten.pow",),
        samples=("positive", "real"),
        closed=True,
        meaning=meanings.power,
        field="pow",
        cpp="weft::pow({0}, {1})",
        triton="weft_pow({0}, {1})",
        interval=intervals.power,
        rounding="function",
        cpu=60.0,
        gpu=3 * _SPECIAL + 20,
    ),
    # What PyTorch rounds once, an `add` with an alpha among it, where the two roundings of a product and a sum would cancel to
    # another.
    Row(
        name="fma",
        aten=(),
        samples=("real", "real", "real"),
        closed=False,
        meaning=meanings.fused,
        field=apply("add", apply("mul", Arg(0), Arg(1)), Arg(2)),
        cpp="weft::fma({0}, {1}, {2})",
        triton="tl.fma({0}, {1}, {2})",
        interval=intervals.fma,
        rounding="rounds",
        cpu=1.0,
        gpu=1.0,
    ),
    _whole(
        "neg",
        meanings.arithmetic(np.negative),
        "chooses",
        interval=intervals.neg,
        cpp="(-{0})",
        triton="({0} * -1)",  # 0 - x, which Triton makes of -x, is 0 for 0
        gpu=1.0,
    ),
    _whole("abs", meanings.arithmetic(np.abs), "chooses", interval=intervals.absolute),
    _whole("sign", meanings.sign, "steps", triton="tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0))"),
    _whole("floor", meanings.rounding(np.floor), "steps"),
    _whole("ceil", meanings.rounding(np.ceil), "steps"),
    _whole("trunc", meanings.rounding(np.trunc), "steps", triton="weft_trunc({0})"),
    _whole("round", meanings.rounding(np.rint), "steps", triton="weft_round({0})"),  # half to even
)

_EXP = _function("exp", np.exp, intervals.increasing(np.exp, bounds=(0.0, np.inf)), _SPECIAL + 5, field="exp")
_FUNCTIONS = (
    _EXP,
    # A row of its own, since exp(x log 2) would round the product too.
    _function("exp2", np.exp2, intervals.increasing(np.exp2, bounds=(0.0, np.inf)), _SPECIAL + 5),
    _function(
        "expm1",
        np.expm1,
        intervals.increasing(np.expm1, bounds=(-1.0, np.inf)),
        2 * _SPECIAL + 20,
        samples="nonzero",
        field=apply("sub", apply("exp", Arg(0)), Lit(1)),
        triton="weft",
    ),
    _function(
        "log", np.log, intervals.increasing(np.log, (0.0, np.inf)), _SPECIAL + 5, samples="positive", exact_at=1.0
    ),
    _function(
        "log1p",
        np.log1p,
        intervals.increasing(np.log1p, (-1.0, np.inf)),
        2 * _SPECIAL + 20,
        samples="positive",
        field=apply("log", apply("add", Lit(1), Arg(0))),
        triton="weft",
    ),
    _function(
        "sqrt",
        np.sqrt,
        intervals.increasing(np.sqrt, (0.0, np.inf), (0.0, np.inf)),
        _SPECIAL + 6,
        samples="positive",
        rounding="rounds",
        exact_at=None,
        cpu=4.0,
    ),
    _function(
        "tanh",
        np.tanh,
        intervals.increasing(np.tanh, bounds=(-1.0, 1.0)),
        2 * _SPECIAL + 20,
        samples="nonzero",
        triton="weft",
    ),
    _function(
        "erf",
        meanings.erf,
        intervals.increasing(meanings.erf, bounds=(-1.0, 1.0)),
        2 * _SPECIAL + 20,
        samples="nonzero",
    ),
    _function("sin", np.sin, intervals.sin, _SPECIAL + 20, samples="nonzero"),
    _function("cos", np.cos, intervals.cos, _SPECIAL + 20),
)

_CHOICE = (
    _extremum("maximum", np.maximum, intervals.maximum),
    _extremum("minimum", np.minimum, intervals.minimum),
    _decision("lt", np.less, intervals.less, "({0} < {1})"),
    _decision("le", np.less_equal, intervals.negated(intervals.swapped(intervals.less)), "({0} <= {1})"),
    _decision("gt", np.greater, intervals.swapped(intervals.less), "({0} > {1})", field=apply("lt", Arg(1), Arg(0))),
    _decision(
        "ge", np.greater_equal, intervals.negated(intervals.less), "({0} >= {1})", field=apply("le", Arg(1), Arg(0))
    ),
    _decision("eq", np.equal, intervals.equal, "({0} == {1})"),
    _decision("ne", np.not_equal, intervals.negated(intervals.equal), "({0} != {1})"),
    _decision("logical_and", np.logical_and, intervals.logical_and, "({0} & {1})", "({0} & {1})", samples=_TWO_MASKS),
    _decision("logical_or", np.logical_or, intervals.logical_or, "({0} | {1})", "({0} | {1})", samples=_TWO_MASKS),
    _decision("logical_not", np.logical_not, intervals.logical_not, "(!{0})", "({0} == 0)", samples=("bool",)),
    Row(
        name="where",
        aten=("aten.where",),
        samples=("bool", "real", "real"),
        closed=True,
        meaning=meanings.where,
        field="where",
        cpp="({0} ? {1} : {2})",
        triton="tl.where({0}, {1}, {2})",
        interval=intervals.where,
        rounding="chooses",
        cpu=1.0,
        gpu=2.0,
    ),
    _decision("isnan", np.isnan, intervals.isnan, "weft::isnan({0})", "({0} != {0})", samples=("real",)),
    _decision(
        "isinf", np.isinf, intervals.isinf, "weft::isinf({0})", "(tl.abs({0}) == float('inf'))", samples=("real",)
    ),
)

# exp(x) for x <= 0, as significands are made. On a GPU, in kernels with products, what would be below the normal numbers is 0: a
# power of 2 is one instruction then, where exp takes four more.
_DECAY = replace(_EXP, name="decay", aten=(), cpp="weft::decay({0})", gpu=_SPECIAL + 2)
# The same to 2^-18 of its value, and a quotient to 1.5 units in the last place: where 16 bits are kept, half the work is enough.
_COARSE_DECAY = replace(_DECAY, name="coarse_decay", cpp="weft::coarse_decay({0})", cpu=12.0)
_COARSE_DIV = replace(
    next(row for row in _ARITHMETIC if row.name == "div"),
    name="coarse_div",
    aten=(),
    cpp="({0} * (1.0f / {1}))",
    cpu=1.0,
    gpu=_SPECIAL + 2,
)

PRIMITIVES: tuple[Row, ...] = (*_ARITHMETIC, *_FUNCTIONS, _DECAY, _COARSE_DECAY, _COARSE_DIV, *_CHOICE, *WHOLE)
