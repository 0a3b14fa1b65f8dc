"""Snapshots to one program: every candidate for a region is scheduled, and the cheapest by the cost model is taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

from weft.block.check import infer
from weft.block.copies import canonical
from weft.block.program import BlockProgram
from weft.block.scope import Scope
from weft.block.walk import maps
from weft.cascade import Approximation, chains
from weft.defects import note, reason_of
from weft.errors import ScheduleError, UnsupportedError
from weft.fuse.safety import make_safe
from weft.options import current
from weft.phases import phase
from weft.pipeline import ONE_LOOP, PASSES, ROUNDING_LOOP, SNAPSHOTS, WRITTEN, Family, snapshots
from weft.plan.targets import toolchain
from weft.plan.targets.candidates import Candidate, Example, Selection, Way, Ways
from weft.plan.targets.compiled import Considered
from weft.schedule import Schedule
from weft.tensor.dtypes import DType
from weft.tensor.passes import Bears, Rewritten, Setting
from weft.tensor.program import Contraction, TensorProgram
from weft.verify import Ranges

# Candidates of one region whose predicted times are this close count as equal: the one that moves fewer bytes is taken.
_CLOSE = 1.12
# How many programs for a GPU are looked at closely, and how far behind the first one in predicted time.
_LOOKED_AT, _FAR = 3, 3.0
_NOT_ASKED_FOR = 'left out: it rounds differently from the function as written; options(rounding="running") allows it'


@phase("candidates")
def select(
    program: TensorProgram,
    example: Example,
    schedule: Schedule | None = None,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Selection:
    """Select the cheapest candidate for `program`: generate candidates, price each, and choose among them.

    Args:
        program: one region.
        example: sizes and layouts to schedule for.
        schedule: to use instead of a chosen one; then the only candidate is what the rules that never pay make.
        refused: why candidates may not run, by origin: their kernels were built and found wrong.

    Raises:
        UnsupportedError: no candidate has a block program or a kernel and is not refused; the reason is the first one's.
    """
    chain = toolchain(example.target)
    found: list[Priced] = []
    considered: list[Considered] = []
    failures: list[Exception] = []
    for made in generate(program, chain.setting(_lengths(program, example)), exact=schedule is not None):
        result = price(made, example, schedule) if isinstance(made, Generated) else made
        if isinstance(result, Failed):
            if schedule is not None:
                raise result.error
            failures.append(result.error)
            considered.append(result.considered())
        elif isinstance(result, Considered):
            considered.append(result)
        elif result.candidate.origin in refused:
            considered.append(Considered(result.candidate.origin, None, refused[result.candidate.origin]))
        else:
            considered.append(result.considered())
            found += [] if result.left_out else [result]
    return choose(program, example, found, considered, failures, timed=schedule is None and chain.times)


@dataclass(frozen=True, slots=True)
class Generated:
    """A fused program of a region: `origin` names it; `made` is safe, and has canonical names."""

    origin: str
    made: Rewritten[BlockProgram]
    elements: tuple[DType, ...]
    approximation: Approximation | None


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """What is no candidate, and the error that says why: a refusal, or a defect of weft's."""

    origin: str
    error: Exception

    def considered(self) -> Considered:
        """Say why it is none; a defect is noted, so that the user hears of it. Raises it where the option `defects` says so."""
        note(self.error)
        return Considered(self.origin, None, reason_of(self.error))


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """A candidate, with all ways to run it."""

    candidate: Candidate
    ways: Ways
    left_out: bool

    def considered(self) -> Considered:
        """Describe the candidate for the report."""
        seconds = self.candidate.cost.predicted_seconds
        return Considered(self.candidate.origin, seconds, _NOT_ASKED_FOR if self.left_out else "")


