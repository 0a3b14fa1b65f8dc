"""Snapshots to one program: every candidate for a region is scheduled, and the cheapest by the cost model is taken."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from weft.block import lower
from weft.block.check import Scope, infer
from weft.block.copies import canonical
from weft.block.program import BlockProgram, maps
from weft.block.ranges import Rest
from weft.cascade import Approximation, Chains, chains
from weft.cost import Cost, Machine, estimate, estimate_gpu, machine_of, total
from weft.errors import Location, ScheduleError, UnsupportedError
from weft.fuse import RULES_IN_PLANS, RULES_THAT_KEEP_PRECISION, Fusion, Step, fuse
from weft.fuse.coarse_where_kept_in_16_bits import coarse_where_kept_in_16_bits
from weft.fuse.factors_after_maxima import factors_after_maxima
from weft.fuse.inside_the_only_loop import inside_the_only_loop
from weft.fuse.round_where_made import round_where_made
from weft.fuse.safety import Safe, make_safe
from weft.masks import limit
from weft.options import Options
from weft.plan.choose import choose, in_segments, off_the_grid
from weft.plan.gpu_select import Way, Ways
from weft.plan.shifts import without_shifts
from weft.schedule import Schedule, apply, kernels
from weft.target import CPU, Target
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


@dataclass(frozen=True, slots=True)
class Example:
    """What is known of the tensors that a region will be called with.

    Attributes:
        sizes: by space name; only their magnitude is used.
        innermost: for each input, its dimension of stride 1 at the example, if any.
        threads: of the grid, on a CPU.
        target: where the kernels run.
    """

    sizes: Mapping[str, int]
    innermost: Mapping[str, int | None]
    threads: int
    target: Target = CPU

    @property
    def kind(self) -> str:
        """The example's class as text: magnitudes of sizes, and the rest. What is chosen for one example serves all of a class."""
        magnitudes = {name: (size - 1).bit_length() if size else -1 for name, size in self.sizes.items()}
        layouts = sorted(self.innermost.items())
        return f"sizes up to 2**{sorted(magnitudes.items())}, innermost {layouts}, threads {self.threads}"

    @property
    def machine(self) -> Machine:
        """The machine that the model takes the target to be."""
        return machine_of(self.target, self.threads)

    def costs(self, applied: BlockProgram, schedule: Schedule) -> tuple[Cost, ...]:
        """Estimate the cost of each launch of a program with places; `schedule` is what gave them."""
        if self.target.is_gpu:
            return estimate_gpu(applied, self.sizes, self.target, schedule, self.innermost)
        return estimate(applied, self.sizes, self.machine)


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A way to compute a region.

    Attributes:
        origin: where it comes from, for the report.
        fused: its block program, numerically safe, without places.
        trace: the rewrites that led there.
        schedule, applied: its schedule, and the program with places.
        cost: of all its kernels at the example's sizes.
        approximation: what a field can check of it, where it rounds at running scales; None where it is the program itself.
    """

    origin: str
    fused: BlockProgram
    trace: tuple[Step, ...]
    schedule: Schedule
    applied: BlockProgram
    cost: Cost
    approximation: Approximation | None = None


@dataclass(frozen=True, slots=True)
class Considered:
    """A candidate, and its predicted time; or why it cannot be a kernel, or is not to be one although it could."""

    origin: str
    seconds: float | None
    reason: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason if self.seconds is None else f'{self.seconds * 1e3:.3g} ms'}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a region has no candidate: what `select` raised, `kind` by name."""

    kind: Literal["UnsupportedError", "ScheduleError"]
    what: str
    where: Location | str | None
    todo: str

    @staticmethod
    def of(error: UnsupportedError | ScheduleError) -> Refusal:
        """Keep what `error` says."""
        kind = "ScheduleError" if isinstance(error, ScheduleError) else "UnsupportedError"
        return Refusal(kind, error.what, error.where, error.todo)

    def error(self) -> UnsupportedError | ScheduleError:
        """Make an error that says the same."""
        kind = ScheduleError if self.kind == "ScheduleError" else UnsupportedError
        found = kind(self.what, where=self.where, todo=self.todo)
        found.where = self.where  # None is no line, not that of whoever asks
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The candidate to build, of a region `program` at `example`; `lowered` is what all candidates started from.

    `written` is the one that keeps every rounding, where that is another: it is built where no field can check the chosen one.
    `others` are more for a GPU's tuner to time, the likeliest first; None where they were not kept, and would be found anew.
    """

    program: TensorProgram
    example: Example
    lowered: BlockProgram
    chosen: Candidate
    considered: tuple[Considered, ...]
    written: Candidate | None = None
    others: tuple[Candidate, ...] | None = ()

    def at(self, example: Example) -> Selection:
        """Return the selection for another example of its class, with the cost there."""
        if example == self.example:
            return self
        cost = total(example.costs(self.chosen.applied, self.chosen.schedule))
        return replace(self, example=example, chosen=replace(self.chosen, cost=cost))

    @property
    def work_seconds(self) -> float:
        """Predicted, without what launches cost: that differs most from machine to machine and matters least where it counts."""
        launches = len(kernels(self.chosen.applied)) * self.example.machine.launch_seconds
        return self.chosen.cost.predicted_seconds - launches


def select(program: TensorProgram, example: Example, options: Options, schedule: Schedule | None = None) -> Selection:
    """Select the cheapest candidate for `program`: the snapshots of its fusion, with and without the rules that move rounding.

    Args:
        program: one region.
        example: sizes and layouts to schedule for.
        options: in force.
        schedule: to use instead of a chosen one; then the only candidate is what the rules that never pay make.

    Raises:
        UnsupportedError: no candidate has a block program or a kernel; the reason is the first one's.
    """
    lengths = _lengths(program, example)
    lowered = lower(sizes_in_place(program), lengths=lengths)
    wanted = _elements(lowered)
    found: list[Candidate] = []
    considered: list[Considered] = []
    failure: UnsupportedError | ScheduleError | None = None
    for made in _fused(program, lowered, options, lengths, only_exact=schedule is not None):
        if isinstance(made, Considered):
            considered.append(made)
            continue
        origin, fused, trace, approximation = made
        if example.target.is_gpu:
            fused = canonical(inside_the_only_loop(factors_after_maxima(fused)))
        if _elements(fused) != wanted:
            considered.append(
                Considered(origin, None, "its results would have other element types than what was written")
            )
            continue
        try:
            way = _way(fused, example, schedule)
        except (UnsupportedError, ScheduleError) as error:
            if schedule is not None:
                raise
            failure = failure or error
            considered.append(Considered(origin, None, error.what))
            continue
        left_out = approximation is not None and options.rounding == "exact"
        considered.append(Considered(origin, way.cost.predicted_seconds, _NOT_ASKED_FOR if left_out else ""))
        if not left_out:
            found.append(Candidate(origin, fused, trace, way.schedule, way.applied, way.cost, approximation))
    bearing = _Bearing(program, found)
    try:
        chosen = bearing.cheapest()
        others = _more_for_a_gpu(bearing, example) if example.target.is_gpu and schedule is None else ()
    except UnsupportedError as error:
        raise failure or error from None
    considered = [bearing.said.get(each.origin, each) for each in considered]
    chosen = others[0] if others else chosen
    written = next((c for c in bearing.left if c.origin == _WRITTEN and c.fused is not chosen.fused), None)
    return Selection(program, example, lowered, chosen, tuple(considered), written, others[1:])


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


def _more_for_a_gpu(bearing: _Bearing, example: Example) -> tuple[Candidate, ...]:
    """Find more schedules of the programs that are predicted to be fastest, all together in order of their predicted times."""
    nearest = bearing.nearest()
    most = _FAR * nearest[0].cost.predicted_seconds
    made = [
        replace(c, schedule=way.schedule, applied=way.applied, cost=way.cost)
        for c in nearest
        if c.cost.predicted_seconds <= most
        for way in Ways(c.fused, example.sizes, example.innermost, example.target).closely()
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


def _way(fused: BlockProgram, example: Example, schedule: Schedule | None) -> Way:
    """Find the fastest schedule of `fused`, or the one that is given; raises as `select`."""
    if example.target.is_gpu:
        ways = Ways(fused, example.sizes, example.innermost, example.target)
        found = [ways.given(schedule)] if schedule is not None else ways.probed()
    else:
        found = _on_a_cpu(fused, example, schedule)
    for way in found:
        _demand_rests(way.applied, example)
    return min(found, key=lambda way: way.cost.predicted_seconds)


def _on_a_cpu(fused: BlockProgram, example: Example, schedule: Schedule | None) -> list[Way]:
    machine = example.machine

    def scheduled(wanted: Schedule) -> Way:
        applied = apply(fused, wanted)
        return Way(wanted, applied, total(estimate(applied, example.sizes, machine)))

    if schedule is not None:
        return [scheduled(schedule)]
    chosen = choose(fused, example.sizes, example.innermost, example.threads, machine.near_bytes)
    ways = [scheduled(chosen)]
    if len(kernels(ways[0].applied)) > 1:
        ways.append(scheduled(off_the_grid(chosen)))
    parts = in_segments(fused, chosen, example.sizes, example.threads)
    if parts is not None:
        with suppress(ScheduleError):
            ways.append(scheduled(parts))
    return ways


def _demand_rests(applied: BlockProgram, example: Example) -> None:
    """Raise `ScheduleError` where a first iteration was peeled off, and is all that there is at the example's sizes."""
    for node in maps(applied.graph):
        if isinstance(node.range, Rest) and node.axis.space.size(example.sizes) <= (node.tile or math.inf):
            raise ScheduleError(
                f"after the first block of {node.axis.space.name} nothing is left: extending repeats nothing"
            )


