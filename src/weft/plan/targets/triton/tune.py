"""The tuner: candidates for a GPU, ranked by the model, are compiled side by side and timed; the fastest right one is taken.

Whether one is right is the judge's to say, as of every kernel. The choice is kept in the cache for the class of sizes, so that a
warm start times nothing. A candidate that fails in any step is listed with its reason, and ends nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from weft.block.program import BlockProgram, Dot
from weft.block.walk import every
from weft.errors import WeftError
from weft.options import current
from weft.plan.progress import CandidateBuilt, CandidateTimed, ProgressObserver, observer, tell
from weft.plan.targets.base import Refused
from weft.plan.targets.candidates import Candidate, Considered, Example, Selection
from weft.plan.targets.graphs import GraphTimer, cache_filler, capturing
from weft.plan.targets.kept import keep
from weft.plan.targets.triton.build import Printed, built, launched
from weft.plan.targets.triton.drawn import as_masks
from weft.plan.targets.triton.kept_tuning import keys, measured_seconds, tuned_before
from weft.run.cache import CacheFolder, Json
from weft.run.gpu.alone import alone_on
from weft.run.gpu.assemble import begun, side_by_side
from weft.run.key import cache_key
from weft.schedule import kernels
from weft.tensor.program import Input, Lookup, TensorProgram
from weft.verify.inputs import deciding, reads_inside


@dataclass(frozen=True, slots=True)
class SearchSize:
    """How much is compiled and timed for a region.

    Attributes:
        programs: with places, each with the warps and stages that the model likes best.
        closely: so many of these, the fastest, have other warps and stages tried, `variants` of each at most.
        binaries: launches of all candidates together, those that fail to compile too; the first candidate has all it needs.
    """

    programs: int
    closely: int
    variants: int
    binaries: float


# By the option `effort`, and whether there are matmuls: without them the model is right about most of it
# (docs/measurements/gpu-model.md).
SEARCHES = {
    ("quick", True): SearchSize(5, 2, 5, 8),
    ("quick", False): SearchSize(2, 1, 1, 2),
    ("full", True): SearchSize(64, 8, 5, math.inf),
    ("full", False): SearchSize(64, 8, 5, math.inf),
}
# Seconds after which a candidate's compiler is stopped: what takes longer is unrolled into thousands of lines, and slow.
_COMPILING = 20.0
# So many of the fastest candidates have their kernels built and judged before the tuner gives up. Those of one program that have a
# pipeline count as one, and those that have none: what the printed text or a pipeline gets wrong they all get wrong.
_JUDGED = 4
# Candidates that are predicted to take at most so much longer than the first are as good; fewer binaries leave room for others.
AS_GOOD = 1.05
_NO_MEMORY = "the GPU's memory did not suffice"

Run = Callable[[], tuple[torch.Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Ready:
    """A candidate whose kernels are compiled."""

    candidate: Candidate
    kernels: list[Printed]


def tuned(
    selection: Selection,
    device: torch.device | None,
    refused: Refused,
    anew: Callable[[], Selection] | None = None,
) -> Selection:
    """Returns `selection` with the candidate that measured fastest of those that are right, and what became of the others.

    The choice of a tuning that `tune_seconds` cut short is kept under a key with these seconds: a warm start with as many times
    nothing, and one with more, or without a limit, does not take half a tuning for a whole one. A whole one is good for all.

    Args:
        selection: for a GPU, the candidates likeliest first. The option `effort` says how many are tried, `tune_seconds` for how
            long, compiling included.
        device: where they are timed; None where the target is not here: then the first that can be compiled is taken, as it is
            while a CUDA graph is captured.
        refused: asked of the fastest candidates in order until one may run. Where none of a few may, the fastest is taken and
            kept: whoever builds it finds that out again, without a tuning. With compile="first" it is asked of the likeliest ones,
            where no tuning is known. Nothing is asked else where nothing is timed.
        anew: selects again where the candidates beside the chosen one were not kept; without it they are not tried.

    Raises:
        WeftError: no candidate has kernels; the first one's reason.
    """
    if not kernels(selection.chosen.applied):  # what it gives is what it was given
        return replace(selection, others=())
    if device is None or not _times():
        return _first_that_compiles(selection, anew)
    parts, cut_short, brought = keys(selection, device)
    kept = tuned_before(selection, (parts,) if current().tune_seconds is None else (parts, cut_short), brought)
    if kept is not None:
        return kept
    if current().compile == "first":
        return _first_that_compiles(selection, anew, refused)
    selection = _with_others(selection, anew)
    tried = (selection.chosen, *(selection.others or ()))
    if len(tried) == 1:
        return replace(selection, others=())
    ranked, said, whole = _fastest(tried, selection, device)
    if not ranked:  # perhaps the next process has the memory to time them
        return _first_that_compiles(replace(selection, considered=(*selection.considered, *said)), anew)
    best, reasons = _first_right(ranked, refused)
    best = best or ranked[0]
    said = [Considered(c.origin, None, reasons[c.origin]) if c.origin in reasons else c for c in said]
    lines: list[Json] = [[c.origin, c.seconds, c.reason] for c in said]
    keep(parts if whole else cut_short, best, brought, {"chosen": best.name, "considered": lines})
    seconds = measured_seconds(best.name, said)
    considered = (*selection.considered, *said)
    return replace(selection, chosen=best, others=(), considered=considered, measured_seconds=seconds)


def started(selection: Selection, device: torch.device | None) -> Iterator[object]:
    """Begins to compile what `tuned` will ask for first: the first round, where there is one and nothing is kept of an earlier
    one; else the likeliest candidate. What is yielded is to be held while the kernel is wanted.
    """
    tried = (selection.chosen, *(selection.others or ()))
    if device is not None and _times():
        parts, cut_short, _ = keys(selection, device)
        folder = CacheFolder()
        if any(folder.lookup(cache_key(each), counted=False) is not None for each in (parts, cut_short)):
            return
        tried = tried[:1] if current().compile == "first" else _first_round(tried)
    else:
        tried = tried[:1]
    for candidate in tried:
        for each in built(selection.program, candidate, selection.example):
            yield begun(partial(each.assembled, _COMPILING))


def _times() -> bool:
    """Tells whether candidates are timed on a GPU that is here: not while a graph is captured there."""
    return current().effort != "none" and not capturing()


def _with_others(selection: Selection, anew: Callable[[], Selection] | None) -> Selection:
    """Returns `selection` with all that a tuner may try, found anew where it was not kept."""
    return selection if selection.others is not None or anew is None else anew()


def _first_that_compiles(
    selection: Selection, anew: Callable[[], Selection] | None, refused: Refused = lambda _: None
) -> Selection:
    """Returns `selection` with the likeliest candidate that has kernels and is not `refused`; where a few are, with the first of
    these.
    """
    if not selection.close:
        selection = _with_others(selection, anew)
    failed: list[tuple[Candidate, WeftError]] = []
    chosen, reasons = _first_right(_compiling(selection, anew, failed), refused)
    if chosen is None:
        raise failed[0][1]
    reasons = {each.name: error.what for each, error in failed} | reasons
    considered = (Considered(name, None, reason) for name, reason in reasons.items())
    return replace(selection, chosen=chosen, others=(), considered=(*selection.considered, *considered))


def _compiling(
    selection: Selection, anew: Callable[[], Selection] | None, failed: list[tuple[Candidate, WeftError]]
) -> Iterator[Candidate]:
    """Yields the candidates that have kernels, the likeliest first; the others are added to `failed`."""
    for candidate in _likeliest(selection, anew):
        try:
            _assembled(built(selection.program, candidate, selection.example), math.inf)
        except WeftError as error:
            failed.append((candidate, error))
        else:
            yield candidate


def _likeliest(selection: Selection, anew: Callable[[], Selection] | None) -> Iterator[Candidate]:
    """Yields the candidates in order; the others are found only where the first does not do."""
    yield selection.chosen
    yield from _with_others(selection, anew).others or ()


def _first_right(ranked: Iterable[Candidate], refused: Refused) -> tuple[Candidate | None, dict[str, str]]:
    """Chooses the first candidate that may run, the first of all where none of a few may, None where there is none; and says why
    those before it may not, by name.
    """
    reasons: dict[str, str] = {}
    wrong: list[Candidate] = []
    for candidate in ranked:
        staged = candidate.schedule.stages > 1
        if any(each.applied is candidate.applied and (each.schedule.stages > 1) == staged for each in wrong):
            reasons[candidate.name] = "not judged: the same program with other warps or stages was found wrong"
            continue
        reason = refused(candidate)
        if reason is None:
            return candidate, reasons
        wrong.append(candidate)
        reasons[candidate.name] = reason
        if len(wrong) == _JUDGED:
            break
    return (wrong[0] if wrong else None), reasons


def _each_once(tried: Sequence[Candidate], most: int) -> tuple[Candidate, ...]:
    """Returns the likeliest candidate for each program with places, so many at most; of those that are as good as the first, those
    with the fewest launches come first.
    """
    firsts: list[Candidate] = []
    most_seconds = AS_GOOD * tried[0].cost.predicted_seconds
    as_good = [each for each in tried if each.cost.predicted_seconds <= most_seconds]
    as_good.sort(key=lambda each: len(kernels(each.applied)))
    for each in (*as_good, *(each for each in tried if each.cost.predicted_seconds > most_seconds)):
        if len(firsts) < most and all(each.applied is not first.applied for first in firsts):
            firsts.append(each)
    return tuple(firsts)


def _fastest(
    tried: Sequence[Candidate], selection: Selection, device: torch.device
) -> tuple[list[Candidate], list[Considered], bool]:
    """Ranks the candidates by measured time: the best programs with places first, then the best warps and stages of these.

    Returns:
        those that could be measured, the fastest first; what became of each; whether there was time for all.
    """
    rounds = Rounds(selection.program, selection.example, device, tried)
    search, first = _search(tried), _first_round(tried)
    following = _each_once(tried, 2 * search.programs)[len(first) :]
    done = list(first)
    try:
        rounds.run(first)
    except WeftError:
        if not following or rounds.is_over():
            raise
    # Those that had no kernels, which did not fit, make room for others; but not where none can be timed.
    lost = len(first) - len(rounds.compiled)
    if lost and (rounds.times or not rounds.compiled) and following and not rounds.is_over():
        instead = _within(following[:lost], search.binaries - _binaries(done), surely=not rounds.compiled)
        rounds.run(instead)
        done += instead
    more: list[Candidate] = []
    for best, _ in rounds.times[: search.closely]:
        seen = [c.schedule for c in done if c.applied is best.applied]
        others = [c for c in tried if c.applied is best.applied and c.schedule not in seen]
        # With as many warps or stages as the best first: the other ones of both are further from it.
        one = best.schedule
        others.sort(key=lambda c: (c.schedule.warps != one.warps) + (c.schedule.stages != one.stages))
        more += others[: search.variants]
    rounds.run(_within(more, search.binaries - _binaries(done), surely=False))
    return [candidate for candidate, _ in rounds.times], rounds.said, not rounds.cut_short


def _search(tried: Sequence[Candidate]) -> SearchSize:
    return SEARCHES[current().effort, _multiplies(tried[0])]


def _first_round(tried: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Returns the candidates that are compiled and timed first."""
    search = _search(tried)
    return _within(_each_once(tried, search.programs), search.binaries)


