"""Random schedules, for checks of everything that comes after scheduling."""

from __future__ import annotations

import random
from collections.abc import Iterator

from weft.block.check import body_types, infer
from weft.block.program import BlockProgram, BlockType, Dot, Final, Graph, Map
from weft.block.ranges import All
from weft.block.scope import Scope
from weft.block.walk import maps, ranks
from weft.errors import ScheduleError
from weft.masks import with_full_blocks
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, begins_where, grid_maps, tied
from weft.tensor.axes import Axis

TILES = (1, 2, 3, 4, 5, 8, 16)


def random_schedule(program: BlockProgram, rng: random.Random, tiles: tuple[int, ...] = TILES) -> Schedule:
    """Draws a schedule that may use every place, several levels, peeling, one split, loops for full blocks, and staging.

    It need not fit the program: `apply` refuses a grid loop that other work stands beside, with ScheduleError.
    """
    loops: list[tuple[str, LoopSchedule]] = []
    splittable = {
        m.name
        for m in maps(program.graph)
        if m.state is not None and m.range == All() and _whole_around(program.graph, m.name)
    }
    peeled = any(m.range.one_block for m in maps(program.graph))
    if peeled:  # many loops here hand out lists beside their state: `apply` would refuse nearly everything
        splittable = set[str]()
    split = rng.choice(sorted(splittable)) if splittable and rng.random() < 0.4 else None
    grid = set(grid_maps(program.graph))
    first, whole = dict[Axis, int](), set[Axis]()
    ranked = ranks(program.graph)
    together = _together(program, rng, tiles)
    for node in maps(program.graph):
        plain = not peeled or all(isinstance(o, Final) for o in node.outputs)
        stateful = node.state is not None
        levels = [Level(LevelPlace.split, rng.choice((1, 2, 3)))] if node.name == split else []
        if node.unit:
            levels.append(Level(LevelPlace.grid if node.name in grid else LevelPlace.loop, 1))
        elif node.axis in ranked:
            levels = [Level(LevelPlace.whole)]
            whole.add(node.axis)
        elif node.axis in together:
            size, outer = together[node.axis], LevelPlace.grid if node.name in grid else LevelPlace.loop
            levels = [Level(LevelPlace.whole) if size is None else Level(outer, size)]
        elif node.range.follows in whole if node.range.follows is not None else rng.random() < 0.15:
            levels.append(Level(LevelPlace.whole))
            whole.add(node.axis)
        else:
            sizes = sorted(rng.sample(tiles, rng.choice((1, 1, 2))), reverse=True)
            if node.range.follows is not None:  # the outermost blocks are those of the first
                sizes = [first[node.range.follows], *(s for s in sizes[1:] if s < first[node.range.follows])]
            first[node.axis] = sizes[0]
            if node.range.one_block or (stateful and not plain):
                sizes = sizes[:1]
            outer = LevelPlace.grid if node.name in grid else LevelPlace.loop
            levels += [Level(outer if i == 0 else LevelPlace.loop, size) for i, size in enumerate(sizes)]
        peel = (
            stateful
            and plain
            and not node.range.one_block
            and levels[-1].place is LevelPlace.loop
            and rng.random() < 0.5
        )
        loops.append((node.name, LoopSchedule(tuple(levels), peel)))
    dots = [n.name for n in _dots(program.graph)]
    rows, panels = (frozenset(d for d in dots if rng.random() < 0.5) for _ in range(2))
    blocks = list(_blocks(program.graph, dict(program.inputs), Scope({}, applied=False)))
    transposed = frozenset(rng.sample(blocks, rng.randint(0, len(blocks)))) if rng.random() < 0.3 else frozenset[str]()
    merged = rng.choice((1, 2, 3, 8)) if split is not None else 1
    named = sorted(with_full_blocks(program)) if any(m.guard is not None for m in maps(program.graph)) else []
    apart = frozenset(name for name in named if rng.random() < 0.5)
    return Schedule(tuple(loops), rows, panels, transposed, apart=apart, together=merged)


def _together(program: BlockProgram, rng: random.Random, tiles: tuple[int, ...]) -> dict[Axis, int | None]:
    """Chooses one tile, or None for the whole, for all loops that share blocks on every level."""
    groups: list[set[Axis]] = [{*pair} for pair in tied(program)]
    for pair in (*groups, *({*p} for p in begins_where(program).items())):
        touched = [g for g in groups if g & pair]
        groups = [g for g in groups if g not in touched] + ([set[Axis]().union(pair, *touched)] if touched else [])
    chosen = [None if rng.random() < 0.15 else rng.choice(tiles) for _ in groups]
    return {axis: size for group, size in zip(groups, chosen, strict=True) for axis in group}


def _blocks(graph: Graph, inputs: dict[str, BlockType], scope: Scope) -> Iterator[str]:
    """Yields every item of two axes that a body is fed."""
    types = infer(graph, inputs, scope)
    for node in graph.nodes:
        if isinstance(node, Map):
            given = body_types(node, types)
            yield from (n for n in node.body.inputs if not given[n].buffered and len(given[n].dims) == 2)
            yield from _blocks(node.body, given, scope.inside(node))


def _dots(graph: Graph) -> list[Dot]:
    found = [n for n in graph.nodes if isinstance(n, Dot)]
    return found + [d for n in graph.nodes if isinstance(n, Map) for d in _dots(n.body)]


def _whole_around(graph: Graph, name: str) -> bool:
    """Tells whether every map around the map `name` that carries state goes over all of its range."""
    for node in graph.nodes:
        if isinstance(node, Map):
            if node.name == name:
                return True
            if any(m.name == name for m in maps(node.body)):
                return (node.state is None or (node.range == All() and node.guard is None)) and _whole_around(
                    node.body, name
                )
    return False


def fitting_schedule(program: BlockProgram, rng: random.Random, tries: int = 50) -> tuple[Schedule, BlockProgram]:
    """Draws the first random schedule that fits `program`; returned with what `apply` makes of both.

    Raises:
        ScheduleError: none of `tries` fits.
    """
    for rest in reversed(range(tries)):
        schedule = random_schedule(program, rng)
        try:
            return schedule, apply(program, schedule)
        except ScheduleError:
            if not rest:
                raise
    raise ScheduleError("no schedule was tried")
