"""Snapshots to one program: every candidate for a region is scheduled, and the cheapest by the cost model is taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from weft.block import lower
from weft.block.check import Scope, infer
from weft.block.copies import canonical
from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.cascade import Approximation, Chains, chains
from weft.errors import ScheduleError, UnsupportedError
from weft.fuse import RULES_IN_PLANS, RULES_THAT_KEEP_PRECISION, Fusion, Step, fuse
from weft.fuse.coarse_where_kept_in_16_bits import coarse_where_kept_in_16_bits
from weft.fuse.round_where_made import round_where_made
from weft.fuse.safety import Safe, make_safe
from weft.masks import limit
from weft.options import current
from weft.plan.choose.shifts import without_shifts
from weft.plan.targets import toolchain
from weft.plan.targets.candidates import Candidate, Considered, Example, Selection, Way, Ways
from weft.schedule import Schedule
from weft.tensor.dtypes import DType
from weft.tensor.laws import decays_below_maxima, sizes_in_place
from weft.tensor.program import Contraction, TensorProgram
from weft.verify import Ranges

# Candidates of one region that the model has this close take the same time, or the one that moves less is faster.
_CLOSE = 1.12
# How many programs for a GPU are looked at closely, and how far behind the first one in predicted time.
_LOOKED_AT, _FAR = 3, 3.0
_WRITTEN = "rules that keep every rounding"
_RUNNING = "one loop that rounds at the scale so far"
_NOT_ASKED_FOR = 'left out: no rounding of this is the one that was written; options(rounding="running") takes it'


def select(program: TensorProgram, example: Example, schedule: Schedule | None = None) -> Selection:
    """Select the cheapest candidate for `program`: the snapshots of its fusion, with and without the rules that move rounding.

    Args:
        program: one region.
        example: sizes and layouts to schedule for.
        schedule: to use instead of a chosen one; then the only candidate is what the rules that never pay make.

    Raises:
        UnsupportedError: no candidate has a block program or a kernel; the reason is the first one's.
    """
    chain = toolchain(example.target)
    lengths = _lengths(program, example)
    lowered = lower(sizes_in_place(program), lengths=lengths)
    wanted = _elements(lowered)
    found: list[Candidate] = []
    considered: list[Considered] = []
    failure: UnsupportedError | ScheduleError | None = None
    ways: dict[Candidate, Ways] = {}
    for made in _fused(program, lowered, lengths, only_exact=schedule is not None):
        if isinstance(made, Considered):
            considered.append(made)
            continue
        origin, fused, trace, approximation = made
        fused = chain.rewritten(fused)
        if _elements(fused) != wanted:
            considered.append(
                Considered(origin, None, "its results would have other element types than what was written")
            )
            continue
        try:
            own = chain.ways(fused, example)
            way = _way(own, example, schedule)
        except (UnsupportedError, ScheduleError) as error:
            if schedule is not None:
                raise
            failure = failure or error
            considered.append(Considered(origin, None, error.what))
            continue
        left_out = approximation is not None and current().rounding == "exact"
        considered.append(Considered(origin, way.cost.predicted_seconds, _NOT_ASKED_FOR if left_out else ""))
        if not left_out:
            found.append(Candidate(origin, fused, trace, way.schedule, way.applied, way.cost, approximation))
            ways[found[-1]] = own
    bearing = _Bearing(program, found)
    try:
        chosen = bearing.cheapest()
        others = _more_to_time(bearing, ways) if schedule is None and chain.times else ()
    except UnsupportedError as error:
        raise failure or error from None
    considered = [bearing.said.get(each.origin, each) for each in considered]
    chosen = others[0] if others else chosen
    written = next((c for c in bearing.left if c.origin == _WRITTEN and c.fused is not chosen.fused), None)
    launch_seconds = chain.machine(example.threads).launch_seconds
    return Selection(program, example, lowered, chosen, tuple(considered), written, others[1:], launch_seconds)


class _Bearing:
    """The candidates of a region that bear the magnitudes of inputs that the program as written bears.

    Each is looked at only when it would be taken, since that takes milliseconds; the program as written needs no look.

    Attributes:
        left: candidates that nothing is known against.
        said: by origin, why candidates are left out.
    """

    def __init__(self, program: TensorProgram, found: Sequence[Candidate]) -> None:
        self.left, self.said = list(found), dict[str, Considered]()
        self._ranges, self._fine = Ranges(program), {_WRITTEN}

    def _running(self) -> list[Candidate]:
        return [c for c in self.left if c.approximation is not None] or self.left

    def bears(self, candidate: Candidate) -> bool:
        """Tell whether `candidate` bears as much as what was written; it is left out where it does not."""
        if candidate.origin in self._fine:
            return True
        lost = self._ranges.lost(candidate.fused)
        if lost is None:
            self._fine.add(candidate.origin)
            return True
        self.left.remove(candidate)
        self.said[candidate.origin] = Considered(candidate.origin, None, str(lost))
        return False

    def cheapest(self) -> Candidate:
        """Return the candidate to take; raises UnsupportedError where there is none."""
        while self.left:
            chosen = _cheapest(self._running())
            if self.bears(chosen):
                return chosen
        raise UnsupportedError(next((each.reason for each in self.said.values()), "no candidate"))

    def nearest(self) -> list[Candidate]:
        """List a few candidates that are predicted to be fastest."""
        found: list[Candidate] = []
        for each in sorted(self._running(), key=lambda c: c.cost.predicted_seconds):
            if len(found) < _LOOKED_AT and self.bears(each):
                found.append(each)
        return found


def _more_to_time(bearing: _Bearing, ways: Mapping[Candidate, Ways]) -> tuple[Candidate, ...]:
    """Find more schedules of the programs that are predicted to be fastest, in order of their predicted times."""
    nearest = bearing.nearest()
    most = _FAR * nearest[0].cost.predicted_seconds
    made = [
        replace(c, schedule=way.schedule, applied=way.applied, cost=way.cost)
        for c in nearest
        if c.cost.predicted_seconds <= most
        for way in ways[c].many()
    ]
    return tuple(sorted(made, key=lambda c: c.cost.predicted_seconds))


def _elements(program: BlockProgram) -> list[DType]:
    """Return the element types of the program's outputs. Running values are float64 where anything is: they may have
    become a result.
    """
    types = infer(program.graph, dict(program.inputs), Scope({}, applied=False))
    return [types[name].dtype for name in program.graph.outputs]


def _cheapest(found: Sequence[Candidate]) -> Candidate:
    """Choose the candidate predicted to be fastest; where that is the program as written, one that moves less may be as fast."""
    cheapest = min(found, key=lambda c: c.cost.predicted_seconds)  # the first of equals
    if cheapest.origin != _WRITTEN:
        return cheapest
    close = (c for c in found if c.cost.predicted_seconds <= _CLOSE * cheapest.cost.predicted_seconds)
    return min(close, key=lambda c: (c.cost.bytes_read + c.cost.bytes_written, c.cost.predicted_seconds))


def _way(ways: Ways, example: Example, schedule: Schedule | None) -> Way:
    """Find the fastest of `ways`, or the one that is given; raises as `select`."""
    found = ways.few() if schedule is None else [ways.given(schedule)]
    for way in found:
        _demand_rests(way.applied, example)
    return min(found, key=lambda way: way.cost.predicted_seconds)


def _demand_rests(applied: BlockProgram, example: Example) -> None:
    """Raise `ScheduleError` where a first iteration was peeled off, and is all that there is at the example's sizes."""
    for node in maps(applied.graph):
        if node.range.follows is not None and node.axis.space.size(example.sizes) <= (node.tile or math.inf):
            raise ScheduleError(
                f"after the first block of {node.axis.space.name} nothing is left: extending repeats nothing"
            )


