"""Concrete schedules: a kernel as loops over columns, every variable allocated once (FlashAttention on a Napkin, sections 5
and A.5).

In: a launch of an applied program, the sizes of its spaces, and a `Chip`. Out: a `ConcreteSchedule`: the columns in order
with what is alive in each, the variables with their bytes and where they lie, how many thread groups fit a thread block, and
the cycles of each kind of unit. Blocks are the least that matrix units, threads and coalesced transfers allow, or what the
caller says.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.cost.concrete.schedule import ConcreteSchedule, concrete_schedule

__all__ = ["ConcreteSchedule", "concrete_schedule"]

export_lazily(__name__)
