"""The two patterns of rules 4, 5 and 8: a mapped row_scale or row_shift, and the matmul that reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from weft.block.copies import loop_names
from weft.block.program import BlockNode, Broadcast, Dot, Feed, Final, Graph, Iterate, Map, Pointwise, Stacked, sealed
from weft.block.ranges import All
from weft.block.rename import fresh, values_of
from weft.block.scope import Types
from weft.block.walk import consumers, in_order, operands
from weft.fuse.rule import Site
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType
from weft.tensor.program import Monoid
from weft.tensor.scalar import Apply, Arg, arguments, substitute

SCALES, SHIFTS = ("mul", "div"), ("add", "sub")
"""The operations of a row_scale and of a row_shift: by a number for each row, its inverse, its negative."""


@dataclass(frozen=True, slots=True)
class MappedRows:
    """`forall k: store(op(load(I[k]), c), J[k])`, where c is a number for each row, or for all.

    Attributes:
        graph: the graph that it is in; where it was split off a longer expression, the graph in which it has been.
        loops: makes names that no loop of the program has, nor what was split off.
        loop: the map.
        op: one of `SCALES` (row_scale) or `SHIFTS` (row_shift).
        block, vector: the feeds of I and of c.
        node: the operator.
        dtype: the element type of I.
        result: J's name.
    """

    graph: Graph
    loops: Callable[[str], str]
    loop: Map
    op: str
    block: Feed
    vector: Feed
    node: Pointwise
    dtype: DType
    result: str


@dataclass(frozen=True, slots=True)
class MappedMatmul:
    """`forall n: { forall k: store(dot(load(J[k]), load(Y[n,k])), P[n,k]); for k: s += load(P[n,k]); store(s, O[n]) }`.

    Either operand of the dot may be rounded to another type first.

    Attributes:
        loop, parts, reduction: the three maps, outermost first.
        rows, inner_rows: the feeds of J, to `loop` and to `parts`.
        columns, inner_columns: the feeds of Y.
        dot: the operator.
        rounded_rows, rounded_columns: what rounds J's item and Y's, in order.
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
    rounded_rows: tuple[Pointwise, ...]
    rounded_columns: tuple[Pointwise, ...]
    result: str


def mapped_rows(site: Site, ops: Sequence[str]) -> Iterator[MappedRows]:
    """Yield the mapped row operations of `site`'s graph, in order, by one of `ops`, of which a matmul may read what they make."""
    types: Types | None = None
    multiplied = {name for loop in site.graph.nodes if _may_multiply(loop) for name in operands(loop)}
    if not multiplied:
        return
    for loop in site.graph.nodes:
        if isinstance(loop, Map) and any(_is_mapped(loop, op) for op in ops) and loop.outputs[0].outer in multiplied:
            types = site.types() if types is None else types
            found = _rows(site, loop, types) or _split(site, loop, types)
            if found is not None:
                yield found


def _may_multiply(node: BlockNode) -> bool:
    """Tell whether `node` has the loops of a matmul."""
    match node:
        case Map(
            inputs=(Feed(), Feed()),
            body=Graph(nodes=(Map(), Map())),
            outputs=(Stacked(),),
            state=None,
            range=All(),
        ):
            return True
        case _:
            return False


def _is_mapped(loop: Map, op: str) -> bool:
    match loop:
        case Map(
            body=Graph(nodes=(Pointwise(expr=Apply(name, (_, _))) as node,)),
            outputs=(Stacked(_, stacked),),
            state=None,
            range=All(),
        ):
            return name == op and stacked == node.name and loop.axis in node.dims
        case _:
            return False


def _operation(loop: Map) -> tuple[Pointwise, Apply]:
    (node,) = loop.body.nodes
    assert isinstance(node, Pointwise)
    assert isinstance(node.expr, Apply)
    return node, node.expr


def _rows(site: Site, loop: Map, types: Types) -> MappedRows | None:
    """Match `loop` where it does nothing but scale or shift an item."""
    node, expr = _operation(loop)
    feeds = {f.inner: f for f in loop.inputs}
    match expr.args:
        case (Arg(i), Arg(j)) if i != j and len(feeds) == 2:
            first, second = feeds[node.args[i]], feeds[node.args[j]]
        case _:
            return None
    if isinstance(first.access, Broadcast) and expr.op in ("mul", "add"):
        first, second = second, first
    # The vector has no axis of the loop (the checker sees to that); the block must have all of the result's, for what is left
    # of the operator after the swap is the block alone.
    whole = isinstance(first.access, Iterate) and len(types[first.outer].dims) == len(node.dims)
    if not whole or not isinstance(second.access, Broadcast):
        return None
    loops = loop_names(site.program)
    return MappedRows(
        site.graph, loops, loop, expr.op, first, second, node, types[first.outer].dtype, loop.outputs[0].outer
    )


