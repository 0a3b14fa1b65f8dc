"""A program in numbers as it is written: its casts round, and rounding in fp64 can be told from a difference.

The evaluator's own numbers (`weft.tensor.fp64`) leave out casts that only cost precision, since a kernel may keep more bits than
eager does. Whether two functions are one function is another question: `a.half().float()` is not `a`. So here a cast rounds
where it keeps less than the results do (`as_written`). Everything else is computed in fp64, whose range is wider than that of
fp32: what overflows or vanishes there all the same is noted (`WrittenNumbers.disturbed`), since over the real numbers it would not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np

from weft.tensor import optable
from weft.tensor.domain import Array, by_doubling
from weft.tensor.dtypes import DType
from weft.tensor.evaluate import evaluate, returned
from weft.tensor.fp64 import Fp64Domain
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Monoid,
    Node,
    Ranking,
    Reduction,
    Scan,
    TensorProgram,
    expressions,
)
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, applied, substitute

_INTEGERS = (DType.int64, DType.int32, DType.int16, DType.int8, DType.uint8)
_NOISE, _WHOLE = 2.0**-49, 2.0**53


def finest(programs: Sequence[TensorProgram]) -> DType:
    """Returns the element type that holds all that the programs' results do; that of their inputs where no result is a float."""
    found = [p.values()[name].dtype for p in programs for name in p.outputs]
    floats = [d for d in found if d.is_float] or [n.dtype for p in programs for n in p.inputs if n.dtype.is_float]
    return min(floats, key=lambda d: (d.eps, -d.exponents[1]), default=DType.float64)


def as_written(program: TensorProgram, finest: DType) -> TensorProgram:
    """Makes every cast semantic that keeps fewer bits, or less range, than `finest`, and removes those that keep as much.

    The latter are what eager rounds where it stores results: no more than the rounding of the results themselves. A cast back to
    the type of a value that was only widened is none either.
    """
    values = program.values()

    def node(old: Node) -> Node:
        if not isinstance(old, Cast):
            return old
        source = values[old.arg.value]
        before = values[source.arg.value].dtype if isinstance(source, Cast) else None
        back = before is old.dtype and _holds(source.dtype, old.dtype)
        wider = _holds(old.dtype, source.dtype) and not source.dtype.is_foreign
        stored = source.dtype.is_float and _holds(old.dtype, finest)
        if back or wider or stored or (_holds(old.dtype, finest) and _counts(source)):
            return Elementwise(old.name, old.axes, old.dtype, Arg(0), (old.arg,), old.location)
        return old if not (old.dtype.is_float and source.dtype.is_float) else replace(old, semantic=True)

    return replace(program, nodes=tuple(map(node, program.nodes)))


def _counts(node: Node) -> bool:
    """Tells whether it is integers that were not computed with, which no arithmetic can have wrapped, or a sum of such."""
    return node.dtype in (DType.bool, *_INTEGERS) and isinstance(
        node, Input | Iota | Extent | Constant | Reduction | Scan
    )


def _holds(wide: DType, narrow: DType) -> bool:
    """Tells whether every value of the narrow type is one of the wide type's."""
    if wide.is_float and narrow.is_float:
        return wide.eps <= narrow.eps and wide.exponents[1] >= narrow.exponents[1]
    if wide.is_foreign or narrow.is_foreign or (narrow.is_float and not wide.is_float):
        return False
    low, high = narrow.bounds
    if wide.is_float:
        return max(-low, high) <= 2 / wide.eps and max(-low, high) < 2.0 ** (wide.exponents[1] - 1)
    return wide.bounds[0] <= low and high <= wide.bounds[1]


@dataclass(frozen=True, slots=True)
class Computed:
    """What a program gives on numbers.

    Attributes:
        outputs: as the user gets them.
        disturbed: something overflowed or vanished in fp64 that would not over the real numbers.
    """

    outputs: tuple[Array, ...]
    disturbed: bool


