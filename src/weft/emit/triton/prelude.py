"""Functions that printed kernels call where Triton has none that runs in its interpreter and on every GPU alike.

A module holds those that it uses. They compute in float32; each but `weft_pow`, whose
error grows with the logarithm of the result, is within a few ulp of the exact function, near 0 too.
"""

from __future__ import annotations

import re

from weft.target import Target
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

_FIRST_BIT = '''
@triton.jit
def weft_first_bit(x):
    """The number of the least bit that is set in 64, of which one is: the exponent of what it stands for."""
    power = (x & -x).to(tl.float32)
    return ((power.to(tl.int32, bitcast=True) >> 23) & 255) - 127
'''

_EXPM1 = '''
@triton.jit
def weft_expm1(x):
    """exp(x) - 1: its series near 0, where the difference cancels."""
    tail = 1.0 / 720.0 + x * (1.0 / 5040.0 + x / 40320.0)
    near = x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0 + x * (1.0 / 120.0 + x * tail)))))
    return tl.where(tl.abs(x) < 0.35, near, tl.exp2(x * 1.4426950408889634) - 1.0)
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
    """tanh: its series near 0, elsewhere by e = exp(-2|x|), which cannot overflow."""
    t = x * x
    tail = 62.0 / 2835.0 - t * (1382.0 / 155925.0)
    near = x * (1.0 - t * (1.0 / 3.0 - t * (2.0 / 15.0 - t * (17.0 / 315.0 - t * tail))))
    e = tl.exp2(tl.abs(x) * -2.8853900817779268)
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
    """The nearest integer, half to even, its sign kept: what is behind the point rounds away when 2**23 is added to the size."""
    bits = tl.cast(x, tl.int32, bitcast=True)
    size = tl.abs(x)
    near = tl.where(size < 8388608.0, (size + 8388608.0) - 8388608.0, size)
    return tl.cast(tl.cast(near, tl.int32, bitcast=True) | (bits & -0x80000000), tl.float32, bitcast=True)
'''

_QUOTIENT = '''
@triton.jit
def weft_quotient(a, b):
    """a / b where many a have one b: times the inverse of b, and corrected by what that leaves (Markstein's way).

    It is rounded once, but where a / b lies within 2**-23 units of the middle between two numbers; what is exact, is exact. Both
    are scaled first, so that b is 0.5 to 1 unless it is subnormal or nearly too large. Below 2**-88 a quotient may be wrong by two
    units, and the largest numbers of all may become infinity.
    """
    b = tl.cast(b, tl.float32)  # a number, perhaps
    size = tl.cast(b, tl.int32, bitcast=True) & 0x7F800000
    scale = tl.cast(tl.maximum(0x7E800000 - size, 0x00800000), tl.float32, bitcast=True)
    a, b = a * scale, b * scale
    inverse = tl.div_rn(tl.zeros_like(b) + 1.0, b)
    first = a * inverse
    near = tl.fma(tl.fma(-first, b, a), inverse, first)
    # The correction of an infinity is NaN, and of -0 it is 0.
    return tl.where(tl.abs(near) > 0.0, near, first)
'''

_E4M3 = '''
@triton.jit
def weft_e4m3(x):
    """x rounded to float8_e4m3fn, half to even, its sign kept; what is too large, infinity too, becomes 448."""
    bits = tl.cast(x, tl.int32, bitcast=True)
    size = tl.minimum(tl.abs(x), 448.0, propagate_nan=tl.PropagateNan.ALL)
    # A number of which the last bit is worth as much as that of the result, and no less than 2**-9.
    least = tl.maximum(tl.cast(size, tl.int32, bitcast=True) & 0x7F800000, 0x3C800000)
    units = tl.cast(least + 0x0A000000, tl.float32, bitcast=True)
    near = tl.cast((size + units) - units, tl.int32, bitcast=True)
    return tl.cast(near | (bits & -0x80000000), tl.float32, bitcast=True)
'''

_TO_E4M3 = '''
@triton.jit
def weft_to_e4m3(x):
    """x as float8_e4m3fn: 2**-8 times it has the same bits in float16, but for the length of both."""
    near = weft_e4m3(x)
    half = tl.cast(tl.cast(near * 0.00390625, tl.float16), tl.int16, bitcast=True)
    byte = ((half >> 7) & 0x7F) | ((half >> 8) & 0x80)
    return tl.cast(tl.cast(tl.where(near != near, 0x7F, byte), tl.uint8), tl.float8e4nv, bitcast=True)
'''

_E5M2 = '''
@triton.jit
def weft_e5m2(x):
    """x rounded to float8_e5m2, half to even, its sign kept; what is too large becomes infinity."""
    bits = tl.cast(x, tl.int32, bitcast=True)
    size = tl.minimum(tl.abs(x), 65536.0, propagate_nan=tl.PropagateNan.ALL)
    # A number of which the last bit is worth as much as that of the result, and no less than 2**-16.
    least = tl.maximum(tl.cast(size, tl.int32, bitcast=True) & 0x7F800000, 0x38800000)
    units = tl.cast(least + 0x0A800000, tl.float32, bitcast=True)
    near = (size + units) - units
    near = tl.cast(tl.where(near > 57344.0, float("inf"), near), tl.int32, bitcast=True)
    return tl.cast(near | (bits & -0x80000000), tl.float32, bitcast=True)
'''

