"""The time of a GPU's kernel: what a thread block waits for, what those on one multiprocessor share, and the waves of the grid.

The levels are those of "FlashAttention on a Napkin" (a transfer rate for each level of the hierarchy, a limit of memory at
each); the counts are `weft.cost.traffic`'s. What is added is latency, which decides where there are few thread blocks: one
alone waits for its own instructions, for its matmuls and for memory, and only others on the same multiprocessor, or blocks
in flight, fill the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TypeAlias

from weft.block.program import BlockProgram
from weft.cost.gpu_bounds import Bounds, Breakdown, Cycles, together
from weft.cost.gpu_bytes import DeviceBytes, device_bytes, first_bytes, moved_bytes
from weft.cost.gpu_cycles import SPECIAL
from weft.cost.gpu_limits import (
    Resources,
    Unit,
    accesses,
    copied_ahead,
    excess,
    is_staged,
    pipelined,
    resources_of,
    spilled_in,
    unfit,
    unit_of,
)
from weft.cost.gpu_regions import BlockReduction, LoopWork, Matmul, ThreadBlockWork
from weft.cost.gpu_work import work_of
from weft.cost.gpus import Gpu, gpu
from weft.cost.guarded import guarded_shares, of_busy
from weft.cost.kernel_cost import Cost
from weft.cost.traffic import Traffic, by_kernel
from weft.masks import Sparsity
from weft.schedule import Schedule, kernels
from weft.target import Target
from weft.tensor.dtypes import DType

# Cycles of a scheduler for one access of 16 bytes a thread: its address, its predicate, and the copy itself.
_ACCESS_CYCLES = 16.0
# What is copied ahead to shared memory is read from there again, for this share of a load's cycles.
_READ_AGAIN = 0.5
# Cycles until a result that threads combine is there: a few exchanges between the lanes of a warp, each as long as an access to
# shared memory.
_REDUCTION_CYCLES = 100.0
# Instructions of each warp for it: exchanges between lanes, and through shared memory with other warps.
_REDUCTION_SLOTS = 30.0
# Cycles until the result of a matmul can be read, beyond its own work; the same for what goes through shared memory to others.
_MATMUL_CYCLES, _PASSING_CYCLES = 60.0, 100.0
# Cycles in which warps combine what each has reduced of a matmul's rows, through shared memory: they share them below 16 each.
_EXCHANGE_CYCLES, _WARP_ROWS = 300.0, 16
# Cycles of a vector unit for the operands of a multiplication with its addition, which come from shared memory with instructions of
# their own. A thread has up to 4 by 4 results at once and reads so much less; where its 4 columns lie along the depth in memory, a
# warp's lanes read the same banks, one after the other.
_OPERAND_CYCLES = 1.6
# Words of 4 bytes that shared memory reads or writes at once.
_BANKS = 32
# Bytes that a spilled register moves each time: it is written and read.
_SPILL_BYTES = 8


def estimate_gpu(
    applied: BlockProgram,
    sizes: Mapping[str, int],
    target: Target,
    schedule: Schedule,
    innermost: Mapping[str, int | None] | None = None,
    masks: Mapping[str, Sparsity] | None = None,
) -> tuple[Cost, ...]:
    """Estimates the cost of each launch of an applied program as Triton kernels, in the order of `weft.schedule.kernels`.

    Args:
        applied: with places (a schedule was applied).
        sizes: elements of each space, by name; all at least 1.
        target: a GPU.
        schedule: that was applied: its warps and stages count.
        innermost: for inputs, by name, the dimension of stride 1; of others it is the last one.
        masks: the classes of inputs, by name, as `launches_of` takes them.

    Raises:
        TargetError: no GPU is known that `target` could be.
    """
    chip, stages, found = gpu(target), schedule.stages, list[Cost]()
    for launch in launches_of(applied, sizes, innermost, masks):
        warps = schedule.warps_of(merges=launch.merges)
        found.append(launch.cost(chip, warps, stages))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a launch asks of a chip, whatever its warps and stages.

    Attributes:
        bytes: that thread blocks ask for; read: those that they read of lists in memory; first: each element once.
        shares: by list, how much of its blocks is moved.
        arithmetic, cache: as of `Bounds`.
    """

    bytes: int
    read: int
    first: DeviceBytes
    shares: Mapping[str, float]
    flops: int
    arithmetic: float
    cache: float

    @staticmethod
    def of(work: ThreadBlockWork, counted: Traffic, chip: Gpu) -> _Asked:
        """Counts what a launch asks of `chip`."""
        flops = sum(counted.flops.values())
        matmuls = sum(done / chip.flops.get(dtype, chip.vector_flops) for dtype, done in counted.matrix_flops.items())
        vectors = (flops - sum(counted.matrix_flops.values())) / chip.vector_flops
        asked, shares = moved_bytes(work, counted)
        spread = {load.name: load.spread for region in work.body.all() for load in region.loads}
        scattered = work.thread_blocks * sum(region.runs * _scattered(region) for region in work.body.all())
        cache = (sum(size * spread[name] for name, size in asked.items()) + scattered) / chip.cache
        read = sum(size for name, size in counted.loaded.items() if name in counted.shared)
        return _Asked(sum(asked.values()), read, first_bytes(counted), shares, flops, max(matmuls, vectors), cache)


