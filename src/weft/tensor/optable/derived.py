"""Names that mean an expression over primitives. After capture nothing knows these names any more.

Formulas are those of PyTorch's documentation, in the form that neither overflows nor cancels
where PyTorch does not.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from weft.tensor.optable.formulas import formula
from weft.tensor.optable.row import DerivedRow
from weft.tensor.scalar import Lit, Scalar, apply


def _series(coefficients: Sequence[float], variable: str) -> str:
    """Writes the sum of `coefficients`, each times a power of `variable`, from the highest one down."""
    return functools.reduce(lambda above, each: f"({above} * {variable} + {each})", map(str, reversed(coefficients)))


def _clamp(x: Scalar, min: float | None, max: float | None) -> Scalar:  # noqa: A002 - ATen's names
    above = x if min is None else apply("maximum", x, Lit(min))
    return above if max is None else apply("minimum", above, Lit(max))


def _gelu(x: Scalar, approximate: str) -> Scalar:
    if approximate == "tanh":
        return formula("0.5 * x * (1.0 + tanh(sqrt(2.0 / pi) * (x + 0.044715 * (x * (x * x)))))", {"x": x})
    return formula("0.5 * x * (1.0 + erf(x * sqrt(0.5)))", {"x": x})


# Of z exp(z^2) erfc(z) for z >= 0.7, in powers of 1 - 8.4 / (z + 3.5): a Chebyshev series of that variable, to 5e-17.
_ERFCX = (
    0.5531075437428179, 0.035910843959445125, -0.04989627594267521, 0.043618383819380595, -0.029469871462373037,
    0.016082476387930162, -0.007063544232807042, 0.002388006269521748, -0.0005388958370043742, 2.995396252961277e-05,
    3.157472602125781e-05, -1.1499345519237151e-05, 5.9115112118579834e-08, 1.0851145797236548e-06, -2.103757500525679e-07,
    -8.171574208030427e-08, 3.387187685799696e-08, 5.532293822187425e-09, -4.071536903816868e-09, -2.8284567309697864e-10,
    3.125009991898137e-10,
)  # fmt: skip


# With z = |x| / sqrt(2): below -1 log(exp(z^2) erfc(z) / 2) - z^2, above log1p of minus what is missing to 1.
_LOG_NDTR = f"""
scaled = x * sqrt(0.5)
z = maximum(abs(scaled), 0.7)
variable = 1.0 - 8.4 / (z + 3.5)
half = {_series(_ERFCX, "variable")} / (z + z)
missing = where(x < 1.0, 0.5 - 0.5 * erf(scaled), exp(-(z * z)) * half)
where(x < -1.0, log(half) - z * z, log1p(-missing))
"""

# The square of z in two parts: exp would make much of what rounding takes from it. Beyond 30 it is 0 in fp64.
_ERFC = f"""
z = minimum(maximum(abs(x), 0.7), 30.0)
variable = 1.0 - 8.4 / (z + 3.5)
square = z * z
tail = exp(-square) * ({_series(_ERFCX, "variable")} / z) * (1.0 - fma(z, z, -square))
where(abs(x) < 0.7, 1.0 - erf(x), where(x < 0.0, 2.0 - tail, tail))
"""

# Of atan(t) / t for |t| <= tan(pi / 8), in powers of t^2: through the zeros of a Chebyshev polynomial, to 2e-18.
_ATAN = (
    1.0, -0.3333333333333312, 0.19999999999940893, -0.14285714279250245, 0.11111110744919658, -0.09090896809064027,
    0.07692045330902225, -0.06662951813629191, 0.05846878297330872, -0.05035102456601552, 0.03796525745386593,
    -0.017805397205419446,
)  # fmt: skip
# The angle whose tangent is low / high, where 0 <= low <= high. Beyond pi / 8 it is taken from pi / 4.
_ANGLE = f"""
far = low > high * (sqrt(2.0) - 1.0)
t = where(far, low - high, low) / where(far, low + high, high)
square = t * t
angle = where(far, pi / 4.0, 0.0) + t * {_series(_ATAN, "square")}
"""
# The same of any z >= 0, also an infinite one: its reciprocal's, taken from pi / 2.
_ANGLE_OF_Z = f"""
beyond = z > 1.0
low = where(beyond, 1.0 / z, z)
high = 1.0
{_ANGLE}
whole = where(beyond, pi / 2.0 - angle, angle)
"""
_ODD = "where(x < 0.0, -whole, where(x == 0.0, x, whole))"
_ARCTAN = f"z = abs(x)\n{_ANGLE_OF_Z}\n{_ODD}"
_ARCSIN = f"z = abs(x) / sqrt((1.0 - x) * (1.0 + x))\n{_ANGLE_OF_Z}\n{_ODD}"
# Half of the angle, from a quotient that keeps its digits beside 1.
_ARCCOS = f"z = sqrt((1.0 - x) / (1.0 + x))\n{_ANGLE_OF_Z}\nwhole + whole"
# x is what is opposite to the angle, as for ATen. Of large numbers halves, whose sum is in range; a zero's reciprocal has its sign.
_ARCTAN2 = f"""
endless = isinf(x) or isinf(y)
scale = where(maximum(abs(x), abs(y)) > 1.0, 0.5, 1.0)
rise = where(endless, where(isinf(x), 1.0, x * 0.0), scale * abs(x))
run = where(endless, where(isinf(y), 1.0, y * 0.0), scale * abs(y))
low = minimum(rise, run)
high = maximum(rise, run)
{_ANGLE}
quarter = where(high == 0.0, 0.0, where(rise > run, pi / 2.0 - angle, angle))
half = where((y < 0.0) or (y == 0.0 and 1.0 / y < 0.0), pi - quarter, quarter)
where((x < 0.0) or (x == 0.0 and 1.0 / x < 0.0), -half, half)
"""
# From exp(z) - 1 while what is small counts, beyond from half of z, whose exponential is in range wherever the result is.
_SINH = """
z = abs(x)
less = expm1(minimum(z, 20.0))
root = exp(0.5 * z)
whole = where(z < 20.0, 0.5 * (less + less / (less + 1.0)), 0.5 * root * root)
""" + _ODD  # fmt: skip
_COSH = """
z = abs(x)
power = exp(minimum(z, 20.0))
root = exp(0.5 * z)
where(z < 20.0, 0.5 * power + 0.5 / power, 0.5 * root * root)
"""
# Logarithms of 1 and what is added to it; far from 0 of 2 x, before x^2 leaves the range.
_ARCSINH = """
z = abs(x)
square = z * z
whole = where(z < 1e9, log1p(z + square / (1.0 + sqrt(1.0 + square))), log(z) + log(2.0))
""" + _ODD  # fmt: skip
_ARCCOSH = "z = x - 1.0; where(x < 1e9, log1p(z + sqrt(z) * sqrt(x + 1.0)), log(x) + log(2.0))"
_ARCTANH = f"z = abs(x); whole = 0.5 * log1p(2.0 * z / (1.0 - z)); {_ODD}"
# The larger one times a root: its own square may be too large. The result is infinite beside an infinity, also of NaN.
_HYPOT = """
large = maximum(abs(x), abs(y))
ratio = minimum(abs(x), abs(y)) / large
where(isinf(x) or isinf(y), inf, where(large == 0.0, large, large * sqrt(1.0 + ratio * ratio)))
"""

# Written as the negation of <=, so that NaN passes through as in PyTorch.
_THRESHOLD = "where(x <= threshold, value, x)"
# The rest has the divisor's sign; it is exact, however large the quotient is.
_REMAINDER = "rest = fmod(x, y); where(rest != 0.0 and (rest < 0.0) != (y < 0.0), rest + y, rest)"
# From the nearer end, so that a weight of 1 gives y itself.
_LERP = "apart = y - x; where(abs(z) < 0.5, x + z * apart, y - apart * (1.0 - z))"
# Zero times x, so that NaN passes through as in PyTorch.
_SOFTSHRINK = "where(x > lambd, x - lambd, where(x < -lambd, x + lambd, x * 0.0))"
# Equal arguments apart: the difference of two infinities is NaN.
_LOGADDEXP = "where(x == y, x + log(2.0), maximum(x, y) + log1p(exp(-abs(x - y))))"
_LOGADDEXP2 = "where(x == y, x + 1.0, maximum(x, y) + log1p(exp2(-abs(x - y))) * (1.0 / log(2.0)))"
# Of a NaN and a number the number.
_EXTREMUM = "where(isnan(x), y, where(isnan(y), x, {}(x, y)))"

DERIVED: tuple[DerivedRow, ...] = (
    DerivedRow("square", ("aten.square",), ("real",), "x * x"),
    DerivedRow("reciprocal", ("aten.reciprocal",), ("nonzero",), "1.0 / x"),
    DerivedRow("rsqrt", ("aten.rsqrt",), ("positive",), "1.0 / sqrt(x)"),
    DerivedRow("log2", ("aten.log2",), ("positive",), "log(x) * (1.0 / log(2.0))"),
    DerivedRow("log10", ("aten.log10",), ("positive",), "log(x) * (1.0 / log(10.0))"),
    DerivedRow("tan", ("aten.tan",), ("small",), "sin(x) / cos(x)"),
    DerivedRow("sinh", ("aten.sinh",), ("real",), _SINH),
    DerivedRow("cosh", ("aten.cosh",), ("real",), _COSH),
    DerivedRow("asin", ("aten.asin",), ("small",), _ARCSIN),
    DerivedRow("acos", ("aten.acos",), ("small",), _ARCCOS),
    DerivedRow("atan", ("aten.atan",), ("real",), _ARCTAN),
    DerivedRow("atan2", ("aten.atan2",), ("real", "real"), _ARCTAN2),
    DerivedRow("asinh", ("aten.asinh",), ("real",), _ARCSINH),
    DerivedRow("acosh", ("aten.acosh",), ("positive",), _ARCCOSH),
    DerivedRow("atanh", ("aten.atanh",), ("small",), _ARCTANH),
    DerivedRow("hypot", ("aten.hypot",), ("real", "real"), _HYPOT),
    DerivedRow("erfc", ("aten.erfc",), ("real",), _ERFC),
    DerivedRow("sigmoid", ("aten.sigmoid",), ("real",), "1.0 / (1.0 + exp(-x))"),
    DerivedRow("silu", ("aten.silu",), ("real",), "x / (1.0 + exp(-x))"),
    DerivedRow("relu", ("aten.relu",), ("real",), "maximum(x, 0)"),
    DerivedRow("relu6", ("aten.relu6",), ("real",), "minimum(maximum(x, 0.0), 6.0)"),
    DerivedRow("clamp", ("aten.clamp",), ("real",), _clamp, (("min", None), ("max", None))),
    DerivedRow("clamp_min", ("aten.clamp_min",), ("real",), "maximum(x, min)", (("min", 0.0),)),
    DerivedRow("clamp_max", ("aten.clamp_max",), ("real",), "minimum(x, max)", (("max", 0.0),)),
    DerivedRow(
        "hardtanh",
        ("aten.hardtanh",),
        ("real",),
        "minimum(maximum(x, min_val), max_val)",
        (("min_val", -1.0), ("max_val", 1.0)),
    ),
    DerivedRow("hardsigmoid", ("aten.hardsigmoid",), ("real",), "minimum(maximum(x + 3.0, 0.0), 6.0) / 6.0"),
    DerivedRow("hardswish", ("aten.hardswish",), ("real",), "x * minimum(maximum(x + 3.0, 0.0), 6.0) / 6.0"),
    DerivedRow(
        "leaky_relu",
        ("aten.leaky_relu",),
        ("real",),
        "where(x > 0.0, x, x * negative_slope)",
        (("negative_slope", 0.01),),
    ),
    DerivedRow("threshold", ("aten.threshold",), ("real",), _THRESHOLD, (("threshold", 0.0), ("value", 0.0))),
    DerivedRow(
        "elu",
        ("aten.elu",),
        ("real",),
        "where(x > 0.0, x * scale, expm1(x * input_scale) * (alpha * scale))",
        (("alpha", 1.0), ("scale", 1.0), ("input_scale", 1.0)),
    ),
    DerivedRow(
        "softplus",
        ("aten.softplus",),
        ("real",),
        "scaled = x * beta; where(scaled > threshold, x, log1p(exp(scaled)) / beta)",
        (("beta", 1.0), ("threshold", 20.0)),
    ),
    DerivedRow("mish", ("aten.mish",), ("real",), "x * tanh(where(x > 20.0, x, log1p(exp(x))))"),
    DerivedRow("log_sigmoid", ("aten.log_sigmoid",), ("real",), "minimum(x, 0.0) - log1p(exp(-abs(x)))"),
    DerivedRow("log_ndtr", ("aten.special_log_ndtr",), ("real",), _LOG_NDTR),
    DerivedRow("gelu", ("aten.gelu",), ("real",), _gelu, (("approximate", "none"),)),
    DerivedRow(
        "remainder", ("aten.remainder",), ("real", "nonzero"), _REMAINDER, integers="x - floor_divide(x, y) * y"
    ),
    DerivedRow(
        "rsub",
        ("aten.rsub",),
        ("real", "real"),
        "y - x if alpha == 1 else fma(x, -alpha, y)",
        (("alpha", 1),),
        "y - (x if alpha == 1 else x * alpha)",
    ),
    DerivedRow(
        "addcmul",
        ("aten.addcmul",),
        ("real", "real", "real"),
        "fma(y if value == 1 else value * y, z, x)",
        (("value", 1),),
        "x + value * y * z",
    ),
    DerivedRow("addcdiv", ("aten.addcdiv",), ("real", "real", "nonzero"), "x + value * y / z", (("value", 1),)),
    DerivedRow("lerp", ("aten.lerp",), ("real", "real", "real"), _LERP),
    DerivedRow("celu", ("aten.celu",), ("real",), "where(x > 0.0, x, alpha * expm1(x / alpha))", (("alpha", 1.0),)),
    DerivedRow("hardshrink", ("aten.hardshrink",), ("real",), "where(abs(x) <= lambd, 0.0, x)", (("lambd", 0.5),)),
    DerivedRow("softshrink", ("aten.softshrink",), ("real",), _SOFTSHRINK, (("lambd", 0.5),)),
    DerivedRow("logaddexp", ("aten.logaddexp",), ("real", "real"), _LOGADDEXP),
    DerivedRow("logaddexp2", ("aten.logaddexp2",), ("real", "real"), _LOGADDEXP2),
    DerivedRow("xlogy", ("aten.xlogy",), ("real", "positive"), "where(x == 0.0 and not isnan(y), 0.0, x * log(y))"),
    DerivedRow("frac", ("aten.frac",), ("real",), "x - trunc(x)"),
    DerivedRow("fmax", ("aten.fmax",), ("real", "real"), _EXTREMUM.format("maximum")),
    DerivedRow("fmin", ("aten.fmin",), ("real", "real"), _EXTREMUM.format("minimum")),
    DerivedRow("masked_fill", ("aten.masked_fill",), ("real", "bool", "real"), "where(y, z, x)"),
)
