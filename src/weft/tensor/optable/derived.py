"""Names that mean an expression over primitives. After capture nothing knows these names any more.

Formulas are those of PyTorch's documentation, in the form that neither overflows nor cancels
where PyTorch does not.
"""

from __future__ import annotations

import math

from weft.tensor.optable.row import DerivedRow
from weft.tensor.scalar import Lit, Scalar, apply


def _add(a: Scalar, b: Scalar) -> Scalar:
    return apply("add", a, b)


def _mul(a: Scalar, b: Scalar) -> Scalar:
    return apply("mul", a, b)


def _div(a: Scalar, b: Scalar) -> Scalar:
    return apply("div", a, b)


def _square(x: Scalar) -> Scalar:
    return _mul(x, x)


def _reciprocal(x: Scalar) -> Scalar:
    return _div(Lit(1.0), x)


def _rsqrt(x: Scalar) -> Scalar:
    return _div(Lit(1.0), apply("sqrt", x))


def _log2(x: Scalar) -> Scalar:
    return _mul(apply("log", x), Lit(1.0 / math.log(2.0)))


def _log10(x: Scalar) -> Scalar:
    return _mul(apply("log", x), Lit(1.0 / math.log(10.0)))


def _tan(x: Scalar) -> Scalar:
    return _div(apply("sin", x), apply("cos", x))


def _clamp_min(x: Scalar, min: float) -> Scalar:  # noqa: A002 - ATen's names
    return apply("maximum", x, Lit(min))


def _clamp_max(x: Scalar, max: float) -> Scalar:  # noqa: A002 - ATen's names
    return apply("minimum", x, Lit(max))


def _masked_fill(x: Scalar, mask: Scalar, value: Scalar) -> Scalar:
    return apply("where", mask, value, x)


def _sigmoid(x: Scalar) -> Scalar:
    return _div(Lit(1.0), _add(Lit(1.0), apply("exp", apply("neg", x))))


def _silu(x: Scalar) -> Scalar:
    return _div(x, _add(Lit(1.0), apply("exp", apply("neg", x))))


def _relu(x: Scalar) -> Scalar:
    return apply("maximum", x, Lit(0))


def _clamp(x: Scalar, min: float | None, max: float | None) -> Scalar:  # noqa: A002 - ATen's names
    above = x if min is None else apply("maximum", x, Lit(min))
    return above if max is None else apply("minimum", above, Lit(max))


def _hardtanh(x: Scalar, min_val: float, max_val: float) -> Scalar:
    return _clamp(x, min_val, max_val)


def _relu6(x: Scalar) -> Scalar:
    return _clamp(x, 0.0, 6.0)


def _hardsigmoid(x: Scalar) -> Scalar:
    return _div(_relu6(_add(x, Lit(3.0))), Lit(6.0))


def _hardswish(x: Scalar) -> Scalar:
    return _div(_mul(x, _relu6(_add(x, Lit(3.0)))), Lit(6.0))


def _leaky_relu(x: Scalar, negative_slope: float) -> Scalar:
    return apply("where", apply("gt", x, Lit(0.0)), x, _mul(x, Lit(negative_slope)))


def _threshold(x: Scalar, threshold: float, value: float) -> Scalar:
    # Written as the negation of <=, so that NaN passes through as in PyTorch.
    return apply("where", apply("le", x, Lit(threshold)), Lit(value), x)


def _elu(x: Scalar, alpha: float, scale: float, input_scale: float) -> Scalar:
    below = _mul(apply("expm1", _mul(x, Lit(input_scale))), Lit(alpha * scale))
    return apply("where", apply("gt", x, Lit(0.0)), _mul(x, Lit(scale)), below)


def _softplus(x: Scalar, beta: float, threshold: float) -> Scalar:
    scaled = _mul(x, Lit(beta))
    soft = _div(apply("log1p", apply("exp", scaled)), Lit(beta))
    return apply("where", apply("gt", scaled, Lit(threshold)), x, soft)


def _mish(x: Scalar) -> Scalar:
    return _mul(x, apply("tanh", _softplus(x, 1.0, 20.0)))


def _log_sigmoid(x: Scalar) -> Scalar:
    return apply(
        "sub",
        apply("minimum", x, Lit(0.0)),
        apply("log1p", apply("exp", apply("neg", apply("abs", x)))),
    )


# Of z exp(z^2) erfc(z) for z >= 0.7, in powers of 1 - 8.4 / (z + 3.5): a Chebyshev series of that variable, to 5e-17.
_ERFCX = (
    0.5531075437428179, 0.035910843959445125, -0.04989627594267521, 0.043618383819380595, -0.029469871462373037,
    0.016082476387930162, -0.007063544232807042, 0.002388006269521748, -0.0005388958370043742, 2.995396252961277e-05,
    3.157472602125781e-05, -1.1499345519237151e-05, 5.9115112118579834e-08, 1.0851145797236548e-06, -2.103757500525679e-07,
    -8.171574208030427e-08, 3.387187685799696e-08, 5.532293822187425e-09, -4.071536903816868e-09, -2.8284567309697864e-10,
    3.125009991898137e-10,
)  # fmt: skip


