"""Whether two programs that no law makes equal differ by more than the rounding of their constants.

`x / 3` and `x * (1 / 3)` are two functions over a field, and over the reals, since 1/3 is not a float; nobody who writes one means
a difference. So both are run on random numbers in fp64. What they differ by is held against what the rounding of the constants that
only one of them has can do, found by changing those constants in the last place of the type that is computed in. Without such
constants only the rounding of fp64 itself is allowed.

Agreement here proves nothing: it leaves open what was refuted. A difference says what the numbers are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from weft.tensor.domain import Array
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate, returned
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import Constant, Contraction, Elementwise, Node, Ranking, Reduction, TensorProgram
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, substitute
from weft.verify.inputs import turns, with_numbers

# Draws of inputs; changes of the constants on each; how much more than the largest change a difference may be.
_DRAWS, _CHANGES, _ROOM = 6, 4, 8.0
# What rounding in fp64 may do to a number, and to a small one that comes of numbers as large as the largest.
_NOISE, _NOISE_OF_LARGEST = 2.0**-45, 2.0**-48
_NUMBERS = Fp64Domain()


@dataclass(frozen=True, slots=True)
class Alike:
    """Two programs on random numbers.

    Attributes:
        alike: whether rounding explains what they differ by.
        largest: the largest difference, as a share of the largest number in the output that has it.
        differs: in words, what only one of the programs has.
    """

    alike: bool
    largest: float
    differs: str


def alike_on_numbers(
    first: TensorProgram, second: TensorProgram, shapes: Sequence[Mapping[str, tuple[int, ...]]], seed: int = 0
) -> Alike:
    """Run both in fp64 on random inputs and compare.

    Args:
        first, second: inputs of one name are one tensor; outputs of the same shapes and element types.
        shapes: choices of shapes for all inputs by name, one size per axis.

    Raises:
        WeftError, ValueError, IndexError, KeyError, ArithmeticError: as `evaluate`, where numbers are no inputs for a program.
    """
    programs = (first, second)
    of_first, of_second = map(_rounded_constants, programs)
    own = of_first ^ of_second
    outputs = [first.values()[name].dtype for name in first.outputs]
    found = Alike(bool(shapes), 0.0, _differences(programs, of_first, of_second))
    for number, chosen in enumerate(shapes):
        rng = np.random.default_rng((seed, number))
        for values in _draws(programs, chosen, rng):
            for one, other, spread, dtype in zip(*_results(programs, values, own, rng), outputs, strict=True):
                same, largest = _compared(one, other, spread, dtype)
                found = replace(found, alike=found.alike and same, largest=max(found.largest, largest))
    return found


def _draws(
    programs: tuple[TensorProgram, TensorProgram], shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator
) -> Iterator[Mapping[str, Array]]:
    """Random inputs by name: of both signs, all positive, large, and with the numbers that the programs compare with."""
    known = {n.name: n for p in programs for n in p.inputs}
    sizes = {
        a.space.name: size for p in programs for n in p.inputs for a, size in zip(n.axes, shapes[n.name], strict=True)
    }
    extra = turns(programs, sizes)
    for draw in range(_DRAWS + extra):
        values = {name: _NUMBERS.random(shapes[name], n.dtype, rng) for name, n in known.items()}
        if draw >= _DRAWS:
            yield with_numbers(values, programs, _NUMBERS, rng, draw - _DRAWS)
            continue
        for name, node in known.items():
            if node.dtype.is_float and draw % 3:
                values[name] = np.abs(values[name]) if draw % 3 == 1 else values[name] * 8
        yield values


def _results(
    programs: tuple[TensorProgram, TensorProgram],
    values: Mapping[str, Array],
    own: frozenset[float],
    rng: np.random.Generator,
) -> tuple[Sequence[Array], Sequence[Array], Sequence[Array]]:
    """Each output of both, and by how much rounding may change it, of both together."""
    one, other = (_run(p, values) for p in programs)
    spread: list[Array] = [np.zeros(a.shape) for a in one]
    for program, base in zip(programs, (one, other), strict=True):
        if not own:
            break
        for _ in range(_CHANGES):
            changed = _run(_changed(program, own, rng), values)
            for place, (a, b) in enumerate(zip(base, changed, strict=True)):
                if a.shape == spread[place].shape:
                    apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
                    spread[place] = np.maximum(spread[place], np.where(np.isfinite(apart), apart, 0.0))
    return one, other, spread


def _run(program: TensorProgram, values: Mapping[str, Array]) -> tuple[Array, ...]:
    inputs = {n.name: values[n.name] for n in program.inputs}
    return returned(program, evaluate(program, inputs, _NUMBERS), _NUMBERS)


def _compared(one: Array, other: Array, spread: Array, dtype: DType) -> tuple[bool, float]:
    """Whether rounding explains how an output differs, and the largest difference as a share of the largest number."""
    if one.shape != other.shape:
        return False, math.inf
    if not dtype.is_float and not spread.any():
        return bool(np.array_equal(one, other)), float(np.count_nonzero(np.not_equal(one, other))) / max(one.size, 1)
    a, b = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    same = np.where(finite, True, (a == b) | (np.isnan(a) & np.isnan(b)))
    apart = np.abs(np.where(finite, a, 0.0) - np.where(finite, b, 0.0))
    scale = np.abs(np.where(finite, a, 0.0))
    most = float(scale.max(initial=0.0))
    allowed = _ROOM * spread + _NOISE * scale + _NOISE_OF_LARGEST * most
    return bool(np.all(same & (apart <= allowed))), float(apart.max(initial=0.0)) / (most or 1.0)


def _changed(program: TensorProgram, own: frozenset[float], rng: np.random.Generator) -> TensorProgram:
    """`program` with the constants `own` a little different, as rounding in the type of each operation may make them."""

    def number(value: float | int | bool, dtype: DType) -> float | int | bool:
        if isinstance(value, bool) or float(value) not in own:
            return value
        # 16-bit operations compute in float32, and have their constants in it.
        eps = max(DType.float64.eps if dtype is DType.float64 else DType.float32.eps, _NOISE)
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


def _rounded_constants(program: TensorProgram) -> frozenset[float]:
    """The constants that may have been rounded. Whole numbers are exact, and how they are meant."""
    found: list[float | int | bool] = []
    for node in program.nodes:
        if isinstance(node, Constant):
            found.append(node.value)
        elif isinstance(node, Elementwise):
            found += [leaf.value for leaf in _parts(node.expr) if isinstance(leaf, Lit)]
    return frozenset(float(v) for v in found if math.isfinite(v) and v != math.floor(v))


def _parts(expr: Scalar) -> Iterator[Scalar]:
    yield expr
    match expr:
        case Apply(_, args):
            yield from itertools.chain.from_iterable(map(_parts, args))
        case Convert(_, inner):
            yield from _parts(inner)
        case Arg() | Lit():
            return
        case _:
            assert_never(expr)


def _differences(
    programs: tuple[TensorProgram, TensorProgram], of_first: frozenset[float], of_second: frozenset[float]
) -> str:
    """What only one of the programs has: rounded constants, else operations; in words."""
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
                found |= {e.op for e in _parts(node.expr) if isinstance(e, Apply)}
            case Reduction():
                found.add(f"a {node.monoid.name} over an axis")
            case Ranking():
                found.add(f"the {node.order} over an axis")
            case Contraction():
                found.add("a product over an axis")
            case _:
                pass
    return frozenset(found)