_Setting: TypeAlias = tuple[str, int, int]
"""A chip's name, warps and stages."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What one launch of an applied program does, whatever its warps and stages; `merges`: it merges segments.

    What it takes with these is worked out once: the same launch is asked about for each schedule that differs in others.
    """

    work: ThreadBlockWork
    counted: Traffic
    merges: bool
    _moved: dict[tuple[float, int], DeviceBytes] = field(
        default_factory=dict[tuple[float, int], DeviceBytes], repr=False, compare=False
    )
    _asked: dict[str, _Asked] = field(default_factory=dict[str, "_Asked"], repr=False, compare=False)
    _costs: dict[_Setting, Cost] = field(default_factory=dict["_Setting", Cost], repr=False, compare=False)
    _needs: dict[_Setting, Resources] = field(default_factory=dict["_Setting", Resources], repr=False, compare=False)
    _stages: list[bool] = field(default_factory=list[bool], repr=False, compare=False)

    def cost(self, chip: Gpu, warps: int, stages: int) -> Cost:
        """Estimates the cost on `chip`."""
        key = chip.name, warps, stages if self._staged else 1
        if key not in self._costs:
            self._costs[key] = self._cost(chip, *key[1:])
        return self._costs[key]

    def resources(self, chip: Gpu, warps: int, stages: int) -> Resources:
        """Estimates what it takes of `chip`."""
        key = chip.name, warps, stages if self._staged else 1
        if key not in self._needs:
            self._needs[key] = resources_of(self.work, chip, *key[1:])
        return self._needs[key]

    @property
    def _staged(self) -> bool:
        """Tell whether it may matter how many iterations are in flight at once (`weft.cost.gpu_limits.is_staged`)."""
        if not self._stages:
            self._stages.append(is_staged(self.work.body))
        return self._stages[0]

    def _cost(self, chip: Gpu, warps: int, stages: int) -> Cost:
        _, bounds, moved = _bounded(self, chip, warps, stages)
        asked = self.asked(chip)
        return Cost(
            asked.read,
            asked.first.written,
            asked.flops,
            asked.first.total,
            max(asked.first.total / chip.dram, bounds.arithmetic),
            chip.launch_seconds + bounds.seconds,
            device_read=moved.read,
            device_written=moved.written,
            thread_blocks=self.work.thread_blocks,
        )

    def asked(self, chip: Gpu) -> _Asked:
        """Returns what it asks of `chip`, whatever its warps and stages."""
        if chip.name not in self._asked:
            self._asked[chip.name] = _Asked.of(self.work, self.counted, chip)
        return self._asked[chip.name]

    def device_bytes(self, chip: Gpu, resident: int) -> DeviceBytes:
        """Predicts the bytes between memory and the second-level cache of `chip`, with so many thread blocks at once on each
        multiprocessor.
        """
        running = resident * chip.multiprocessors
        key = chip.cache_bytes, running
        if key not in self._moved:
            self._moved[key] = device_bytes(self.work, self.counted, chip.cache_bytes, running)
        return self._moved[key]

    def breakdown(self, chip: Gpu, warps: int, stages: int) -> Breakdown:
        """Lists what the predicted time is made of."""
        model, bounds, _ = _bounded(self, chip, warps, stages)
        parts = [(region.runs, model.parts(region, model.once(region))) for region in self.work.body.all()]
        matmuls, waiting, vectors, accesses = (sum(runs * own[i] for runs, own in parts) for i in range(4))
        cycles = Cycles(matmuls, waiting, vectors, accesses)
        predicted = chip.launch_seconds + bounds.seconds
        return Breakdown(predicted, chip.launch_seconds, bounds, cycles, model.found, warps, stages)

    def pipelines(self, chip: Gpu) -> bool:
        """Tells whether there can be a pipeline on `chip`: a loop of several iterations loads, and has not several in flight."""
        loops = (r for r in self.work.body.all() if r.runs > r.entries)
        return any(pipelined(r, 2) or copied_ahead(r, chip, 2) for r in loops)

    def unfit(self, chip: Gpu, warps: int, stages: int) -> str | None:
        """Says why the launch does not fit `chip`; None where it does."""
        return unfit(self.resources(chip, warps, stages), chip)

    def excess(self, chip: Gpu, warps: int, stages: int) -> float:
        """Returns what the launch takes as a share of what `chip` has, of what it is shortest of: above 1 where it does not fit."""
        return excess(self.resources(chip, warps, stages), chip)


