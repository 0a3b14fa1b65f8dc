"""Random schedules, for checks of everything that comes after scheduling."""

from __future__ import annotations

import random

from weft.block.program import BlockProgram, Dot, Graph, Map, maps
from weft.errors import ScheduleError
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply, grid_maps

TILES = (1, 2, 3, 4, 5, 8, 16)


def random_schedule(program: BlockProgram, rng: random.Random, tiles: tuple[int, ...] = TILES) -> Schedule:
    """A schedule that may use every place, several levels, peeling, one split, and staging.

    It need not fit the program: `apply` refuses a grid loop that other work stands beside, with ScheduleError.
    """
    loops: list[tuple[str, LoopSchedule]] = []
    splittable = {
        m.name for m in maps(program.graph) if m.state is not None and _parallel_around(program.graph, m.name)
    }
    split = rng.choice(sorted(splittable)) if splittable and rng.random() < 0.4 else None
    grid = set(grid_maps(program.graph))
    for node in maps(program.graph):
        stateful = node.state is not None
        levels = [Level(LevelPlace.split, rng.choice((1, 2, 3)))] if node.name == split else []
        if node.unit:
            levels.append(Level(LevelPlace.grid if node.name in grid else LevelPlace.loop, 1))
        elif rng.random() < 0.15:
            levels.append(Level(LevelPlace.whole))
        else:
            sizes = sorted(rng.sample(tiles, rng.choice((1, 1, 2))), reverse=True)
            outer = LevelPlace.grid if node.name in grid else LevelPlace.loop
            levels += [Level(outer if i == 0 else LevelPlace.loop, size) for i, size in enumerate(sizes)]
        peel = stateful and levels[-1].place is LevelPlace.loop and rng.random() < 0.5
        loops.append((node.name, LoopSchedule(tuple(levels), peel)))
    dots = [n.name for n in _dots(program.graph)]
    staged = [frozenset(d for d in dots if rng.random() < 0.5) for _ in range(2)]
    return Schedule(tuple(loops), *staged)


def _dots(graph: Graph) -> list[Dot]:
    found = [n for n in graph.nodes if isinstance(n, Dot)]
    return found + [d for n in graph.nodes if isinstance(n, Map) for d in _dots(n.body)]


def _parallel_around(graph: Graph, name: str) -> bool:
    """Whether every map around the map `name` is parallel."""
    for node in graph.nodes:
        if isinstance(node, Map):
            if node.name == name:
                return True
            if any(m.name == name for m in maps(node.body)):
                return node.state is None and _parallel_around(node.body, name)
    return False


def fitting_schedule(program: BlockProgram, rng: random.Random, tries: int = 50) -> tuple[Schedule, BlockProgram]:
    """The first random schedule that fits `program`, and what `apply` makes of both.

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
