"""Types of what functional operators make and of what is loaded, and the conditions on what they read."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from weft.block.program import (
    BlockType,
    Bounded,
    Collapse,
    Dot,
    Fill,
    Load,
    Pointwise,
    Prefix,
    Rank,
    Stage,
    Store,
)
from weft.block.scope import Scope, Types, demand, fail
from weft.block.subscripts import Digit, Subscript
from weft.block.walk import operands
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.scalar import Apply, Arg, Convert, Lit, Scalar, arguments


def item_type(node: Pointwise | Dot | Collapse | Bounded | Fill | Stage, types: Types, scope: Scope) -> BlockType:
    names = operands(node)
    args = [types[name] for name in names]
    for name, kind in zip(names, args, strict=True):
        if kind.lists:
            fail(node.name, "functional operators read items, not lists", f"{name}: {kind}")
    match node:
        case Pointwise():
            demand(scope.maps.keys() >= set(node.dims), node.name, "items have axes of maps around them", node.dims)
            for kind in args:
                within = kind.dims == node.dims or set(kind.dims) <= set(node.dims)
                demand(within, node.name, "arguments have only the result's axes", kind)
            read = arguments(node.expr)
            demand(not read or max(read) < len(args), node.name, "the expression reads its arguments", "")
            return BlockType((), node.dims, node.dtype, _pad(node, args))
        case Dot():
            return _dot_type(node, args, scope)
        case Collapse():
            kind = args[0]
            if node.over not in kind.dims:
                fail(node.name, "the collapsed axis is the argument's", f"{node.over} of {kind}")
            _demand_padding(node.name, kind, node.over, node.monoid.identity, scope)
            pad = kind.pad if kind.pad == node.monoid.identity else None
            return BlockType((), tuple(a for a in kind.dims if a != node.over), kind.dtype.accumulator, pad)
        case Bounded():
            kind = args[0]
            demand(kind.dtype.kind == "int", node.name, "an index is an integer", kind)
            demand(set(node.dims) == set(kind.dims), node.name, "each integer is an index by itself", kind)
            return BlockType((), node.dims, DType.int64)
        case Fill():
            return replace(args[0], pad=node.value)
        case Stage():
            demand(set(node.dims) == set(args[0].dims), node.name, "staging keeps the axes", args[0])
            return replace(args[0], dims=node.dims)
        case _:
            assert_never(node)


def _dot_type(node: Dot, args: list[BlockType], scope: Scope) -> BlockType:
    left, right = args[:2]
    for kind in (left, right):
        if node.over not in kind.dims:
            fail(node.name, "both operands have the contracted axis", f"{node.over} of {kind}")
        _demand_padding(node.name, kind, node.over, 0.0, scope)
    free = (set(left.dims) | set(right.dims)) - {node.over}
    shared = set(left.dims) & set(right.dims) - {node.over}
    demand(not shared, node.name, "operands share no axis but the contracted one", shared)
    if free != set(node.dims):
        fail(node.name, "the result has the free axes of both", f"{node.dims} of {free}")
    for kind in args[2:]:
        demand(set(kind.dims) == free, node.name, "an accumulator has the result's axes", kind)
    pads = [kind.pad for kind in args]
    return BlockType((), node.dims, node.dtype, 0.0 if all(p == 0.0 for p in pads) else None)


def check_place(
    node: Load | Store, memory: BlockType, dims: tuple[Axis, ...], scope: Scope, indices: tuple[BlockType, ...] = ()
) -> None:
    """Check the subscripts of an item with axes `dims`, of which `indices` say where its elements lie."""
    demand(memory.buffered, node.name, "items are loaded from memory and stored there", memory)
    demand(len(node.at) == len(memory.lists), node.name, "memory has a subscript for each axis", node.at)
    digits = [digit for subscript in node.at for _, digit in subscript.terms]
    demand(
        all(d.div >= 1 and (d.mod is None or d.mod >= 1) for d in digits),
        node.name,
        "a digit divides by a positive number",
        digits,
    )
    read = [digit.axis for digit in digits]
    demand(set(read) <= set(scope.maps), node.name, "subscripts are of blocks of maps around", read)
    for kind in indices:
        whole = not kind.lists and kind.dtype.kind == "int" and set(kind.dims) <= set(dims)
        demand(whole, node.name, "an index is an item of integers, of axes that the result has", kind)
    every = {*read, *memory.dims, *(axis for kind in indices for axis in kind.dims)}
    demand(set(dims) <= (every if indices else set(read)), node.name, "an item's axes decide where it lies", dims)
    said = [subscript.index for subscript in node.at if subscript.index is not None]
    demand(sorted(said) == list(range(len(indices))), node.name, "each index says where along one axis", node.at)
    for axis, subscript in zip(memory.lists, node.at, strict=True):
        if subscript.index is not None:
            demand(subscript == Subscript((), 0, subscript.index), node.name, "an index says all of where", axis)
            continue
        plain = subscript.plain
        lanes = [term for term in subscript.terms if term[1].axis in dims]
        numbered = len(lanes) <= 1 and all(t == (1, Digit(t[1].axis)) for t in lanes)
        demand(numbered, node.name, "an item lies as its elements are numbered", axis)
        demand(plain is None or plain.space == axis.space, node.name, "memory has a subscript of its own space", axis)
        across = not set(subscript.axes).isdisjoint(dims)
        demand(across == (axis in memory.dims), node.name, "an item has the axes of its memory's items", axis)


def prefix_types(node: Prefix, types: Types, scope: Scope) -> dict[str, BlockType]:
    """Check that what is merged has the results' axes, and what came before all but one of them, and type the results."""
    for name in operands(node):
        if types[name].buffered:
            fail(node.name, "functional operators read items, not lists", f"{name}: {types[name]}")
    demand(node.over in node.dims, node.name, "elements are combined along an axis that they have", node.over)
    sizes = {len(each) for each in (node.names, node.totals, node.args, node.accs, node.merge.parts, node.dtypes)}
    demand(len(sizes) == 1, node.name, "states that are merged have the same components", sizes)
    args, accs = [types[name] for name in node.args], [types[name] for name in node.accs]
    for arg, acc, begin in zip(args, accs, node.merge.begin, strict=True):
        alike = set(arg.dims) == set(node.dims)
        demand(alike, node.name, "combined elements have the axes of what they are made of", arg)
        demand(set(acc.dims) == set(node.rows), node.name, "what came before has the axes of a whole", acc)
        _demand_padding(node.name, arg, node.over, begin, scope)
    made = {name: BlockType((), node.dims, dtype) for name, dtype in zip(node.names, node.dtypes, strict=True)}
    return made | {name: BlockType((), node.rows, acc.dtype) for name, acc in zip(node.totals, accs, strict=True)}


