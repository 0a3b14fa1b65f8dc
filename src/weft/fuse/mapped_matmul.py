"""The two patterns of rules 4, 5 and 8: a mapped row_scale or row_shift, and the matrix product that reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.block.program import (
    All,
    Broadcast,
    Dot,
    Feed,
    Final,
    Graph,
    Iterate,
    Map,
    Pointwise,
    Stacked,
    consumers,
    operands,
)
from weft.fuse.rule import Site
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg


@dataclass(frozen=True, slots=True)
class MappedRows:
    """`forall k: store(op(load(I[k]), c), J[k])`, where c is a number for each row, or for all.

    Attributes:
        loop: the map.
        op: "mul" (row_scale) or "add" (row_shift).
        block, vector: the feeds of I and of c.
        node: the operator.
        result: J's name.
    """

    loop: Map
    op: str
    block: Feed
    vector: Feed
    node: Pointwise
    result: str


@dataclass(frozen=True, slots=True)
class MappedMatmul:
    """`forall n: { forall k: store(dot(load(J[k]), load(Y[n,k])), P[n,k]); for k: s += load(P[n,k]); store(s, O[n]) }`.

    Attributes:
        loop, parts, reduction: the three maps, outermost first.
        rows, inner_rows: the feeds of J, to `loop` and to `parts`.
        columns, inner_columns: the feeds of Y.
        dot: the operator.
        result: O's name.
    """

    loop: Map
    parts: Map
    reduction: Map
    rows: Feed
    inner_rows: Feed
    columns: Feed
    inner_columns: Feed
    dot: Dot
    result: str


def mapped_rows(site: Site, op: str) -> Iterator[MappedRows]:
    """The mapped row operations of `site`'s graph, in order."""
    types = None
    for loop in site.graph.nodes:
        found = _rows(loop, op) if isinstance(loop, Map) else None
        if found is not None:
            # The vector has no axis of the loop (the checker sees to that); the block must have all of the result's, for
            # what is left of the operator after the swap is the block alone.
            types = site.types() if types is None else types
            if len(types[found.block.outer].dims) == len(found.node.dims):
                yield found


def _rows(loop: Map, op: str) -> MappedRows | None:
    match loop:
        case Map(
            inputs=(Feed() as one, Feed() as other),
            body=Graph(nodes=(Pointwise(expr=Apply(name, (Arg(i), Arg(j)))) as node,)),
            outputs=(Stacked(result, stacked),),
            state=None,
            range=All(),
        ) if name == op and i != j and loop.axis in node.dims:
            block, vector = (one, other) if isinstance(one.access, Iterate) else (other, one)
            read = {node.args[i], node.args[j]} == {one.inner, other.inner} and stacked == node.name
            if read and isinstance(block.access, Iterate) and isinstance(vector.access, Broadcast):
                return MappedRows(loop, op, block, vector, node, result)
        case _:
            pass
    return None


def matmuls_of(graph: Graph, rows: MappedRows) -> Iterator[MappedMatmul]:
    """The matrix products of `graph` whose left matrix is what `rows` stacks, contracted over the axis that it is mapped over."""
    for loop in graph.nodes:
        if isinstance(loop, Map) and rows.result in operands(loop):
            found = _matmul(loop, rows)
            if found is not None:
                yield found


def _matmul(loop: Map, rows: MappedRows) -> MappedMatmul | None:
    match loop:
        case Map(
            inputs=(Feed(), Feed()),
            body=Graph(nodes=(Map() as parts, Map() as reduction)),
            outputs=(Stacked(result, total),),
            state=None,
            range=All(),
        ):
            pass
        case _:
            return None
    left = next((f for f in loop.inputs if f.outer == rows.result), None)
    right = next((f for f in loop.inputs if f.outer != rows.result), None)
    if left is None or right is None or not _sums(reduction, parts, total):
        return None
    match parts:
        case Map(inputs=(Feed() as one, Feed() as other), body=Graph(nodes=(Dot() as dot,)), outputs=(Stacked(),)):
            pass
        case _:
            return None
    inner_left, inner_right = (one, other) if one.outer == left.inner else (other, one)
    read = inner_left.outer == left.inner and inner_right.outer == right.inner
    read = read and {dot.left, dot.right} == {one.inner, other.inner}
    along = inner_left.access == Iterate(rows.loop.axis) and isinstance(inner_right.access, Iterate)
    alike = parts.state is None and parts.range == All() and parts.unit == rows.loop.unit and dot.over == parts.axis
    if read and along and alike and dot.acc is None:
        return MappedMatmul(loop, parts, reduction, left, inner_left, right, inner_right, dot, result)
    return None


def _sums(reduction: Map, parts: Map, total: str) -> bool:
    """True where `reduction` is the sum `total` of the list that `parts` stacks, and nothing else."""
    state = reduction.state
    if state is None or state.monoids != (Monoid.sum,) or state.resume is not None or reduction.body.nodes:
        return False
    match state.update.nodes:
        case (Pointwise(expr=Apply("add", (Arg(0), Arg(1))), args=args),) if set(args) == set(state.update.inputs):
            pass
        case _:
            return False
    stacked = [o.outer for o in parts.outputs]
    fed = [(f.outer, f.access) for f in reduction.inputs]
    given = fed == [(name, Iterate(parts.axis)) for name in stacked] and reduction.range == All()
    return given and isinstance(reduction.outputs[0], Final) and [o.outer for o in reduction.outputs] == [total]


def read_once(graph: Graph, name: str) -> bool:
    """True where one edge leaves `name`."""
    return consumers(graph, name) == 1
