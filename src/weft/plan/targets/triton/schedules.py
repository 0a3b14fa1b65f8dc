"""Schedules for a GPU: the blocks that a fused program can go by, in how many segments, with how many warps and stages.

A loop's part follows from what it is in the program alone: rows or columns of block matmuls, what they sum over, rows and lanes of
work without matmuls, what must lie on chip as a whole. `Blocks` gives every part a size; a schedule is made of the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum, auto

from weft.block.program import BlockNode, BlockProgram, Broadcast, Dot, Final, Graph, Map, Stacked
from weft.block.room import power_of_two
from weft.block.walk import maps, operands, ranks, results, scans_apart
from weft.cost import Gpu
from weft.emit.triton import GRANULARITY
from weft.plan.targets.choose import is_plain_reduction, multiplies, repeating
from weft.plan.targets.matmuls import find_matmuls
from weft.plan.targets.triton.masks import told_beforehand
from weft.plan.targets.triton.tiles import along_memory, nests, shared_out
from weft.schedule import (
    Level,
    LevelPlace,
    LoopSchedule,
    Schedule,
    begins_where,
    grid_maps,
    merged_in_each,
    merging_together,
    tied,
)
from weft.tensor.axes import Axis, Space
from weft.tensor.dtypes import DType

# The most elements of a row that registers hold as a whole, of one that other loops read again, and of what matmuls sum over.
LONGEST_ROW, _LONGEST_KEPT, _LONGEST_DEPTH = 16384, 16384, 256
# Iterations whose corrected sums are added up one after the other: of more, the sums of so many are added up.
_CHAIN = 64
# Elements of the smallest block of work without matmuls: a loop that has no more is gone through once.
SHORT_LANES = 1024
# Of a kernel that merges segments one by one: elements of a thread block. Of one that merges them together: those of all the
# parts that it holds at once, and of each warp. More thread blocks than this wait for one another.
_MERGED, _TOGETHER, _OF_A_WARP, _RESIDENT = 256, 8192, 4096, 1024


class LoopRole(Enum):
    """What a loop is in its program."""

    unit = auto()
    whole = auto()
    rows = auto()
    columns = auto()
    depth = auto()
    few = auto()
    lanes = auto()


@dataclass(frozen=True, slots=True)
class Blocks:
    """A size for every part.

    Attributes:
        rows, columns, depth: of block matmuls.
        few, lanes: of work without matmuls: rows, and elements of each; 0 lanes: whole rows where registers hold them.
        tile: of work without matmuls, in place of `few` and `lanes`: elements that nested loops share
            (`weft.plan.targets.triton.tiles`).
        along: the most of these along memory; 0: as many as there are.
        across: what is left goes to loops that are reduced over first; else to those that lie next in memory.
        segments: of loops with state that no other such loop holds block by block; 1: they are not split.
        warps, stages: of every thread block.
    """

    rows: int = 64
    columns: int = 64
    depth: int = 64
    few: int = 1
    lanes: int = 0
    tile: int = 0
    along: int = 0
    across: bool = False
    segments: int = 1
    warps: int = 4
    stages: int = 2

    @property
    def elements(self) -> int:
        """Returns the product of all sizes: no other blocks of a program with as many segments are smaller in all of them."""
        return self.rows * self.columns * self.depth * self.few * (self.lanes or LONGEST_ROW) * max(1, self.tile)

    def of(self, part: LoopRole) -> int:
        """Returns the elements of a block of a loop of this part."""
        sizes = {
            LoopRole.rows: self.rows,
            LoopRole.columns: self.columns,
            LoopRole.depth: self.depth,
            LoopRole.few: self.few,
        }
        return sizes.get(part, self.lanes or LONGEST_ROW if part is LoopRole.lanes else 1)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a program's loops.

    Attributes:
        of: by the loop's name.
        matmuls: whether there are block matmuls; `dtype`: the widest of what they multiply.
        split: the loops that can be cut in segments; `whole_parts`: those with a state of which many parts are merged at once.
        nested: there is a nest of other loops than a few rows and the lanes of each, which share the elements of a block.
        pairs: axes of loops that go by the same blocks; `tied`: all of them.
        along: loops in the order in which they lie in memory, as `weft.plan.targets.triton.tiles` has them.
    """

    of: Mapping[str, LoopRole]
    matmuls: bool
    dtype: DType
    split: frozenset[str]
    whole_parts: frozenset[str]
    nested: bool
    pairs: tuple[tuple[Axis, Axis], ...]
    along: Mapping[str, int]

    @property
    def tied(self) -> frozenset[Axis]:
        """Axes of loops that go by the same blocks as others."""
        return frozenset(axis for pair in self.pairs for axis in pair)