def computed(program: TensorProgram, inputs: Mapping[str, Array], noise: np.random.Generator | None = None) -> Computed:
    """Evaluates `program` in numbers.

    Args:
        program: without opaque operations; of `as_written`, where its casts are to round.
        inputs: fp64, int64 or bool arrays by name, exact in the inputs' types.
        noise: where given, what was rounded is changed in its last bits at random.

    Raises:
        WeftError, ValueError, IndexError, KeyError, ArithmeticError: as `evaluate`, where these are no inputs for the program.
    """
    numbers = WrittenNumbers(noise)
    values = evaluate(program, {n.name: inputs[n.name] for n in program.inputs}, numbers)
    return Computed(returned(program, values, numbers), numbers.disturbed)


class WrittenNumbers(Fp64Domain):
    """Numbers, with a note of what leaves fp64's range, and noise for what is rounded.

    Args:
        noise: where given, each result that fp64 rounded is multiplied with 1 + x, |x| <= 2^-49 at random.
    """

    def __init__(self, noise: np.random.Generator | None = None) -> None:
        self.disturbed = False
        self._noise = noise

    def contract(
        self,
        left: Array,
        left_axes: Sequence[int],
        right: Array,
        right_axes: Sequence[int],
        out_axes: Sequence[int],
    ) -> Array:
        """Contracts as the domain does, and watches what was rounded."""
        result = super().contract(left, left_axes, right, right_axes, out_axes)
        if result.dtype.kind != "f":
            return result
        self._watch(result, left, right)
        if self._noise is None:
            return result
        total = super().contract(np.abs(left), left_axes, np.abs(right), right_axes, out_axes)
        with np.errstate(all="ignore"):
            return self._noisy(result, total, ~(total < _unit(left).min() * _unit(right).min() * _WHOLE))

    def reduce(self, monoid: Monoid, v: Array, dims: Sequence[int]) -> Array:
        """Reduces as the domain does, and watches what was rounded."""
        result = super().reduce(monoid, v, dims)
        if result.dtype.kind != "f" or monoid in (Monoid.max, Monoid.min):
            return result
        self._watch(result, v)
        if self._noise is None or not v.size:
            return result
        if monoid is Monoid.prod:
            return self._noisy(result, result, np.ones(result.shape, np.bool_))
        total = super().reduce(monoid, np.abs(v), dims)
        with np.errstate(all="ignore"):
            return self._noisy(result, total, ~(total < _unit(v).min() * _WHOLE))

    def prefixes(self, monoid: Monoid, v: Array) -> Array:
        """Combines pairs, as this domain reduces them."""
        return by_doubling(self, monoid, v)

    def _applied(self, expr: Apply, operands: Sequence[Array]) -> Array:
        with np.errstate(over="call", under="call", call=self._noted):
            result = np.asarray(super()._applied(expr, operands))
        if self._noise is None or result.dtype.kind != "f":
            return result
        with np.errstate(all="ignore"):
            return self._noisy(result, result, ~np.asarray(_exact(expr.op, result, *operands)))

    def _noted(self, kind: str, flag: int) -> None:
        del kind, flag
        self.disturbed = True

    def _watch(self, result: Array, *given: Array) -> None:
        """Notes an overflow of sums, which numpy does not always report."""
        if not np.isfinite(result).all() and all(np.isfinite(v).all() for v in given if v.dtype.kind == "f"):
            self.disturbed = True

    def _noisy(self, result: Array, size: Array, rounded: Array) -> Array:
        """Returns `result`, where it was rounded, a little different: by a share of `size`, that of the largest numbers summed."""
        assert self._noise is not None
        with np.errstate(all="ignore"):
            changed = result + np.abs(size) * (_NOISE * self._noise.uniform(-1.0, 1.0, result.shape))
        return np.where(rounded & np.isfinite(changed), changed, result)


