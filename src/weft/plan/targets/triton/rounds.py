"""Rounds of the tuner: candidates for a GPU compiled side by side, and timed one after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from weft.block.program import BlockProgram
from weft.errors import WeftError
from weft.options import current
from weft.phases import phase
from weft.plan.progress import CandidateBuilt, CandidateTimed, ProgressObserver, observer, tell
from weft.plan.targets.candidates import Candidate, Example
from weft.plan.targets.compiled import Considered
from weft.plan.targets.graphs import GraphTimer, cache_filler
from weft.plan.targets.lying import laid_out
from weft.plan.targets.triton.build import Printed, built, launched
from weft.plan.targets.triton.drawn import as_masks
from weft.run.gpu.alone import alone_on
from weft.run.gpu.assemble import side_by_side
from weft.tensor.program import Input, Lookup, TensorProgram
from weft.verify.inputs import deciding, reads_inside

COMPILING = 20.0
"""Seconds after which a candidate's compiler is stopped: what takes longer is unrolled into thousands of lines, and slow."""
_NO_MEMORY = "the GPU's memory did not suffice"

Run = Callable[[], tuple[torch.Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Ready:
    """A candidate whose kernels are compiled."""

    candidate: Candidate
    kernels: list[Printed]


class Rounds:
    """Candidates compiled and timed, round by round.

    Attributes:
        times: of candidates, in seconds, the fastest first.
        compiled: those that have kernels.
        said: what became of each.
        cut_short: the time for tuning was over before all had been compiled and timed.
    """

    def __init__(
        self, program: TensorProgram, example: Example, device: torch.device, tried: Sequence[Candidate] = ()
    ) -> None:
        self.program, self.example, self.device, self.tried = program, example, device, tried
        seconds = current().tune_seconds
        self.deadline = math.inf if seconds is None else time.monotonic() + seconds
        self.times: list[tuple[Candidate, float]] = []
        self.compiled: list[Candidate] = []
        self.said: list[Considered] = []
        self.cut_short = False
        self._timing: CandidateTimer | None = None

    def run(self, candidates: Sequence[Candidate]) -> None:
        """Runs one round. However little time there is, the first of all candidates is compiled and timed.

        Raises:
            WeftError: no candidate has kernels so far; the first one's reason.
        """
        if not candidates or (self.times and self.is_over()):
            return
        ready: list[Ready] = []
        failure: WeftError | None = None
        made = compiled(self.program, candidates, self.example, self.deadline, surely=0 if self.times else 1)
        for candidate, found in zip(candidates, made, strict=True):
            if isinstance(found, WeftError):
                failure = failure or found
                self.said.append(Considered(candidate.name, None, found.what))
            else:
                ready.append(Ready(candidate, found))
        self.compiled += [each.candidate for each in ready]
        over = failure is not None and self.is_over()
        if failure is not None and not self.compiled:
            if over:  # with more time another one may have had kernels
                return
            raise failure
        with phase("tuning"), torch.no_grad(), torch.cuda.device(self.device), alone_on(self.device):
            timing = self._timing = self._timing or _timing(
                self.program, self.example, self.device, [each.applied for each in self.tried]
            )
            for each in ready:
                self.time(each, timing)
        self.times.sort(key=lambda found: found[1])

    def rest(self) -> None:
        """Lets go of the operands that candidates are timed on."""
        self._timing = None

    def is_over(self) -> bool:
        """Tells whether no more is to be begun; it is asked where there is more."""
        over = time.monotonic() >= self.deadline
        self.cut_short = self.cut_short or over
        return over

    def time(self, ready: Ready, timing: CandidateTimer | None) -> None:
        name = ready.candidate.name
        if timing is None:
            self.said.append(Considered(name, None, f"not timed: {_NO_MEMORY}"))
            return
        if self.times and self.is_over():
            self.said.append(Considered(name, None, "not timed: the time for tuning (option tune_seconds) was used up"))
            return
        measured = timing.measured(ready, min((t for _, t in self.times), default=math.inf))
        if isinstance(measured, str):
            self.said.append(Considered(name, None, measured))
        else:
            tell(CandidateTimed(measured))
            self.times.append((ready.candidate, measured))
            self.said.append(Considered(name, measured, ""))


def compiled(
    program: TensorProgram,
    tried: Sequence[Candidate],
    example: Example,
    deadline: float = math.inf,
    *,
    surely: int = 0,
) -> list[list[Printed] | WeftError]:
    """Compiles for each candidate its kernels, or says what is wrong with one; Triton runs in processes of its own, one
    for each core.

    Nothing is compiled after `deadline`, by `time.monotonic`, but for so many that are compiled `surely`: the first that can be
    printed.
    """
    # Printed here: options are those of this thread.
    printed = [_printed(program, candidate, example) for candidate in tried]
    good = [(c, each) for c, each in zip(tried, printed, strict=True) if not isinstance(each, WeftError)]
    ends = [math.inf if number < surely else deadline for number in range(len(good))]
    tasks = [partial(_assembled_aloud, *each, end, observer()) for each, end in zip(good, ends, strict=True)]
    with phase("compiler"):
        made = iter(side_by_side(tasks))
    return [each if isinstance(each, WeftError) else next(made) for each in printed]


def _printed(program: TensorProgram, candidate: Candidate, example: Example) -> list[Printed] | WeftError:
    try:
        return built(program, candidate, example)
    except WeftError as error:
        return error


def assembled(kernels: list[Printed], deadline: float) -> list[Printed]:
    """Waits for the binaries of a candidate, until `deadline` at most; raises WeftError where one cannot be had."""
    for each in kernels:
        each.assembled(min(COMPILING, deadline - time.monotonic()))
    return kernels


def _assembled_aloud(
    candidate: Candidate, kernels: list[Printed], deadline: float, follower: ProgressObserver | None
) -> list[Printed]:
    """Compile in a thread that has no observer of its own."""
    found = assembled(kernels, deadline)
    if follower is not None:
        follower(CandidateBuilt(candidate.name, candidate.cost.predicted_seconds))
    return found


def _timing(
    program: TensorProgram, example: Example, device: torch.device, applied: Sequence[BlockProgram]
) -> CandidateTimer | None:
    """Makes what times candidates; None where the GPU has no memory for other operands beside the user's, or where none are found
    with which all that says where to read is an index: kernels would end.
    """
    try:
        timer = CandidateTimer(program, example, device, applied)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    if not any(isinstance(node, Lookup) for node in program.nodes):
        return timer
    return timer if reads_inside(program, _OnHost(timer.inputs), program.sizes(example.sizes)) else None


class _OnHost(dict[str, Any]):
    """Tensors by name as arrays, each brought from the GPU when it is asked for."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def __missing__(self, name: str) -> Any:
        tensor = self._tensors[name]
        return (tensor.double() if tensor.is_floating_point() else tensor).cpu().numpy()


class CandidateTimer:
    """Runs candidates on the same random inputs and times them, the second-level cache emptied before each call."""

    def __init__(
        self, program: TensorProgram, example: Example, device: torch.device, applied: Sequence[BlockProgram] = ()
    ) -> None:
        """`applied`: the programs of the candidates, which say what is a mask: that is drawn as masks are."""
        self.program, self.example, self.device = program, example, device
        sizes, indexing = program.sizes(example.sizes), deciding((program,))
        least = {name: min(space.size(sizes) for space in spaces) for name, spaces in indexing.items()}
        drawn = {n.name: _random(n, example, device, least.get(n.name, 2)) for n in program.inputs}
        plain = {name: each for name, each in drawn.items() if name not in indexing}
        # Told apart by what they are, not by what they say: to hash all of a program takes as long as to time it.
        as_masks(plain, {id(each): each for each in applied}.values(), example.masks)
        self.inputs = {n: _as_in(example, n, drawn.pop(n)) for n in tuple(drawn)}
        self.timer = GraphTimer(cache_filler(device))

    def measured(self, ready: Ready, best: float) -> float | str:
        """Measures the median seconds of a call, or says why it cannot be taken."""
        try:
            run = self._run(ready)
            run()
            torch.cuda.synchronize(self.device)  # what fails, fails here
            return self.timer.median(run, best)
        except WeftError as error:
            return error.what
        except torch.OutOfMemoryError:
            pass
        except RuntimeError as error:  # the driver's word
            return str(error).partition("\n")[0]
        torch.cuda.empty_cache()  # the next candidate, and the user, may have what this one took
        return _NO_MEMORY

    def _run(self, ready: Ready) -> Run:
        def run() -> tuple[torch.Tensor, ...]:
            values = launched(ready.kernels, self.inputs, self.example.sizes)
            return tuple(values[n] for n in ready.candidate.applied.graph.outputs)

        return run


def _random(node: Input, example: Example, device: torch.device, below: int) -> torch.Tensor:
    """Draws random elements, integers `below` a number."""
    kind: torch.dtype = getattr(torch, node.dtype.name)
    shape = [a.space.size(example.sizes) for a in node.axes]
    if kind.is_floating_point:
        return torch.randn(shape, device=device).to(kind)
    return torch.randint(0, below, shape, device=device).to(kind)


def _as_in(example: Example, name: str, drawn: torch.Tensor) -> torch.Tensor:
    """Lays an input out as the example's lies."""
    return laid_out(drawn, example.lies(name, drawn.shape))
