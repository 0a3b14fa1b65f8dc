"""Choosing a schedule: where the loops of a fused program run on a CPU, and in what steps.

The rule below was measured (docs/cpu-schedules.md): it keeps a block product's accumulator and staged panel in the second-level
cache, gives every thread at least two blocks, and leaves operands where they are when there are too few rows to pay for staging.
Tiles are powers of two of the example sizes' magnitude, so that a new length within a class uses the binary that is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft.block.check import Scope, body_types, infer
from weft.block.program import BlockProgram, BlockType, Broadcast, Dot, Feed, Graph, Map, maps
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, grid_maps
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType

# Rows x columns x depth of a block product that fill, and fit, a second-level cache of 1 MB or more.
_ROWS, _COLUMNS, _DEPTH = 512, 128, 512
# With fewer rows than this, staging a panel costs more than it saves (by element type of the operands).
_FEW_ROWS = {DType.float32: 8, DType.bfloat16: 2, DType.float16: 2}
_DIRECT_COLUMNS = 2048
# Elements of a block of elementwise work, and of a row of it: a few pages, long enough rows for vector code.
_BLOCK, _ROW = 16384, 2048


@dataclass(frozen=True, slots=True)
class Product:
    """A block product of a fused program, by the axes of the loops around it."""

    name: str
    rows: Axis | None
    columns: Axis | None
    over: Axis
    dtype: DType
    row_operand_dense: bool


def choose(
    program: BlockProgram, sizes: Mapping[str, int], innermost: Mapping[str, int | None], threads: int
) -> Schedule:
    """A schedule for `program` on a CPU.

    Args:
        program: fused, with canonical names.
        sizes: example sizes by space name; only their magnitude matters.
        innermost: for each input, which of its dimensions has stride 1 (None: none, or not known).
        threads: how many will run the grid.
    """
    products = tuple(find_products(program, innermost))
    tiles = _tiles(program, products, sizes, threads)
    grid = set(grid_maps(program.graph))
    loops: list[tuple[str, LoopSchedule]] = []
    for node in maps(program.graph):
        place = LevelPlace.grid if node.name in grid else LevelPlace.loop
        size = 1 if node.unit else tiles[node.axis]
        loops.append((node.name, LoopSchedule((Level(place, size),))))
    rows = frozenset(p.name for p in products if not p.row_operand_dense)
    panels = frozenset(p.name for p in products if not _few_rows(p, sizes))
    return Schedule(tuple(loops), rows, panels)


def magnitude(size: int) -> int:
    """The class of a size: the least power of two that is not below it."""
    return 1 << max(0, size - 1).bit_length()


def find_products(program: BlockProgram, innermost: Mapping[str, int | None]) -> Iterator[Product]:
    """Every block product of `program`, with what is known of how its operands lie in memory."""
    sources = {name: {a: (name, d) for d, a in enumerate(kind.lists)} for name, kind in program.inputs}
    yield from _products(program.graph, dict(program.inputs), Scope({}, applied=False), sources, innermost)


# For each value that is (part of) an input: the input's name and axis that each of its axes comes from.
_Sources = Mapping[str, Mapping[Axis, tuple[str, int]]]


def _products(
    graph: Graph, inputs: dict[str, BlockType], scope: Scope, sources: _Sources, innermost: Mapping[str, int | None]
) -> Iterator[Product]:
    types = infer(graph, inputs, scope)
    for node in graph.nodes:
        if isinstance(node, Map):
            inner = {f.inner: _seen(node, f, sources[f.outer]) for f in node.inputs if f.outer in sources}
            yield from _products(node.body, body_types(node, types), scope.inside(node), inner, innermost)
        elif isinstance(node, Dot):
            left, right = types[node.left], types[node.right]
            rows = next((a for a in left.dims if a != node.over), None)
            columns = next((a for a in right.dims if a != node.over), None)
            source = sources.get(node.left, {}).get(node.over)
            dense = source is None or innermost.get(source[0]) == source[1]
            yield Product(node.name, rows, columns, node.over, right.dtype, dense)


def _seen(node: Map, feed: Feed, axes: Mapping[Axis, tuple[str, int]]) -> dict[Axis, tuple[str, int]]:
    """Where the axes of a fed value come from: the one that is iterated is the map's own inside."""
    over = None if isinstance(feed.access, Broadcast) else feed.access.over
    return {node.axis if a == over else a: origin for a, origin in axes.items()}


def _few_rows(product: Product, sizes: Mapping[str, int]) -> bool:
    rows = 1 if product.rows is None else product.rows.space.size(sizes)
    return product.columns is None or magnitude(rows) <= _FEW_ROWS.get(product.dtype, 1)


def _tiles(
    program: BlockProgram, products: tuple[Product, ...], sizes: Mapping[str, int], threads: int
) -> dict[Axis, int]:
    """Elements per iteration of each loop."""
    extent = {m.axis: magnitude(m.axis.space.size(sizes)) for m in maps(program.graph)}
    if not products:
        return _elementwise_tiles(program, extent, threads)
    direct = all(_few_rows(p, sizes) for p in products)
    tiles = {axis: min(size, _ROW) for axis, size in extent.items()}
    rows = {p.rows for p in products if p.rows is not None}
    columns = {p.columns for p in products if p.columns is not None}
    for product in products:
        tiles[product.over] = min(extent[product.over], 4 * _DEPTH if direct else _DEPTH)
    for axis in rows:
        tiles[axis] = min(extent[axis], _ROWS)
    wide = 2 * _COLUMNS if all(p.dtype is not DType.float32 for p in products) else _COLUMNS
    for axis in columns - rows:
        staged = wide if extent[axis] >= 8 * _COLUMNS * threads else _COLUMNS
        tiles[axis] = min(extent[axis], _DIRECT_COLUMNS if direct else staged)
    on_grid = {m.axis for m in maps(program.graph) if m.name in set(grid_maps(program.graph))}
    _enough_blocks(tiles, extent, [*(columns & on_grid), *(rows & on_grid)], threads)
    return tiles


def _enough_blocks(tiles: dict[Axis, int], extent: Mapping[Axis, int], axes: list[Axis], threads: int) -> None:
    """Halve the tiles of the grid's `axes`, columns first, down to 64, until each thread has two blocks."""

    def blocks() -> int:
        count = 1
        for axis in axes:
            count *= -(-extent[axis] // tiles[axis])
        return count

    for axis in axes:
        while blocks() < 2 * threads and tiles[axis] > 64:
            tiles[axis] //= 2


def _elementwise_tiles(program: BlockProgram, extent: Mapping[Axis, int], threads: int) -> dict[Axis, int]:
    """Long rows of the innermost loops, and as many of them as make a block, but two blocks for each thread."""
    inner = {m.axis for m in maps(program.graph) if not any(isinstance(n, Map) for n in m.body.nodes)}
    tiles = {axis: min(size, _ROW) for axis, size in extent.items()}
    for node in maps(program.graph):
        if node.axis not in inner:
            each = _BLOCK // max((tiles[a] for a in inner), default=1)
            tiles[node.axis] = max(1, min(each, extent[node.axis] // (2 * threads)))
        elif node.state is None and node.name in set(grid_maps(program.graph)) and len(extent) == 1:
            tiles[node.axis] = max(1, min(_BLOCK, extent[node.axis] // (2 * threads)))
    return tiles