def _multiplies(candidate: Candidate) -> bool:
    """Tells whether there are matmuls, of blocks or of a block and a vector."""
    return any(isinstance(node, Dot) for node in every(candidate.applied.graph.nodes))


def _binaries(candidates: Sequence[Candidate]) -> int:
    """Counts the binaries that these candidates need."""
    return sum(len(kernels(each.applied)) for each in candidates)


def _within(candidates: Sequence[Candidate], binaries: float, *, surely: bool = True) -> tuple[Candidate, ...]:
    """Returns the likeliest of `candidates` that need so many binaries at most; `surely`: the first one, whatever it needs."""
    taken: list[Candidate] = []
    for each in candidates:
        if _binaries([*taken, each]) <= binaries or (surely and not taken):
            taken.append(each)
    return tuple(taken)


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
        with torch.no_grad(), torch.cuda.device(self.device), alone_on(self.device):
            timing = self._timing = self._timing or _timing(
                self.program, self.example, self.device, [each.applied for each in self.tried]
            )
            for each in ready:
                self.time(each, timing)
        self.times.sort(key=lambda found: found[1])

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
    made = iter(side_by_side(tasks))
    return [each if isinstance(each, WeftError) else next(made) for each in printed]


def _printed(program: TensorProgram, candidate: Candidate, example: Example) -> list[Printed] | WeftError:
    try:
        return built(program, candidate, example)
    except WeftError as error:
        return error


