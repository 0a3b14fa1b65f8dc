"""Ways to run a fused program on a GPU: schedules that kernels can be made for and that fit, by predicted time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeAlias

from weft.block.program import BlockProgram
from weft.block.walk import maps
from weft.cost import Gpu, Launch, gpu, launches_of, least_registers, total, unfit_registers
from weft.emit import triton
from weft.errors import ScheduleError, UnsupportedError
from weft.masks import Sparsity, with_full_blocks
from weft.plan.targets.base import Toolchain
from weft.plan.targets.candidates import Way
from weft.plan.targets.triton.choices import choices, launches
from weft.plan.targets.triton.schedules import Blocks, Parts, parts, schedule
from weft.run.spread import are_side_by_side, has_free, spread
from weft.schedule import Placing, Schedule
from weft.tensor.axes import Axis

# Sizes of blocks that tell whether a program is worth looking at more closely, and those of a closer look.
_PROBED, _CLOSELY = 12, 96
# A program whose smallest blocks take this many times what the GPU has is not looked at further: no larger ones fit. Twice, since
# an operand that every warp's rows have to themselves stays in registers, and so takes less shared memory where rows are more.
_HOPELESS = 2.0
# So many blocks are looked at by a child at once: what they have in common is worked out once.
_APIECE = 8
# Sizes of blocks of which there are ways with loops of their own for full blocks: the likeliest. They are left out where they are
# predicted to take more than this many times as long as the same blocks without.
_APART, _AS_GOOD = 8, 1.02
# Of nests that share the elements of a block, which differ less from one another.
_NESTS = 32


def _spread(choices: Sequence[Blocks], count: int) -> Iterator[Blocks]:
    """Yields so many of `choices` at most, the first one and others evenly spaced."""
    step = max(1.0, len(choices) / count)
    yield from (choices[int(place * step)] for place in range(min(count, len(choices))))


@dataclass(frozen=True, slots=True)
class _Placed:
    """A program with places, and what its launches do."""

    applied: BlockProgram
    launches: tuple[Launch, ...]

    def unfit(self, chip: Gpu, wanted: Schedule) -> str | None:
        """Says why one of its launches does not fit `chip`, with the warps and stages of `wanted`; None where all do."""
        reasons = (e.unfit(chip, wanted.warps_of(merges=e.merges), wanted.stages) for e in self.launches)
        return next((reason for reason in reasons if reason is not None), None)

    def excess(self, chip: Gpu, wanted: Schedule) -> float:
        """Returns the greatest share that a launch takes of what `chip` has, with the warps and stages of `wanted`."""
        shares = (e.excess(chip, wanted.warps_of(merges=e.merges), wanted.stages) for e in self.launches)
        return max(shares, default=0.0)


@dataclass
class GpuWays:
    """The ways of one fused program, made as they are asked for.

    Attributes:
        fused: with canonical names.
        sizes, innermost, masks: of the example.
        chain: of a GPU.
    """

    fused: BlockProgram
    sizes: Mapping[str, int]
    innermost: Mapping[str, int | None]
    chain: Toolchain
    masks: Mapping[str, Sparsity] = field(default_factory=dict[str, Sparsity])
    _schedules: dict[Blocks, Schedule] = field(default_factory=dict[Blocks, Schedule])
    _made: dict[Blocks, _Placed | str] = field(default_factory=dict[Blocks, "_Placed | str"])
    _refused: dict[_Form, UnsupportedError | None] = field(default_factory=dict["_Form", "UnsupportedError | None"])

    def __post_init__(self) -> None:
        self._placing = Placing(self.fused, triton.GRANULARITY)

    def few(self) -> list[Way]:
        """Returns a few ways, the fastest first, each with the warps and stages that the model likes best.

        Raises:
            UnsupportedError, ScheduleError: there is none; the reason is the first one's.
        """
        return self._best(_PROBED, launched=1)

    def many(self) -> list[Way]:
        """Returns many ways, the fastest first, with all warps and stages that fit; raises as `few`.

        Those whose guarded loops are told beforehand what is idle are there with loops of their own for full blocks as well.
        """
        found = self._best(_CLOSELY, launched=None)
        return sorted([*found, *self._parted(found)], key=lambda w: w.cost.predicted_seconds)

    def _parted(self, found: Sequence[Way]) -> Iterator[Way]:
        """Yields those of `found` that can have loops of their own for full blocks with these, unless they are likely to be slower.

        What two copies of a body take of registers and of compiling is not in the model, so that it is for the clock to say.
        """
        full, chip = with_full_blocks(self.fused), gpu(self.chain.target)
        parted: dict[int, _Placed | None] = {}
        for way in found:
            wanted = replace(way.schedule, apart=full & way.schedule.beforehand)
            if not wanted.apart or (id(way.applied) not in parted and len(parted) == _APART):
                continue
            if id(way.applied) not in parted:
                parted[id(way.applied)] = None
                with suppress(ScheduleError, UnsupportedError):
                    applied = self._placing.apply(wanted)
                    self._demand_legal(applied, wanted)
                    launches = launches_of(applied, self.sizes, self.innermost, self.masks)
                    parted[id(way.applied)] = _Placed(applied, launches)
            placed = parted[id(way.applied)]
            if placed is not None and placed.unfit(chip, wanted) is None:
                made = self._way(wanted, placed)
                if made.cost.predicted_seconds <= _AS_GOOD * way.cost.predicted_seconds:
                    yield made

    def given(self, schedule: Schedule) -> Way:
        """Returns the way of a given schedule; raises as `apply` and `demand_legal` do."""
        applied = self._placing.apply(schedule)
        self._demand_legal(applied, schedule)
        return self._way(schedule, _Placed(applied, launches_of(applied, self.sizes, self.innermost, self.masks)))

    def _best(self, count: int, launched: int | None) -> list[Way]:
        known = self._known
        every = list(_spread(self._different, min(count, _NESTS) if known.nested else count))
        found: list[Way] = []
        refused: str | None = None
        for ways, reason in self._side_by_side(every, launched):
            found += ways
            refused = refused or reason
        if not found:
            raise UnsupportedError(refused or "no schedule fits this GPU")
        return sorted(found, key=lambda w: w.cost.predicted_seconds)

    def _side_by_side(self, every: Sequence[Blocks], launched: int | None) -> Iterator[tuple[list[Way], str | None]]:
        """Yields the ways of each of these blocks, and why others are none; made by children as soon as processors are free."""
        waiting = deque(every[n : n + _APIECE] for n in range(0, len(every), _APIECE))
        failed = not are_side_by_side()
        while waiting:
            given: list[list[tuple[list[Way], str | None]] | None] = []
            if not failed and self._are_many(waiting) and has_free():
                given = spread([partial(self._ways_of, part, launched) for part in waiting])
                failed = not any(given)
            for ways in given if any(given) else [None]:
                yield from ways or self._ways_of(waiting[0], launched)
                waiting.popleft()

    def _are_many(self, waiting: Iterable[Sequence[Blocks]]) -> bool:
        """Tells whether so many blocks have no places yet that others should have some of them."""
        return (
            sum(replace(blocks, warps=4, stages=1) not in self._made for part in waiting for blocks in part)
            > 2 * _APIECE
        )

    def _ways_of(self, several: Sequence[Blocks], launched: int | None) -> list[tuple[list[Way], str | None]]:
        return [self._ways(blocks, launched) for blocks in several]

    def _ways(self, blocks: Blocks, launched: int | None) -> tuple[list[Way], str | None]:
        """Returns the fastest ways of some blocks, so many, and the first reason why there are no others; None where all are."""
        known, chip = self._known, gpu(self.chain.target)
        applied = self._placed(known, blocks)
        if isinstance(applied, str):
            return [], applied
        found: list[Way] = []
        refused: str | None = None
        plain, pipelines = self._schedule(known, blocks), any(launch.pipelines(chip) for launch in applied.launches)
        for each in launches(known, blocks):
            if each.stages > 1 and not pipelines:
                continue
            wanted = replace(plain, warps=each.warps, stages=each.stages)
            unfit = applied.unfit(chip, wanted)
            refused = refused or unfit
            if unfit is None:
                found.append(self._way(wanted, applied))
        return sorted(found, key=lambda w: w.cost.predicted_seconds)[:launched], refused

    @cached_property
    def _known(self) -> Parts:
        return parts(self.fused, self.sizes, self.innermost)

    def _demand_hope(self, known: Parts, every: Sequence[Blocks], chip: Gpu) -> None:
        """Raises UnsupportedError where the smallest blocks, with any warps, take far more than `chip` has."""
        if not every:
            return
        least = min(every, key=lambda blocks: blocks.elements / blocks.segments)
        plain, warps = self._schedule(known, least), dict.fromkeys(each.warps for each in launches(known, least))
        registers = least_registers(self.fused, plain, self.sizes, chip, max(warps))
        if lacking := unfit_registers(registers, _HOPELESS):  # so that it need not have places
            raise UnsupportedError(f"at least {lacking}")
        placed = self._placed(known, least)
        if isinstance(placed, str):
            return
        wanted = [replace(plain, warps=each) for each in warps]
        if min(placed.excess(chip, each) for each in wanted) > _HOPELESS:
            raise UnsupportedError(placed.unfit(chip, wanted[0]) or "no schedule fits this GPU")

    def _schedule(self, known: Parts, blocks: Blocks) -> Schedule:
        """Returns the schedule of `blocks` with four warps and one stage: nothing else in it depends on these."""
        plain = replace(blocks, warps=4, stages=1)
        found = self._schedules.get(plain)
        if found is None:
            found = self._schedules[plain] = schedule(self.fused, known, plain, self.sizes)
        return found

    def _placed(self, known: Parts, blocks: Blocks) -> _Placed | str:
        """Gives the program places by `blocks`, once for all warps and stages; or says why it has none."""
        plain = replace(blocks, warps=4, stages=1)
        if plain not in self._made:
            self._made[plain] = self._applied(known, plain)
        return self._made[plain]

    @cached_property
    def _different(self) -> tuple[Blocks, ...]:
        """Sizes that give different schedules; of those that give the same one, those with the fewest lanes: warps go by these.

        Raises UnsupportedError where none of them fits.
        """
        chip = gpu(self.chain.target)
        every = tuple(choices(self._known, self.fused, self.sizes, chip))
        self._demand_hope(self._known, every, chip)
        found: dict[Schedule, Blocks] = {}
        for blocks in every:
            wanted = self._schedule(self._known, blocks)
            found[wanted] = min(found.get(wanted, blocks), blocks, key=lambda b: b.lanes or math.inf)
        return tuple(found.values())

    def _applied(self, known: Parts, blocks: Blocks) -> _Placed | str:
        """Gives the program places, or says why it has none, or why no kernel can be made of it."""
        try:
            wanted = self._schedule(known, blocks)
            applied = self._placing.apply(wanted)
            self._demand_legal(applied, wanted)
        except (ScheduleError, UnsupportedError) as error:
            return error.what
        return _Placed(applied, launches_of(applied, self.sizes, self.innermost, self.masks))

    def _way(self, wanted: Schedule, placed: _Placed) -> Way:
        chip = gpu(self.chain.target)
        costs = (e.cost(chip, wanted.warps_of(merges=e.merges), wanted.stages) for e in placed.launches)
        return Way(wanted, placed.applied, total(costs))

    def _demand_legal(self, applied: BlockProgram, wanted: Schedule) -> None:
        """Raises UnsupportedError where no kernels can be made of `applied` for the target.

        That depends on where loops run, and on which of them have but one iteration; not on the sizes of blocks.
        """
        once = frozenset(m.axis for m in maps(applied.graph) if m.runs_once)
        form = wanted.form, once
        if form not in self._refused:
            self._refused[form] = None
            try:
                self.chain.demand_legal(applied)
            except UnsupportedError as error:
                self._refused[form] = error
        refused = self._refused[form]
        if refused is not None:
            raise refused


_Form: TypeAlias = "tuple[Schedule, frozenset[Axis]]"
