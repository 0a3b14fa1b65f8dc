"""What a lowering puts at the heart of a nest of maps, and what the nest's maps see of its operands (Blockbuster, Table 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from weft.block import program as block
from weft.block.edges import Broadcast, Iterate
from weft.block.program import Access, BlockNode, Index, Literal, Load, Pointwise, Prefix
from weft.block.subscripts import Subscript
from weft.tensor import optable
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Cast, Constant, Elementwise, Extent, Iota, Lookup, Monoid, Node, Scan, Use
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar


@dataclass(frozen=True, slots=True)
class LoweredLeaf:
    """The functional operators at the heart of one nest: `make(axes made, operand names, result name)`.

    Attributes:
        name: of the result.
        axes: of the result.
        args: what is read.
        make: makes the operators.
        over: axes over which the results are reduced, by `monoid`, in type `carried`.
    """

    name: str
    axes: tuple[Axis, ...]
    args: tuple[Use, ...]
    make: Callable[[dict[Axis, Axis], tuple[str, ...], str], list[BlockNode]]
    over: tuple[Axis, ...] = ()
    monoid: Monoid = Monoid.sum
    carried: DType = DType.float32


def access(lists: Mapping[Axis, Axis], axis: Axis) -> Access:
    """Return what a map over `axis` sees of an operand, whose list axes are `lists` by the axes of the tensor program."""
    return Iterate(lists[axis]) if axis in lists else Broadcast()


def expression(node: Elementwise | Cast) -> Scalar:
    """Return what `node` computes of what it reads; a cast that only rounds computes nothing."""
    match node:
        case Elementwise():
            return node.expr
        case Cast():
            return Convert(node.dtype, Arg(0)) if node.semantic else Arg(0)


def looked_up(node: Lookup, name: str, memory: str, items: tuple[str, ...], dims: tuple[Axis, ...]) -> Load:
    """Return the load of what `node` reads in `memory` where `items` say."""
    at = tuple(Subscript((), 0, number) for number in range(len(items)))
    return Load(name, memory, at, dims, node.dtype, items, node.location, node.masked)


def carried(node: Scan) -> tuple[DType, ...]:
    """Return the types in which what came before is carried: where floats are added or multiplied, all as wide as eager has sums on
    a CPU. So are the exponents of such sums, of which an exponential is a factor in each step.
    """
    if all(map(_chooses, node.merge.parts)):
        return tuple(kind.accumulator for kind in node.kinds)
    return tuple(DType.float64 if kind.is_float else kind.accumulator for kind in node.kinds)


def _chooses(expr: Scalar) -> bool:
    """Tell whether a result is one of the arguments, or a number that stands in `expr`."""
    match expr:
        case Arg() | Lit():
            return True
        case Convert():
            return False
        case Apply("where", (_, first, second)):
            return _chooses(first) and _chooses(second)
        case Apply(op, args):
            return optable.row(op).rounding == "chooses" and all(map(_chooses, args))


def prefixed(
    node: Scan, read: tuple[str, ...], axis: Axis, rows: tuple[Axis, ...], unit: bool
) -> tuple[tuple[Pointwise, ...], Prefix]:
    """Return the operators that make the states of elements of a block, and the one that merges them.

    Args:
        node: the scan.
        read: the items that it reads.
        axis: what it runs along.
        rows: the other axes that items have.
        unit: items have one element along `axis`.
    """
    elements, states, dims = list[Pointwise](), list[str](), rows if unit else (*rows, axis)
    for place, (expr, kind) in enumerate(zip(node.element, node.kinds, strict=True)):
        states.append(read[expr.index] if isinstance(expr, Arg) else f"%e{place}")
        if not isinstance(expr, Arg):
            elements.append(Pointwise(states[-1], expr, read, dims, kind, node.location))
    names, totals, accs = (tuple(f"%{what}{i}" for i in range(len(states))) for what in ("t", "all", "before"))
    whole = (*rows, axis)
    return tuple(elements), Prefix(
        names, totals, tuple(states), accs, node.merge, axis, whole, node.kinds, node.location
    )


def source(node: Node, made: Mapping[Axis, Axis], name: str, is_unit: Callable[[Axis], bool]) -> BlockNode:
    """Return the operator that gives a number of the program, or the indices along an axis of one of the loops `made`."""
    match node:
        case Constant(_, _, dtype, value):
            return Literal(name, value, dtype)
        case Extent(_, _, dtype, space):
            return block.Extent(name, space, dtype)
        case Iota(_, (axis,), _):
            return indices(name, made[axis], is_unit(axis))
        case _:
            raise AssertionError(node.name)


def indices(name: str, axis: Axis, unit: bool) -> Index:
    """Return the indices along `axis`, which may have one element alone."""
    return Index(name, axis, unit)
