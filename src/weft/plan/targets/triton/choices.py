"""Sizes of blocks, segments, warps and stages that are worth considering for a program, the likeliest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from weft.block.program import BlockProgram
from weft.block.room import power_of_two
from weft.block.walk import maps
from weft.cost import Gpu
from weft.emit.triton import GRANULARITY
from weft.plan.targets.triton.schedules import LONGEST_ROW, SHORT_LANES, Blocks, LoopRole, Parts, segment_counts
from weft.tensor.dtypes import DType

# Elements of a block of work without matmuls, for each warp: 16 bytes a thread, a few times over.
_LANES = (SHORT_LANES, 2048, 4096, 8192)
# Columns and depth of a block of a matrix that one row is multiplied with, and depths of one whose columns are in one block.
_STRIPS = ((64, 128), (128, 64), (64, 64), (128, 128), (64, 256), (256, 64), (32, 128))
_DEPTHS = (128, 64, 32)
# Elements of a block that nested loops share, and the most of them along memory: 32 of 4 bytes are a warp's whole access.
_SHARED = (4096, 1024, 8192, 2048, 16384)
_ALONG = (0, 128, 32)


def choices(known: Parts, program: BlockProgram, sizes: Mapping[str, int], gpu: Gpu) -> Iterator[Blocks]:
    """Yields sizes worth considering, each once; the first ones are good for most programs."""
    longest: dict[LoopRole, list[int]] = {part: [] for part in LoopRole}
    for node in maps(program.graph):
        longest[known.of[node.name]].append(node.axis.space.size(sizes))
    present = {part: max(lengths) for part, lengths in longest.items() if lengths}
    seen: set[Blocks] = set()
    ways = _matmuls(present, known) if known.matmuls else _shared() if known.nested else _lanes(present)
    for blocks in ways:
        for segments in segment_counts(known, program, blocks, sizes, gpu):
            made = replace(blocks, segments=segments)
            if made not in seen:
                seen.add(made)
                yield made


def _shared() -> Iterator[Blocks]:
    """Yields blocks that the loops of a nest share, of any shape: where one loop is short, the next one around it has the rest."""
    for elements in _SHARED:
        for along in _ALONG:
            yield from (Blocks(tile=elements, along=along, across=across) for across in (False, True))


def _matmuls(present: Mapping[LoopRole, int], known: Parts) -> Iterator[Blocks]:
    def upto(part: LoopRole, *wanted: int) -> tuple[int, ...]:
        """Keeps those of the wanted sizes that are no longer than the loop, and the least that is."""
        most = max(GRANULARITY.matmul, power_of_two(present.get(part, 1)))
        return tuple(dict.fromkeys(min(w, most) for w in wanted)) if part in present else wanted[:1]

    narrow = known.dtype in (DType.float32, DType.float64)
    deep = (32, 16, 64) if narrow else (64, 128, 32)
    for rows in upto(LoopRole.rows, 64, 128, 32, 16):
        for columns in upto(LoopRole.columns, 64, 128, 32, 256):
            for depth in upto(LoopRole.depth, *deep):
                yield Blocks(rows, columns, depth)


def _lanes(present: Mapping[LoopRole, int]) -> Iterator[Blocks]:
    lanes = present.get(LoopRole.lanes, 1)
    wanted = [0, *(n for n in _LANES if n < lanes)] if lanes <= LONGEST_ROW else list(_LANES)
    for each in wanted:
        row = min(each or LONGEST_ROW, power_of_two(lanes))
        for few in (1, 2, 4, 8, 16, 32, 64, 128):
            if few == 1 or (few <= power_of_two(present.get(LoopRole.few, 1)) and few * row <= _LANES[-1]):
                for columns, depth in _strips(present, few):
                    yield Blocks(columns=columns, few=few, lanes=each, depth=depth)


def _strips(present: Mapping[LoopRole, int], few: int) -> tuple[tuple[int, int], ...]:
    """Returns columns and depths of blocks of matrices that so `few` rows are multiplied with, without block matmuls."""
    if few > 1 or LoopRole.depth not in present:
        return ((64, min(128, max(16, 4096 // few))),)
    return _STRIPS if LoopRole.columns in present else tuple((64, depth) for depth in _DEPTHS)


def launches(known: Parts, blocks: Blocks) -> Iterator[Blocks]:
    """Yields `blocks` with the warps and stages worth trying, the likeliest first."""
    if known.matmuls:
        area = blocks.rows * blocks.columns
        warps = (4,) if area <= 64 * 64 else (8, 4) if area >= 128 * 128 else (4, 8)
        for count in warps:
            yield from (replace(blocks, warps=count, stages=s) for s in (4, 3, 6, 2, 8, 1))
        return
    elements = blocks.tile or blocks.few * (blocks.lanes or _LANES[-1])
    strips = LoopRole.depth in known.of.values()
    for count in (4, 8, 2, 1) if strips else (4, 8, 2) if elements <= 4096 else (8, 16, 4, 2):
        yield from (replace(blocks, warps=count, stages=s) for s in ((3, 1, 5) if strips else (1, 3, 5)))
