"""Names that mean an expression over primitives. After capture nothing knows these names any more.

Formulas are those of PyTorch's documentation, in the form that neither overflows nor cancels
where PyTorch does not.
"""

from __future__ import annotations

import functools

from weft.tensor.optable.formulas import formula
from weft.tensor.optable.row import DerivedRow
from weft.tensor.scalar import Lit, Scalar, apply


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
half = {functools.reduce(lambda series, each: f"({series} * variable + {each})", map(str, reversed(_ERFCX)))} / (z + z)
missing = where(x < 1.0, 0.5 - 0.5 * erf(scaled), exp(-(z * z)) * half)
where(x < -1.0, log(half) - z * z, log1p(-missing))
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
# Of a NaN and a number the number.
_EXTREMUM = "where(isnan(x), y, where(isnan(y), x, {}(x, y)))"

DERIVED: tuple[DerivedRow, ...] = (
    DerivedRow("square", ("aten.square",), ("real",), "x * x"),
    DerivedRow("reciprocal", ("aten.reciprocal",), ("nonzero",), "1.0 / x"),
    DerivedRow("rsqrt", ("aten.rsqrt",), ("positive",), "1.0 / sqrt(x)"),
    DerivedRow("log2", ("aten.log2",), ("positive",), "log(x) * (1.0 / log(2.0))"),
    DerivedRow("log10", ("aten.log10",), ("positive",), "log(x) * (1.0 / log(10.0))"),
    DerivedRow("tan", ("aten.tan",), ("small",), "sin(x) / cos(x)"),
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
    DerivedRow("xlogy", ("aten.xlogy",), ("real", "positive"), "where(x == 0.0 and not isnan(y), 0.0, x * log(y))"),
    DerivedRow("frac", ("aten.frac",), ("real",), "x - trunc(x)"),
    DerivedRow("fmax", ("aten.fmax",), ("real", "real"), _EXTREMUM.format("maximum")),
    DerivedRow("fmin", ("aten.fmin",), ("real", "real"), _EXTREMUM.format("minimum")),
    DerivedRow("masked_fill", ("aten.masked_fill",), ("real", "bool", "real"), "where(y, z, x)"),
)