_Fused = tuple[str, BlockProgram, tuple[Step, ...], Approximation | None]


def _fused(
    program: TensorProgram,
    lowered: BlockProgram,
    lengths: Mapping[str, int] | None,
    *,
    only_exact: bool,
) -> Iterator[_Fused | Considered]:
    """Yield each candidate's origin, its program in canonical names, and its trace; or why it is none."""
    first = _with_decays(program, lowered, lengths)
    exact = fuse(first, RULES_IN_PLANS, (), checked=current().debug_checks)
    written = canonical(round_where_made(limit(exact.last)))
    yield _WRITTEN, written, exact.steps, None
    empty = any(s.example == 0 for s in program.spaces())
    if only_exact or empty:
        # Rule 4 divides by a sum after the matmul instead of before: of nothing, 0 / 0 instead of nothing.
        return
    seen = {written}
    cancelled = without_shifts(program)
    if cancelled != program:
        first = _with_decays(cancelled, None, lengths)
    fusion = fuse(first, RULES_THAT_KEEP_PRECISION, checked=current().debug_checks)
    plain = make_safe(written).plain
    for origin, snapshot, trace, _ in _snapshots(fusion):
        safe: Safe = make_safe(limit(snapshot))
        if safe.plain > plain:
            lost = "an exponential lost its shift and would overflow where the program as written does not"
            yield Considered(origin, None, lost)
            continue
        made = canonical(coarse_where_kept_in_16_bits(round_where_made(safe.program)))
        if made not in seen:
            seen.add(made)
            yield origin, made, trace, None
    yield from _cascaded(program, seen, lengths)


