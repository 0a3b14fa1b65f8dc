"""Matmuls for PyTorch's library to run: those of regions that gain by it, as far as that is known.

The library is a candidate for each matmul that no other matmul of its region feeds: at the seconds that it was measured to take
where it was, else at a share of its floor; what that leaves out is what the model errs by. The best cut of each region is found
with these candidates, and the seconds predicted for kernels that multiply are scaled as those of the region's were measured. What
wins so is timed, by the trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import inf

from weft.capture import FASTER_IN_LIBRARY, Captured
from weft.errors import WeftError
from weft.plan.execute.calls import call_of, lone_matmuls
from weft.plan.execute.library_times import LibraryTimes
from weft.plan.execute.regions import Regions
from weft.plan.partition.cover import NoCutError, Subset, Waits, cheapest, convex_parts, elements, subset_of
from weft.plan.partition.partition import Region, taken_apart, united
from weft.schedule import kernels
from weft.tensor.program import Node, TensorProgram, uses

# Of the seconds that a matmul takes at the machine's rates. Not 1: the model is 30 % off and more.
_OF_FLOOR = 0.7
# What is the library's without a trial would be if it took the inverse of this as long as measured. With it the first plan of
# GPT-2, T5 and Llama has the matmuls that trials had found, of ViT some, of BERT none (docs/decisions/0071-library-at-once.md).
_SURELY = 0.9
# The plan with the library's matmuls is made where it is predicted to save this share of the seconds of all kernels: it takes
# nearly as long to make as the first one, and less than this no trial can tell from noise.
_WORTH = 0.02


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a region; `call`: the number of the ATen call that the library can run in its place."""

    region: Region
    call: int | None = None


def for_the_library(
    captured: Captured,
    program: TensorProgram,
    regions: Sequence[Region],
    known: Regions,
    times: LibraryTimes,
    measured: Sequence[float | None],
) -> list[int]:
    """Finds the ATen calls of `captured`, by number, whose matmuls are worth a trial in PyTorch's library.

    Where kernels were timed, they and the library took their launches with them: those of kernels that the cut adds count too. Else
    launches count nothing: what they cost differs most from machine to machine.

    Args:
        captured, program: the graph as written, and after the laws.
        regions: of `program`, as they were cut.
        known: of this graph; regions that were not selected for are selected for now, in seconds each.
        times: of the library.
        measured: seconds of each region's kernels, where they were timed.
    """
    found = [
        (parts, seconds)
        for region, seconds in zip(regions, measured, strict=True)
        if (parts := _parts(captured, program, region))
    ]
    asked, wanted, saved = _asked(parts for parts, _ in found), Counter[int](), 0.0

    def in_library(part: _Part, call: int) -> float:
        seconds = times.of(call)
        return _OF_FLOOR * known.least(part.region) if seconds is None else seconds / asked[call]

    for parts, seconds in found:
        library = {i: in_library(part, part.call) for i, part in enumerate(parts) if part.call is not None}
        calls, less = _Split(program, parts, known, library, seconds).best()
        wanted.update(set(calls))
        saved += less
    whole = sum(filter(None, measured))
    if saved < _WORTH * whole:
        return []
    return [call for call, count in wanted.items() if count == asked[call]]


def surely_for_the_library(
    captured: Captured, program: TensorProgram, regions: Sequence[Region], known: Regions, times: LibraryTimes
) -> list[int]:
    """Finds the ATen calls, by number, whose matmuls are the library's without a trial.

    The library, as it was measured, and kernels for what is beside take clearly less than the model predicts of kernels for all.

    Args:
        captured, program, known, times: as in `for_the_library`.
        regions: of `program`, before it is cut.
    """
    found = [parts for region in regions if (parts := _parts(captured, program, region))]
    asked, wanted = _asked(found), Counter[int]()
    seconds = {call: each / _SURELY for call in asked if (each := times.of(call)) is not None}
    splits: list[_Split] = []
    for parts in found:
        library = {i: seconds[part.call] / asked[part.call] for i, part in enumerate(parts) if part.call in seconds}
        if library:
            splits.append(_Split(program, parts, known, library, launched=True))
    known.foreseen([split.joined[split.whole] for split in splits if split.whole in split.joined])
    splits = [split for split in splits if split.is_open()]
    known.foreseen([region for split in splits for region in split.joined.values()])
    for split in splits:
        with suppress(NoCutError):  # a part has no kernel, alone or with others: the graph will be cut elsewhere
            wanted.update(set(split.best()[0]))
    return [call for call, count in wanted.items() if count == asked[call]]


def _asked(found: Iterable[Sequence[_Part]]) -> Counter[int]:
    """Counts the regions that each call has a part in.

    The parts that a call's result is split into may be kernels of their own; left to the library, the call makes all of them.
    """
    return Counter(call for parts in found for call in {part.call for part in parts} if call is not None)


def left_to_the_library(captured: Captured, calls: Sequence[int]) -> Captured | None:
    """Captures the graph again with these ATen calls left to PyTorch; None where there are none, or it cannot be captured again."""
    return captured.leaving(dict.fromkeys(calls, FASTER_IN_LIBRARY)) if calls and captured.leaving is not None else None


