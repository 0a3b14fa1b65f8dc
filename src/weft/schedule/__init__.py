"""schedule: where each loop runs.

In: a fused block program, a `Schedule`, which is data keyed by loop node, and the `Granularity` of a target. Out of `apply`: an
ordinary block program whose loops have places and tiles, and say what the target asks of them, with splits, peeled edges, padding,
staging and accumulation in place made explicit, and whose lists are memory with loads and stores; and `kernels`, its
launches. Emitters, interpreter and cost read only that program.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.schedule.apply import Placing, apply
    from weft.schedule.in_place import overwriting
    from weft.schedule.kernels import KernelNodes, apart, kernels
    from weft.schedule.lanes import EXACT, Granularity, added_apart, multiplied, with_demands
    from weft.schedule.place import grid_maps
    from weft.schedule.scans import merged_in_each
    from weft.schedule.schedule import Level, LevelPlace, LoopSchedule, Schedule
    from weft.schedule.summaries import summarizable
    from weft.schedule.ties import begins_where, tied
    from weft.schedule.together import merging_together

__all__ = [
    "EXACT",
    "Granularity",
    "KernelNodes",
    "Level",
    "LevelPlace",
    "LoopSchedule",
    "Placing",
    "Schedule",
    "added_apart",
    "apart",
    "apply",
    "begins_where",
    "grid_maps",
    "kernels",
    "merged_in_each",
    "merging_together",
    "multiplied",
    "overwriting",
    "summarizable",
    "tied",
    "with_demands",
]

export_lazily(__name__)