def _assembled(kernels: list[Printed], deadline: float) -> list[Printed]:
    for each in kernels:
        each.assembled(min(_COMPILING, deadline - time.monotonic()))
    return kernels


def _assembled_aloud(
    candidate: Candidate, kernels: list[Printed], deadline: float, follower: ProgressObserver | None
) -> list[Printed]:
    """Compile in a thread that has no observer of its own."""
    found = _assembled(kernels, deadline)
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
        self.inputs = {n.name: _random(n, example, device, least.get(n.name, 2)) for n in program.inputs}
        plain = {name: each for name, each in self.inputs.items() if name not in indexing}
        as_masks(plain, dict.fromkeys(applied), example.masks)
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
    """Draws random elements, integers `below` a number, in a tensor that lies as the example's does."""
    kind: torch.dtype = getattr(torch, node.dtype.name)
    shape = [a.space.size(example.sizes) for a in node.axes]
    last = example.innermost.get(node.name)
    turned = last is not None and last != len(shape) - 1
    lying = [n for d, n in enumerate(shape) if d != last] + [shape[last]] if turned and last is not None else shape
    if kind.is_floating_point:
        made = torch.randn(lying, device=device).to(kind)
    else:
        made = torch.randint(0, below, lying, device=device).to(kind)
    return made.movedim(-1, last) if turned and last is not None else made
