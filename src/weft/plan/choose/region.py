"""From a region of a tensor program to its kernels: lower, fuse, schedule, check, emit, build."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

import torch

from weft.cost import Cost
from weft.errors import ScheduleError, UnsupportedError, VerificationError, WrongKernelError
from weft.options import current
from weft.plan.choose.checked import CheckedCandidate, VerdictsAhead
from weft.plan.choose.select import looked_at_closely, select
from weft.plan.progress import CandidateBuilt, tell
from weft.plan.targets import LaunchSpec, Toolchain, launch_specs, toolchain
from weft.plan.targets.candidates import Candidate, Example, Selection
from weft.plan.targets.compiled import CompiledRegion, Considered
from weft.plan.targets.kernel import NOT_JUDGED, Kernel
from weft.schedule import KernelNodes, Schedule
from weft.tensor.program import TensorProgram

Costs: TypeAlias = Callable[[], tuple[Cost, ...]]
"""Works out the cost of each launch of a program."""


Demand: TypeAlias = Callable[[CompiledRegion], str]
"""Has the kernels of a region judged, and says what came of it (`Kernel.judged`); raises WrongKernelError."""

SelectAgain: TypeAlias = Callable[[Mapping[str, str]], Selection]
"""Selects again among the candidates that are not refused: by origin, and why; raises as `select`."""

# So many candidates are built and judged where none is timed, the last one that which keeps every rounding.
_JUDGED = 3


def compile_region(program: TensorProgram, example: Example, schedule: Schedule | None = None) -> CompiledRegion:
    """Compiles the kernels of `program`.

    Args:
        program: one region: no opaque operation, every reindexing a view made before.
        example: sizes and layouts to schedule for; the kernels are right for any.
        schedule: to use instead of the chosen one, on the program that the rules which never pay make.

    Raises:
        UnsupportedError: it has no block program, or no kernel.
        VerificationError: the scheduled program is refuted, or could not be run where it was to be checked: it must not run.
        CompilerError: no compiler.
    """
    return build_region(select(program, example, schedule))


def build_region(
    selection: Selection,
    device: torch.device | None = None,
    demand: Demand = lambda _: NOT_JUDGED,
    ahead: Sequence[object] = (),
    verdicts: VerdictsAhead | None = None,
    instead: SelectAgain | None = None,
) -> CompiledRegion:
    """Builds the kernels of what was selected, the fastest of several where the target times them on `device`.

    Args:
        selection: what to build.
        device: where candidates are timed, if anywhere.
        demand: has kernels judged before they serve. The next candidate takes the place of a wrong one.
        ahead: what `start_region` gave.
        verdicts: of candidates, so far as they were begun.
        instead: selects another candidate for a wrong one where the target times none; without it there is no other.

    Raises:
        WrongKernelError: what `demand` raised of the first candidate, where no other is right.
        Others as `compile_region`.
    """
    attempts = _Attempts(selection, demand, verdicts)

    def closely() -> Selection:
        """Look at it, or at the same region anew where what was seen was not kept."""
        return looked_at_closely(replace(selection, close=False))

    chain = toolchain(selection.example.target)
    selection = chain.tuned(selection, device, attempts.refused, closely, ahead)
    try:
        return attempts.serving(selection)
    except WrongKernelError as error:
        if instead is None or chain.times or current().defects == "raise":
            raise
        found = _next_right(attempts, selection, error, instead)
        if found is None:
            raise
    return found


def _next_right(
    attempts: _Attempts, selection: Selection, error: WrongKernelError, instead: SelectAgain
) -> CompiledRegion | None:
    """Builds the next candidate in rank whose kernels are right, those of `selection` being wrong; None where none of a few is.

    The last one that is tried keeps every rounding: what a law gets wrong, that one does not.
    """
    refused = {selection.chosen.origin: error.what}
    while len(refused) < _JUDGED:
        if len(refused) == _JUDGED - 1 and selection.written is not None:
            skipped = f"not tried, after {len(refused)} candidates whose kernels are wrong"
            kept = selection.written.origin
            for each in selection.considered:
                if each.seconds is not None and each.origin != kept:
                    refused.setdefault(each.origin, skipped)
        try:
            selection = instead(refused)
        except (UnsupportedError, ScheduleError):  # there is no other
            return None
        try:
            return attempts.at(selection).serving(selection)
        except WrongKernelError as wrong:
            refused[selection.chosen.origin] = wrong.what
    return None


def start_region(selection: Selection, device: torch.device | None) -> list[object]:
    """Begin to build the kernels that `build_region` asks for first, where compilers can work meanwhile; it finds them
    while the result is held.

    What fails here is not started, and fails again there.
    """
    chosen = selection.chosen
    checked = CheckedCandidate(selection.program, chosen.applied, chosen.approximation)
    found: list[object] = []
    if current().verify != "always":  # each verdict would be computed twice
        with suppress(Exception):
            for each in toolchain(selection.example.target).started(selection, device, checked.meta):
                found.append(each)  # noqa: PERF402 - those that were started stay
    return found


class _Attempts:
    """Candidates of a region built and judged, each once."""

    def __init__(self, selection: Selection, demand: Demand, verdicts: VerdictsAhead | None) -> None:
        self._selection, self._demand, self._verdicts = selection, demand, verdicts
        self._found: list[tuple[Candidate, CompiledRegion | VerificationError | WrongKernelError]] = []

    def at(self, selection: Selection) -> _Attempts:
        """Returns attempts at another selection, which may be for an equal region that calls its values otherwise."""
        return _Attempts(selection, self._demand, self._verdicts)

    def made(self, candidate: Candidate) -> CompiledRegion:
        """Gets the kernels of `candidate`, which may run; raises as `build_region`."""
        found = next((found for one, found in self._found if one is candidate), None)
        if found is None:
            found = self._attempt(candidate)
            self._found.append((candidate, found))
        if isinstance(found, CompiledRegion):
            return found
        raise found

    def serving(self, selection: Selection) -> CompiledRegion:
        """Gets the kernels of what was selected; of the candidate that keeps every rounding where no field can check the chosen
        one. Raises as `build_region`.
        """
        chosen, considered = selection.chosen, selection.considered
        try:
            made = self.made(chosen)
        except VerificationError as error:
            if selection.written is None:
                raise
            # A law that no field can check: the program as written needs none.
            refused = Considered(chosen.origin, None, error.what)
            considered = tuple(refused if c.origin == chosen.origin else c for c in considered)
            return replace(self.made(selection.written), considered=considered)
        return replace(
            made, considered=considered, measured_seconds=selection.measured_seconds, settled=selection.settled
        )

    def refused(self, candidate: Candidate) -> str | None:
        """Says why the kernels of `candidate` may not run, None where they may; a wrong one is raised where defects are to be."""
        try:
            self.made(candidate)
        except (VerificationError, WrongKernelError) as error:
            if current().defects == "raise" and isinstance(error, WrongKernelError):
                raise
            return error.what
        return None

    def _attempt(self, candidate: Candidate) -> CompiledRegion | VerificationError | WrongKernelError:
        try:
            made = _built(self._selection, candidate, self._verdicts)
            tell(CandidateBuilt(candidate.name, candidate.cost.predicted_seconds))
            judged = self._demand(made)
        except (VerificationError, WrongKernelError) as error:
            return error
        return replace(made, kernels=tuple(replace(kernel, judged=judged) for kernel in made.kernels))


def _built(selection: Selection, chosen: Candidate, verdicts: VerdictsAhead | None) -> CompiledRegion:
    program, applied, example = selection.program, chosen.applied, selection.example
    checked = CheckedCandidate(program, chosen.applied, chosen.approximation, verdicts)
    chain = toolchain(example.target)
    costs = functools.cache(functools.partial(chain.costs, example, applied, chosen.schedule))  # for whoever asks
    specs = launch_specs(program, applied, chosen.schedule, example)
    made = tuple(_kernel(chain, spec, costs, checked) for spec in specs)
    return CompiledRegion(
        program,
        chosen.fused,
        chosen.trace,
        made,
        chosen.origin,
        selection.considered,
        example.sizes,
        chosen.approximation,
    )


def _kernel(chain: Toolchain, spec: LaunchSpec, costs: Costs, checked: CheckedCandidate) -> Kernel:
    built = chain.build(spec, checked.meta)
    cost = functools.partial(_cost, costs, spec.index)
    verdict = checked.of(built.made.meta)
    reads, writes = _passed(spec.part)
    return Kernel(
        spec.applied,
        spec.schedule,
        cost,
        verdict,
        reads,
        writes,
        built.made,
        built.made.launch,
        chain.target,
        built.assembled,
    )


def _cost(costs: Costs, index: int) -> Cost:
    return costs()[index]


def _passed(part: KernelNodes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names the values that a kernel takes, tensors begun by an earlier one among them, and those that it gives."""
    return (*part.reads, *part.begun), part.writes
