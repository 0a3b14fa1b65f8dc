"""The tuner: candidates for a GPU, ranked by the model, are compiled side by side and timed; the fastest right one is taken.

Whether one is right is the judge's to say, as of every kernel. The choice is kept in the cache for the class of sizes, so that a
warm start times nothing. A candidate that fails in any step is listed with its reason, and ends nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch

from weft.block.program import Dot
from weft.block.walk import every
from weft.errors import WeftError
from weft.options import current
from weft.phases import phase
from weft.plan.targets.base import Refused
from weft.plan.targets.candidates import Candidate, Leading, Selection
from weft.plan.targets.compiled import Considered
from weft.plan.targets.graphs import capturing
from weft.plan.targets.kept import keep
from weft.plan.targets.triton.build import built
from weft.plan.targets.triton.kept_tuning import keys, measured_seconds, rooms_at, tuned_before
from weft.plan.targets.triton.rounds import COMPILING, Rounds, assembled
from weft.run.cache import Json
from weft.run.gpu.assemble import begun
from weft.schedule import LevelPlace, kernels


@dataclass(frozen=True, slots=True)
class SearchSize:
    """How much is compiled and timed for a region.

    Attributes:
        programs: with places, each with the warps and stages that the model likes best.
        closely: so many of these, the fastest, have other warps and stages tried, `variants` of each at most.
        binaries: launches of all candidates together, those that fail to compile too, without the small ones that candidates
            share; the first candidate has all it needs.
    """

    programs: int
    closely: int
    variants: int
    binaries: float


# By the option `effort`, and whether there are matmuls: without them the model is right about most of it
# (docs/measurements/gpu-model.md).
SEARCHES = {
    ("quick", True): SearchSize(7, 1, 5, 14),
    ("quick", False): SearchSize(2, 1, 1, 2),
    ("full", True): SearchSize(64, 8, 5, math.inf),
    ("full", False): SearchSize(64, 8, 5, math.inf),
}
# So many of the fastest candidates have their kernels built and judged before the tuner gives up. Those of one program that have a
# pipeline count as one, and those that have none: what the printed text or a pipeline gets wrong they all get wrong.
_JUDGED = 4
# Candidates that are predicted to take at most so much longer than the first are as good; fewer binaries leave room for others.
AS_GOOD = 1.05
# Candidates that are predicted to take at most so many times as long are compared first, one for each number of thread blocks: what
# the model gets wrong of small blocks, it gets wrong of all of them (docs/measurements/gpu.md, regret).
_DOUBTED = 2.0
# Other warps and stages of a program that are predicted to take more than so many times as long as its best are not tried: of the
# 38 such among 1,172 pairs that were measured (docs/measurements/gpu-model.md) none came nearer to the best than 1.18 times. Blocks
# for which few warps have no registers are among them, and take Triton long: 3.6 s for one of BERT's, where the mean is 0.45.
_FAR_OFF = 2.0
# With loops of their own for full blocks they are compared if they are predicted to take at most so many times as long.
_NEARLY = 1.1


def tuned(
    selection: Selection,
    device: torch.device | None,
    refused: Refused,
    anew: Callable[[], Selection] | None = None,
    ahead: Sequence[object] = (),
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
        ahead: what `started` gave; what was timed since is not timed again.

    Raises:
        WeftError: no candidate has kernels; the first one's reason.
    """
    if not kernels(selection.chosen.applied):  # what it gives is what it was given
        return replace(selection, others=())
    if device is None or not _times():
        # That nothing is to be timed is an option, which every process with it has; that nothing can be is of this call.
        return _first_that_compiles(selection, anew, settled=current().effort == "none")
    kept = next((each.found for each in ahead if isinstance(each, _Kept) and each.selection is selection), None)
    kept = kept or _kept(selection, device)
    if kept is not None:
        return kept
    if current().compile == "first":
        return _first_that_compiles(selection, anew, refused)
    parts, cut_short, brought = keys(selection, device)
    selection = _with_others(selection, anew)
    tried = (selection.chosen, *(selection.others or ()))
    if len(tried) == 1:
        return replace(selection, others=())
    known = (each for each in ahead if isinstance(each, Tuning) and each.is_of(selection, device))
    ranked, said, whole = (next(known, None) or Tuning(selection, device)).ended()
    if not ranked:  # perhaps the next process has the memory to time them
        return _first_that_compiles(replace(selection, considered=(*selection.considered, *said)), anew)
    best, reasons = _first_right(ranked, refused)
    best = best or ranked[0]
    said = [Considered(c.origin, None, reasons[c.origin]) if c.origin in reasons else c for c in said]
    lines: list[Json] = [[c.origin, c.seconds, c.reason] for c in said]
    keep(
        parts if whole else cut_short,
        best,
        brought,
        {"chosen": best.name, "considered": lines, "rooms": rooms_at(best, selection.example)},
    )
    seconds = measured_seconds(best.name, said)
    considered = (*selection.considered, *said)
    found = replace(selection, chosen=best, others=(), considered=considered, settled=whole)
    return replace(found, measured_seconds=seconds)


