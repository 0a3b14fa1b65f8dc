"""schedule: where each loop runs.

In: a fused block program and a `Schedule`, which is data keyed by loop node. Out of `apply`: an ordinary block program whose
loops have places and tiles, with splits, peeled edges, padding, staging and accumulation in place made explicit, and whose
lists are memory with loads and stores; and `kernels`, its launches. Emitters, interpreter and cost read only that program.
"""

from weft.schedule.apply import KernelNodes, Placing, apply, in_flight, kernels
from weft.schedule.lanes import power_of_two
from weft.schedule.place import grid_maps
from weft.schedule.schedule import Level, LevelPlace, LoopSchedule, Schedule
from weft.schedule.ties import begins_where, tied
from weft.schedule.together import merging_together

__all__ = [
    "KernelNodes",
    "Level",
    "LevelPlace",
    "LoopSchedule",
    "Placing",
    "Schedule",
    "apply",
    "begins_where",
    "grid_maps",
    "in_flight",
    "kernels",
    "merging_together",
    "power_of_two",
    "tied",
]
