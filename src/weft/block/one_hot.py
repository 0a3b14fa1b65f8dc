"""One-hot reductions: what is reduced is the identity, but where an integer is the number of the row.

    out[n] = max over m of where(i[m] == n, e[m], -inf)         of all rows n, m changes i[m] alone

So a loop over m that goes to row i[m] does what a loop over all pairs (n, m) does: it is a store at indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from weft.block.program import BlockNode, BlockType, Bounded, Collapse, Fill, Graph, Index, Pointwise
from weft.block.walk import results
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.merge import Monoid
from weft.tensor.program import Elementwise, Iota, Reduction, TensorProgram, Use
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Number, Scalar, arguments

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class MadeOf(Generic[V]):
    """What an element of a value is made of.

    Attributes:
        dims: the axes of the value.
        expr: of `args`, at every element; None where it is not elementwise work.
        counts: the axis whose element number it is; None of anything else.
    """

    dims: tuple[Axis, ...]
    dtype: DType
    expr: Scalar | None = None
    args: tuple[V, ...] = ()
    counts: Axis | None = None


@dataclass(frozen=True, slots=True)
class OneHot(Generic[V]):
    """Each element along the reduced axis changes one element of `row` at most: the one with the number `index` of `args`."""

    row: Axis
    index: Scalar
    args: tuple[V, ...]

    @property
    def read(self) -> tuple[V, ...]:
        """The values that `index` is made of."""
        return tuple(self.args[i] for i in sorted(arguments(self.index)))


def one_hot(value: V, over: Axis, monoid: Monoid, look: Callable[[V], MadeOf[V]]) -> OneHot[V] | None:
    """Find along which axis a reduction of `value` along `over` has, of all elements of a row, one that counts.

    Condition: the value is `where(c, e, identity)`, and c holds only where an integer that does not depend on a row is the row's
    number. None where this is not known.

    Args:
        look: says what a value is made of.
    """
    seen = look(value)
    match seen.expr:
        case Apply("where", (condition, _, Lit(number))) if _is_identity(number, monoid, seen.dtype):
            return _equal(condition, seen.args, over, look)
        case _:
            return None


def _is_identity(number: Number, monoid: Monoid, dtype: DType) -> bool:
    """Tell whether `number` changes nothing that `monoid` combines in the accumulator of `dtype`."""
    if dtype.is_float or not math.isinf(monoid.identity):
        return number == monoid.identity
    return dtype is dtype.accumulator and number == dtype.bounds[monoid is Monoid.min]


def _equal(condition: Scalar, args: tuple[V, ...], over: Axis, look: Callable[[V], MadeOf[V]]) -> OneHot[V] | None:
    match condition:
        case Arg(index):
            seen = look(args[index])
            return None if seen.expr is None else _equal(seen.expr, seen.args, over, look)
        case Apply("logical_and", both):
            return next((found for each in both if (found := _equal(each, args, over, look)) is not None), None)
        case Apply("eq", (left, right)):
            for number, index in ((left, right), (right, left)):
                row = look(args[number.index]).counts if isinstance(number, Arg) else None
                read = [look(args[i]) for i in arguments(index)]
                steady = all(row not in each.dims for each in read)
                if row not in (None, over) and steady and _is_integer(index, [look(each) for each in args]):
                    return OneHot(row, index, args)
            return None
        case _:
            return None


def _is_integer(expr: Scalar, read: Sequence[MadeOf[V]]) -> bool:
    """Tell whether `expr` is computed in integers alone."""
    match expr:
        case Arg(index):
            return read[index].dtype.kind == "int"
        case Lit(value):
            return isinstance(value, int) and not isinstance(value, bool)
        case Apply("add" | "sub" | "mul" | "neg", inner):
            return all(_is_integer(each, read) for each in inner)
        case Apply("where", (_, first, second)):
            return _is_integer(first, read) and _is_integer(second, read)
        case Apply() | Convert():
            return False


def one_hot_axes(program: TensorProgram) -> Iterator[tuple[Axis, Axis]]:
    """Yield (what is reduced, rows) of each reduction of `program` that is one-hot."""
    values = program.values()

    def look(use: Use) -> MadeOf[Use]:
        node = values[use.value]
        match node:
            case Elementwise(axes=axes, expr=expr, args=args):
                bound = dict(zip(axes, use.axes, strict=True))
                return MadeOf(use.axes, node.dtype, expr, tuple(each.within(bound) for each in args))
            case Iota():
                return MadeOf(use.axes, node.dtype, counts=use.axes[0])
            case _:
                return MadeOf(use.axes, node.dtype)

    for node in program.nodes:
        if isinstance(node, Reduction) and len(node.over) == 1:
            found = one_hot(node.arg, node.over[0], node.monoid, look)
            if found is not None:
                yield node.over[0], found.row


def one_hots(graph: Graph, types: Mapping[str, BlockType]) -> dict[str, Axis]:
    """Name the reductions of `graph` that are one-hot, and the values that they alone reduce, each with its row.

    Args:
        graph: of a body.
        types: of its values.
    """
    made = {name: node for node in graph.nodes for name in results(node)}

    def look(name: str) -> MadeOf[str]:
        return _element(name, made.get(name), types)

    found: dict[str, Axis] = {}
    for node in graph.nodes:
        if isinstance(node, Collapse):
            value = _filled(node.arg, made)
            chosen = one_hot(value, node.over, node.monoid, look)
            if chosen is not None:
                found[node.name] = chosen.row
                found |= {n: chosen.row for n in _above(value, made) if {node.over, chosen.row} <= {*types[n].dims}}
    return found


def _element(name: str, node: BlockNode | None, types: Mapping[str, BlockType]) -> MadeOf[str]:
    kind = types[name]
    match node:
        case Pointwise(expr=expr, args=args):
            return MadeOf(kind.dims, kind.dtype, expr, args)
        case Index(axis=axis, unit=False):
            return MadeOf(kind.dims, kind.dtype, counts=axis)
        case _:
            return MadeOf(kind.dims, kind.dtype)


def _filled(name: str, made: Mapping[str, BlockNode]) -> str:
    """Return the value that has `name`'s valid elements."""
    node = made.get(name)
    return _filled(node.arg, made) if isinstance(node, Fill) else name


def _above(name: str, made: Mapping[str, BlockNode]) -> set[str]:
    """Return `name`, and the elementwise work that it is made of."""
    node = made.get(name)
    inner = node.args if isinstance(node, Pointwise) else (node.arg,) if isinstance(node, Bounded) else ()
    return {name, *(each for arg in inner for each in _above(arg, made))}