@dataclass(frozen=True)
class _Split:
    """A region in the parts that the library can run, each for itself, and the rest.

    Attributes:
        program: that the region is of.
        parts: of the region, in order.
        known: of the graph's regions.
        library: seconds of parts in the library, by number.
        measured: seconds of the region's kernels, where they were timed.
        launched: whether launches count where no kernels were timed.
    """

    program: TensorProgram
    parts: Sequence[_Part]
    known: Regions
    library: Mapping[int, float]
    measured: float | None = None
    launched: bool = False

    @cached_property
    def waits(self) -> Waits:
        """Tells what each part waits for."""
        maker = {name: i for i, each in enumerate(self.parts) for name in each.region.results}
        return Waits(tuple(subset_of({maker[v] for v in each.region.uses if v in maker}) for each in self.parts))

    @cached_property
    def joined(self) -> dict[Subset, Region]:
        """Gives the regions that connected parts are together."""
        every = [part for own in convex_parts(self.waits, lambda _: True) for part in own]
        return {part: united(self.program, [self.parts[i].region for i in elements(part)]) for part in every}

    @cached_property
    def whole(self) -> Subset:
        """Gives all parts."""
        return subset_of(range(len(self.parts)))

    def predicted(self, part: Subset) -> tuple[float, int]:
        """Predicts the seconds that the kernels of `part` work, and counts them; infinity where it has none alone."""
        try:
            found = self.known.selection(self.joined[part])
        except WeftError:
            return inf, 0
        return found.work_seconds, len(kernels(found.chosen.applied))

    @cached_property
    def _scale(self) -> tuple[float, float]:
        """Gives the share that kernels which multiply take of the seconds predicted, and the seconds of a launch, as all parts were
        measured.
        """
        launch = self.known.launch_seconds if self.launched else 0.0
        work, launches = self.predicted(self.whole) if self.whole in self.joined else (inf, 0)
        if self.measured is None or not 0.0 < work < inf:
            return 1.0, launch
        # Of what was measured half is work at least.
        launch = min(self.known.launch_seconds, self.measured / (2 * max(1, launches)))
        return (self.measured - launches * launch) / work, launch

    def kernels(self, part: Subset) -> float:
        """Predicts the kernels of `part`; with a matmul, by as much slower as those of all parts were measured to be."""
        (off, launch), (seconds, launches) = self._scale, self.predicted(part)
        return seconds * (off if self._multiplies(part) else 1.0) + launches * launch

    def in_library(self, part: Subset) -> float:
        """Returns the seconds of `part` in the library; infinity where that cannot run it."""
        return self.library.get(elements(part)[0], inf) if part.bit_count() == 1 else inf

    def best(self) -> tuple[list[int], float]:
        """Returns the calls that the library runs in the best cut, and the seconds that this is predicted to save."""
        off, _ = self._scale
        least = {p: self.known.least(r) * min(1.0, off if self._multiplies(p) else 1.0) for p, r in self.joined.items()}
        bounds = {part: min(self.in_library(part), seconds) for part, seconds in least.items()}
        best, seconds = cheapest(self.waits, bounds, lambda part: min(self.in_library(part), self.kernels(part)))
        theirs = [part for part in best if self.in_library(part) < self.kernels(part)]
        calls = [call for part in theirs if (call := self.parts[elements(part)[0]].call) is not None]
        return calls, max(0.0, self._one_kernel - seconds)

    def is_open(self) -> bool:
        """Tells whether the library's matmuls, with nothing but the least for the rest, would take less than one kernel for all."""
        rest = (self.known.least(each.region) for i, each in enumerate(self.parts) if i not in self.library)
        return sum(self.library.values()) + sum(rest) < self._one_kernel

    @property
    def _one_kernel(self) -> float:
        return self.kernels(self.whole) if self.whole in self.joined else inf

    def _multiplies(self, part: Subset) -> bool:
        return any(self.parts[i].call is not None for i in elements(part))


def _parts(captured: Captured, program: TensorProgram, region: Region) -> tuple[_Part, ...]:
    """Splits `region` into what the calls of its matmuls read, each of these calls, and the rest; nothing where that
    is no order, or there are no matmuls that the library does as well.
    """
    matmuls = lone_matmuls(captured, region)
    if not matmuls:
        return ()
    calls: dict[int, set[str]] = {}
    for node in region.program.nodes:
        call = call_of(captured, node.name)
        if call in matmuls:
            calls.setdefault(call, set()).add(node.name)
    own = set[str]().union(*calls.values())
    early = _leading_to(region.program.nodes, own) - own
    rest = {n.name for n in region.program.nodes} - own - early
    groups = [(early, None), *((names, call) for call, names in calls.items()), (rest, None)]
    parts = [_Part(part, call) for names, call in groups for part in taken_apart(program, region, names)]
    made = set[str]()
    for part in parts:
        inside = {v for other in parts for v in other.region.results} - made
        if not inside.isdisjoint(part.region.uses):
            return ()
        made.update(part.region.results)
    return tuple(parts)


def _leading_to(nodes: Sequence[Node], names: set[str]) -> set[str]:
    """Returns `names`, and the values of `nodes` that they are made of."""
    found = set(names)
    for node in reversed(nodes):
        if node.name in found:
            found.update(uses(node))
    return found.intersection(n.name for n in nodes)