def _unit(v: Array) -> Array:
    """Returns the power of 2 that the last bit of each number is worth; infinity for 0."""
    mantissa, exponent = np.frexp(np.asarray(v, np.float64))
    with np.errstate(all="ignore"):
        whole = np.where(np.isfinite(mantissa), mantissa * _WHOLE, 0.0).astype(np.int64)
    last = (whole & -whole).astype(np.float64)
    return np.where(last == 0, np.inf, np.ldexp(last, exponent.astype(np.int64) - 53))


def _exact(op: str, result: Array, *values: Array) -> Array | bool:
    """Tells where fp64 did not round the operation."""
    exact_at = optable.row(op).exact_at
    if exact_at is not None:
        return (values[0] == exact_at) | ~np.isfinite(values[0])
    floats = [v.astype(np.float64) for v in values]
    match op, floats:
        case "add", [a, b]:
            return _sum_is_exact(result, a, b)
        case "sub", [a, b]:
            return _sum_is_exact(result, a, -b)
        case "mul", [a, b]:
            return _product_is_exact(result, a, b)
        case "div" | "coarse_div", [a, b]:
            return (result * b == a) & _product_is_exact(a, result, b)
        case "sqrt", [a]:
            return (result * result == a) & _product_is_exact(a, result, result)
        case "fma", [a, b, c]:
            return _product_is_exact(a * b, a, b) & _sum_is_exact(result, a * b, c)
        case "pow", [a, b]:
            return (result < _WHOLE) & (result == np.rint(result)) & (a == np.rint(a)) & (b == np.rint(b))
        case _:
            return True  # choices and roundings


def _sum_is_exact(result: Array, a: Array, b: Array) -> Array:
    """Tells where a sum is exact, by the part that it lost (Knuth's two-sum)."""
    second = result - a
    return (a - (result - second)) + (b - second) == 0


def _product_is_exact(result: Array, a: Array, b: Array) -> Array:
    """Tells where a product is exact, by the bits that it needs."""
    return (np.abs(result) < _unit(a) * _unit(b) * _WHOLE) | (result == 0)


def spread(results: Sequence[Computed], base: Computed) -> tuple[Array, ...]:
    """Measures how far each element of each output lies from `base`'s in any of `results`; NaN where only one is a number."""
    found: list[Array] = []
    for place, own in enumerate(base.outputs):
        most = np.zeros(own.shape)
        for other in results:
            most = np.fmax(most, distance(own, other.outputs[place]))
        found.append(most)
    return tuple(found)


def distance(one: Array, other: Array) -> Array:
    """Measures how far apart elements are: 0 where they are equal, NaN among them, infinity where only one is that number."""
    if one.shape != other.shape:
        return np.full(one.shape, math.inf)
    if one.dtype.kind != "f" or other.dtype.kind != "f":
        return np.where(one == other, 0.0, np.inf)
    with np.errstate(all="ignore"):
        apart = np.abs(one - other)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


# Constants that may have been rounded, and what two programs differ in.


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
            case Scan():

                def changed(exprs: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
                    return tuple(substitute(e, Arg, lambda lit: Lit(number(lit.value, old.dtype))) for e in exprs)

                return replace(
                    old, element=changed(old.element), merge=replace(old.merge, parts=changed(old.merge.parts))
                )
            case _:
                return old

    return replace(program, nodes=tuple(map(node, program.nodes)))


def rounded_constants(program: TensorProgram) -> frozenset[float]:
    """Finds the constants that may have been rounded: not those of few bits, nor those that something is asked to be equal to."""
    found: list[float | int | bool] = []
    for node in program.nodes:
        if isinstance(node, Constant):
            found.append(node.value)
        else:
            found += (number for expr in expressions(node) for number in _computed_with(expr))
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
            case Scan(monoid=None):
                found.add("a merge of states up to each element of an axis")
                found |= {name for expr in (*node.element, *node.merge.parts) for name in applied(expr)}
            case Scan(monoid=Monoid() as monoid):
                found.add(f"a {monoid.name} up to each element of an axis")
            case Ranking():
                found.add(f"the {node.order} over an axis")
            case Contraction():
                found.add("a product over an axis")
            case _:
                pass
    return frozenset(found)
