"""Which block matmuls a fused program has, and which dimensions of inputs its loops go along."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft.block.check import body_types, infer, update_types
from weft.block.places import Place
from weft.block.program import BlockNode, BlockProgram, BlockType, Broadcast, Dot, Feed, Graph, Map, State
from weft.block.scope import Scope
from weft.block.walk import maps
from weft.schedule import kernels
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType

# For each value that is (part of) an input: the input's name and axis that each of its axes comes from.
Sources = Mapping[str, Mapping[Axis, tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class BlockMatmul:
    """A block matmul of a fused program, by the axes of the loops around it.

    Attributes:
        dtype: of the column operand.
        row_operand_dense: along what is contracted, or not in memory.
        column_operand_dense: along what is contracted, in memory.
    """

    name: str
    rows: Axis | None
    columns: Axis | None
    over: Axis
    dtype: DType
    row_operand_dense: bool
    column_operand_dense: bool


def find_matmuls(program: BlockProgram, innermost: Mapping[str, int | None]) -> Iterator[BlockMatmul]:
    """Yield every block matmul of `program`, with what is known of how its operands lie in memory."""
    sources = {name: {a: (name, d) for d, a in enumerate(kind.lists)} for name, kind in program.inputs}
    yield from _matmuls(program.graph, dict(program.inputs), Scope({}, applied=False), sources, innermost)


def is_product(node: BlockNode) -> bool:
    """Tells whether an operator is a matmul of blocks."""
    return isinstance(node, Dot)


def off_the_grid(applied: BlockProgram) -> bool:
    """Tells whether a launch of a program with places has a matmul and no loop on the grid: one thread does all of it."""
    launches = (Graph((), each.nodes, ()) for each in kernels(applied))
    return any(any(dots(each)) and not any(m.place is Place.grid for m in maps(each)) for each in launches)


def dots(graph: Graph) -> Iterator[Dot]:
    """Yields the matmuls of `graph`, those in its loops and in what these do to their states too."""
    for node in graph.nodes:
        if isinstance(node, Dot):
            yield node
        elif isinstance(node, Map):
            yield from dots(node.body)
            if node.state is not None:
                yield from dots(node.state.update)


def _matmuls(
    graph: Graph, inputs: dict[str, BlockType], scope: Scope, sources: Sources, innermost: Mapping[str, int | None]
) -> Iterator[BlockMatmul]:
    types = infer(graph, inputs, scope)
    for node in graph.nodes:
        if isinstance(node, Map):
            inner = {f.inner: seen(node, f, sources[f.outer]) for f in node.inputs if f.outer in sources}
            given, inside = body_types(node, types), scope.inside(node)
            yield from _matmuls(node.body, given, inside, inner, innermost)
            if node.state is not None:
                yield from _matmuls_of_update(node, node.state, given, inside, inner, innermost)
        elif isinstance(node, Dot):
            left, right = types[node.left], types[node.right]
            rows = next((a for a in left.dims if a != node.over), None)
            columns = next((a for a in right.dims if a != node.over), None)
            read, other = (sources.get(name, {}).get(node.over) for name in (node.left, node.right))
            dense = read is None or innermost.get(read[0]) == read[1]
            turned = other is not None and innermost.get(other[0]) == other[1]
            yield BlockMatmul(node.name, rows, columns, node.over, right.dtype, dense, turned)


def _matmuls_of_update(
    node: Map,
    state: State,
    given: dict[str, BlockType],
    scope: Scope,
    sources: Sources,
    innermost: Mapping[str, int | None],
) -> Iterator[BlockMatmul]:
    fed = update_types(state, infer(node.body, given, scope))
    names = zip(state.update.inputs[len(state.components) :], state.feeds, strict=True)
    own = {inner: sources[outer] for inner, outer in names if outer in sources}
    yield from _matmuls(state.update, fed, scope, own, innermost)


def seen(node: Map, feed: Feed, axes: Mapping[Axis, tuple[str, int]]) -> dict[Axis, tuple[str, int]]:
    """Tell where the axes of a fed value come from: the one that is iterated is the map's own inside."""
    over = None if isinstance(feed.access, Broadcast) else feed.access.over
    return {node.axis if a == over else a: origin for a, origin in axes.items()}


def origins_of(graph: Graph, sources: Sources) -> Iterator[tuple[Axis, tuple[str, int]]]:
    """Yield for each loop that goes along a dimension of an input its axis, and which dimension."""
    for node in graph.nodes:
        if isinstance(node, Map):
            fed = {f.inner: seen(node, f, sources[f.outer]) for f in node.inputs if f.outer in sources}
            for axes in fed.values():
                if node.axis in axes:
                    yield node.axis, axes[node.axis]
            yield from origins_of(node.body, fed)