def started(selection: Selection, device: torch.device | None) -> Iterator[object]:
    """Begins to compile what `tuned` will ask for first: what an earlier tuning chose, of which this call may need other binaries;
    else the first round, where there is one; else the likeliest candidate. What is yielded is to be held while the kernel is
    wanted.
    """
    tried = (selection.chosen, *(selection.others or ()))
    if device is not None and _times():
        kept = _kept(selection, device)
        if kept is not None:
            yield _Kept(selection, kept)
            tried = (kept.chosen,)
        elif current().compile == "first":
            tried = tried[:1]
        else:
            # The seconds that a tuning may take are those from its beginning, and not those of other regions.
            if len(tried) > 1 and current().tune_seconds is None:
                yield Tuning(selection, device)
            tried = _first_round(tried)
    else:
        tried = tried[:1]
    for candidate in tried:
        yield from _begun(selection, candidate)


def go_on(ahead: Sequence[object]) -> Leading | None:
    """Times the first round of a tuning that `started` has begun, and begins to compile the second one.

    Returns:
        the fastest candidate of the first round: the second one has its program with other warps and stages.

    Raises:
        WeftError: no candidate has kernels.
    """
    tuning = next((each for each in ahead if isinstance(each, Tuning)), None)
    if tuning is None:
        return None
    try:
        tuning.begin()
    finally:
        tuning.rest()
    return tuning.leading


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """What an earlier tuning `found` for a selection."""

    selection: Selection
    found: Selection


def _kept(selection: Selection, device: torch.device) -> Selection | None:
    """Returns `selection` with what an earlier tuning chose; None where there was none, or with less time than there is now."""
    parts, cut_short, brought = keys(selection, device)
    return tuned_before(selection, (parts,) if current().tune_seconds is None else (parts, cut_short), brought)


def _begun(selection: Selection, candidate: Candidate) -> Iterator[object]:
    """Begins to compile the kernels of `candidate`; what is yielded is to be held while they are wanted."""
    for each in built(selection.program, candidate, selection.example):
        yield begun(partial(each.assembled, COMPILING))


def _times() -> bool:
    """Tells whether candidates are timed on a GPU that is here: not while a graph is captured there."""
    return current().effort != "none" and not capturing()


def _with_others(selection: Selection, anew: Callable[[], Selection] | None) -> Selection:
    """Returns `selection` with all that a tuner may try, found anew where it was not kept."""
    return selection if selection.others is not None or anew is None else anew()


def _first_that_compiles(
    selection: Selection,
    anew: Callable[[], Selection] | None,
    refused: Refused = lambda _: None,
    *,
    settled: bool = False,
) -> Selection:
    """Returns `selection` with the likeliest candidate that has kernels and is not `refused`; where a few are, with the first of
    these. Unless that is `settled`, another process looks for a faster one.
    """
    if not selection.close:
        selection = _with_others(selection, anew)
    failed: list[tuple[Candidate, WeftError]] = []
    chosen, reasons = _first_right(_compiling(selection, anew, failed), refused)
    if chosen is None:
        raise failed[0][1]
    reasons = {each.name: error.what for each, error in failed} | reasons
    considered = (*selection.considered, *(Considered(name, None, reason) for name, reason in reasons.items()))
    return replace(selection, chosen=chosen, others=(), considered=considered, settled=settled)


def _compiling(
    selection: Selection, anew: Callable[[], Selection] | None, failed: list[tuple[Candidate, WeftError]]
) -> Iterator[Candidate]:
    """Yields the candidates that have kernels, the likeliest first; the others are added to `failed`."""
    for candidate in _likeliest(selection, anew):
        try:
            printed = built(selection.program, candidate, selection.example)
            with phase("compiler"):
                assembled(printed, math.inf)
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
    """Returns the likeliest candidate for each program with places, so many at most.

    Of those that are as good as the first, those with the fewest launches come first. The likeliest for each number of thread
    blocks comes before others with as many; before all but the first of these, the likeliest with loops of their own for full
    blocks for each size of blocks.
    """
    first = tried[0].cost.predicted_seconds
    as_good = [each for each in tried if each.cost.predicted_seconds <= AS_GOOD * first]
    as_good.sort(key=lambda each: len(kernels(each.applied)))
    programs: dict[int, Candidate] = {}
    for each in (*as_good, *(each for each in tried if each.cost.predicted_seconds > AS_GOOD * first)):
        programs.setdefault(id(each.applied), each)
    likeliest: dict[int, Candidate] = {}
    parted: dict[tuple[int, ...], Candidate] = {}
    for each in programs.values():
        if each.cost.predicted_seconds <= _DOUBTED * first:
            likeliest.setdefault(each.cost.thread_blocks, each)
        if each.schedule.apart and each.cost.predicted_seconds <= _NEARLY * first:
            parted.setdefault(_blocks(each), each)
    likely = [*likeliest.values()]
    return tuple(dict.fromkeys([*likely[:1], *parted.values(), *likely[1:], *programs.values()]))[:most]