def parts(program: BlockProgram, sizes: Mapping[str, int], innermost: Mapping[str, int | None]) -> Parts:
    """Finds out what part each loop of `program`, fused and with canonical names, plays."""
    matmuls = tuple(find_matmuls(program, innermost))
    whole = frozenset((*repeating(program.graph), *ranks(program.graph), *_kept_on_chip(program.graph, {})))
    rows = {p.rows for p in matmuls if p.rows is not None}
    columns = {p.columns for p in matmuls if p.columns is not None} - rows
    summed = {p.over for p in matmuls}
    grid = set(grid_maps(program.graph))
    found: dict[str, LoopRole] = {}
    for node, inside in _nested(program.graph):
        length = node.axis.space.size(sizes)
        if node.unit:
            part = LoopRole.unit
        elif node.axis in whole and length <= _LONGEST_KEPT:
            part = LoopRole.whole
        elif node.state is not None:
            if node.axis in summed or (matmuls and any(m.axis in summed for m in maps(node.body))):
                part = LoopRole.whole if inside and length <= _LONGEST_DEPTH else LoopRole.depth
            else:
                part = LoopRole.lanes
        elif node.axis in rows and node.name in grid:
            part = LoopRole.rows
        elif node.axis in columns or node.axis in rows:
            part = LoopRole.columns if node.name in grid else LoopRole.whole
        elif node.name in grid:
            part = LoopRole.lanes if _is_innermost(node) else LoopRole.few
        else:
            part = LoopRole.lanes
        found[node.name] = part
    pairs = (*tied(program), *begins_where(program).items())
    _tie(program, found, pairs)
    order = (DType.float32, DType.bfloat16, DType.float16)
    dtype = next((d for d in order if any(p.dtype is d for p in matmuls)), matmuls[0].dtype if matmuls else order[0])
    once = {
        m.name
        for m in maps(program.graph)
        if found[m.name] is LoopRole.whole
        or (found[m.name] is LoopRole.lanes and m.axis.space.size(sizes) <= SHORT_LANES)
    }
    split = frozenset(n.name for n in _apart(program.graph, once, sizes) if found[n.name] is not LoopRole.whole)
    multiplied = any(p.rows is not None and p.columns is not None for p in matmuls)
    along = along_memory(program, sizes, innermost)
    nested = not matmuls and any(_is_nested(found, along, nest) for nest in nests(program.graph))
    states = ((m.name, m.state, m.axis) for m in maps(program.graph) if found[m.name] is not LoopRole.whole)
    together = frozenset(name for name, state, axis in states if state is not None and merging_together(state, axis))
    return Parts(found, multiplied, dtype, split, together, nested, pairs, along)


def _is_nested(found: Mapping[str, LoopRole], along: Mapping[str, int], nest: Sequence[str]) -> bool:
    """Tells whether a nest is more than a few rows and the lanes of each, which lie along memory."""
    own = [name for name in nest if found[name] is not LoopRole.unit]
    lanes = [name for name in own if found[name] is LoopRole.lanes]
    across = any(along[name] == 0 for name in own) and any(along[name] > 0 for name in lanes)
    return len(own) > 2 or len(lanes) > 1 or across


def _apart(graph: Graph, once: Set[str], sizes: Mapping[str, int]) -> Iterator[Map]:
    """Yields the loops of a program's `graph` that can be cut in segments."""
    yield from _splittable(graph, once, sizes)
    yield from scans_apart(graph, inside=True)


def _splittable(graph: Graph, once: Set[str], sizes: Mapping[str, int]) -> Iterator[Map]:
    """Yields the plain reductions, in no loop with a state but those that go `once`, that hold no longer ones.

    A loop that reads results of one of them is left out: it is in one kernel with the first one's merge.
    """
    later = set[str]()
    for node in graph.nodes:
        cut = () if not later.isdisjoint(operands(node)) else tuple(_splittable_in(node, once, sizes))
        if cut or not later.isdisjoint(operands(node)):
            later.update(results(node))
        yield from cut


