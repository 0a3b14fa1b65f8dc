"""Choosing a schedule: where the loops of a fused program run on a CPU, and in what steps.

The rule below was measured (docs/internals/cpu-schedules.md): it keeps a block matmul's accumulator and staged panel in the
second-level cache, gives every thread at least two blocks, and leaves operands where they are when there are too few rows to pay
for staging.
Tiles are a few powers of two, the same for all sizes of a class, so that a new length uses the binary that is there. Columns of a
matrix that few rows are multiplied by are equal parts of the first example's of a class instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from weft.block.check import body_types, infer
from weft.block.one_hot import one_hots
from weft.block.program import BlockProgram, BlockType, Collapse, Final, Graph, Map, Prefix
from weft.block.ranges import All
from weft.block.scope import Scope
from weft.block.walk import every, maps, operands, ranks, results, scans_apart
from weft.plan.targets.matmuls import BlockMatmul, Sources, dots, find_matmuls, is_product, origins_of, seen
from weft.plan.targets.one_hots import one_hot_tiles
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, begins_where, grid_maps, tied
from weft.tensor.axes import Axis
from weft.tensor.dtypes import DType

# Rows x columns of a block matmul that fill, and with the staged panel fit, a second-level cache of 1 MB or more.
_ROWS, _COLUMNS = 512, 128
# Its depth, by element type: in fp32 longer sums would round more than eager's do.
_DEPTH = {DType.bfloat16: 512, DType.float16: 512}
_OTHER_DEPTH = 256
# Columns of a block matmul that another matmul contracts: both blocks stay in the second-level cache.
_CHAINED = 512
# Rows of a block beside spans.
_BESIDE = 128
_GUARDED = 256  # columns of one that a mask may leave out: with fewer, what is done once for each row shows
_DIRECT_DEPTH = 4096
# With fewer rows than this, staging a panel costs more than it saves (by element type of the operands).
_FEW_ROWS = {DType.bfloat16: 2, DType.float16: 2}
_OTHER_FEW_ROWS = 8
_DIRECT_COLUMNS = 2048
# Columns of a block of those are a multiple of so many: lines of whole vectors.
_EVEN_COLUMNS = 64
# A column operand that lies dense along what is contracted is not staged for so few rows (a class of sizes ends there), nor for
# blocks that are so many times deeper than tall (by element type; other types have no such matmul).
_TURNED_ROWS = 64
_TURNED = {DType.float32: 4, DType.bfloat16: 16}
# Elements of a block of elementwise work, and of a row of it: a few pages, long enough rows for vector code.
_BLOCK, _ROW = 16384, 2048
# Rows that are gone over several times: of few, all passes but the first find them in the cache; and longer ones in longer blocks,
# streams of pages that follow each other. The least size, and the block.
_PASSED_ROWS = ((16384, 8192, 1), (4096, 4096, 4), (1, 2048, 4))
# Both sides of a block that lies along memory one way in one tensor, the other way in another.
_SQUARE = 128
# Rows that a sum down the columns adds up before it goes on to the next block: short chains of additions, as exact as eager's.
_SUMMED_ROWS = 16
# The same where a matmul sums over them, too: it wants deeper blocks.
_MULTIPLIED_ROWS = 64
# Elements of any block, at most: those of more than two dimensions would not fit in memory.
_MOST_IN_A_BLOCK = 1 << 22
# No loop over so few elements is worth being the innermost.
_FEW = 8
# Nor one over so many that are only reduced, where so many rows at a time can be: a block of them is copied transposed, a vector's
# lanes wide, and stays in the first-level cache.
_NARROW, _NARROW_ROWS, _NARROW_TILE = 48, 256, 16


def choose(
    program: BlockProgram,
    sizes: Mapping[str, int],
    innermost: Mapping[str, int | None],
    threads: int,
    cache_bytes: float = 2 << 20,
) -> Schedule:
    """Choose a schedule for `program` on a CPU.

    Args:
        program: fused, with canonical names.
        sizes: example sizes by space name; they pick the class.
        innermost: for each input, which of its dimensions has stride 1 (None: none, or not known).
        threads: how many will run the grid.
        cache_bytes: of one core's second-level cache; blocks of matmuls are made to fit it.
    """
    matmuls = tuple(find_matmuls(program, innermost))
    whole = frozenset(repeating(program.graph))
    tiles = _tiles(program, matmuls, sizes, innermost, threads, whole, cache_bytes)
    narrow = (
        frozenset[Axis]()
        if matmuls
        else _narrow(program, {m.axis: m.axis.space.size(sizes) for m in maps(program.graph)})
    )
    short = narrow | {m.axis for m in maps(program.graph) if max(tiles[m.axis], m.axis.space.size(sizes)) <= _FEW}
    down = frozenset(_summed_down(program.graph, dict(program.inputs), Scope({}, applied=False), short))
    multiplied = {p.over for p in matmuls}
    for axis in down:
        tiles[axis] = min(tiles[axis], _MULTIPLIED_ROWS if axis in multiplied else _SUMMED_ROWS)
    tiles |= one_hot_tiles(program, tiles, sizes, threads)
    for dims in _items(program.graph, dict(program.inputs), Scope({}, applied=False)):
        _fit([a for a in dims if a not in whole], tiles)
    _even_out(program, tiles)
    grid = set(grid_maps(program.graph))
    loops: list[tuple[str, LoopSchedule]] = []
    for node in maps(program.graph):
        place = LevelPlace.grid if node.name in grid else LevelPlace.loop
        levels = (Level(place, 1 if node.unit else tiles[node.axis]),)
        if node.axis in whole:
            levels = (Level(LevelPlace.whole),)
        # Blocks that lie wholly in a span have no mask to compute.
        peel = node.range.narrowed and levels[-1].place is LevelPlace.loop
        loops.append((node.name, LoopSchedule(levels, peel)))
    rows = frozenset(p.name for p in matmuls if not p.row_operand_dense)
    in_rows = {m.guard.rows for m in maps(program.graph) if m.guard is not None}
    turned = {p.name for p in matmuls if p.rows not in in_rows and _turned(p, sizes, tiles)}
    panels = frozenset(p.name for p in matmuls if not (_few_rows(p, sizes) or p.name in turned))
    sources = {name: {a: (name, d) for d, a in enumerate(kind.lists)} for name, kind in program.inputs}
    given, outside = dict(program.inputs), Scope({}, applied=False)
    transposed = frozenset(_lying_across(program.graph, given, outside, sources, innermost, short))
    return Schedule(tuple(loops), rows, panels, transposed)


def _summed_down(graph: Graph, inputs: dict[str, BlockType], scope: Scope, short: frozenset[Axis]) -> Iterator[Axis]:
    """Yield the axes along which items are combined element by element, not lane by lane: each block of them is one chain.

    An axis of `short` is never the innermost beside another.
    """
    types = infer(graph, inputs, scope)
    for node in graph.nodes:
        if isinstance(node, Map):
            yield from _summed_down(node.body, body_types(node, types), scope.inside(node), short)
        elif isinstance(node, Collapse):
            last = next((a for a in reversed(types[node.arg].dims) if a not in short), node.over)
            if last != node.over:
                yield node.over


def _lying_across(
    graph: Graph,
    inputs: dict[str, BlockType],
    scope: Scope,
    sources: Sources,
    innermost: Mapping[str, int | None],
    short: frozenset[Axis],
) -> Iterator[str]:
    """Yield items fed to bodies from inputs that lie in memory along one of `short`, if they have another axis: vectors
    would gather.
    """
    types = infer(graph, inputs, scope)
    for node in graph.nodes:
        if not isinstance(node, Map):
            continue
        given, inside = body_types(node, types), scope.inside(node)
        placed = one_hots(node.body, infer(node.body, given, inside))
        fed = {f.inner: seen(node, f, sources[f.outer]) for f in node.inputs if f.outer in sources}
        combined = (n for n in node.body.nodes if is_product(n) or (len(results(n)) > 1 and not isinstance(n, Map)))
        multiplied = {name for n in combined for name in operands(n)}
        for name, axes in fed.items():
            dims = given[name].dims
            along = [a for a in dims if a in axes and innermost.get(axes[a][0]) == axes[a][1]]
            blocks = not given[name].buffered and len(dims) == 2 and name not in multiplied and not placed
            if blocks and len(short.intersection(dims)) == 1 and short.issuperset(along) and along:
                yield name
        yield from _lying_across(node.body, given, inside, fed, innermost, short)


def _items(graph: Graph, inputs: dict[str, BlockType], scope: Scope) -> Iterator[tuple[Axis, ...]]:
    """Yield the axes of each block that is loaded or computed; of one that is all but the identity nothing is stored."""
    types = infer(graph, inputs, scope)
    alone = one_hots(graph, types)
    yield from (k.dims for name, k in types.items() if not k.buffered and len(k.dims) > 1 and name not in alone)
    for node in graph.nodes:
        if isinstance(node, Map):
            yield from _items(node.body, body_types(node, types), scope.inside(node))


def _fit(axes: Sequence[Axis], tiles: dict[Axis, int]) -> None:
    """Halve tiles of a block's `axes`, the outermost first, until the block has no more elements than one may have."""
    for axis in axes:
        while math.prod(tiles[a] for a in axes) > _MOST_IN_A_BLOCK and tiles[axis] > _FEW:
            tiles[axis] //= 2


