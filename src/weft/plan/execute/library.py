"""Matmuls for PyTorch's library to run: those of regions that gain by it, as far as that is known.

The library is a candidate for each matmul that no other matmul of its region feeds: at the seconds that it was measured to take
where it was, else at a share of its floor; what that leaves out is what the model errs by. The best cut of each region is found
with these candidates, and the seconds predicted for kernels that multiply are scaled as those of the region's were measured. What
wins so is timed, by the trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from weft.capture import Captured
from weft.errors import WeftError
from weft.plan.execute.library_times import LibraryTimes
from weft.plan.execute.regions import Regions, call_of, lone_matmuls
from weft.plan.partition.cover import Subset, Waits, cheapest, convex_parts, elements, subset_of
from weft.plan.partition.partition import Region, taken_apart, united
from weft.schedule import kernels
from weft.tensor.program import Node, TensorProgram, uses

_FASTER_ALONE = "PyTorch's library was measured to be faster"
# Of the seconds that a matmul takes at the machine's rates. Not 1: the model is 30 % off and more.
_OF_FLOOR = 0.7
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
    found: list[tuple[tuple[_Part, ...], float | None]] = []
    for region, seconds in zip(regions, measured, strict=True):
        matmuls = lone_matmuls(captured, region)
        parts = _parts(captured, program, region, matmuls) if matmuls else ()
        if parts:
            found.append((parts, seconds))
    # The parts that a call's result is split into may be kernels of their own; left to the library, the call makes all of them.
    asked = Counter(call for parts, _ in found for call in {part.call for part in parts} if call is not None)
    wanted, saved = Counter[int](), 0.0
    for parts, seconds in found:
        calls, less = _best(program, parts, known, times, asked, seconds)
        wanted.update(set(calls))
        saved += less
    whole = sum(filter(None, measured))
    if saved < _WORTH * whole:
        return []
    return [call for call, count in wanted.items() if count == asked[call]]


def left_to_the_library(captured: Captured, calls: Sequence[int]) -> Captured | None:
    """Captures the graph again with these ATen calls left to PyTorch; None where there are none, or it cannot be captured again."""
    return captured.leaving(dict.fromkeys(calls, _FASTER_ALONE)) if calls and captured.leaving is not None else None


def _best(
    program: TensorProgram,
    parts: Sequence[_Part],
    known: Regions,
    times: LibraryTimes,
    asked: Mapping[int, int],
    measured: float | None,
) -> tuple[list[int], float]:
    """Returns the calls that the library runs in the best cut of `parts`, all of which were `measured` to take so long, and the
    seconds that this is predicted to save.

    `asked`: how many regions each call has a part in, which share its seconds.
    """
    maker = {name: i for i, each in enumerate(parts) for name in each.region.results}
    waits = Waits(tuple(subset_of({maker[v] for v in each.region.uses if v in maker}) for each in parts))
    every = [part for own in convex_parts(waits, lambda _: True) for part in own]
    joined = {part: united(program, [parts[i].region for i in elements(part)]) for part in every}

    def call_of_part(part: Subset) -> int | None:
        return parts[elements(part)[0]].call if part.bit_count() == 1 else None

    def predicted(part: Subset) -> tuple[float, int]:
        """Predicts the seconds that the kernels of `part` work, and counts them; infinity where it has none alone."""
        try:
            found = known.selection(joined[part])
        except WeftError:
            return inf, 0
        return found.work_seconds, len(kernels(found.chosen.applied))

    def own(part: Subset) -> float:
        """Predicts the kernels of `part`; with a matmul, by as much slower as those of all parts were measured to be."""
        seconds, launches = predicted(part)
        return seconds * slower(part) + launches * launch

    def slower(part: Subset) -> float:
        return off if any(parts[i].call is not None for i in elements(part)) else 1.0

    def library(part: Subset) -> float:
        call = call_of_part(part)
        if call is None:
            return inf
        seconds = times.of(call)
        return _OF_FLOOR * known.least(joined[part]) if seconds is None else seconds / asked[call]

    off, launch, whole = 1.0, 0.0, subset_of(range(len(parts)))
    work, launches = predicted(whole) if whole in joined else (inf, 0)
    if measured is not None and 0.0 < work < inf:
        # Of what was measured half is work at least.
        launch = min(known.launch_seconds, measured / (2 * max(1, launches)))
        off = (measured - launches * launch) / work
    bounds = {part: min(library(part), known.least(region) * min(1.0, slower(part))) for part, region in joined.items()}
    best, seconds = cheapest(waits, bounds, lambda part: min(library(part), own(part)))
    calls = [call for part in best if (call := call_of_part(part)) is not None and library(part) < own(part)]
    return calls, max(0.0, work * off + launches * launch - seconds)


def _parts(captured: Captured, program: TensorProgram, region: Region, matmuls: frozenset[int]) -> tuple[_Part, ...]:
    """Splits `region` into what the calls of its matmuls read, each of these calls, and the rest; nothing where that
    is no order.
    """
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