def _splittable_in(node: BlockNode, once: Set[str], sizes: Mapping[str, int]) -> Iterator[Map]:
    if isinstance(node, Map):
        inside = tuple(_splittable(node.body, once, sizes)) if node.state is None or node.name in once else ()
        least = 0 if node.state is None else node.axis.space.size(sizes)
        if any(n.axis.space.size(sizes) > least for n in inside):
            yield from inside
        elif is_plain_reduction(node):
            yield node


def _is_innermost(node: Map) -> bool:
    return next(iter(maps(node.body)), None) is None


def _nested(graph: Graph, *, inside: bool = False) -> Iterator[tuple[Map, bool]]:
    """Yields every loop, and whether it is in one with a state."""
    for node in graph.nodes:
        if isinstance(node, Map):
            yield node, inside
            yield from _nested(node.body, inside=inside or node.state is not None)


def _kept_on_chip(graph: Graph, lists: dict[str, frozenset[Axis]], *, top: bool = True) -> Iterator[Axis]:
    """Yields the axes of lists that one loop of a thread block makes and another goes over: registers hold them
    as a whole.

    `lists` says of values of `graph` which axes of them such loops have stacked; those made in `graph` are added.
    """
    for node in graph.nodes:
        if not isinstance(node, Map):
            continue
        inside: dict[str, frozenset[Axis]] = {}
        for feed in node.inputs:
            axes = lists.get(feed.outer, frozenset[Axis]())
            over = None if isinstance(feed.access, Broadcast) else feed.access.over
            if over in axes:
                yield from (over, node.axis)
            inside[feed.inner] = axes - {over}
        yield from _kept_on_chip(node.body, inside, top=False)
        for output in node.outputs:
            if not top and not isinstance(output, Final):
                own = {node.axis} if isinstance(output, Stacked) else set[Axis]()
                lists[output.outer] = inside.get(output.inner, frozenset[Axis]()) | own


def _tie(program: BlockProgram, found: dict[str, LoopRole], pairs: Sequence[tuple[Axis, Axis]]) -> None:
    """Gives loops that go by the same blocks, by `pairs` of axes, the same part."""
    names = {m.axis: m.name for m in maps(program.graph)}
    for _ in pairs:
        for one, other in pairs:
            first, second = names[one], names[other]
            if LoopRole.whole in (found[first], found[second]):
                found[first] = found[second] = LoopRole.whole
            else:
                found[second] = found[first]


def schedule(program: BlockProgram, known: Parts, blocks: Blocks, sizes: Mapping[str, int]) -> Schedule:
    """Makes the schedule that gives the loops of `program` the sizes of `blocks`."""
    grid = set(grid_maps(program.graph))
    loops: list[tuple[str, LoopSchedule]] = []
    tiles = _tiles(program, known, blocks, sizes)
    cut = _cut(program, known, blocks, sizes)
    for node in maps(program.graph):
        part, length = known.of[node.name], node.axis.space.size(sizes)
        place = LevelPlace.grid if node.name in grid else LevelPlace.loop
        size = tiles[node.name]
        levels = (Level(place, 1 if part is LoopRole.unit else size),)
        shared = bool(blocks.tile) or part is LoopRole.lanes
        on_chip = shared and part is not LoopRole.unit and place is LevelPlace.loop and length <= size
        if part is LoopRole.whole or on_chip:
            levels = (Level(LevelPlace.whole),)
        elif part is not LoopRole.unit and place is LevelPlace.grid:
            levels = (Level(place, min(size, power_of_two(length))),)
        if blocks.segments > 1 and node.name in cut and length >= (2 if _is_innermost(node) else 1) * blocks.segments:
            levels = (
                Level(LevelPlace.split, blocks.segments),
                *_of_segment(known, node, levels, length, blocks),
            )
        if known.of[node.name] is LoopRole.lanes and _corrects(node) and levels[-1].place is LevelPlace.loop:
            split, last = levels[:-1], levels[-1]
            share = math.ceil(length / split[0].size) if split else length
            levels = (*split, *_in_chains(last, share))
        peel = node.range.narrowed and levels[-1].place is LevelPlace.loop
        loops.append((node.name, LoopSchedule(levels, peel)))
    made = told_beforehand(program, Schedule(tuple(loops), warps=blocks.warps, stages=blocks.stages), sizes)
    return _merging(program, known, made, cut, sizes) if blocks.segments > 1 and cut else made