def multiplies(node: Map) -> bool:
    """Tell whether there are block matmuls in `node`."""
    return next(dots(Graph((), (node,), ())), None) is not None


def is_plain_reduction(node: Map) -> bool:
    """Tell whether all that `node` leaves is its state."""
    stacks = any(not isinstance(o, Final) for o in node.outputs)
    state = node.state
    alone = state is not None and state.resume is None and not state.shown
    return alone and node.range == All() and not node.unit and not stacks


def in_segments(program: BlockProgram, schedule: Schedule, sizes: Mapping[str, int], threads: int) -> Schedule | None:
    """Cut loops with state into a segment for each thread, where the grid has not a block for each; else None.

    Their states are merged by a kernel more.
    """
    blocks = math.prod(
        math.ceil(node.axis.space.size(sizes) / level.size)
        for node in maps(program.graph)
        for level in schedule.of(node.name).levels
        if level.place is LevelPlace.grid
    )
    apart = {
        n.name
        for n in (*outer_reductions(program.graph), *scans_apart(program.graph))
        if _work(n, sizes) >= threads * _ROW
        and n.axis.space.size(sizes) >= threads * schedule.of(n.name).levels[-1].size
    }
    if blocks >= threads or not apart:
        return None
    loops = tuple(
        (name, replace(loop, levels=(Level(LevelPlace.split, threads), *loop.levels)) if name in apart else loop)
        for name, loop in schedule.loops
    )
    return replace(schedule, loops=loops)


