"""Small tiles and sizes at which a scheduled program is checked, and what these must reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar, cast

from weft.block.places import Place
from weft.block.program import BlockProgram, Bounded, Graph, Index, Literal, Load, Map, Pointwise, Rank
from weft.block.ranges import Part, Remainder, Segment, Spans, Within
from weft.block.rename import rename_program_axes
from weft.block.walk import every, maps, spaces
from weft.tensor.axes import Axis, Space
from weft.tensor.program import Constant, Iota, Ranking, Reindex, TensorProgram
from weft.tensor.scalar import Lit, parts
from weft.verify.inputs import literals
from weft.verify.thresholds import of_symbols, thresholds

# The least tile that is checked in place of a real one, where that is not 1.
_LEAST = 3
# So many segments are checked in place of more: a first and a last one, and one between them.
_SEGMENTS = 3
# So many elements has a dimension that indices say where to read in: some between the first and the last.
_INDEXED = 7
# Iterations of a loop that add to one sum, in place of more: others follow, which are merged into it.
_CHAIN = 2
# Tiles grow with what sizes must reach, so that loops have few iterations: about so many of the smallest blocks.
_BLOCKS_TO_A_SPAN, _BLOCKS_TO_A_NUMBER = 8, 24


def small_tiles(
    applied: BlockProgram, reach: Mapping[str, int] | None = None, most: Mapping[str, int] | None = None
) -> BlockProgram:
    """Puts small tiles in `applied` in place of large ones, in the same order for each space, none a multiple of another, and a few
    segments in place of many.

    A tile is a parameter of an applied program: no rewrite looks at its value, but for 1, which stays 1 (such a loop has no edge),
    nor at the number of segments, each of which is at a place like any other's. So small ones exercise the same loops, edges,
    segments and merges at a cost that does not depend on what the machine likes.

    Args:
        applied: scheduled, with places.
        reach: how far the sizes of spaces go, by name, where they must go far; tiles grow with it.
        most: the sizes beyond which spaces are not checked, by name; their tiles, and those of spaces of fixed size, do not grow.
    """
    wanted: dict[str, set[int]] = {}
    for node in maps(applied.graph):
        if node.tile is not None and not node.unit:
            wanted.setdefault(node.axis.space.name, set()).add(node.tile)
    far, reach = _span_reach(applied), reach or {}

    inside = _inside(applied)
    limited = {space.name for space in spaces(applied) if space.fixed is not None} | (most or {}).keys()

    def tiles_of(name: str, tiles: set[int]) -> dict[int, int]:
        times = 1 + max(far.get(name, 0) // _BLOCKS_TO_A_SPAN, reach.get(name, 0) // _BLOCKS_TO_A_NUMBER)
        small = {tile: its if tile == 1 else its * times for tile, its in _small(tiles, inside).items()}
        # Where no size is larger than the program's own, a larger block would leave a loop fewer of them than it runs with.
        return {tile: min(tile, its) for tile, its in small.items()} if name in limited else small

    small = {name: tiles_of(name, tiles) for name, tiles in wanted.items()}

    few = _few_segments(applied, small)

    def shrunk(graph: Graph) -> Graph:
        return replace(graph, nodes=tuple(_shrunk(n) if isinstance(n, Map) else n for n in graph.nodes))

    def _shrunk(node: Map) -> Map:
        tile = node.tile if node.tile is None or node.unit else small[node.axis.space.name].get(node.tile, node.tile)
        range_ = node.range
        if isinstance(range_, Segment) and range_.index in few:  # where they are not as many as are cut, that stays so
            fewer = range_.index.space.size({}) - few[range_.index].space.size({})
            range_ = replace(range_, count=max(1, range_.count - fewer))
        chain = _CHAIN if node.chain else 0  # told at the real tile
        demands = replace(node.demands, chain=chain)
        return replace(node, tile=tile, body=shrunk(node.body), range=range_, demands=demands)

    return rename_program_axes(replace(applied, graph=shrunk(applied.graph)), few)


def _few_segments(applied: BlockProgram, small: Mapping[str, Mapping[int, int]]) -> dict[Axis, Axis]:
    """Returns the axes that number segments, and in their place those that number a few.

    A loop that merges several at a time has two whole blocks of them and a rest, unless one block takes them all; of loops over the
    segments before one, some have a whole block and a rest, and the last one has two whole blocks.
    """
    nodes = list(maps(applied.graph))
    numbering = {m.range.index.space for m in nodes if isinstance(m.range, Segment)}
    axes = {m.axis for m in nodes} | {m.range.index for m in nodes if isinstance(m.range, Segment)}

    def fewer(space: Space, count: int) -> Space:
        tiles = [its for tile, its in small.get(space.name, {}).items() if 1 < tile < count]
        chosen = min(count, max([_SEGMENTS, *(2 * tile + 1 for tile in tiles)]))
        while any(chosen % tile == 0 for tile in tiles):
            chosen -= 1
        return replace(space, fixed=chosen)

    return {
        axis: replace(axis, space=fewer(axis.space, axis.space.fixed))
        for axis in axes
        if axis.space in numbering and axis.space.fixed is not None
    }


def _inside(applied: BlockProgram) -> set[tuple[int, int]]:
    """Returns pairs of tiles: of a loop, and of one that goes through its blocks."""
    tiles = {m.axis: m.tile for m in maps(applied.graph)}
    found: set[tuple[int, int]] = set()
    for node in maps(applied.graph):
        outer = tiles.get(node.range.outer) if isinstance(node.range, Within) else None
        if outer is not None and node.tile is not None:
            found.add((outer, node.tile))
    return found


def _small(tiles: set[int], inside: set[tuple[int, int]]) -> dict[int, int]:
    """Chooses small tiles for `tiles`: a block that another loop goes through has two of its blocks, and a remainder."""
    small = {1: 1}
    last = _LEAST - 1
    for tile in sorted(tiles - {1}):
        last = max([last + 1, *(2 * small[i] + 1 for o, i in inside if o == tile and 1 < i < tile and i in small)])
        while any(last % other == 0 for other in small.values() if other > 1):
            last += 1
        small[tile] = last
    return small


def _levels(applied: BlockProgram) -> dict[str, int]:
    """Returns the most that tiles of loops in each other's blocks add up to, by name of the space."""
    nodes = {m.axis: m for m in maps(applied.graph)}
    most: dict[str, int] = {}
    for node in nodes.values():
        total, each = 0, node
        while True:
            total += _tile(each)
            if not isinstance(each.range, Within) or each.range.outer not in nodes:
                break
            each = nodes[each.range.outer]
        most[node.axis.space.name] = max(most.get(node.axis.space.name, 0), total)
    return most


