"""Functions that printed kernels call where Triton has none that runs in its interpreter and on every GPU alike.

A module holds those that it uses. They compute in float32; each but `weft_pow`, whose
error grows with the logarithm of the result, is within a few ulp of the exact function, near 0 too.
"""

from __future__ import annotations

import re

from weft.tensor import optable
from weft.tensor.program import Monoid

_POW = '''
@triton.jit
def weft_pow(a, b):
    """a ** b, with C's rules for 0, 1, infinity and NaN."""
    b = tl.zeros_like(a) + b
    size = tl.abs(a)
    power = tl.exp2(b * tl.log2(size))
    whole = tl.floor(b) == b
    odd = whole & (tl.floor(b * 0.5) * 2.0 != b)
    negative = (a < 0.0) | ((a == 0.0) & (1.0 / a < 0.0))
    real = whole | (a == 0.0) | (size == float("inf"))
    power = tl.where(negative, tl.where(odd, -power, tl.where(real, power, float("nan"))), power)
    power = tl.where((size == 1.0) & (tl.abs(b) == float("inf")), 1.0, power)
    return tl.where((b == 0.0) | (a == 1.0), 1.0, power)
'''

_EXPM1 = '''
@triton.jit
def weft_expm1(x):
    """exp(x) - 1: its series near 0, where the difference cancels."""
    tail = 1.0 / 720.0 + x * (1.0 / 5040.0 + x / 40320.0)
    near = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0 + x * tail)))))
    return tl.where(tl.abs(x) < 0.35, near, tl.exp(x) - 1.0)
'''

_LOG1P = '''
@triton.jit
def weft_log1p(x):
    """log(1 + x): the series of 2 artanh(x / (2 + x)) near 0, where 1 + x rounds."""
    s = x / (2.0 + x)
    t = s * s
    near = 2.0 * s * (1.0 + t * (1.0 / 3.0 + t * (0.2 + t * (1.0 / 7.0 + t / 9.0))))
    return tl.where(tl.abs(x) < 0.25, near, tl.log(1.0 + x))
'''

_TANH = '''
@triton.jit
def weft_tanh(x):
    """tanh: its series near 0, elsewhere by exp(-2|x|), which cannot overflow."""
    t = x * x
    tail = 62.0 / 2835.0 - t * (1382.0 / 155925.0)
    near = x * (1.0 - t * (1.0 / 3.0 - t * (2.0 / 15.0 - t * (17.0 / 315.0 - t * tail))))
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    return tl.where(tl.abs(x) < 0.35, near, tl.where(x < 0.0, -far, far))
'''

_TRUNC = '''
@triton.jit
def weft_trunc(x):
    """The integer part."""
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))
'''

_ROUND = '''
@triton.jit
def weft_round(x):
    """The nearest integer, half to even: what is beyond the mantissa rounds away when 1.5 * 2**23 is added."""
    return tl.where(tl.abs(x) < 4194304.0, (x + 12582912.0) - 12582912.0, x)
'''

_FUNCTIONS = {
    "weft_pow": _POW,
    "weft_expm1": _EXPM1,
    "weft_log1p": _LOG1P,
    "weft_tanh": _TANH,
    "weft_trunc": _TRUNC,
    "weft_round": _ROUND,
}


def combiner(monoid: Monoid) -> str:
    """The name of the function that combines two elements of a reduction."""
    return f"weft_reduce_{monoid.name}"


NAMES = (*_FUNCTIONS, *(combiner(m) for m in Monoid))
"""What the functions are called."""


def functions(text: str) -> list[str]:
    """The definitions, line by line, of the prelude's functions that `text` calls."""
    reducers = {combiner(m): _reducer(m) for m in Monoid}
    called = dict.fromkeys(re.findall(r"\bweft_\w+", text))
    defined = {**_FUNCTIONS, **reducers}
    return "".join(defined[name] + "\n" for name in called if name in defined).splitlines()


def _reducer(monoid: Monoid) -> str:
    body = optable.row(monoid.value).triton.format("left", "right")
    return f"\n@triton.jit\ndef {combiner(monoid)}(left, right):\n    return {body}\n"