def _log_ndtr(x: Scalar) -> Scalar:
    # With z = |x| / sqrt(2): below -1 log(exp(z^2) erfc(z) / 2) - z^2, above log1p of minus what is missing to 1.
    scaled = _mul(x, Lit(math.sqrt(0.5)))
    z = apply("maximum", apply("abs", scaled), Lit(0.7))
    variable = apply("sub", Lit(1.0), _div(Lit(8.4), _add(z, Lit(3.5))))
    series: Scalar = Lit(_ERFCX[-1])
    for coefficient in _ERFCX[-2::-1]:
        series = _add(_mul(series, variable), Lit(coefficient))
    half = _div(series, _add(z, z))
    near = apply("sub", Lit(0.5), _mul(Lit(0.5), apply("erf", scaled)))
    missing = apply("where", apply("lt", x, Lit(1.0)), near, _mul(apply("exp", apply("neg", _square(z))), half))
    below = apply("sub", apply("log", half), _square(z))
    return apply("where", apply("lt", x, Lit(-1.0)), below, apply("log1p", apply("neg", missing)))


def _gelu(x: Scalar, approximate: str) -> Scalar:
    if approximate == "tanh":
        cubic = _mul(Lit(0.044715), _mul(x, _mul(x, x)))
        inner = apply("tanh", _mul(Lit(math.sqrt(2.0 / math.pi)), _add(x, cubic)))
    else:
        inner = apply("erf", _mul(x, Lit(math.sqrt(0.5))))
    return _mul(_mul(Lit(0.5), x), _add(Lit(1.0), inner))


def _remainder(x: Scalar, y: Scalar) -> Scalar:
    # The rest has the divisor's sign; it is exact, however large the quotient is.
    rest = apply("fmod", x, y)
    zero = Lit(0.0)
    other = apply("ne", apply("lt", rest, zero), apply("lt", y, zero))
    return apply("where", apply("logical_and", apply("ne", rest, zero), other), _add(rest, y), rest)


def _whole_remainder(x: Scalar, y: Scalar) -> Scalar:
    return apply("sub", x, _mul(apply("floor_divide", x, y), y))


def _rsub(x: Scalar, y: Scalar, alpha: float) -> Scalar:
    return apply("sub", y, x) if alpha == 1 else apply("fma", x, Lit(-alpha), y)


def _whole_rsub(x: Scalar, y: Scalar, alpha: float) -> Scalar:
    return apply("sub", y, x if alpha == 1 else _mul(x, Lit(alpha)))


def _addcmul(x: Scalar, a: Scalar, b: Scalar, value: float) -> Scalar:
    return apply("fma", a if value == 1 else _mul(Lit(value), a), b, x)


def _whole_addcmul(x: Scalar, a: Scalar, b: Scalar, value: float) -> Scalar:
    return _add(x, _mul(_mul(Lit(value), a), b))


def _addcdiv(x: Scalar, a: Scalar, b: Scalar, value: float) -> Scalar:
    return _add(x, _div(_mul(Lit(value), a), b))


def _lerp(a: Scalar, b: Scalar, weight: Scalar) -> Scalar:
    # From the nearer end, so that a weight of 1 gives b itself.
    apart = apply("sub", b, a)
    upper = apply("sub", b, _mul(apart, apply("sub", Lit(1.0), weight)))
    return apply("where", apply("lt", apply("abs", weight), Lit(0.5)), _add(a, _mul(weight, apart)), upper)


def _celu(x: Scalar, alpha: float) -> Scalar:
    below = _mul(Lit(alpha), apply("expm1", _div(x, Lit(alpha))))
    return apply("where", apply("gt", x, Lit(0.0)), x, below)


def _hardshrink(x: Scalar, lambd: float) -> Scalar:
    return apply("where", apply("le", apply("abs", x), Lit(lambd)), Lit(0.0), x)


def _softshrink(x: Scalar, lambd: float) -> Scalar:
    # Zero times x, so that NaN passes through as in PyTorch.
    low = apply("where", apply("lt", x, Lit(-lambd)), _add(x, Lit(lambd)), _mul(x, Lit(0.0)))
    return apply("where", apply("gt", x, Lit(lambd)), apply("sub", x, Lit(lambd)), low)


def _logaddexp(a: Scalar, b: Scalar) -> Scalar:
    # Equal arguments apart: the difference of two infinities is NaN.
    apart = apply("neg", apply("abs", apply("sub", a, b)))
    found = _add(apply("maximum", a, b), apply("log1p", apply("exp", apart)))
    return apply("where", apply("eq", a, b), _add(a, Lit(math.log(2.0))), found)


def _xlogy(x: Scalar, y: Scalar) -> Scalar:
    empty = apply("logical_and", apply("eq", x, Lit(0.0)), apply("logical_not", apply("isnan", y)))
    return apply("where", empty, Lit(0.0), _mul(x, apply("log", y)))