def _tile(node: Map) -> int:
    return _LEAST if node.tile is None else node.tile


def _span_reach(applied: BlockProgram) -> dict[str, int]:
    """Measures how far the ends of spans lie from what says where they are, by name of the spaces that they are of and beside."""
    far: dict[str, int] = {}
    for node in maps(applied.graph):
        if isinstance(node.range, Spans):
            reach = max(each.reach for span in node.range.spans for each in span.holds)
            for axis in (node.axis, *node.range.beside):
                far[axis.space.name] = max(far.get(axis.space.name, 0), reach)
    return far


def span_sizes(applied: BlockProgram, blocks: int) -> tuple[Mapping[str, int], ...]:
    """Choose sizes at which spans have whole blocks between their ends: of the space each is of and of those beside it.

    Args:
        applied: scheduled, with places.
        blocks: so many, and a rest, at the least.
    """
    tiles = {m.axis: _tile(m) for m in maps(applied.graph)}
    found: list[Mapping[str, int]] = []
    for node in maps(applied.graph):
        match node.range:
            case Spans(spans, Part.all | Part.full):
                beside = node.range.beside
                far = max(sum(each.reach for each in span.holds) for span in spans)
                rows = max((tiles.get(axis, _LEAST) for axis in beside), default=_LEAST)
                size = blocks * _tile(node) + rows + 1 + far
                found.append({axis.space.name: size for axis in (node.axis, *sorted(beside, key=str))})
            case _:
                pass
    return tuple({tuple(each.items()): each for each in found}.values())