def _blocks(candidate: Candidate) -> tuple[int, ...]:
    """Returns the sizes of blocks of a candidate's grid and of the loops that are told beforehand what is idle."""
    of = candidate.schedule
    asked = (v for name, loop in of.loops for v in loop.levels if v.place is LevelPlace.grid or name in of.beforehand)
    return tuple(v.size for v in asked)


class Tuning:
    """The search for a region's fastest candidate: the best programs with places first, then the best warps and stages of these.

    Between the two, compilers work: whoever has several regions begins with each (`begin`) before any is done with (`ended`).

    Attributes:
        selection: the region's, with the candidates in order of their predicted times.
        device: where they are timed.
    """

    def __init__(self, selection: Selection, device: torch.device) -> None:
        self.selection, self.device = selection, device
        self._tried = (selection.chosen, *(selection.others or ()))
        self._rounds = Rounds(selection.program, selection.example, device, self._tried)
        self._more: tuple[Candidate, ...] | None = None
        self._compiling: list[object] = []

    def is_of(self, selection: Selection, device: torch.device) -> bool:
        """Tells whether it can be ended for `selection`: it is the same, and nothing went wrong so far."""
        return self.selection is selection and self.device == device and self._more is not None

    def begin(self) -> None:
        """Times the first round, and begins to compile the second one.

        Raises:
            WeftError: no candidate has kernels; the first one's reason.
        """
        rounds, search, first = self._rounds, _search(self._tried), _first_round(self._tried)
        following = _each_once(self._tried, 2 * search.programs)[len(first) :]
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
        self._more = _within(self._variants(search, done), search.binaries - _binaries(done), surely=False)
        for each in self._more if current().tune_seconds is None else ():
            with suppress(WeftError):  # it fails again where it is asked for
                self._compiling += _begun(self.selection, each)

    def _variants(self, search: SearchSize, done: Sequence[Candidate]) -> list[Candidate]:
        """Returns the best programs with other warps and stages, in order."""
        found: list[Candidate] = []
        for best, _ in self._rounds.times[: search.closely]:
            seen = [c.schedule for c in done if c.applied is best.applied]
            every = [c for c in self._tried if c.applied is best.applied]
            most = _FAR_OFF * min(c.cost.predicted_seconds for c in every)
            others = [c for c in every if c.schedule not in seen and c.cost.predicted_seconds <= most]
            # With as many warps or stages as the best first: the other ones of both are further from it.
            one = best.schedule
            others.sort(key=lambda c: (c.schedule.warps != one.warps) + (c.schedule.stages != one.stages))
            found += others[: search.variants]
        return found

    @property
    def leading(self) -> Leading | None:
        """The fastest candidate so far; None where none was timed."""
        return next((Leading(*each) for each in self._rounds.times), None)

    def rest(self) -> None:
        """Lets go of the memory that is needed to time, until it goes on."""
        self._rounds.rest()

    def ended(self) -> tuple[list[Candidate], list[Considered], bool]:
        """Times the second round, after the first.

        Returns:
            the candidates that could be measured, the fastest first; what became of each; whether there was time for all.

        Raises:
            WeftError: as `begin`.
        """
        if self._more is None:
            self.begin()
        self._rounds.run(self._more or ())
        self._compiling.clear()
        return [candidate for candidate, _ in self._rounds.times], self._rounds.said, not self._rounds.cut_short


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
    """Counts the binaries that these candidates need, but for small ones that many candidates share: launches that find out
    beforehand what guards ask, and those that merge segments.
    """
    launches = ((each, kernels(each.applied)) for each in candidates)
    return sum(sum(not k.merges for k in own) - bool(each.schedule.beforehand) for each, own in launches)


def _within(candidates: Sequence[Candidate], binaries: float, *, surely: bool = True) -> tuple[Candidate, ...]:
    """Returns the likeliest of `candidates` that need so many binaries at most; `surely`: the first one, whatever it needs."""
    taken: list[Candidate] = []
    for each in candidates:
        if _binaries([*taken, each]) <= binaries or (surely and not taken):
            taken.append(each)
    return tuple(taken)
