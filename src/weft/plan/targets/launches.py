"""The launches of a candidate, as a toolchain is asked to build them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from weft.block.listing import listing
from weft.block.program import BlockProgram
from weft.plan.targets.candidates import Example
from weft.plan.targets.interface import dims_of
from weft.schedule import KernelNodes, Schedule, kernels
from weft.tensor.axes import Axis
from weft.tensor.program import TensorProgram


@dataclass(frozen=True, slots=True, eq=False)
class LaunchSpec:
    """One launch of a candidate, as a toolchain is asked to build it.

    Attributes:
        program: the region.
        applied, schedule: the region's program with places, and what gave them.
        part, index: which of its launches.
        dims: of each tensor that it reads or writes, its axes in memory order.
        example: sizes and layouts.
    """

    program: TensorProgram
    applied: BlockProgram
    schedule: Schedule
    part: KernelNodes
    index: int
    dims: Mapping[str, tuple[Axis, ...]]
    example: Example

    @property
    def name(self) -> str:
        """Name of the function to print."""
        return re.sub(r"\W", "_", f"weft_{'_'.join(n.name for n in self.part.nodes)}_{self.index}")

    @property
    def key_parts(self) -> dict[str, str]:
        """All that the kernel's text depends on beside the target, by name, for its key in the cache."""
        return {
            "program": str(self.program),
            "fixed sizes": str([(s.name, s.fixed) for s in self.program.spaces() if s.fixed is not None]),
            "schedule": str(self.schedule),
            "applied": listing(self.applied),
            "kernel": str(self.index),
        }


def launch_specs(
    program: TensorProgram, applied: BlockProgram, schedule: Schedule, example: Example
) -> list[LaunchSpec]:
    """Lists the launches of a program with places, in order; arguments as the attributes of `LaunchSpec`."""
    return [
        LaunchSpec(program, applied, schedule, part, index, dims_of(applied, part), example)
        for index, part in enumerate(kernels(applied))
    ]
