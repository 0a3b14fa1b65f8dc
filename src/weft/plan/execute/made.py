"""The plan of a graph, once it is made: its stages in order, and the callable that runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from weft.capture import Captured, Fallback
from weft.plan.execute.instead import Instead
from weft.plan.execute.runner import Runner, runner
from weft.plan.execute.steps import PlanStep
from weft.plan.execute.writes import guarded, last_values, once_only
from weft.plan.targets.compiled import CompiledRegion
from weft.plan.targets.kernel import Kernel
from weft.tensor.program import TensorProgram

if TYPE_CHECKING:
    from weft.tensor.passes import Step


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What became of one captured graph.

    Attributes:
        captured: the program as written; None where capture refused.
        program: after the laws on tensor programs.
        regions: in launch order.
        fallbacks: what PyTorch runs, and why.
        run: takes the graph's arguments, gives its outputs.
        with_library: captures the graph again with matmuls left to PyTorch's library, those that it is predicted to gain by if the
            library is at its best, and gives None where there are none; None where no matmul is alone in its kernel.
        in_place: the calls, by name, that write into arguments in place.
        steps: what `run` does, in order; none where that is PyTorch's.
        arguments: how many the graph has.
        size_class: the magnitudes of the tensors among the example arguments.
        device: the GPU that they live on, if they do.
        trace: the rewrites from the captured program to the regions', each region's beginning with the step that takes it.
        scheme: which operators share a kernel, as the option `scheme` takes it; empty where PyTorch runs all.
    """

    captured: Captured
    program: TensorProgram | None
    regions: tuple[CompiledRegion, ...]
    fallbacks: tuple[Fallback, ...]
    run: Runner
    with_library: Callable[[], Captured | None] | None = None
    in_place: frozenset[str] = frozenset()
    steps: tuple[PlanStep, ...] = ()
    arguments: int = 0
    size_class: tuple[int, ...] = ()
    device: torch.device | None = None
    trace: tuple[Step, ...] = ()
    scheme: str = ""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel, in launch order."""
        return tuple(k for region in self.regions for k in region.kernels)

    def __repr__(self) -> str:
        """Leave out the programs, which are pages."""
        left = f"; left to PyTorch: {', '.join(f.operation for f in self.fallbacks)}" if self.fallbacks else ""
        return f"<Plan: {', '.join(k.name for k in self.kernels) or 'no kernels'}{left}>"


def size_class(arguments: Sequence[Any]) -> tuple[int, ...]:
    """Return the magnitude of each tensor of `arguments`."""
    return tuple(a.numel().bit_length() for a in arguments if isinstance(a, torch.Tensor))


def running(
    captured: Captured,
    program: TensorProgram,
    steps: Sequence[PlanStep],
    arguments: int,
    in_place: frozenset[str],
    eager: Runner,
    instead: Instead | None = None,
) -> Runner:
    """Make what runs `steps` on so many arguments of the graph; `eager`, where one that is written into shares memory
    with another.

    `instead` runs calls that kernels refuse.
    """
    once = once_only(captured, program, in_place)
    run = runner(captured, program, steps, arguments, last_values(captured, program, in_place), instead, once)
    return guarded(captured, run, eager)


def must_not_repeat(captured: Captured, program: TensorProgram, in_place: frozenset[str]) -> bool:
    """Tell whether a call that has begun cannot run again: it has written into an argument, or made a call that is made once."""
    return bool(once_only(captured, program, in_place) or last_values(captured, program, in_place))