def launches_of(
    applied: BlockProgram,
    sizes: Mapping[str, int],
    innermost: Mapping[str, int | None] | None = None,
    masks: Mapping[str, Sparsity] | None = None,
) -> tuple[Launch, ...]:
    """Lists the launches of an applied program, in the order of `weft.schedule.kernels`; `innermost` as in `estimate_gpu`.

    Guarded loops do the share of their iterations that is expected of masks of these classes, by name of the input; of others,
    what is typical.
    """
    guards = guarded_shares(applied, sizes, masks or {})
    counts = [of_busy(each, applied, guards) if guards else each for each in by_kernel(applied, sizes)]
    parts = zip(kernels(applied), counts, strict=True)
    return tuple(
        Launch(work_of(applied, part, counted, sizes, innermost, guards), counted, part.merges)
        for part, counted in parts
    )


def _bounded(launch: Launch, chip: Gpu, warps: int, stages: int) -> tuple[_Model, Bounds, DeviceBytes]:
    """Finds what bounds the time of a launch, how its thread blocks run, and what it moves."""
    asked, found = launch.asked(chip), launch.resources(chip, warps, stages)
    moved = launch.device_bytes(chip, found.resident)
    first = min(1.0, moved.total / max(1, asked.bytes))
    memory = chip.dram_seconds * first + chip.cache_seconds * (1 - first)
    model = _Model(chip, found, warps, stages, memory, asked.shares)
    bounds = Bounds(moved.total / chip.dram, asked.arithmetic, asked.cache, model.waves(launch.work))
    return model, bounds, moved


def _scattered(region: LoopWork) -> float:
    """Count the bytes that stores move beyond those that they write, in one run of `region`: nobody waits for them, but whole
    sectors keep the way to the cache busy.
    """
    return sum(each.bytes * (each.spread - 1) for each in region.stores)


@dataclass(frozen=True, slots=True)
class _Use:
    """Cycles of a multiprocessor's units that a thread block keeps busy, none of which two thread blocks have at once."""

    matmuls: float = 0.0
    slots: float = 0.0
    special: float = 0.0
    moving: float = 0.0
    shared: float = 0.0

    def plus(self, other: _Use, times: float = 1.0) -> _Use:
        return _Use(
            self.matmuls + other.matmuls * times,
            self.slots + other.slots * times,
            self.special + other.special * times,
            self.moving + other.moving * times,
            self.shared + other.shared * times,
        )

    @property
    def most(self) -> float:
        return max(self.matmuls, self.slots, self.special, self.moving, self.shared)


@dataclass(frozen=True, slots=True)
class _Once:
    """What is done in one run of a region: cycles of each matmul on its unit, of loads and stores for each warp, and of shared
    memory in which warps combine what they have reduced.
    """

    matmuls: Sequence[tuple[float, Unit]]
    copies: float
    exchanged: float


