"""The law of fp8 factors: a matmul of widened fp8 numbers becomes a matmul of the fp8 numbers themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.tensor.dtypes import DType
from weft.tensor.laws.cleaning import remove_dead
from weft.tensor.laws.draft import past_casts
from weft.tensor.passes import Conditioning, tensor_pass
from weft.tensor.program import Cast, Contraction, Node, TensorProgram, Use

_FP8 = frozenset({DType.float8_e4m3fn, DType.float8_e5m2})
_ROUNDED = frozenset({DType.bfloat16, DType.float16, *_FP8})


@tensor_pass(Conditioning.rounding, needs=(DType.float8_e4m3fn,))
def multiply_in_fp8(program: TensorProgram) -> TensorProgram:
    """Lets matmuls read fp8 numbers without widening them, where all results are rounded to 16 bits or fewer.

        a = bfloat16(q)   q: float8
        b = float32(w)    w: float8      ==>     c = sum over k of q * w
        c = sum over k of a * b

    Condition: both factors are such numbers, widened, and every floating output of the program has 16 bits or fewer.
    Conditioning: every product of two is exact, and sums are as wide as the machine's unit for fp8 numbers makes them: an
    NVIDIA GPU's adds up to 128 products with about 13 bits behind the point before it goes on in float32, which shows where a
    result has more bits than that, and nowhere else.
    """
    values = program.values()
    outputs = [values[name].dtype for name in program.outputs]
    if any(d.is_float and d not in _ROUNDED for d in outputs):
        return program
    nodes = tuple(_narrowed(n, values) if isinstance(n, Contraction) else n for n in program.nodes)
    return program if nodes == program.nodes else remove_dead(replace(program, nodes=nodes))


def _narrowed(node: Contraction, values: Mapping[str, Node]) -> Contraction:
    left, right = (_source(use, values) for use in (node.left, node.right))
    return node if left is None or right is None else replace(node, left=left, right=right)


def _source(use: Use, values: Mapping[str, Node]) -> Use | None:
    """Returns the value that `use` was widened from; None where that is no fp8 number."""

    def widens(cast: Cast) -> bool:
        return cast.dtype.is_float and cast.dtype not in _FP8 and set(cast.arg.axes) == set(cast.axes)

    *_, source = past_casts(use, values, widens)
    return source if values[source.value].dtype in _FP8 else None