def iterations(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Counts the iterations of all maps of `graph` at these sizes, by name of the space; of spans as if they went over all."""
    found = 0
    for node in graph.nodes:
        if isinstance(node, Map):
            blocks = -(-node.axis.space.size(sizes) // (1 if node.unit else _tile(node)))
            found += blocks * (1 + iterations(node.body, sizes))
    return found


def of_blocks(applied: BlockProgram, blocks: int) -> dict[str, int]:
    """Counts the elements of each space, by name, that give its loops so many blocks, where these run one after the other.

    Loops in another one's block have as many as that has, at any size. A span is as long as what it lies beside.
    """
    found: dict[str, int] = {}
    for node in maps(applied.graph):
        if node.place is not Place.loop or isinstance(node.range, Within):
            continue
        count, spaces_of = blocks, [node.axis.space.name]
        if isinstance(node.range, Segment):  # each of them; the last may be shorter
            segments = node.range.count
            count = max(blocks * (segments - 1), (blocks - 1) * segments) + 1
        elif isinstance(node.range, Remainder):
            count += 1
        elif isinstance(node.range, Spans):
            spaces_of += (axis.space.name for axis in node.range.beside)
        for name in spaces_of:
            found[name] = max(found.get(name, 0), count * _tile(node))
    return found


def edge_sizes(
    applied: BlockProgram, most: Mapping[str, int] | None = None, reach: Mapping[str, int] | None = None
) -> tuple[Mapping[str, int], ...]:
    """Chooses sizes that reach every edge of `applied`: remainders at every level, single elements, and whole blocks only.

    A space's sizes follow from the tiles of all loops over it. One more than the tiles of loops in each other's blocks add up to,
    or a little more, leaves each loop a rest at each level; with segments there are two blocks for each but the last, which has one
    short block; and several after a first block on its own, and where each shows what came before it. Where indices say where
    to read, there are several elements. Beside spans there are as many more as their ends lie away, and blocks beyond;
    where sizes say how far that is, no two are alike.

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
            tiles.setdefault(space.name, set()).add(_tile(node))
            # A segment has two blocks; after a first block on its own there are whole ones and a rest. The blocks are those of this
            # loop: others over the space may have much larger ones.
            segments[space.name] = max(segments.get(space.name, 0), 2 * _tile(node) * (_stretches(node) - 1))
    levels = _levels(applied)
    rests = {name: _with_rests(found, max(levels.get(name, 0), segments.get(name, 0))) for name, found in tiles.items()}
    exact = {name: max(found, default=2) for name, found in tiles.items()}
    ranked = {name: count for name, count in _ranked(applied.graph).items() if name in rests}
    for name, count in ranked.items():  # more than are kept, and a block more, so that some are passed over
        widest = exact[name]
        rests[name] += max(0, -(-(count + widest - rests[name]) // widest)) * widest
        exact[name] = (count // widest + 2) * widest
    for name in _looked_up(applied.graph, {n: kind.lists for n, kind in applied.inputs}) & rests.keys():
        rests[name], exact[name] = max(rests[name], _INDEXED), max(exact[name], _INDEXED - 2)
    beside = {name: distance for name, distance in _span_reach(applied).items() if name in rests}
    far = beside | {name: max(index, beside.get(name, 0)) for name, index in (reach or {}).items() if name in rests}
    for name in far:
        rests[name] += far[name] + exact[name]
    ranges = [m.range for m in maps(applied.graph) if isinstance(m.range, Spans)]
    if any(each.sizes for spans in ranges for span in spans.spans for each in span.holds):
        for place, name in enumerate(beside):
            rests[name] += 2 * place
            exact[name] += 3 * (len(beside) - place)
    return tuple(
        {name: min(size, (most or {}).get(name, size)) for name, size in chosen.items()}
        for chosen in (rests, dict.fromkeys(tiles, 1), exact)
    )


def _stretches(node: Map) -> int:
    """Counts the stretches of two blocks that `node` is to go over, the last of one short block."""
    if isinstance(node.range, Segment):
        return node.range.count
    if isinstance(node.range, Remainder):
        return 4
    # What an iteration does to a state that is not as it began is seen an iteration later, and so is what a short chain came to.
    return 3 if node.state is not None and node.state.shown else 2 if 0 < node.chain <= _CHAIN else 1


def _looked_up(graph: Graph, lists: Mapping[str, tuple[Axis, ...]]) -> set[str]:
    """Returns the spaces that `graph` has indices of, by name, given the axes of the lists that it sees."""
    found: set[str] = set()
    for node in graph.nodes:
        match node:
            case Map():
                inner = {f.inner: lists[f.outer] for f in node.inputs if f.outer in lists}
                found |= _looked_up(node.body, inner)
            case Bounded(space=space):
                found.add(space.name)
            case Load(memory=memory, at=at) if memory in lists:
                pairs = zip(lists[memory], at, strict=False)
                found |= {axis.space.name for axis, subscript in pairs if subscript.index is not None}
            case _:
                pass
    return found


def _with_rests(tiles: set[int], most: int) -> int:
    """Finds the least size above `most` that leaves each of `tiles` a remainder."""
    size = most + 1
    while any(size % tile == 0 for tile in tiles if tile > 1):
        size += 1
    return size


def _ranked(graph: Graph) -> dict[str, int]:
    """Counts the elements that rankings keep, by name of the space of what is ranked."""
    found: dict[str, int] = {}
    for node in every(graph.nodes):
        if isinstance(node, Rank) and node.over is not None:
            name = node.over.space.name
            found[name] = max(found.get(name, 0), node.count)
    return found


# Programs whose fixed sizes are symbols, so that they can be checked at small sizes.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Freed:
    """A program and its schedule, with symbols for fixed sizes.

    Attributes:
        program, applied: over spaces without a fixed size where that can be.
        most: the numbers that these sizes were, by name of the space; no check need go beyond.
        reach: an index that a check must reach, by name of the space, for all to be seen that indices decide.
        unreached: the spaces along which indices decide something beyond `weft.verify.thresholds.FARTHEST`.
    """

    program: TensorProgram
    applied: BlockProgram
    most: Mapping[str, int]
    reach: Mapping[str, int]
    unreached: frozenset[str]


def freed(program: TensorProgram, applied: BlockProgram) -> Freed:
    """Puts a symbol in `program` and `applied`, which name spaces alike, for each fixed size that is just a number of elements.

    Nothing between capture and the emitters depends on such a number: loops have edges whether or not there are any at it. Numbers
    that are more stay: those of segments, rankings, and of spaces that a reindexing ties to others.
    """
    symbols = symbols_for(program)
    most = {s.name: s.fixed for s in symbols if s.fixed is not None}
    program, applied = over_spaces(program, symbols), over_spaces(applied, symbols)
    beyond, unreached = of_symbols(program, most)
    reach = thresholds(program, most) | beyond
    written = {float(n.value) for n in program.nodes if isinstance(n, Constant)} | set(map(float, literals(program)))
    foreign = set(_numbers(applied.graph, written))
    for name in _indexed(program, applied) & most.keys():
        # A number that only the schedule has is either worked out from others, or wrong: it must show.
        reach[name] = max(reach.get(name, 0), *(n for n in foreign if n < most[name]), 0)
    return Freed(program, applied, most, {name: index for name, index in reach.items() if index}, unreached)


def symbols_for(program: TensorProgram) -> dict[Space, Space]:
    """Makes a space without a fixed size for each space of `program` whose fixed size is just a number of elements."""
    tied = set(_tied(program))
    return {s: replace(s, fixed=None) for s in program.spaces() if s.fixed is not None and s not in tied}


def different_size(program: TensorProgram, applied: BlockProgram) -> str | None:
    """Names in words a space of which the two say different sizes."""
    said = {s.name: s.fixed for s in program.spaces()}
    for space in spaces(applied):
        if space.name in said and said[space.name] != space.fixed:
            return f"{space.name} has {space.fixed or 'any number of'} elements, not {said[space.name] or 'any number'}"
    return None


def _tied(program: TensorProgram) -> Iterator[Space]:
    """Yields spaces whose size must stay what it is beside those of others."""
    for rule in program.derived:
        yield from (rule.space, *rule.sources)
    values = program.values()
    for node in program.nodes:
        if isinstance(node, Ranking) and node.rank is not None:
            yield node.rank.space
        elif isinstance(node, Reindex):
            for source, index in zip(values[node.source].axes, node.index, strict=True):
                if index.axis is None or index.axis.space != source.space:
                    yield from (source.space, *(a.space for a, _ in index.terms))


def _indexed(program: TensorProgram, applied: BlockProgram) -> set[str]:
    """Returns the spaces along which an index is read, by name."""
    read = {n.axis.space.name for n in every(applied.graph.nodes) if isinstance(n, Index)}
    return read | {n.axes[0].space.name for n in program.nodes if isinstance(n, Iota)}


def _numbers(graph: Graph, known: set[float]) -> Iterator[int]:
    """Yields whole numbers in `graph` whose magnitude is not in `known`."""
    for node in every(graph.nodes):
        match node:
            case Literal():
                found = [node.value]
            case Pointwise():
                found = [part.value for part in parts(node.expr) if isinstance(part, Lit)]
            case _:
                found = []
        for value in map(float, found):
            if value.is_integer() and abs(value) < 2**31 and not {value, -value} & known:
                yield int(abs(value))


def over_spaces(thing: T, spaces_: Mapping[Space, Space]) -> T:
    """Puts `thing`, a program or a part of one, over other spaces."""
    made: dict[int, Any] = {}

    def over(part: Any) -> Any:
        if isinstance(part, Space):
            return spaces_.get(part, part)
        if not _has_parts(part):
            return part
        if id(part) not in made:
            made[id(part)] = parts_over(part)
        return made[id(part)]

    def parts_over(part: Any) -> Any:
        if type(part) is tuple:
            return tuple(map(over, cast("tuple[Any, ...]", part)))
        changed = {f.name: over(getattr(part, f.name)) for f in fields(part) if f.init}
        same = all(new is getattr(part, name) for name, new in changed.items())
        return part if same else replace(part, **changed)

    return over(thing) if spaces_ else thing


def _has_parts(part: object) -> bool:
    return type(part) is tuple or (is_dataclass(part) and not isinstance(part, Enum))