@dataclass(frozen=True, slots=True)
class _Model:
    """A launch on a chip.

    Attributes:
        memory: seconds until what is asked for from memory is there.
        shares: by list, how much of its blocks is moved: not what lies beyond its edges.
    """

    chip: Gpu
    found: Resources
    warps: int
    stages: int
    memory: float
    shares: Mapping[str, float]

    def waves(self, work: ThreadBlockWork) -> float:
        """Computes the seconds of all waves of the grid."""
        alone, use = self.region(work.body)
        passing = self.spills(work.body)
        alone, use = alone + passing, use.plus(_Use(slots=passing))
        full, rest = divmod(work.thread_blocks, self.found.resident * self.chip.multiprocessors)
        last = ceil(rest / self.chip.multiprocessors)
        cycles = full * together(alone, self.found.resident * use.most)
        cycles += together(alone, last * use.most) if rest else 0.0
        return cycles / self.chip.hertz

    def spills(self, region: LoopWork) -> float:
        """Computes the cycles in which registers that a thread cannot have are written and read, in all runs of `region`.

        What an iteration itself needs moves in each; what is only there across the loop, once each time that the loop is run. It
        goes to the first-level cache, of which shared memory takes a part, and where there is no room in it to the second. Code
        without a loop in it or around it moves each once.
        """
        if not self.found.spilled:
            return 0.0
        inner = sum(map(self.spills, region.inner))
        if not region.loop and region.inner:
            return inner
        chip, found = self.chip, self.found
        own = min(found.spilled, spilled_in(region, chip, self.warps, self.stages)) if region.loop else 0
        words = region.runs * own + region.entries * (found.spilled - own)
        taken = (found.shared_bytes + 4 * found.spilled * found.threads) * found.resident
        width = chip.shared_width if taken <= chip.l1_bytes else chip.cache / chip.multiprocessors / chip.hertz
        return inner + words * _SPILL_BYTES * found.threads / width

    def region(self, region: LoopWork) -> tuple[float, _Use]:
        """Computes the cycles that all runs of `region` in one thread block take when it is alone, and what they use."""
        chip, once = self.chip, self.once(region)
        use = self.use(region, once)
        moving, memory = use.moving, self.memory * chip.hertz if region.loads else 0.0
        busy = sum(self.parts(region, once)) + chip.step_cycles  # alone, without waiting for memory
        if pipelined(region, self.stages) or copied_ahead(region, chip, self.stages):
            step, fill = max(busy, moving, memory / (self.stages - 1)), region.entries * (memory + moving)
        else:
            step, fill = busy + memory / region.together + moving, 0.0
        asking = 0.0 if region.busy == 1 else memory + chip.step_cycles  # nothing goes on before the answer is there
        done = region.runs * region.busy
        cycles, total = region.runs * asking + done * step + fill, _Use().plus(use, done)
        for inner in region.inner:
            more, used = self.region(inner)
            cycles, total = cycles + more, total.plus(used)
        return cycles, total

    def once(self, region: LoopWork) -> _Once:
        """Computes what units do in one run of `region`, without the loops inside."""
        matmuls = [(self.matmul(p), unit_of(p, self.chip, self.warps)) for p in region.matmuls]
        return _Once(matmuls, self.copies(region), sum(map(self.exchanged, region.reductions)))

    def use(self, region: LoopWork, once: _Once) -> _Use:
        """Computes what one run of `region` keeps busy, without the loops inside."""
        chip = self.chip
        vectors = sum(cycles for cycles, unit in once.matmuls if unit is Unit.vector)
        issued, special = self.issued(region)
        issued += once.copies + _REDUCTION_SLOTS * len(region.reductions)
        warps = self.warps * chip.warp / chip.lanes
        loaded = sum(load.bytes * load.spread * self.shares[load.name] for load in region.loads)
        return _Use(
            sum(cycles for cycles, unit in once.matmuls if unit is not Unit.vector),
            warps * issued + vectors,
            warps * special,
            (loaded + _scattered(region)) / chip.cache_width,
            once.exchanged,
        )

    def parts(self, region: LoopWork, once: _Once) -> tuple[float, float, float, float]:
        """Lists the cycles of one run of `region` in a thread block that is alone: of matmuls, of waiting for results, of
        elementwise work, of loads and stores.
        """
        chip, each = self.chip, self.warps_each
        # Warps of one scheduler wait for their own matmuls; those of the others are done meanwhile.
        own = sum(
            cycles if unit is Unit.vector else cycles / max(1.0, self.warps / chip.schedulers)
            for cycles, unit in once.matmuls
        )
        units = (unit for _, unit in once.matmuls)
        passing = sum(any(p.made) and unit is not Unit.warpgroup for p, unit in zip(region.matmuls, units, strict=True))
        waiting = (
            _MATMUL_CYCLES * len(once.matmuls) + _PASSING_CYCLES * passing + _REDUCTION_CYCLES * len(region.reductions)
        )
        shared = sum(r.multiplied and r.results < _WARP_ROWS * self.warps for r in region.reductions)
        waiting += once.exchanged + _EXCHANGE_CYCLES * shared
        return own, waiting, max(chip.lone_warp, each) * self.vectors(region), each * once.copies

    def exchanged(self, reduction: BlockReduction) -> float:
        """Computes the cycles of shared memory in which warps combine what each of them has reduced.

        A block lies among threads as its memory does: each has elements of 16 bytes side by side, a warp as many such pieces as
        there are, then rows; warps follow in the same order. Where rows of several warps are reduced, each writes its results so
        that those of all warps for one column lie side by side: lanes are as many words apart, in few of the 32 banks.
        """
        chip = self.chip
        if reduction.beside == 1:
            return 0.0
        each = max(1, reduction.results * reduction.over // self.found.threads)
        piece = max(1, min(16 // reduction.bytes, each, reduction.beside))
        lanes = min(chip.warp, reduction.beside // piece)
        columns = min(self.warps, max(1, reduction.beside // (piece * lanes)))
        rows = min(self.warps // columns, max(1, reduction.over * lanes // chip.warp))
        if rows < 2:
            return 0.0
        writes = max(1, reduction.results // (lanes * columns))
        conflicts = min(lanes, max(1, lanes * piece * rows // _BANKS))
        reads = max(1, lanes * piece // _BANKS)
        return self.warps * writes * (conflicts + reads) + reduction.results * rows / _BANKS

    @property
    def warps_each(self) -> float:
        """Cycles in which a scheduler starts one instruction of each of its warps."""
        chip = self.chip
        return max(1.0, self.warps / chip.schedulers) * chip.schedulers * chip.warp / chip.lanes

    def vectors(self, region: LoopWork) -> float:
        """Computes the cycles of elementwise work, for each warp."""
        return sum(cycles * max(1.0, lanes / self.found.threads) for lanes, cycles in region.vectors)

    def issued(self, region: LoopWork) -> tuple[float, float]:
        """Computes the cycles for each warp of starting the instructions of elementwise work, and of the special functions in it.

        These have units of their own, a quarter as many: while they are busy, a scheduler starts other instructions.
        """
        slots = special = 0.0
        for lanes, cycles in region.vectors:
            functions, rest = divmod(cycles, SPECIAL)
            times = max(1.0, lanes / self.found.threads)
            slots, special = slots + times * (rest + functions), special + times * functions * SPECIAL
        return slots, special

    def copies(self, region: LoopWork) -> float:
        """Computes the cycles of loads and stores, for each warp."""
        threads = self.found.threads
        ahead = copied_ahead(region, self.chip, self.stages)
        loads = sum(
            accesses(load, threads) * (1 + (_READ_AGAIN * 16 / load.width if ahead else 0.0)) for load in region.loads
        )
        stores = sum(max(1, each.bytes // (each.width * threads)) for each in region.stores)
        return _ACCESS_CYCLES * (loads + stores)

    def matmul(self, matmul: Matmul) -> float:
        """Computes the cycles of the units that multiply, for one matmul of blocks."""
        chip = self.chip
        work = matmul.rows * matmul.columns * matmul.depth
        rate = chip.matmul_fmas_per_cycle * chip.flops.get(matmul.dtype, 0.0) / chip.flops[DType.bfloat16]
        match unit_of(matmul, chip, self.warps):
            case Unit.warpgroup:
                return work / rate
            case Unit.warp:
                return work / (rate * chip.warp_share)
            case Unit.vector:
                threads = self.found.threads
                own = matmul.rows * matmul.columns / threads
                side = 4 if own >= 16 else 2 if own >= 4 else 1
                conflicts = threads * matmul.depth * side / 4 if matmul.turned[1] else 0.0
                return work * (1 + _OPERAND_CYCLES / side) / chip.lanes + conflicts