def _work(node: Map, sizes: Mapping[str, int]) -> int:
    """Count the elements that the longest loops in `node`, and itself, go over."""
    return node.axis.space.size(sizes) * max((_work(m, sizes) for m in maps(node.body)), default=1)


def outer_reductions(graph: Graph) -> Iterator[Map]:
    """Yield the plain reductions that are in no loop with a state."""
    for node in graph.nodes:
        if isinstance(node, Map) and node.state is None:
            yield from outer_reductions(node.body)
        elif isinstance(node, Map) and is_plain_reduction(node):
            yield node


def off_the_grid(schedule: Schedule) -> Schedule:
    """Put `schedule` on one thread: one launch where each parallel loop was one, which pays where there is little to do."""

    def moved(level: Level) -> Level:
        return replace(level, place=LevelPlace.loop) if level.place is LevelPlace.grid else level

    loops = tuple((name, replace(loop, levels=tuple(map(moved, loop.levels)))) for name, loop in schedule.loops)
    return replace(schedule, loops=loops)


def repeating(graph: Graph) -> Iterator[Axis]:
    """Yield the axes of parallel maps that do a matmul again for each block, because it does not depend on the axis.

    One block that covers such an axis does the work once, as the paper's D = L = 1 for attention. The loop over a ranking has
    one block anyway.
    """
    yield from ranks(graph)
    for node in maps(graph):
        parallel = node.state is None and node.range == All()  # a first block is one, and the rest begins where it ends
        if parallel and not node.unit and any(node.axis not in d.dims for d in dots(node.body)):
            yield node.axis


def _few_rows(matmul: BlockMatmul, sizes: Mapping[str, int]) -> bool:
    rows = 1 if matmul.rows is None else matmul.rows.space.size(sizes)
    return matmul.columns is None or rows <= _FEW_ROWS.get(matmul.dtype, _OTHER_FEW_ROWS)


def _turned(matmul: BlockMatmul, sizes: Mapping[str, int], tiles: Mapping[Axis, int]) -> bool:
    """Tell whether to copy the block's rows and result pays better than to copy its column operand."""
    if matmul.rows is None or matmul.columns is None or not matmul.column_operand_dense:
        return False
    if matmul.dtype not in _TURNED:
        return False
    rows, depth = (axis.space.size(sizes) for axis in (matmul.rows, matmul.over))
    tall = tiles[matmul.rows] * _TURNED[matmul.dtype] > tiles[matmul.over] or depth < tiles[matmul.over]
    return rows <= _TURNED_ROWS or not tall


