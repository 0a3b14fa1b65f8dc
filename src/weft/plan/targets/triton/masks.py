"""Which guarded loops are told beforehand what has something to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from weft.block.program import BlockProgram, Map
from weft.block.walk import asked, maps
from weft.schedule import LevelPlace, Schedule, summarizable

# A launch more pays for loops that go over so many elements in all, in so many blocks each.
_LEAST_ELEMENTS, _LEAST_BLOCKS = 1 << 21, 4
# Answers lie as far apart as elements of the mask. One that is made of smaller tensors (`doc[i] == doc[j]`) is in no memory: theirs
# may take so many bytes.
_MOST_BYTES = 1 << 28


def told_beforehand(program: BlockProgram, schedule: Schedule, sizes: Mapping[str, int]) -> Schedule:
    """Return `schedule`, in which a launch before guarded loops of many blocks finds out which of these have something to do.

    A loop that asks in each iteration waits for the answer before it loads what the iteration reads; one that is told loads ahead.
    """
    found = (m for m in maps(program.graph) if m.guard is not None and _is_long(program, m, schedule, sizes))
    return replace(schedule, beforehand=frozenset(m.name for m in found))


def _is_long(program: BlockProgram, node: Map, schedule: Schedule, sizes: Mapping[str, int]) -> bool:
    levels, along = schedule.of(node.name).levels, summarizable(program, node.name)
    length = node.axis.space.size(sizes)
    around = (m for m in maps(program.graph) if m is node or any(inner is node for inner in maps(m.body)))
    return (
        [v.place for v in levels if v.place is not LevelPlace.split] == [LevelPlace.loop]
        and length >= _LEAST_BLOCKS * levels[-1].size
        and math.prod(m.axis.space.size(sizes) for m in around) >= _LEAST_ELEMENTS
        and bool(along)
        and (not asked(node)[0] or math.prod(m.axis.space.size(sizes) for m in along) <= _MOST_BYTES)
        and all(len(schedule.of(m.name).levels) == 1 for m in along if m is not node)
        and all(schedule.of(m.name).levels[-1].place is not LevelPlace.whole for m in along)
    )