def _frac(x: Scalar) -> Scalar:
    return apply("sub", x, apply("trunc", x))


def _fmax(a: Scalar, b: Scalar) -> Scalar:
    return _but_nan("maximum", a, b)


def _fmin(a: Scalar, b: Scalar) -> Scalar:
    return _but_nan("minimum", a, b)


def _but_nan(op: str, a: Scalar, b: Scalar) -> Scalar:
    """Returns the extremum; of a NaN and a number, the number."""
    either = apply("where", apply("isnan", b), a, apply(op, a, b))
    return apply("where", apply("isnan", a), b, either)


DERIVED: tuple[DerivedRow, ...] = (
    DerivedRow("square", ("aten.square",), ("real",), _square),
    DerivedRow("reciprocal", ("aten.reciprocal",), ("nonzero",), _reciprocal),
    DerivedRow("rsqrt", ("aten.rsqrt",), ("positive",), _rsqrt),
    DerivedRow("log2", ("aten.log2",), ("positive",), _log2),
    DerivedRow("log10", ("aten.log10",), ("positive",), _log10),
    DerivedRow("tan", ("aten.tan",), ("small",), _tan),
    DerivedRow("sigmoid", ("aten.sigmoid",), ("real",), _sigmoid),
    DerivedRow("silu", ("aten.silu",), ("real",), _silu),
    DerivedRow("relu", ("aten.relu",), ("real",), _relu),
    DerivedRow("relu6", ("aten.relu6",), ("real",), _relu6),
    DerivedRow("clamp", ("aten.clamp",), ("real",), _clamp, (("min", None), ("max", None))),
    DerivedRow("clamp_min", ("aten.clamp_min",), ("real",), _clamp_min, (("min", 0.0),)),
    DerivedRow("clamp_max", ("aten.clamp_max",), ("real",), _clamp_max, (("max", 0.0),)),
    DerivedRow("hardtanh", ("aten.hardtanh",), ("real",), _hardtanh, (("min_val", -1.0), ("max_val", 1.0))),
    DerivedRow("hardsigmoid", ("aten.hardsigmoid",), ("real",), _hardsigmoid),
    DerivedRow("hardswish", ("aten.hardswish",), ("real",), _hardswish),
    DerivedRow("leaky_relu", ("aten.leaky_relu",), ("real",), _leaky_relu, (("negative_slope", 0.01),)),
    DerivedRow(
        "threshold",
        ("aten.threshold",),
        ("real",),
        _threshold,
        (("threshold", 0.0), ("value", 0.0)),
    ),
    DerivedRow(
        "elu",
        ("aten.elu",),
        ("real",),
        _elu,
        (("alpha", 1.0), ("scale", 1.0), ("input_scale", 1.0)),
    ),
    DerivedRow("softplus", ("aten.softplus",), ("real",), _softplus, (("beta", 1.0), ("threshold", 20.0))),
    DerivedRow("mish", ("aten.mish",), ("real",), _mish),
    DerivedRow("log_sigmoid", ("aten.log_sigmoid",), ("real",), _log_sigmoid),
    DerivedRow("log_ndtr", ("aten.special_log_ndtr",), ("real",), _log_ndtr),
    DerivedRow("gelu", ("aten.gelu",), ("real",), _gelu, (("approximate", "none"),)),
    DerivedRow("remainder", ("aten.remainder",), ("real", "nonzero"), _remainder, integers=_whole_remainder),
    DerivedRow("rsub", ("aten.rsub",), ("real", "real"), _rsub, (("alpha", 1),), _whole_rsub),
    DerivedRow("addcmul", ("aten.addcmul",), ("real", "real", "real"), _addcmul, (("value", 1),), _whole_addcmul),
    DerivedRow("addcdiv", ("aten.addcdiv",), ("real", "real", "nonzero"), _addcdiv, (("value", 1),)),
    DerivedRow("lerp", ("aten.lerp",), ("real", "real", "real"), _lerp),
    DerivedRow("celu", ("aten.celu",), ("real",), _celu, (("alpha", 1.0),)),
    DerivedRow("hardshrink", ("aten.hardshrink",), ("real",), _hardshrink, (("lambd", 0.5),)),
    DerivedRow("softshrink", ("aten.softshrink",), ("real",), _softshrink, (("lambd", 0.5),)),
    DerivedRow("logaddexp", ("aten.logaddexp",), ("real", "real"), _logaddexp),
    DerivedRow("xlogy", ("aten.xlogy",), ("real", "positive"), _xlogy),
    DerivedRow("frac", ("aten.frac",), ("real",), _frac),
    DerivedRow("fmax", ("aten.fmax",), ("real", "real"), _fmax),
    DerivedRow("fmin", ("aten.fmin",), ("real", "real"), _fmin),
    DerivedRow("masked_fill", ("aten.masked_fill",), ("real", "bool", "real"), _masked_fill),
)