def _tiles(
    program: BlockProgram,
    matmuls: tuple[BlockMatmul, ...],
    sizes: Mapping[str, int],
    innermost: Mapping[str, int | None],
    threads: int,
    whole: frozenset[Axis],
    cache_bytes: float,
) -> dict[Axis, int]:
    """Choose the elements per iteration of each loop."""
    extent = {m.axis: m.axis.space.size(sizes) for m in maps(program.graph)}
    on_grid = set(grid_maps(program.graph))
    grid = [m.axis for m in maps(program.graph) if m.name in on_grid]
    if not matmuls:
        narrow = _narrow(program, extent)
        long = _along_memory(program, {a: min(n, _FEW) if a in narrow else n for a, n in extent.items()}, innermost)
        if narrow:
            return {a: _NARROW_TILE if a in narrow else _NARROW_ROWS if a in long else 1 for a in extent}
        return _elementwise_tiles(program, extent, grid, threads, long)
    direct = all(_few_rows(p, sizes) for p in matmuls)
    sixteen_bit = all(p.dtype in _DEPTH for p in matmuls)
    rows = [p.rows for p in matmuls if p.rows is not None]
    columns = [p.columns for p in matmuls if p.columns is not None and p.columns not in rows]
    summed = {p.over for p in matmuls}
    chained = [a for a in columns if a in summed]
    tiles = {axis: _FEW if size <= _FEW else _ROW for axis, size in extent.items()}
    for matmul in matmuls:
        tiles[matmul.over] = _DIRECT_DEPTH if direct else _DEPTH.get(matmul.dtype, _OTHER_DEPTH)
    most = _most_rows(extent, whole, chained, cache_bytes)
    for axis in rows:
        tiles[axis] = next((t for t in (8, 64) if extent[axis] <= t), most)
    beside = {axis for m in maps(program.graph) for axis in m.range.beside}
    guarded = {m.axis for m in maps(program.graph) if m.guard is not None}
    cut = any(m.guard is not None and m.guard.rows is None for m in maps(program.graph))
    for axis in (
        rows
    ):  # half of a block that a span's end crosses is work for nothing; so is what a mask leaves of one, but by rows
        tiles[axis] = min(tiles[axis], _BESIDE) if axis in beside or cut else tiles[axis]
    for axis in columns:
        wide = sixteen_bit and extent[axis] >= 8 * _COLUMNS * threads
        held = _GUARDED if axis in guarded else _CHAINED
        tiles[axis] = _DIRECT_COLUMNS if direct else held if axis in chained else _COLUMNS * (2 if wide else 1)
    halved = [a for a in dict.fromkeys((*columns, *rows)) if a in grid and a not in whole]
    alone = math.prod(extent[m.axis] for m in maps(program.graph) if m.unit and m.name in on_grid)
    if direct:
        for axis in set(halved).intersection(columns):
            tiles[axis] = _even_columns(extent[axis], math.ceil(threads / max(1, alone)))
        return tiles
    # Where the columns are a loop, a second block for each thread would stage every panel once more.
    wanted = 2 * threads if any(a in grid for a in columns) else threads
    _enough_blocks(tiles, extent, halved, math.ceil(wanted / max(1, alone)))
    return tiles


def _even_columns(size: int, threads: int) -> int:
    """Divide `size` columns of a matrix that is read once into as few equal parts for each thread as blocks allow.

    Halves of a tile would leave a thread that has one block more than another, and short stretches of each row to read.
    """
    rounds = max(1, math.ceil(size / (threads * _DIRECT_COLUMNS)))
    return max(1, math.ceil(size / (threads * rounds * _EVEN_COLUMNS))) * _EVEN_COLUMNS


def _most_rows(extent: Mapping[Axis, int], whole: frozenset[Axis], chained: Sequence[Axis], cache_bytes: float) -> int:
    """Choose how many rows a block takes: what it holds for each row, in fp32, has a quarter of the second-level cache."""
    held = max((extent[a] for a in whole), default=0)
    held = max(held, _CHAINED if chained else 0, _COLUMNS)
    rows = _ROWS
    while rows > 32 and rows * held * 4 > cache_bytes / 4:
        rows //= 2
    return rows


def _even_out(program: BlockProgram, tiles: dict[Axis, int]) -> None:
    """Give loops that go by the same blocks the tile of the least of them."""
    pairs = [*tied(program), *begins_where(program).items()]
    for _ in pairs:  # as often as a chain of pairs is long
        for one, other in pairs:
            tiles[one] = tiles[other] = min(tiles[one], tiles[other])


def _enough_blocks(tiles: dict[Axis, int], extent: Mapping[Axis, int], axes: list[Axis], wanted: int) -> None:
    """Halve the tiles of the grid's `axes`, columns first, down to 64, until there are `wanted` blocks."""

    def blocks() -> int:
        return math.prod(math.ceil(extent[axis] / tiles[axis]) for axis in axes)

    for axis in axes:
        while blocks() < wanted and tiles[axis] > 64:
            tiles[axis] //= 2