def _corrects(node: Map) -> bool:
    """Tells whether what `node` leaves is one chain of additions for each row, corrected on the way.

    Plain sums are not: of these each thread adds up its own, and the threads' are added up at the end.
    """
    return is_plain_reduction(node) and not multiplies(node) and node.state is not None and node.state.monoids is None


def _in_chains(level: Level, length: int) -> tuple[Level, ...]:
    """Put loops around `level` of a loop over `length` elements, so that what `_CHAIN` iterations add up is added up as one."""
    levels, least = (level,), _CHAIN * level.size
    while length > least:
        levels = (Level(LevelPlace.loop, least), *levels)
        least *= _CHAIN
    return levels


def _tiles(program: BlockProgram, known: Parts, blocks: Blocks, sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns the elements of a block of each loop, by name."""
    if not blocks.tile:
        return {m.name: blocks.of(known.of[m.name]) for m in maps(program.graph)}
    whole = [name for name, part in known.of.items() if part is LoopRole.whole]
    lengths = {m.name: m.axis.space.size(sizes) for m in maps(program.graph)}
    reduced = {m.axis.space for m in maps(program.graph) if m.state is not None} if blocks.across else set[Space]()
    spaces = {m.name: m.axis.space for m in maps(program.graph)}
    order = sorted(known.along, key=lambda n: (known.along[n] > 0, spaces[n] not in reduced, known.along[n]))
    nearest = [name for name in order if known.along[name] == 0]
    most = dict.fromkeys(nearest, blocks.along) if blocks.along else {}
    tiles = shared_out(program, order, whole, known.pairs, lengths, blocks.tile, most)
    if blocks.segments > 1:  # what a loop that is cut leaves of a block, others have
        cut = _cut_by(program, known, tiles, sizes)
        shorter = {n: math.ceil(size / blocks.segments) if n in cut else size for n, size in lengths.items()}
        tiles = shared_out(program, order, whole, known.pairs, shorter, blocks.tile, most)
    return tiles


def _cut(program: BlockProgram, known: Parts, blocks: Blocks, sizes: Mapping[str, int]) -> frozenset[str]:
    """Finds the loops that `blocks` cuts in segments, where they are long enough."""
    if not blocks.tile:
        return known.split
    return _cut_by(program, known, _tiles(program, known, replace(blocks, segments=1), sizes), sizes)


def _cut_by(program: BlockProgram, known: Parts, tiles: Mapping[str, int], sizes: Mapping[str, int]) -> frozenset[str]:
    """Finds the loops that are cut in segments, where loops go by `tiles`."""
    once = {m.name for m in maps(program.graph) if not m.unit and m.axis.space.size(sizes) <= tiles[m.name]}
    found = _apart(program.graph, once, sizes)
    return frozenset(n.name for n in found if known.of[n.name] is not LoopRole.whole)


def _of_segment(known: Parts, node: Map, levels: tuple[Level, ...], length: int, blocks: Blocks) -> tuple[Level, ...]:
    """Shortens `levels` of a loop of `length` elements that is cut in segments: no block is longer than one of these."""
    if node.axis in known.tied or not (blocks.tile or known.of[node.name] in (LoopRole.lanes, LoopRole.depth)):
        return levels
    least = GRANULARITY.matmul if known.matmuls else 1
    share = max(least, power_of_two(math.ceil(length / blocks.segments)))
    return tuple(
        Level(LevelPlace.loop, share if level.place is LevelPlace.whole else min(level.size, share)) for level in levels
    )


def _merging(
    program: BlockProgram, known: Parts, wanted: Schedule, names: Set[str], sizes: Mapping[str, int]
) -> Schedule:
    """Gives `wanted` blocks, parts at once and warps for the kernels that merge segments of the loops `names`.

    They wait for memory and do little else. Few thread blocks take all parts at once, each for one row, so that there is one wait;
    more than the machine holds, and those whose state is plain sums, go by a few rows and one part after the other: their
    loads are in flight together anyway, and elements that change their threads would cost more. A merge that is followed by
    matmuls in one kernel has the matmuls' blocks.

    Each segment of a scan merges all parts before it by itself, if it can, for as many rows as it goes over: reading a few hundred
    numbers, which lie in the second-level cache, takes less time than one more launch, in which the rest of the GPU waits.
    """
    rows = {name for name, _ in wanted.loops if known.of[name] in (LoopRole.rows, LoopRole.few, LoopRole.unit)}
    block, whole = dict[Axis, int](), dict[Axis, int]()
    programs = 1
    for node in maps(program.graph):
        level = wanted.of(node.name).levels[-1]
        length = node.axis.space.size(sizes)
        whole[node.axis] = size = power_of_two(length) if level.place is LevelPlace.whole else level.size
        on_grid = level.place is LevelPlace.grid
        block[node.axis] = 1 if on_grid and node.name in rows else size
        programs *= math.ceil(length / block[node.axis]) if on_grid else 1
    cut = [n for n in maps(program.graph) if n.name in names and n.state is not None]
    states = [n.state for n in cut if n.state is not None]
    count = next((v.size for _, loop in wanted.loops for v in loop.levels if v.place is LevelPlace.split), 1)
    if count == 1 or _multiplies(program.graph, names):
        return wanted
    elements, own = (
        max(math.prod(of[a] for a in c.dims) for s in states for c in s.components) for of in (block, whole)
    )
    before = min(power_of_two(count), _TOGETHER // own)
    if before > 1 and all(map(merged_in_each, cut)):
        return replace(wanted, together=before)
    together = min(power_of_two(count), _TOGETHER // elements)
    moving = all(n.name in known.whole_parts for n in cut)
    if programs > _RESIDENT or together < 2 or not moving or all(s.shown or s.monoids is not None for s in states):
        return replace(wanted, merging=_rows_of(wanted, rows, max(1, _MERGED // elements)))
    warps = max(1, together * elements // _OF_A_WARP)
    return replace(wanted, merging=_rows_of(wanted, rows, 1), together=together, merging_warps=warps)


def _multiplies(graph: Graph, cut: Set[str]) -> bool:
    """Tells whether there are matmuls outside the loops `cut`."""
    inner = (n.body for n in graph.nodes if isinstance(n, Map) and n.name not in cut)
    return any(isinstance(n, Dot) for n in graph.nodes) or any(_multiplies(body, cut) for body in inner)


def _rows_of(wanted: Schedule, rows: Set[str], most: int) -> tuple[tuple[str, int], ...]:
    """Returns those of the loops `rows` that `wanted` has on the grid by larger blocks than `most` elements, with as many."""
    return tuple(
        (name, most)
        for name, loop in wanted.loops
        if name in rows and loop.levels[-1].place is LevelPlace.grid and loop.levels[-1].size > most
    )


def segment_counts(
    known: Parts, program: BlockProgram, blocks: Blocks, sizes: Mapping[str, int], gpu: Gpu
) -> Iterator[int]:
    """Yields 1, and where the grid leaves multiprocessors idle, numbers of segments for two thread blocks on each, or eight."""
    yield 1
    cut = _cut(program, known, blocks, sizes)
    if not cut:
        return
    grid, tiles = set(grid_maps(program.graph)), _tiles(program, known, blocks, sizes)
    programs = min(
        math.prod(
            math.ceil(n.axis.space.size(sizes) / tiles[n.name])
            for n in around
            if n.name in grid and known.of[n.name] is not LoopRole.whole
        )
        for around in _around(program.graph, cut)
    )
    # Of a loop with loops inside, one iteration is work enough.
    longest = max(
        n.axis.space.size(sizes) * (1 if _is_innermost(n) else GRANULARITY.matmul)
        for n in maps(program.graph)
        if n.name in cut
    )
    # What is read once is in flight sooner the more thread blocks ask for it.
    shares = (1.0, 0.5, 2.0, 0.25) if known.matmuls else (1.0, 0.5, 2.0, 4.0, 8.0, 0.25)
    for share in (4.0, 1.0, 8.0, 2.0) if known.nested else shares:
        wanted = 1 << round(math.log2(max(1.0, share * gpu.multiprocessors / max(1, programs))))
        if wanted > 1 and longest >= wanted * GRANULARITY.matmul:
            yield wanted


def _around(graph: Graph, names: Set[str], loops: tuple[Map, ...] = ()) -> Iterator[tuple[Map, ...]]:
    """Yields for each of the loops `names` those that it is in."""
    for node in graph.nodes:
        if isinstance(node, Map) and node.name in names:
            yield loops
        elif isinstance(node, Map):
            yield from _around(node.body, names, (*loops, node))