def _cascaded(
    program: TensorProgram, seen: set[BlockProgram], lengths: Mapping[str, int] | None
) -> Iterator[_Fused | Considered]:
    """Yield candidates in which chains of dependent reductions are one loop, and why others of the program are not."""
    chained = chains(program)
    refused = chained.found.refused
    yield from (Considered(f"one loop for {r.node}", None, r.reason) for r in refused)
    if chained.found.folds:
        yield from _looped("one loop", chained, seen, lengths)
    if refused:
        running = chains(program, running=True)
        if current().rounding == "running":
            others = (r for r in running.found.refused if r not in refused)
            yield from (Considered(f"{_RUNNING}, for {r.node}", None, r.reason) for r in others)
        if running.approximation is not None:
            yield from _looped(_RUNNING, running, seen, lengths)


def _looped(
    name: str, chained: Chains, seen: set[BlockProgram], lengths: Mapping[str, int] | None
) -> Iterator[_Fused | Considered]:
    found = chained.found
    try:
        first = lower(chained.program, found.folds, lengths)
    except UnsupportedError as error:
        yield Considered(f"{name} for chains of reductions", None, error.what)
        return
    fusion = fuse(first, RULES_THAT_KEEP_PRECISION, checked=current().debug_checks)
    for origin, snapshot, trace, _ in _snapshots(fusion):
        safe = make_safe(limit(snapshot))
        made = canonical(coarse_where_kept_in_16_bits(round_where_made(safe.program)))
        if made not in seen:
            seen.add(made)
            yield f"{name}, {origin}", made, trace, chained.approximation


def _lengths(program: TensorProgram, example: Example) -> Mapping[str, int] | None:
    """Return lengths of loops that may be nested in any order: of a program that multiplies nothing; None if the target minds."""
    matmuls = any(isinstance(n, Contraction) for n in program.nodes)
    return None if matmuls or not toolchain(example.target).any_order else example.sizes


def _with_decays(
    program: TensorProgram, lowered: BlockProgram | None, lengths: Mapping[str, int] | None
) -> BlockProgram:
    """Lower `program` with its exponentials below maxima cheaper; `lowered` is the block program of the program as it is."""
    decaying = decays_below_maxima(program)
    return lowered if lowered is not None and decaying is program else lower(sizes_in_place(decaying), lengths=lengths)


def _snapshots(fusion: Fusion) -> Iterator[_Fused]:
    for snapshot in fusion.snapshots:
        yield f"snapshot after {snapshot.steps} steps", snapshot.program, fusion.steps[: snapshot.steps], None
    for other in fusion.alternatives:
        before = fusion.snapshots[other.beside - 1].steps
        trace = (*fusion.steps[:before], *other.steps)
        yield f"peeled instead of the extension after {before} steps", other.program, trace, None