def _elementwise_tiles(
    program: BlockProgram, extent: Mapping[Axis, int], grid: list[Axis], threads: int, long: frozenset[Axis]
) -> dict[Axis, int]:
    """Choose long rows of the loops along memory, and as many of them as make a block, but two blocks for each thread."""
    # Rows with loops inside are blocks as on the grid: what one loop reads of them, the next finds in the cache.
    summed = {m.axis for m in maps(program.graph) if m.state is not None and not list(maps(m.body))}
    square = any(outer in long and inner in long for outer, inner in _nested(program.graph))
    longest = max((extent[a] for a in long if a not in grid), default=0)
    row, rows = next(((row, rows) for least, row, rows in _PASSED_ROWS if longest >= least), (_ROW, _BLOCK // _ROW))
    tiles: dict[Axis, int] = {}
    for axis, size in extent.items():
        tiles[axis] = rows
        if axis in long:
            tiles[axis] = _BLOCK if axis in grid and len(extent) == 1 else _SQUARE if square else row
        elif axis in summed and size > _FEW:
            tiles[axis] = _SUMMED_ROWS
    for axis in sorted(dict.fromkeys(grid), key=lambda a: tiles[a]):  # rows first: they stay long
        if math.prod(math.ceil(extent[a] / tiles[a]) for a in grid) < 2 * threads:
            tiles[axis] = max(1, tiles[axis] // 16)
    return tiles


def _narrow(program: BlockProgram, extent: Mapping[Axis, int]) -> frozenset[Axis]:
    """Find the axes of rows of few elements that are only reduced, where there are enough rows on a grid of one axis.

    What keeps the order of elements, a ranking or a scan, goes along a row.
    """
    loops, on_grid = list(maps(program.graph)), set(grid_maps(program.graph))
    grid = [m.axis for m in loops if m.name in on_grid]
    # A ranking has two results, values and places.
    ordered = (
        isinstance(n, Prefix) or (len(results(n)) > 1 and not isinstance(n, Map)) for n in every(program.graph.nodes)
    )
    along = any(ordered)
    if along or len(grid) != 1 or extent[grid[0]] < _NARROW_ROWS:
        return frozenset()
    kept = {m.axis.space for m in loops if not is_plain_reduction(m) or multiplies(m)}
    inner = {m.axis for m in loops if m.axis not in grid}
    found = {a for a in inner if _FEW < extent[a] <= _NARROW and a.space not in kept}
    return frozenset(found) if found == inner else frozenset()


def _nested(graph: Graph) -> Iterator[tuple[Axis, Axis]]:
    """Yield pairs of axes of which one is looped over inside the other."""
    for node in maps(graph):
        yield from ((node.axis, inner.axis) for inner in maps(node.body))


def _along_memory(
    program: BlockProgram, extent: Mapping[Axis, int], innermost: Mapping[str, int | None]
) -> frozenset[Axis]:
    """Find the axes along which large tensors lie in memory, short ones left out: of points in space the axis over points."""
    inputs = {name: kind.lists for name, kind in program.inputs}
    sources = {name: {a: (name, d) for d, a in enumerate(lists)} for name, lists in inputs.items()}
    origins = list(origins_of(program.graph, sources))
    lengths = {origin: extent[axis] for axis, origin in origins}
    tensors: list[tuple[int, list[frozenset[Axis]]]] = []  # elements, and the axes of each dimension, innermost first
    for name, lists in inputs.items():
        order = inwards(len(lists), innermost.get(name))
        axes = [frozenset(axis for axis, origin in origins if origin == (name, d)) for d in order]
        tensors.append((math.prod(lengths.get((name, d), 1) for d in order), axes))
    for lists in program.output_axes:
        known = [a for a in lists if a in extent]
        tensors.append((math.prod(extent[a] for a in known), [frozenset((a,)) for a in reversed(known)]))
    most = max((count for count, _ in tensors), default=0)
    found: set[Axis] = set()
    for count, dims in tensors:
        if count * 4 >= most:
            found |= next((axes for axes in dims if any(extent[a] > _FEW for a in axes)), frozenset[Axis]())
    spaces = {a.space for a in found}  # loops over lists between loops go as those over the tensors do
    return frozenset(
        m.axis for m in maps(program.graph) if (m.axis.space in spaces if spaces else not list(maps(m.body)))
    )


def inwards(rank: int, last: int | None) -> list[int]:
    """List dimensions from the innermost outwards: the one of stride 1 first, where it is known."""
    order = list(reversed(range(rank)))
    return order if last is None else [last, *(d for d in order if d != last)]
