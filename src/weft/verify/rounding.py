"""Constants that may have been rounded, and what two programs differ in.

`x / 3` and `x * (1 / 3)` are two functions over a field, and over the real numbers, since 1/3 is not a float; nobody who writes one
means a difference. So a difference is held against what the rounding of the constants that only one of them has can do, found by
changing those constants in the last place of the type that is computed in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

import numpy as np

from weft.tensor.dtypes import DType
from weft.tensor.program import Constant, Contraction, Elementwise, Node, Ranking, Reduction, TensorProgram
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, applied, substitute

# A number of so many bits, like 0.5 or 1000, is what its writer means.
_FEW_BITS = 12
# No type's last place counts for less.
_LEAST = 2.0**-45


def changed(program: TensorProgram, own: frozenset[float], rng: np.random.Generator) -> TensorProgram:
    """Changes the constants `own` of `program` a little, as rounding in the type of each operation may."""

    def number(value: float | int | bool, dtype: DType) -> float | int | bool:
        if isinstance(value, bool) or float(value) not in own:
            return value
        # 16-bit operations compute in float32, and have their constants in it.
        eps = max(DType.float64.eps if dtype is DType.float64 else DType.float32.eps, _LEAST)
        return float(value) * (1 + eps * rng.uniform(-1, 1))

    def node(old: Node) -> Node:
        match old:
            case Constant() if old.dtype.is_float:
                return replace(old, value=number(old.value, old.dtype))
            case Elementwise():
                return replace(old, expr=substitute(old.expr, Arg, lambda lit: Lit(number(lit.value, old.dtype))))
            case _:
                return old

    return replace(program, nodes=tuple(map(node, program.nodes)))


def rounded_constants(program: TensorProgram) -> frozenset[float]:
    """Finds the constants that may have been rounded: not those of few bits, nor those that something is asked to be equal to."""
    found: list[float | int | bool] = []
    for node in program.nodes:
        if isinstance(node, Constant):
            found.append(node.value)
        elif isinstance(node, Elementwise):
            found += _computed_with(node.expr)
    return frozenset(float(v) for v in found if math.isfinite(v) and _bits(float(v)) > _FEW_BITS)


def _bits(value: float) -> int:
    """Counts the bits of a number from its first to its last that is not 0."""
    whole = abs(int(math.ldexp(math.frexp(value)[0], 53)))
    return (whole // ((whole & -whole) or 1)).bit_length()


def _computed_with(expr: Scalar) -> Iterator[float | int | bool]:
    match expr:
        case Lit(value):
            yield value
        case Apply("eq" | "ne", args):
            yield from itertools.chain.from_iterable(_computed_with(a) for a in args if not isinstance(a, Lit))
        case Apply(_, args):
            yield from itertools.chain.from_iterable(map(_computed_with, args))
        case Convert(_, inner):
            yield from _computed_with(inner)
        case Arg():
            return
        case _:
            assert_never(expr)


def what_differs(first: TensorProgram, second: TensorProgram) -> str:
    """Say in words what only one of the programs has, to follow "they differ by": rounded constants, else operations."""
    programs = (first, second)
    of_first, of_second = map(rounded_constants, programs)
    pairs = [tuple(map(str, sorted(own))) for own in (of_first - of_second, of_second - of_first)]
    if any(pairs):
        kind = "constants"
    else:
        kind, operations = "operations", [_operations(p) for p in programs]
        pairs = [tuple(sorted(a - b)) for a, b in (operations, operations[::-1])]
    named = zip(("first", "second"), pairs, strict=True)
    said = ", ".join(f"the {which} alone has {' and '.join(own)}" for which, own in named if own)
    return f"{kind}: {said}" if said else "the order or the number of the same operations"


def _operations(program: TensorProgram) -> frozenset[str]:
    found: set[str] = set()
    for node in program.nodes:
        match node:
            case Elementwise():
                found |= set(applied(node.expr))
            case Reduction():
                found.add(f"a {node.monoid.name} over an axis")
            case Ranking():
                found.add(f"the {node.order} over an axis")
            case Contraction():
                found.add("a product over an axis")
            case _:
                pass
    return frozenset(found)
