"""What became of a region and of its candidates: its kernels, and all that led to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.plan.targets.kernel import Kernel
from weft.tensor.program import TensorProgram

if TYPE_CHECKING:
    from weft.block.program import BlockProgram
    from weft.cascade import Approximation
    from weft.tensor.passes import Step


@dataclass(frozen=True, slots=True)
class Considered:
    """A candidate, and its predicted time; or why it cannot be a kernel, or is not to be one although it could."""

    origin: str
    seconds: float | None
    reason: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason if self.seconds is None else f'{self.seconds * 1e3:.3g} ms'}"


@dataclass(frozen=True, slots=True, eq=False)
class CompiledRegion:
    """What became of one region.

    Attributes:
        program: the tensor program it computes.
        fused: its block program, without places.
        trace: the rewrites in between.
        kernels: in launch order.
        origin: which candidate it is.
        considered: every candidate, and what became of it.
        sizes: of the example that it was compiled for, by space name.
        approximation: what was checked of it, where it rounds at running scales; None where it is the program itself.
        measured_seconds: what its kernels were measured to take at these sizes; None where they were not timed.
        settled: as that of the selection.
    """

    program: TensorProgram
    fused: BlockProgram
    trace: tuple[Step, ...]
    kernels: tuple[Kernel, ...]
    origin: str
    considered: tuple[Considered, ...]
    sizes: Mapping[str, int]
    approximation: Approximation | None = None
    measured_seconds: float | None = None
    settled: bool = True