_TO_E5M2 = '''
@triton.jit
def weft_to_e5m2(x):
    """x as float8_e5m2, which is the first half of a float16."""
    near = weft_e5m2(x)
    half = tl.cast(tl.cast(near, tl.float16), tl.int16, bitcast=True)
    byte = tl.where(near != near, 0x7F, half >> 8)
    return tl.cast(tl.cast(byte, tl.uint8), tl.float8e5, bitcast=True)
'''

_NATIVE_E4M3 = '''
@triton.jit
def weft_e4m3(x):
    """x rounded to float8_e4m3fn, as weft_to_e4m3 does."""
    return tl.cast(tl.cast(x, tl.float8e4nv), tl.float32)
'''

_NATIVE_TO_E4M3 = '''
@triton.jit
def weft_to_e4m3(x):
    """x as float8_e4m3fn, half to even; the machine's own conversion makes what is too large, infinity too, 448."""
    return tl.cast(x, tl.float8e4nv)
'''

_KEPT = '''
@triton.jit
def weft_kept(x):
    """x, behind what Triton does not look through: see `loops.reduced_apart`."""
    return tl.clamp(x, float("-inf"), float("inf"), propagate_nan=tl.PropagateNan.ALL)
'''

_BYTES = '''
@triton.jit
def weft_bytes(where):
    """Pointers to bools as pointers to the bytes that they lie in."""
    return where.to(tl.pointer_type(tl.uint8), bitcast=True)
'''

_EITHER = '''
@triton.jit
def weft_either(chosen, a, b):
    """a where a byte is 1, and b where it is 0: by their bits, since a comparison of each byte takes twice as many instructions."""
    a, b = tl.cast(a, tl.float32), tl.cast(b, tl.float32)  # numbers, perhaps
    first, second = tl.cast(a, tl.int32, bitcast=True), tl.cast(b, tl.int32, bitcast=True)
    bits = -tl.cast(chosen, tl.int32)
    return tl.cast(second ^ ((first ^ second) & bits), tl.float32, bitcast=True)
'''

_PLACE = '''
@triton.jit
def weft_index(index, size, there):
    """Where indices lie in a dimension of so many elements: those that are none, where they are `there`, end the kernel."""
    index = tl.cast(index, tl.int64)
    weft_demand((index >= 0) & (index < size) | (there == 0))
    return tl.maximum(tl.minimum(index, size - 1), 0)
'''

_DEMAND = '''
@triton.jit
def weft_demand(holds):
    """Ends the kernel with the driver's error where something does not hold."""
    tl.device_assert(holds, "an index is out of range")
'''

_AFTER_OTHERS = '''
@triton.jit
def weft_after_others():
    """Lets thread blocks of the next kernel take the places that are free, and waits for the end of the kernel before this one."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
'''

_FUNCTIONS = {
    "weft_after_others": _AFTER_OTHERS,
    "weft_kept": _KEPT,
    "weft_bytes": _BYTES,
    "weft_either": _EITHER,
    "weft_index": _PLACE,
    "weft_demand": _DEMAND,
    "weft_first_bit": _FIRST_BIT,
    "weft_pow": _POW,
    "weft_expm1": _EXPM1,
    "weft_log1p": _LOG1P,
    "weft_tanh": _TANH,
    "weft_trunc": _TRUNC,
    "weft_round": _ROUND,
    "weft_quotient": _QUOTIENT,
    "weft_e4m3": _E4M3,
    "weft_to_e4m3": _TO_E4M3,
    "weft_e5m2": _E5M2,
    "weft_to_e5m2": _TO_E5M2,
}
_NATIVE = {"weft_e4m3": _NATIVE_E4M3, "weft_to_e4m3": _NATIVE_TO_E4M3}
"""Where the target's own conversion of floats to 8 bits is weft's."""


def combiner(monoid: Monoid) -> str:
    """Name the function that combines two elements of a reduction."""
    return f"weft_reduce_{monoid.name}"


NAMES = (*_FUNCTIONS, *(combiner(m) for m in Monoid))
"""What the functions are called."""


def functions(text: str, target: Target | None = None) -> list[str]:
    """List the definitions, line by line, of the prelude's functions that `text` calls, those first that others call.

    target: what the text is printed for; None: whatever there is.
    """
    reducers = {combiner(m): _reducer(m) for m in Monoid}
    defined = {**_FUNCTIONS, **(_NATIVE if converts_to_e4m3(target) else {}), **reducers}
    called: dict[str, None] = {}

    def visit(code: str) -> None:
        for name in re.findall(r"\bweft_\w+", code):
            if name in defined and name not in called:
                visit(defined[name].split("):", 1)[1])
                called[name] = None

    visit(text)
    return "".join(defined[name] + "\n" for name in called).splitlines()


def converts_to_e4m3(target: Target | None) -> bool:
    """Tell whether the machine has float8_e4m3fn and an instruction that rounds to it as weft does: NVIDIA's from 8.9 on."""
    return target is not None and target.kind == "cuda" and int(target.arch) >= _FIRST_WITH_E4M3


_FIRST_WITH_E4M3 = 89


def starts_early(target: Target | None) -> bool:
    """Tell whether a kernel's thread blocks can take their places while the kernel before it still runs: NVIDIA's from 9.0 on."""
    return target is not None and target.kind == "cuda" and int(target.arch) >= _FIRST_TO_START_EARLY


_FIRST_TO_START_EARLY = 90


def _reducer(monoid: Monoid) -> str:
    body = optable.row(monoid.value).triton.format("left", "right")
    return f"\n@triton.jit\ndef {combiner(monoid)}(left, right):\n    return {body}\n"