def rank_types(node: Rank, types: Types, scope: Scope) -> dict[str, BlockType]:
    """Check that values and places have one shape, and type them; padding of `arg` does not count if its numbers mark
    it as absent.
    """
    args = [types[name] for name in operands(node)]
    for name, kind in zip(operands(node), args, strict=True):
        if kind.buffered:
            fail(node.name, "functional operators read items, not lists", f"{name}: {kind}")
    arg, numbers, *acc = args
    over = set[Axis]() if node.over is None else {node.over}
    free = set(node.dims) - {node.rank}
    demand(set(arg.dims) == free | over, node.name, "what is ranked has the result's axes and its own", arg)
    demand(set(numbers.dims) <= set(arg.dims), node.name, "numbers have only axes of what they number", numbers)
    demand(over <= set(numbers.dims), node.name, "numbers tell elements apart along what is ranked", numbers)
    demand(all(set(k.dims) == set(node.dims) for k in acc), node.name, "a ranking goes on with the same axes", acc)
    demand(numbers.dtype is acc[1].dtype is DType.int64, node.name, "numbers are int64", numbers)
    demand(arg.dtype.accumulator is node.dtype, node.name, "values are carried in their accumulator type", arg)
    around = None if node.rank is None else scope.maps.get(node.rank)
    whole = around is None or around.tile is None
    demand(not scope.applied or whole, node.name, "the loop over a ranking has one block", node.rank)
    if node.over is not None and node.over != node.rank:
        _demand_padding(node.name, numbers, node.over, float("inf"), scope)
    return {node.name: BlockType((), node.dims, node.dtype), node.places: BlockType((), node.dims, DType.int64)}


def _demand_padding(name: str, kind: BlockType, over: Axis, identity: float, scope: Scope) -> None:
    if scope.applied and kind.pad != identity and scope.may_be_partial(over):
        fail(name, f"padding along {over} holds {identity}", str(kind.pad))


def _pad(node: Pointwise, args: list[BlockType]) -> float | None:
    """Return the padding of a pointwise result: known only where every argument has every axis and a known padding."""
    pads = [kind.pad for kind in args if kind.pad is not None]
    if len(pads) < len(args) or any(set(kind.dims) != set(node.dims) for kind in args):
        return None
    return _fold(node.expr, pads)


def _fold(expr: Scalar, values: list[float]) -> float | None:
    """Evaluate `expr` at constants, for the few operations that keep a zero; None where it is not worth knowing."""
    match expr:
        case Arg(index):
            return values[index]
        case Lit(value):
            return float(value)
        case Convert(_, inner):
            return 0.0 if _fold(inner, values) == 0.0 else None
        case Apply("mul", (left, right)):
            return 0.0 if _fold(left, values) == 0.0 and _fold(right, values) == 0.0 else None
        case Apply("add" | "sub", (left, right)):
            return 0.0 if _fold(left, values) == 0.0 and _fold(right, values) == 0.0 else None
        case Apply("neg" | "abs", (inner,)):
            return 0.0 if _fold(inner, values) == 0.0 else None
        case Apply():
            return None
        case _:
            assert_never(expr)