def generate(
    program: TensorProgram, setting: Setting, *, exact: bool = False
) -> Iterator[Generated | Considered | Failed]:
    """Yield the fused programs of a region, family by family; or why there is none.

    Args:
        program: the region.
        setting: of the passes.
        exact: only what keeps every rounding.
    """
    make = _Generating(program, setting)
    yield from make.family(WRITTEN)
    if exact or any(s.example == 0 for s in program.spaces()):
        # Rule 4 divides by a sum after the matmul instead of before: of nothing, 0 / 0 instead of nothing.
        return
    yield from make.family(SNAPSHOTS, plain=make.plain)
    try:
        chained = chains(program)
        refused = chained.found.refused
        running = chains(program, running=True) if refused else None
    except Exception as error:  # noqa: BLE001 - the other families stand
        yield Failed(ONE_LOOP.origin, error)
        return
    yield from (Considered(f"one loop for {r.node}", None, r.reason) for r in refused)
    if chained.found.folds:
        yield from make.family(ONE_LOOP)
    if running is None:
        return
    if current().rounding == "running":
        others = (r for r in running.found.refused if r not in refused)
        yield from (Considered(f"{ROUNDING_LOOP.origin}, for {r.node}", None, r.reason) for r in others)
    if running.approximation is not None:
        yield from make.family(ROUNDING_LOOP, approximation=running.approximation)


@dataclass
class _Generating:
    """Makes the families of a region; of equal programs, the first is a candidate."""

    program: TensorProgram
    setting: Setting
    seen: set[BlockProgram] = field(default_factory=set[BlockProgram])
    plain: int | None = None

    def family(
        self, family: Family, *, plain: int | None = None, approximation: Approximation | None = None
    ) -> Iterator[Generated | Failed]:
        """Yield the programs of `family` in which at most `plain` exponentials stay as written."""
        setting, values = replace(self.setting, plain=plain), self.program.values()
        elements = tuple(values[name].dtype for name in self.program.outputs)
        try:
            every = list(snapshots(family, self.program, setting, checked=current().debug_checks))
        except Exception as error:  # noqa: BLE001 - one family fails alone
            yield Failed(f"{family.origin} for chains of reductions" if family.chains else family.origin, error)
            return
        for origin, fused in every:
            try:
                made = fused.under(family.after, setting)
                made = replace(made, program=canonical(made.program))
            except Exception as error:  # noqa: BLE001 - one candidate fails alone
                yield Failed(origin, error)
                continue
            if family is WRITTEN:
                self.plain = make_safe(made.program).plain
            if made.program not in self.seen:
                self.seen.add(made.program)
                yield Generated(origin, made, elements, approximation)


@phase("pricing")
def price(made: Generated, example: Example, schedule: Schedule | None = None) -> Priced | Considered | Failed:
    """Schedule a fused program, and predict its time; or say why it is no candidate."""
    fused, chain = made.made.program, toolchain(example.target)
    try:
        if _elements(fused) != made.elements:
            return Considered(made.origin, None, "its results would have other element types than what was written")
        ways = chain.ways(fused, example)
        way = _way(ways, example, schedule)
    except Exception as error:  # noqa: BLE001 - one candidate fails alone
        return Failed(made.origin, error)
    found = Candidate(made.origin, fused, made.made.steps, way.schedule, way.applied, way.cost, made.approximation)
    return Priced(found, ways, left_out=made.approximation is not None and current().rounding == "exact")


def choose(
    program: TensorProgram,
    example: Example,
    found: Sequence[Priced],
    considered: Sequence[Considered],
    failures: Sequence[Exception],
    *,
    timed: bool,
) -> Selection:
    """Choose the cheapest of `found` that covers the magnitudes that `program` covers.

    Args:
        program, example: the region, and what it is scheduled for.
        found: candidates.
        considered: these, and those that are none.
        failures: why those are none.
        timed: the target times more schedules of a few candidates.

    Raises:
        Exception: the first of `failures`, where no candidate is left.
    """
    bearing = _Bearing(program, [each.candidate for each in found])
    try:
        chosen = bearing.cheapest()
    except UnsupportedError as error:
        raise next(iter(failures), error) from None
    launch_seconds = toolchain(example.target).machine(example.threads).launch_seconds
    selection = Selection(program, example, chosen, (), launch_seconds=launch_seconds)
    if not timed:
        return bearing.told(selection, considered)
    look = partial(_looked_closely, bearing, {each.candidate: each.ways for each in found}, selection, considered)
    return replace(bearing.told(selection, considered), others=None, close=False, look_closely=look)