def _split(site: Site, loop: Map, types: Types) -> MappedRows | None:
    """Match `loop` where the last that it does to an item is to scale or shift it: that, and the rest in a map before it."""
    node, expr = _operation(loop)
    feeds = {f.inner: f for f in loop.inputs}
    vectors = {f.inner for f in loop.inputs if isinstance(f.access, Broadcast)}
    first, second = expr.args
    if isinstance(first, Arg) and node.args[first.index] in vectors and expr.op in ("mul", "add"):
        first, second = second, first
    if isinstance(first, Arg) or not isinstance(second, Arg) or node.args[second.index] not in vectors:
        return None
    read = sorted(arguments(first))
    names = [node.args[i] for i in read]
    if not any(len(types[feeds[n].outer].dims) == len(node.dims) and n not in vectors for n in names):
        return None
    loops, values = loop_names(site.program), fresh(values_of(site.graph))
    axis = Axis(loops(loop.axis.name), loop.axis.space)
    items = {f.inner: f.inner for f in loop.inputs}
    rest = replace(
        node,
        expr=substitute(first, lambda i: Arg(read.index(i))),
        args=tuple(items[n] for n in names),
        dims=tuple(axis if a == loop.axis else a for a in node.dims),
    )
    made = values(f"{loop.outputs[0].outer}.plain")
    before = Map(
        axis.name, axis, tuple(feeds[n] for n in dict.fromkeys(names)), Graph((), (rest,), ()),
        (Stacked(made, rest.name),), unit=loop.unit,
    )  # fmt: skip
    vector = feeds[node.args[second.index]]
    block = Feed(made, fresh(set(feeds) | {node.name})("%b"), Iterate(axis))
    left = replace(node, expr=Apply(expr.op, (Arg(0), Arg(1))), args=(block.inner, vector.inner))
    after = sealed(replace(loop, inputs=(block, vector), body=Graph((), (left,), ())))
    nodes: list[BlockNode] = [
        n for old in site.graph.nodes for n in ((sealed(before), after) if old is loop else (old,))
    ]
    graph = replace(site.graph, nodes=in_order(nodes, site.graph.inputs))
    return MappedRows(graph, loops, after, expr.op, block, vector, left, rest.dtype, loop.outputs[0].outer)


def matmuls_of(rows: MappedRows) -> Iterator[MappedMatmul]:
    """Yield the matmuls of the graph whose left matrix is the list of `rows`, contracted over the axis that it
    is mapped over.
    """
    for loop in rows.graph.nodes:
        if isinstance(loop, Map) and rows.result in operands(loop):
            found = _matmul(loop, rows)
            if found is not None:
                yield found


def _matmul(loop: Map, rows: MappedRows) -> MappedMatmul | None:
    if not _may_multiply(loop):
        return None
    parts, reduction = loop.body.nodes
    (stacked,) = loop.outputs
    assert isinstance(parts, Map)
    assert isinstance(reduction, Map)
    assert isinstance(stacked, Stacked)
    result, total = stacked.outer, stacked.inner
    left = next((f for f in loop.inputs if f.outer == rows.result), None)
    right = next((f for f in loop.inputs if f.outer != rows.result), None)
    if left is None or right is None or not _sums(reduction, parts, total):
        return None
    match parts:
        case Map(
            inputs=(Feed() as one, Feed() as other), body=Graph(nodes=(*casts, Dot() as dot)), outputs=(Stacked(),)
        ):
            pass
        case _:
            return None
    inner_left, inner_right = (one, other) if one.outer == left.inner else (other, one)
    read = inner_left.outer == left.inner and inner_right.outer == right.inner
    on_rows, on_columns = (_rounding(casts, inner, dot) for inner in (inner_left.inner, inner_right.inner))
    if on_rows is None or on_columns is None or len(on_rows) + len(on_columns) != len(casts):
        return None
    along = inner_left.access == Iterate(rows.loop.axis) and isinstance(inner_right.access, Iterate)
    alike = parts.state is None and parts.range == All() and parts.unit == rows.loop.unit and dot.over == parts.axis
    if read and along and alike and dot.acc is None:
        feeds = (left, inner_left, right, inner_right)
        return MappedMatmul(loop, parts, reduction, *feeds, dot, on_rows, on_columns, result)
    return None


def _rounding(nodes: Sequence[BlockNode], item: str, dot: Dot) -> tuple[Pointwise, ...] | None:
    """Return those of `nodes` that round `item` on its way to `dot`; None where it does not get there, or by other
    operators too.
    """
    found: list[Pointwise] = []
    for node in nodes:
        if isinstance(node, Pointwise) and node.expr == Arg(0) and node.args == (item,):
            found.append(node)
            item = node.name
    return tuple(found) if (dot.left == item) != (dot.right == item) else None


def _sums(reduction: Map, parts: Map, total: str) -> bool:
    """Tell whether `reduction` is the sum `total` of the list that `parts` stacks, and nothing else."""
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


def read_once(rows: MappedRows) -> bool:
    """Tell whether just one edge leaves what `rows` makes."""
    return consumers(rows.graph, rows.result) == 1
