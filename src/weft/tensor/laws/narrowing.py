"""The law of narrow factors: a matmul of numbers that bfloat16 represents exactly becomes one in bfloat16."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np

from weft.tensor import optable
from weft.tensor.dtypes import DType
from weft.tensor.fp64 import rounded
from weft.tensor.laws.cleaning import remove_dead
from weft.tensor.laws.draft import past_casts
from weft.tensor.laws.names import fresh
from weft.tensor.optable.intervals import EVERYTHING
from weft.tensor.optable.row import Interval
from weft.tensor.passes import Conditioning, tensor_pass
from weft.tensor.program import (
    Cast,
    Constant,
    Contraction,
    Elementwise,
    Extent,
    Input,
    Iota,
    Lookup,
    Monoid,
    Node,
    Opaque,
    Ranking,
    Reduction,
    Reindex,
    Scan,
    TensorProgram,
    Use,
)
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar

_NARROW = DType.bfloat16
_WHOLE = 256
"""bfloat16 has all integers up to here."""
_HELD = frozenset({DType.bfloat16, DType.float8_e4m3fn, DType.float8_e5m2, DType.int8, DType.uint8, DType.bool})
"""Element types of which bfloat16 has every number."""
_KEEPS_WHOLE = frozenset({"add", "sub", "mul"})
"""Results are one of the arguments, or one with another sign."""


@tensor_pass(Conditioning.rounding, needs=(DType.bfloat16,))
def narrow_exact_factors(program: TensorProgram) -> TensorProgram:
    """Lets matmuls of float32 numbers read them as bfloat16 where bfloat16 represents all of them exactly.

        a = float32(q)   q: int8                a = float32(q)
        b = float32(w)   w: bfloat16    ==>     n = precision bfloat16(a)
        c = sum over k of a * b                 c = sum over k of n * w

    Condition: of both factors it is known that bfloat16 has their numbers: by their element type before they were widened
    (bfloat16, 8 bits), or because they are integers of magnitude at most 256, which follows from the operations (rounding, sums and
    products of integers) and the bounds of their results. Choices between such numbers, and their signs, are such numbers.
    Conditioning: every product of two is exact in float32 either way, and sums are in float32: they differ in order alone. Numbers
    below the normal ones, 2 ** -126, count as 0 where the machine's matrix unit takes bfloat16.
    """
    known = _Known(program.values())
    if not any(isinstance(n, Contraction) and known.widened(n) for n in program.nodes):
        return program
    made: dict[str, Cast] = {}
    nodes: list[Node] = []
    for node in program.nodes:
        if isinstance(node, Contraction) and known.widened(node):
            left, right = (_narrowed(use, known.values, made, nodes) for use in (node.left, node.right))
            nodes.append(replace(node, left=left, right=right))
        else:
            nodes.append(node)
    return remove_dead(replace(program, nodes=tuple(nodes)))


def _narrowed(use: Use, values: Mapping[str, Node], made: dict[str, Cast], nodes: list[Node]) -> Use:
    """Returns `use` in bfloat16: what it was widened from, or a cast, which is added to `nodes`."""

    def widens(cast: Cast) -> bool:
        return values[cast.arg.value].dtype.is_float and set(cast.arg.axes) == set(cast.axes)

    source = next((u for u in past_casts(use, values, widens) if values[u.value].dtype is _NARROW), None)
    if source is not None:
        return source
    if use.value not in made:
        wide, name = values[use.value], fresh(use.value, {*values, *(cast.name for cast in made.values())})
        made[use.value] = Cast(name, wide.axes, _NARROW, Use(use.value, wide.axes), semantic=False)
        nodes.append(made[use.value])
    return Use(made[use.value].name, use.axes)


@dataclass
class _Known:
    """What holds of every number of a value, by its name: that bfloat16 has it, that it is an integer, its bounds.

    Of NaN nothing is said, and infinities count as integers: bfloat16 has both.
    """

    values: Mapping[str, Node]
    _held: dict[str, bool] = field(default_factory=dict[str, bool])
    _whole: dict[str, bool] = field(default_factory=dict[str, bool])
    _bounds: dict[str, Interval] = field(default_factory=dict[str, Interval])

    def widened(self, node: Contraction) -> bool:
        """Tells whether `node` multiplies float32 numbers that bfloat16 represents exactly."""
        names = (node.left.value, node.right.value)
        return all(self.values[n].dtype is DType.float32 for n in names) and all(map(self.held, names))

    def held(self, name: str) -> bool:
        """Tells whether bfloat16 represents all numbers of the value exactly."""
        if name not in self._held:
            self._held[name] = self._holds(self.values[name])
        return self._held[name]

    def whole(self, name: str) -> bool:
        """Tells whether all numbers of the value are integers."""
        if name not in self._whole:
            self._whole[name] = self._is_whole(self.values[name])
        return self._whole[name]

    def bounds(self, name: str) -> Interval:
        """Returns an interval in which all numbers of the value lie."""
        if name not in self._bounds:
            self._bounds[name] = self._bounded(self.values[name])
        return self._bounds[name]

    def _holds(self, node: Node) -> bool:
        if node.dtype in _HELD:
            return True
        if not isinstance(node, Input | Opaque) and self.whole(node.name):
            low, high = self.bounds(node.name)
            if low >= -_WHOLE and high <= _WHOLE:
                return True
        match node:
            case Cast(dtype=dtype, arg=arg):
                # A float of 16 bits rounds what bfloat16 has to something that it has: to fewer bits, or to infinity.
                return dtype.is_float and self.held(arg.value)
            case Elementwise(expr=expr, args=args):
                return node.dtype.is_float and self._chosen(expr, args)
            case Reduction(monoid=monoid, arg=arg) | Scan(monoid=monoid, args=(arg,)):
                return monoid in (Monoid.max, Monoid.min) and self.held(arg.value)
            case Ranking(arg=arg, places=places):
                return not places and self.held(arg.value)
            case Lookup(source=source):
                return self.held(source)
            case Constant(value=value):
                return _has(value)
            case Input() | Opaque() | Contraction() | Scan() | Iota() | Extent() | Reindex():
                return False

    def _chosen(self, expr: Scalar, args: tuple[Use, ...]) -> bool:
        match expr:
            case Arg(index):
                return self.held(args[index].value)
            case Lit(value):
                return _has(value)
            case Apply("where", (_, first, second)):
                return self._chosen(first, args) and self._chosen(second, args)
            case Apply(op, inner):
                return optable.row(op).rounding == "chooses" and all(self._chosen(a, args) for a in inner)
            case Convert(dtype, inner):
                return dtype in _HELD or (dtype.is_float and self._chosen(inner, args))
            case _:
                assert_never(expr)

    def _is_whole(self, node: Node) -> bool:
        if not node.dtype.is_float:
            return not node.dtype.is_foreign
        match node:
            case Cast(arg=arg):
                return self.whole(arg.value)  # large ones may be rounded, to integers
            case Elementwise(expr=expr, args=args):
                return self._whole_expression(expr, args)
            case Reduction(monoid=monoid, arg=arg) | Scan(monoid=monoid, args=(arg,)):
                return monoid in (Monoid.max, Monoid.min) and self.whole(arg.value)
            case Ranking(arg=arg):
                return self.whole(arg.value)
            case Lookup(source=source):
                return self.whole(source)
            case Constant(value=value):
                return float(value).is_integer()
            case Iota() | Extent():
                return True
            case Input() | Opaque() | Contraction() | Scan() | Reindex():
                return False

    def _whole_expression(self, expr: Scalar, args: tuple[Use, ...]) -> bool:
        match expr:
            case Arg(index):
                return self.whole(args[index].value)
            case Lit(value):
                return math.isinf(value) or float(value).is_integer()
            case Apply("where", (_, first, second)):
                return self._whole_expression(first, args) and self._whole_expression(second, args)
            case Apply(op, inner):
                rounding = optable.row(op).rounding
                kept = op in _KEEPS_WHOLE or rounding == "chooses"
                return rounding == "steps" or (kept and all(self._whole_expression(a, args) for a in inner))
            case Convert(dtype, inner):
                return not dtype.is_float or self._whole_expression(inner, args)
            case _:
                assert_never(expr)

    def _bounded(self, node: Node) -> Interval:
        match node:
            case Elementwise(expr=expr, args=args):
                return _in_type(self._bounds_of(expr, args), node.dtype.accumulator, wrapped=node.dtype)
            case Cast(arg=arg):
                exact = not self.values[arg.value].dtype.is_float
                return _in_type(self.bounds(arg.value), node.dtype, wrapped=node.dtype, exact=exact)
            case (
                Reduction(monoid=Monoid.max | Monoid.min, arg=arg) | Scan(monoid=Monoid.max | Monoid.min, args=(arg,))
            ) if node.dtype.is_float:
                return self.bounds(arg.value)
            case Ranking(arg=arg, places=False) if node.dtype.is_float:
                return self.bounds(arg.value)
            case Lookup(source=source, masked=masked):
                low, high = self.bounds(source)
                return (min(low, 0.0), max(high, 0.0)) if masked else (low, high)
            case Constant(value=value):
                return (float(value), float(value))
            case Input() | Opaque() | Contraction() | Reduction() | Scan() | Ranking() | Iota() | Extent() | Reindex():
                return _in_type(EVERYTHING, node.dtype, wrapped=node.dtype)

    def _bounds_of(self, expr: Scalar, args: tuple[Use, ...]) -> Interval:
        match expr:
            case Arg(index):
                return self.bounds(args[index].value)
            case Lit(value):
                return (float(value), float(value))
            case Convert(dtype, inner):
                return _in_type(self._bounds_of(inner, args), dtype, wrapped=dtype, exact=False)
            case Apply(op, inner):
                return optable.row(op).interval(*(self._bounds_of(a, args) for a in inner))
            case _:
                assert_never(expr)


def _in_type(found: Interval, dtype: DType, *, wrapped: DType, exact: bool = True) -> Interval:
    """Bounds numbers rounded to `dtype`, integers wrapped to the type `wrapped`.

    exact: they were no floats, of which NaN and what is too large become integers that no bounds tell of.
    """
    if dtype.is_foreign:
        return EVERYTHING
    if dtype.is_float:  # rounding never changes an order
        low, high = rounded(np.asarray(found, np.float64), dtype)
        return (float(low), float(high))
    low, high = map(float, wrapped.bounds)
    return found if exact and low <= found[0] and found[1] <= high else (low, high)


def _has(value: float | int | bool) -> bool:
    """Tells whether bfloat16 has the number."""
    number = np.asarray(float(value))
    return math.isnan(float(value)) or bool(rounded(number, _NARROW) == number)
