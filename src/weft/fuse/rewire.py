"""What rules 4, 5 and 8 build in place of the pattern they match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.block.copies import fresh_loops
from weft.block.program import Broadcast, Collapse, Feed, Graph, Iterate, Map, Pointwise, Stacked, State, sealed
from weft.block.rename import rename_map_axes, rename_node
from weft.fuse.mapped_matmul import MappedMatmul, MappedRows
from weft.tensor.axes import Axis
from weft.tensor.program import Monoid
from weft.tensor.scalar import Scalar

Names = Callable[[str], str]


def plain_matmul(rows: MappedRows, matmul: MappedMatmul, result: str, loops: Names) -> Map:
    """Return `matmul` as `result`, reading what `rows` reads instead of what it makes; not rounded to the type that it has."""
    feed = replace(matmul.rows, outer=rows.block.outer)
    inner = replace(matmul.inner_rows, access=rows.block.access)
    parts = replace(matmul.parts, inputs=_exchanged(matmul.parts, matmul.inner_rows, inner))
    if matmul.rounded_rows and all(cast.dtype is rows.dtype for cast in matmul.rounded_rows):
        parts = replace(parts, body=_without(parts.body, matmul.rounded_rows, inner.inner))
    loop = replace(
        matmul.loop,
        inputs=_exchanged(matmul.loop, matmul.rows, feed),
        body=replace(matmul.loop.body, nodes=(parts, matmul.reduction)),
        outputs=tuple(replace(o, outer=result) for o in matmul.loop.outputs),
    )
    return fresh_loops(loop, loops)


def column_sums(rows: MappedRows, matmul: MappedMatmul, result: str, loops: Names) -> Map:
    """Sum the right matrix along the contracted axis: one number for each column of the matmul, as the list `result`."""
    old = matmul.reduction
    total, listed, part = matmul.dot.name, old.inputs[0].outer, old.inputs[0].inner
    rounded = matmul.rounded_columns
    item = rounded[-1].name if rounded else matmul.inner_columns.inner
    dims = tuple(a for a in matmul.dot.dims if a not in rows.node.dims)
    add = Collapse(total, Monoid.sum, item, matmul.parts.axis, matmul.dot.location)
    parts = replace(
        matmul.parts,
        inputs=(matmul.inner_columns,),
        body=Graph((), (*rounded, add), ()),
        outputs=(Stacked(listed, total),),
    )
    state = State.of_monoid(Monoid.sum, part, dims, matmul.dot.dtype, "%s")
    reduction = replace(old, state=state, outputs=tuple(replace(o, inner="%s") for o in old.outputs))
    loop = replace(
        matmul.loop,
        inputs=(matmul.columns,),
        body=replace(matmul.loop.body, nodes=(sealed(parts), sealed(reduction))),
        outputs=tuple(replace(o, outer=result) for o in matmul.loop.outputs),
    )
    return fresh_loops(sealed(loop), loops)


def over_columns(
    matmul: MappedMatmul, axis: Axis, expr: Scalar, args: tuple[tuple[str, Axis | None], ...], result: str
) -> Map:
    """Make `forall axis: store(expr(args), result)` in the shape of `matmul`.

    Args:
        matmul: what it comes after.
        axis: of the new map; where it is not `matmul`'s own, the name of the map too.
        expr: of one item for each argument.
        args: a list with the axis that it is iterated over, or an item with None.
        result: the name of the list.
    """
    feeds = tuple(
        Feed(name, f"%{i}", Broadcast() if over is None else Iterate(over)) for i, (name, over) in enumerate(args)
    )
    dims = tuple(axis if a == matmul.loop.axis else a for a in matmul.dot.dims)
    node = Pointwise("%t", expr, tuple(f.inner for f in feeds), dims, matmul.dot.dtype, matmul.dot.location)
    name = matmul.loop.name if axis == matmul.loop.axis else axis.name
    body = Graph((), (node,), ())
    return sealed(Map(name, axis, feeds, body, (Stacked(result, "%t"),), unit=matmul.loop.unit))


def reading(matmul: MappedMatmul, old: MappedRows, new: MappedRows) -> Map:
    """Return `matmul`'s map, reading what `new` makes instead of what `old` makes."""
    loop = replace(matmul.loop, inputs=_exchanged(matmul.loop, matmul.rows, replace(matmul.rows, outer=new.result)))
    return rename_map_axes(loop, {old.loop.axis: new.loop.axis})


def _without(graph: Graph, casts: tuple[Pointwise, ...], item: str) -> Graph:
    """Return `graph` with its operators reading `item` instead of what `casts` make of it."""
    nodes = (rename_node(n, {casts[-1].name: item}) for n in graph.nodes if n not in casts)
    return replace(graph, nodes=tuple(nodes))


def _exchanged(node: Map, old: Feed, new: Feed) -> tuple[Feed, ...]:
    return tuple(new if f == old else f for f in node.inputs)