def looked_at_closely(selection: Selection) -> Selection:
    """Return `selection` with more schedules of its likeliest programs looked at, the likeliest one chosen.

    Raises:
        UnsupportedError: as `select`, where it was not made just now.
    """
    if selection.close:
        return selection
    if selection.look_closely is not None:
        return selection.look_closely()
    return looked_at_closely(select(selection.program, selection.example))


@phase("candidates")
def _looked_closely(
    bearing: _Bearing, ways: Mapping[Candidate, Ways], selection: Selection, considered: Sequence[Considered]
) -> Selection:
    others = _more_to_time(bearing, ways)
    return bearing.told(replace(selection, chosen=others[0], others=others[1:]), considered)


class _Bearing:
    """The candidates of a region that bear the magnitudes of inputs that the program as written bears.

    Each is looked at only when it would be taken, since that takes milliseconds; one whose passes all bear as much needs no look.

    Attributes:
        left: candidates that nothing is known against.
        said: by origin, why candidates are left out.
    """

    def __init__(self, program: TensorProgram, found: Sequence[Candidate]) -> None:
        self.left, self.said = list(found), dict[str, Considered]()
        self._ranges = Ranges(program)
        self._fine = {c.origin for c in found if all(PASSES[s.rule].bears is Bears.as_before for s in c.trace)}

    def _running(self) -> list[Candidate]:
        return [c for c in self.left if c.approximation is not None] or self.left

    def bears(self, candidate: Candidate) -> bool:
        """Tell whether `candidate` covers as many magnitudes as what was written; it is left out if it does not."""
        if candidate.origin in self._fine:
            return True
        try:
            lost = self._ranges.lost(candidate.fused)
            if lost is None:
                self._fine.add(candidate.origin)
                return True
            why = Considered(candidate.origin, None, str(lost))
        except Exception as error:  # noqa: BLE001 - one candidate fails alone
            why = Failed(candidate.origin, error).considered()
        self.left.remove(candidate)
        self.said[candidate.origin] = why
        return False

    def told(self, selection: Selection, considered: Sequence[Considered]) -> Selection:
        """Return `selection` with what became of all candidates, and the one that keeps every rounding, where that is another."""
        fused = selection.chosen.fused
        written = next((c for c in self.left if c.origin == WRITTEN.origin and c.fused is not fused), None)
        return replace(
            selection, considered=tuple(self.said.get(each.origin, each) for each in considered), written=written
        )

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


def _elements(program: BlockProgram) -> tuple[DType, ...]:
    """Return the element types of the program's outputs. Running values are float64 where anything is: they may have
    become a result.
    """
    types = infer(program.graph, dict(program.inputs), Scope({}, applied=False))
    return tuple(types[name].dtype for name in program.graph.outputs)


def _cheapest(found: Sequence[Candidate]) -> Candidate:
    """Choose the candidate predicted to be fastest; where that is the program as written, one that moves less may be as fast."""
    cheapest = min(found, key=lambda c: c.cost.predicted_seconds)  # the first of equals
    if cheapest.origin != WRITTEN.origin:
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
            raise ScheduleError(f"{node.axis.space.name} is a single block here, so extending the map repeats no work")


def _lengths(program: TensorProgram, example: Example) -> Mapping[str, int] | None:
    """Return lengths of loops that may be nested in any order: of a program that multiplies nothing; None if the target minds."""
    matmuls = any(isinstance(n, Contraction) for n in program.nodes)
    return None if matmuls or not toolchain(example.target).any_order else example.sizes
