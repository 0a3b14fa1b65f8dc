"""Small tiles and sizes at which a scheduled program is checked, and what these must reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.block.program import BlockProgram, Graph, Map, Place, Rank, maps, spaces
from weft.block.ranges import Band, Rest, Segment

# Tiles that are checked instead of the real ones: each more than twice the one before, no multiple of it.
_SMALL = (3, 7, 16, 33, 67, 135)
# Tiles grow with what sizes must reach, so that loops have few iterations: about so many of the smallest blocks.
_BLOCKS_TO_A_BAND, _BLOCKS_TO_A_NUMBER = 8, 24


def small_tiles(applied: BlockProgram, reach: Mapping[str, int] | None = None) -> BlockProgram:
    """`applied` with small tiles in place of large ones, in the same order for each space.

    A tile is a parameter of an applied program: no rewrite and no emitter looks at its value, but for 1, which stays 1 (such a loop
    has no edge). So small ones exercise the same loops, edges, segments and merges at a cost that does not depend on what the
    machine likes.

    Args:
        applied: scheduled, with places.
        reach: how far the sizes of spaces go, by name, where they must go far; tiles grow with it.
    """
    wanted: dict[str, set[int]] = {}
    for node in maps(applied.graph):
        if node.tile is not None and not node.unit:
            wanted.setdefault(node.axis.space.name, set()).add(node.tile)
    far, reach = _band_reach(applied), reach or {}

    def tiles_of(name: str, tiles: set[int]) -> dict[int, int]:
        times = 1 + max(far.get(name, 0) // _BLOCKS_TO_A_BAND, reach.get(name, 0) // _BLOCKS_TO_A_NUMBER)
        return {1: 1, **{t: s * times for t, s in zip(sorted(tiles - {1}), _SMALL, strict=False)}}

    small = {name: tiles_of(name, tiles) for name, tiles in wanted.items()}

    def shrunk(graph: Graph) -> Graph:
        return replace(graph, nodes=tuple(_shrunk(n) if isinstance(n, Map) else n for n in graph.nodes))

    def _shrunk(node: Map) -> Map:
        tile = node.tile if node.tile is None or node.unit else small[node.axis.space.name].get(node.tile, node.tile)
        return replace(node, tile=tile, body=shrunk(node.body))

    return replace(applied, graph=shrunk(applied.graph))


def _band_reach(applied: BlockProgram) -> dict[str, int]:
    """How far bands lie from the diagonal, by name of the spaces that they run over and beside."""
    far: dict[str, int] = {}
    for node in maps(applied.graph):
        if isinstance(node.range, Band):
            ends = [abs(d.constant) for d in (node.range.low, node.range.high) if d is not None]
            for axis in (node.axis, node.range.outer):
                far[axis.space.name] = max(far.get(axis.space.name, 0), *ends)
    return far


def edge_sizes(
    applied: BlockProgram, most: Mapping[str, int] | None = None, reach: Mapping[str, int] | None = None
) -> tuple[Mapping[str, int], ...]:
    """Sizes that reach every edge of `applied`: rests at every level, single elements, and whole blocks only.

    A space's sizes follow from the tiles of all loops over it: the sum of distinct tiles and one more leaves a rest at each
    level; with segments there are two blocks for each but the last, which has one short block; and several after a first block
    on its own. Beside a band there are as many more as it lies off the diagonal, and blocks beyond; where sizes say how far that
    is, no two are alike.

    Args:
        applied: with small tiles; what is said here is of its spaces without a fixed size.
        most: the largest size of a space, by name.
        reach: an index that the first of the sizes must reach, with blocks beyond it, by name of the space.
    """
    tiles: dict[str, set[int]] = {}
    segments: dict[str, int] = {}
    for space in spaces(applied):
        if space.fixed is None:
            tiles.setdefault(space.name, set())
    for node in maps(applied.graph):
        space = node.axis.space
        if space.fixed is None:
            tiles.setdefault(space.name, set()).add(3 if node.place is Place.whole or node.tile is None else node.tile)
            if isinstance(node.range, Segment):
                segments[space.name] = max(segments.get(space.name, 1), node.range.count)
            elif isinstance(node.range, Rest):  # whole blocks and a rest, after the first block
                segments[space.name] = max(segments.get(space.name, 1), 4)
    rests: dict[str, int] = {}
    exact: dict[str, int] = {}
    for name, found in tiles.items():
        widest = max(found, default=2)
        rests[name] = (
            sum(found) + 1 if name not in segments else max(sum(found) + 1, 2 * widest * (segments[name] - 1) + 1)
        )
        exact[name] = widest
    ranked = {name: count for name, count in _ranked(applied.graph).items() if name in rests}
    for name, count in ranked.items():  # more than are kept, and a block more, so that some are passed over
        widest = exact[name]
        rests[name] += max(0, -(-(count + widest - rests[name]) // widest)) * widest
        exact[name] = (count // widest + 2) * widest
    bands = {name: distance for name, distance in _band_reach(applied).items() if name in rests}
    far = bands | {name: max(index, bands.get(name, 0)) for name, index in (reach or {}).items() if name in rests}
    for name in far:
        rests[name] += far[name] + exact[name]
    ranges = [m.range for m in maps(applied.graph) if isinstance(m.range, Band)]
    if any(d is not None and d.sizes for band in ranges for d in (band.low, band.high)):
        for place, name in enumerate(bands):
            rests[name] += 2 * place
            exact[name] += 3 * (len(bands) - place)
    return tuple(
        {name: min(size, (most or {}).get(name, size)) for name, size in chosen.items()}
        for chosen in (rests, dict.fromkeys(tiles, 1), exact)
    )


def _ranked(graph: Graph) -> dict[str, int]:
    """How many elements rankings keep, by name of the space of what is ranked."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        inner: dict[str, int] = {}
        if isinstance(node, Rank) and node.over is not None:
            inner = {node.over.space.name: node.count}
        elif isinstance(node, Map):
            graphs = (node.body,) if node.state is None else (node.body, node.state.update)
            for each in graphs:
                inner = _most(inner, _ranked(each))
        found = _most(found, inner)
    return found


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