_Fused = tuple[str, BlockProgram, tuple[Step, ...], Approximation | None]


def _fused(
    program: TensorProgram,
    lowered: BlockProgram,
    options: Options,
    lengths: Mapping[str, int] | None,
    *,
    only_exact: bool,
) -> Iterator[_Fused | Considered]:
    """Yield each candidate's origin, its program in canonical names, and its trace; or why it is none."""
    first = _with_decays(program, lowered, lengths)
    exact = fuse(first, RULES_IN_PLANS, (), checked=options.debug_checks)
    written = canonical(round_where_made(limit(exact.last)))
    yield _WRITTEN, written, exact.steps, None
    empty = any(s.example == 0 for s in program.spaces())
    if only_exact or empty:
        # Rule 4 divides by a sum after the product instead of before: of nothing, 0 / 0 instead of nothing.
        return
    seen = {written}
    cancelled = without_shifts(program)
    if cancelled != program:
        first = _with_decays(cancelled, None, lengths)
    fusion = fuse(first, RULES_THAT_KEEP_PRECISION, checked=options.debug_checks)
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
    yield from _cascaded(program, seen, options, lengths)


def _cascaded(
    program: TensorProgram, seen: set[BlockProgram], options: Options, lengths: Mapping[str, int] | None
) -> Iterator[_Fused | Considered]:
    """Yield candidates in which chains of dependent reductions are one loop, and why others of the program are not."""
    chained = chains(program)
    refused = chained.found.refused
    yield from (Considered(f"one loop for {r.node}", None, r.reason) for r in refused)
    if chained.found.folds:
        yield from _looped("one loop", chained, seen, options, lengths)
    if refused:
        running = chains(program, running=True)
        if options.rounding == "running":
            others = (r for r in running.found.refused if r not in refused)
            yield from (Considered(f"{_RUNNING}, for {r.node}", None, r.reason) for r in others)
        if running.approximation is not None:
            yield from _looped(_RUNNING, running, seen, options, lengths)


def _looped(
    name: str, chained: Chains, seen: set[BlockProgram], options: Options, lengths: Mapping[str, int] | None
) -> Iterator[_Fused | Considered]:
    found = chained.found
    try:
        first = lower(chained.program, found.folds, lengths)
    except UnsupportedError as error:
        yield Considered(f"{name} for chains of reductions", None, error.what)
        return
    fusion = fuse(first, RULES_THAT_KEEP_PRECISION, checked=options.debug_checks)
    for origin, snapshot, trace, _ in _snapshots(fusion):
        safe = make_safe(limit(snapshot))
        made = canonical(coarse_where_kept_in_16_bits(round_where_made(safe.program)))
        if made not in seen:
            seen.add(made)
            yield f"{name}, {origin}", made, trace, chained.approximation


def _lengths(program: TensorProgram, example: Example) -> Mapping[str, int] | None:
    """Return lengths of loops that may be nested in any order: those of a GPU that multiply nothing; None for others."""
    products = any(isinstance(n, Contraction) for n in program.nodes)
    return None if products or not example.target.is_gpu else example.sizes


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
