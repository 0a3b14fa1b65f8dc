"""How much memory near the cores one iteration of the grid takes, and how long a segment can be held there whole.

A loop with state goes block by block, in storage that does not depend on its range (the incremental form of RedFuser, 3.3), or has
one block that covers its range: then nothing is corrected, and all that the range makes lies on chip at once (sections 4.3, 5.4).
What is alive at once is `weft.block.residency`'s to say, here with sizes alone: nothing is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.cost.traffic import on_chip_bytes
from weft.schedule import Level, LevelPlace, LoopSchedule, Schedule, apply

LONGEST = 1 << 30
"""Elements of the longest segment that is looked at."""

_WHOLE = LoopSchedule((Level(LevelPlace.whole),))


def held_whole(schedule: Schedule, loop: str) -> Schedule:
    """Returns `schedule` with one block that covers the range of `loop`: the form without corrections."""
    return replace(schedule, loops=tuple((n, _WHOLE if n == loop else levels) for n, levels in schedule.loops))


def fits_whole(program: BlockProgram, schedule: Schedule, loop: str, sizes: Mapping[str, int], capacity: float) -> bool:
    """Tells whether all that the range of `loop` makes in one iteration of the grid fits into `capacity` bytes.

    Args:
        program: without places.
        schedule: for it; what it says of `loop` does not matter.
        loop: the name of a loop, with state or without.
        sizes: elements of each space, by name: those of the loop's are the segment's.
        capacity: bytes near a core: shared memory, or a second-level cache.

    Raises:
        ScheduleError: the loop cannot have one block (it goes by single elements, or shares its blocks with others).
    """
    return on_chip_bytes(apply(program, held_whole(schedule, loop)), sizes) <= capacity


def longest_whole(
    program: BlockProgram, schedule: Schedule, loop: str, sizes: Mapping[str, int], capacity: float
) -> int:
    """Finds the most elements of the space of `loop` that fit whole, as `fits_whole` has it, at the given other sizes.

    0 where not even one does; `LONGEST` where nothing grows with the space.

    Raises:
        ScheduleError: as `fits_whole`.
    """
    applied = apply(program, held_whole(schedule, loop))
    space = next(m.axis.space.name for m in maps(program.graph) if m.name == loop)

    def fits(size: int) -> bool:
        return on_chip_bytes(applied, {**sizes, space: size}) <= capacity

    least, most = 0, LONGEST + 1
    while most - least > 1:
        size = min(2 * least + 1, (least + most) // 2)  # doubles until it is too long
        least, most = (size, most) if fits(size) else (least, size)
    return least
