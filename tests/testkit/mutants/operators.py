"""The fixed operators: what a wrong `apply`, a wrong rule or a wrong law could have left in a placed program.

Each looks at one place and says what else may stand there. They know the kinds of values (a number, an axis, an expression, a
list of names), and of nodes only what every node has: what it reads and what it gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import combinations
from typing import Any

from testkit.mutants.places import Spot, Step, put, spots
from weft.block.check import body_types, infer
from weft.block.program import (
    BlockNode,
    BlockProgram,
    BlockType,
    Collapse,
    Graph,
    Literal,
    Map,
    Pointwise,
    State,
    Store,
)
from weft.block.ranges import Part
from weft.block.rename import rename_values
from weft.block.scope import Scope
from weft.block.walk import fields_of, operands, results
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, Lit, apply


@dataclass(frozen=True)
class Mutant:
    """A program with one thing changed.

    Attributes:
        operator: one of the fixed ones.
        where: the place, in words.
        change: what stood there, and what stands there now.
        spot: the place; None where the change is of more than one place.
        node: the node that was left out, or reads another value.
    """

    operator: str
    where: str
    change: str
    program: BlockProgram
    spot: Spot | None = None
    node: BlockNode | None = None

    def __str__(self) -> str:
        return f"{self.operator}: {self.where}: {self.change}"


@dataclass(frozen=True)
class Change:
    """What an operator does at a place: its name, the new value, and the node that it is about where the place is a whole graph."""

    operator: str
    value: Any
    node: BlockNode | None = None


Made = tuple[Any, ...]

_FACTORS = {"mul": (0, 1), "div": (0,), "coarse_div": (0,), "fma": (2,)}
_ONE = frozenset({"exp", "exp2", "decay", "coarse_decay", "rsqrt", "reciprocal", "sqrt", "expm1"})
_INSTEAD = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq"}
_ORDER = {"maximum": "minimum", "minimum": "maximum", "fmax": "fmin", "fmin": "fmax"}
_EITHER_WAY = frozenset({"add", "mul", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or", "fmax", "fmin"})


def mutants(program: BlockProgram) -> Iterator[Mutant]:
    """Yields every mutant of a placed program, in a fixed order; none equals `program`."""
    for spot in spots(program):
        for change in _CHANGES:
            for made in (Change(*each) for each in change(spot)):
                if repr(made.value) != repr(spot.value):
                    old = spot.value if made.node is None else made.node
                    said = f"{_short(old)} -> {_short(made.value)}" if made.node is None else _short(made.node)
                    changed = put(program, spot.path, made.value)
                    yield Mutant(made.operator, str(spot), said, changed, spot, made.node)
    yield from _block_exponents(program)


def _short(value: Any) -> str:
    text = value.name if isinstance(value, Axis) else repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."


def _expressions(spot: Spot) -> Iterator[Made]:
    """A factor, divisor, exponential or mask lost, an order turned round, arguments swapped: in a scalar expression."""
    match spot.value:
        case Apply(op, args):
            yield from (("lost rescale", args[kept]) for kept in _FACTORS.get(op, ()))
            if op in _ONE:
                yield from (("lost rescale", Lit(1.0)), ("lost rescale", args[0]))
            if op == "where":
                yield from (("dropped mask", args[1]), ("dropped mask", args[2]))
            if op in _INSTEAD:
                yield "mask one off", Apply(_INSTEAD[op], args)
            if op in _ORDER:
                yield "wrong merge", Apply(_ORDER[op], args)
            if op in ("add", "sub"):
                yield from (("wrong merge", args[0]), ("wrong merge", args[1]))
            if len(args) > 1 and op not in _EITHER_WAY:
                yield "swapped operands", Apply(op, (*args[:-2], args[-1], args[-2]))
        case _:
            return


def _numbers(spot: Spot) -> Iterator[Made]:
    """Another constant, start of a state, or padding; a range, tile, distance or count that is one off."""
    value, field = spot.value, spot.field
    owner = type(spot.around[-1]).__name__ if spot.around else ""
    if isinstance(value, bool):
        yield ("wrong merge" if owner == "Order" else "changed constant"), not value
    elif isinstance(value, int) and owner not in ("Arg", "Lit", "Literal"):
        yield from (("wrong stride" if field == "tile" else "off-by-one range", value + by) for by in (1, -1))
    elif isinstance(value, int) and owner == "Arg":
        count = next((len(n.args) for n in reversed(spot.around) if isinstance(n, Pointwise)), 0)
        if count > 1:
            yield "swapped operands", (value + 1) % count
    elif isinstance(value, int | float):
        operator = "state not reset" if owner == "Component" else "changed constant"
        if owner == "Fill":
            operator = "dropped mask"
        yield operator, _another(value)
        if math.isinf(value):
            yield operator, -value


def _another(value: float) -> float:
    if math.isinf(value) or math.isnan(value):
        return type(value)(0)
    return type(value)(1) if value == 0 else value + 1 if isinstance(value, int) else 1.5 * value


def _axes(spot: Spot) -> Iterator[Made]:
    """Another axis, of those that loops around or the node itself have."""
    if not isinstance(spot.value, Axis) or (spot.field == "axis" and isinstance(spot.around[-1], Map)):
        return
    near = dict.fromkeys(n.axis for n in spot.around if isinstance(n, Map))
    near.update(dict.fromkeys(_own_axes(spot.around[-1])))
    yield from (("wrong axis", axis) for axis in near if axis != spot.value)


def _own_axes(node: Any) -> Iterator[Axis]:
    for field in ("dims", "lists", "over", "outer", "axis"):
        value = getattr(node, field, None)
        yield from (a for a in (value if isinstance(value, tuple) else (value,)) if isinstance(a, Axis))


def _choices(spot: Spot) -> Iterator[Made]:
    """Another part of a range; another reduction; what may be left out, left out."""
    value = spot.value
    if isinstance(value, Part):
        yield from (("off-by-one range", part) for part in Part if part is not value)
    elif isinstance(value, Monoid):
        yield from (("wrong merge", monoid) for monoid in Monoid if monoid is not value)
    elif isinstance(value, Enum):
        return
    elif value is not None and spot.field in ("resume", "acc") and spot.path[-1] == spot.field:
        yield "state not carried on", None
    elif value is not None and spot.field in ("low", "high") and spot.path[-1] == spot.field:
        yield "dropped mask", None


def _orders(spot: Spot) -> Iterator[Made]:
    """Two results, two inputs' dimensions or two feeds in each other's place."""
    value, field = spot.value, spot.path[-1] if spot.path else ""
    if not isinstance(value, tuple) or len(value) < 2:
        return
    by_name = isinstance(spot.around[-1], Map) or "finish" in spot.path or spot.path[-2:-1] == ("body",)
    if field in ("outputs", "output_axes", "components", "feeds") and not by_name:
        for i, j in combinations(range(min(len(value), 4)), 2):
            yield "permuted outputs", _exchanged(value, i, j)
    elif field in ("outputs", "inputs") and isinstance(spot.around[-1], Map):
        for i, j in combinations(range(len(value)), 2):
            one, other = value[i], value[j]
            if type(one) is type(other) and hasattr(one, "outer"):
                swapped = _exchanged(tuple(each.outer for each in value), i, j)
                what = "permuted outputs" if field == "outputs" else "swapped operands"
                yield what, tuple(replace(e, outer=o) for e, o in zip(value, swapped, strict=True))
    elif field == "at" or (
        (field == "lists" or "output_axes" in spot.path) and all(isinstance(a, Axis) for a in value)
    ):
        yield from (("wrong stride", _exchanged(value, i, j)) for i, j in combinations(range(len(value)), 2))


def _exchanged(value: tuple[Any, ...], i: int, j: int) -> tuple[Any, ...]:
    made = list(value)
    made[i], made[j] = made[j], made[i]
    return tuple(made)


def _graphs(spot: Spot) -> Iterator[Made]:
    """In a graph: an operator left out, one value read for another, two operands of a node swapped."""
    graph = spot.value
    if not isinstance(graph, Graph):
        return
    known = list(graph.inputs)
    for number, node in enumerate(graph.nodes):
        reads, gives = operands(node), results(node)
        if isinstance(node, Store):
            rest = Graph(graph.inputs, graph.nodes[:number] + graph.nodes[number + 1 :], graph.outputs)
            yield "dropped store", rest, node
        if len(reads) == 1 and len(gives) == 1 and not isinstance(node, Map):
            rest = Graph(graph.inputs, graph.nodes[:number] + graph.nodes[number + 1 :], graph.outputs)
            operator = "dropped mask" if type(node).__name__ == "Fill" else "lost rescale"
            yield operator, rename_values(rest, {gives[0]: reads[0]}), node
        for place, old in enumerate(reads):
            for new in [n for n in (*reads, *known[-2:]) if n != old][:2]:
                changed = _at(graph.nodes, number, _reading(node, place, new))
                yield "swapped operands", replace(graph, nodes=changed), node
        known += gives


def _at(nodes: tuple[BlockNode, ...], number: int, node: BlockNode) -> tuple[BlockNode, ...]:
    return (*nodes[:number], node, *nodes[number + 1 :])


def _reading(node: BlockNode, place: int, name: str) -> BlockNode:
    """Returns `node` with another value as operand number `place`."""
    return put(node, list(_names(node))[place], name)


def _names(node: BlockNode) -> Iterator[tuple[Step, ...]]:
    """Yields where a node names what it reads, in the order of `operands`."""
    if isinstance(node, Map):
        yield from (("inputs", i, "outer") for i in range(len(node.inputs)))
        return
    for field in fields_of(type(node), "reads"):
        value = getattr(node, field)
        if isinstance(value, tuple):
            yield from ((field, i) for i in range(len(value)))
        elif value is not None:
            yield (field,)


def _states(spot: Spot) -> Iterator[Made]:
    """A component that no iteration changes, one that each iteration starts anew, and one that the finish forgets."""
    state = spot.value
    if not isinstance(state, State):
        return
    for number, component in enumerate(state.components):
        outputs = tuple(component.name if i == number else o for i, o in enumerate(state.update.outputs))
        yield "state not carried on", replace(state, update=replace(state.update, outputs=outputs))
        anew = "anew"
        fresh = Literal(anew, component.init, component.dtype)
        body = Graph((), state.update.nodes, state.update.outputs)
        nodes = rename_values(body, {component.name: anew})
        update = Graph(state.update.inputs, (fresh, *nodes.nodes), nodes.outputs)
        yield "state reset each time", replace(state, update=update)


_CHANGES: tuple[Callable[[Spot], Iterator[Made]], ...] = (
    _expressions,
    _numbers,
    _axes,
    _choices,
    _orders,
    _graphs,
    _states,
)

OPERATORS = (
    *(
        "lost rescale",
        "wrong axis",
        "swapped operands",
        "off-by-one range",
        "dropped mask",
        "mask one off",
        "wrong merge",
    ),
    *("changed constant", "state not reset", "state not carried on", "state reset each time", "permuted outputs"),
    *("wrong stride", "dropped store", "block exponent"),
)
"""What is done to programs, one at a time."""


def _block_exponents(program: BlockProgram) -> Iterator[Mutant]:
    """One maximum for all rows of a block in place of each row's own."""
    for path, graph, types in graphs_with_types(program):
        for number, node in enumerate(graph.nodes):
            if not isinstance(node, Collapse) or node.monoid is not Monoid.max or len(types[node.name].dims) != 1:
                continue
            (rows,) = types[node.name].dims
            block, own = Collapse("block_max", Monoid.max, "row_max", rows), replace(node, name="row_max")
            both = apply("maximum", Arg(0), Arg(1))
            spread = Pointwise(node.name, both, ("block_max", "row_max"), (rows,), DType.float32)
            nodes = (*graph.nodes[:number], own, block, spread, *graph.nodes[number + 1 :])
            changed = put(program, (*path, "nodes"), nodes)
            yield Mutant("block exponent", f"Collapse {node.name}", "a row's maximum -> its block's", changed)


Typed = tuple[tuple[Step, ...], Graph, Mapping[str, BlockType]]


def graphs_with_types(program: BlockProgram) -> Iterator[Typed]:
    """Yields the graph of a placed program and those of its loops' bodies, each with where it is and the types of its values."""
    yield from _typed(program.graph, ("graph",), dict(program.inputs), Scope({}, applied=True))


def _typed(graph: Graph, path: tuple[Step, ...], given: Mapping[str, BlockType], scope: Scope) -> Iterator[Typed]:
    types = infer(graph, given, scope)
    yield path, graph, types
    for number, node in enumerate(graph.nodes):
        if isinstance(node, Map):
            inside = scope.inside(node)
            yield from _typed(node.body, (*path, "nodes", number, "body"), body_types(node, types), inside)
