"""Scheduling a program by rule, as on a CPU."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.block.program import BlockProgram
from weft.cost import total
from weft.errors import ScheduleError, UnsupportedError
from weft.masks import with_full_blocks
from weft.plan.targets.candidates import Example, Way
from weft.plan.targets.choose import choose, in_segments, off_the_grid
from weft.schedule import Schedule, apply, kernels

if TYPE_CHECKING:
    from weft.plan.targets.base import Toolchain


@dataclass(frozen=True, slots=True)
class RuleWays:
    """The ways of a program on a target that times none: the schedule is chosen by rule."""

    chain: Toolchain
    fused: BlockProgram
    example: Example

    def few(self) -> list[Way]:
        """Choose one by rule; where it has several launches one without a grid, and one in segments where that may pay.

        Of the cheapest of these there is one more with loops of their own for full blocks of masks.
        """
        example, machine = self.example, self.chain.machine(self.example.threads)
        chosen = choose(self.fused, example.sizes, example.innermost, example.threads, machine.near_bytes)
        ways = [self.given(chosen)]
        others = [off_the_grid(chosen)] if len(kernels(ways[0].applied)) > 1 else []
        parts = in_segments(self.fused, chosen, example.sizes, example.threads)
        for other in others if parts is None else [*others, parts]:
            with suppress(ScheduleError, UnsupportedError):
                ways.append(self.given(other))
        if apart := with_full_blocks(self.fused):
            likeliest = min(ways, key=lambda way: way.cost.predicted_seconds)
            with suppress(ScheduleError, UnsupportedError):
                ways.append(self.given(replace(likeliest.schedule, apart=apart)))
        return ways

    def many(self) -> list[Way]:
        """Return none."""
        return []

    def given(self, schedule: Schedule) -> Way:
        """Apply a schedule."""
        applied = apply(self.fused, schedule)
        self.chain.demand_legal(applied)
        return Way(schedule, applied, total(self.chain.costs(self.example, applied, schedule)))
