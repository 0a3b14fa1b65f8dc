"""The time of a GPU's kernel: what a program waits for, what programs on one multiprocessor share, and the waves of the grid.

The levels are those of "FlashAttention on a Napkin" (a transfer rate for each level of the hierarchy, a limit of memory at
each); the counts are `weft.cost.traffic`'s. What is added is latency, which decides where there are few programs: a program
alone waits for its own instructions, for its products and for memory, and only others on the same multiprocessor, or blocks
under way, fill the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from weft.block.program import BlockProgram
from weft.cost.estimate import Cost
from weft.cost.gpu_limits import Resources, Unit, accesses, pipelined, resources_of, unfit, unit_of
from weft.cost.gpu_work import Product, ProgramWork, Region, work_of
from weft.cost.gpus import Gpu, gpu
from weft.cost.traffic import Traffic, by_kernel
from weft.schedule import kernels
from weft.target import Target

# Clocks of a scheduler for one access of 16 bytes a thread: its address, its predicate, and the copy itself.
_ACCESS_CLOCKS = 16.0
# Clocks until a result that threads combine is there: a few exchanges between the lanes of a warp, each as long as an access to
# shared memory.
_REDUCTION_CLOCKS = 100.0
# Clocks until the result of a product can be read, beyond its own work; the same for what goes through shared memory to others.
_PRODUCT_CLOCKS = 60.0
_PASSING_CLOCKS = 100.0
# Words of shared memory that the vector units read for each product, where each thread has a block of 4 by 4 of the result.
_VECTOR_PRODUCTS = 0.5
_CONFLICTS = 6.0
# Bytes that a spilled register moves: written once and read once.
_SPILL_BYTES = 8


def estimate_gpu(
    applied: BlockProgram, sizes: Mapping[str, int], target: Target, warps: int = 4, stages: int = 1
) -> tuple[Cost, ...]:
    """The cost of each launch of an applied program as Triton kernels, in the order of `weft.schedule.kernels`.

    Args:
        applied: with places (a schedule was applied).
        sizes: elements of each space, by name; all at least 1.
        target: a GPU.
        warps, stages: of the schedule.

    Raises:
        TargetError: no GPU is known that `target` could be.
    """
    return tuple(launch.cost(gpu(target), warps, stages) for launch in launches_of(applied, sizes))


@dataclass(frozen=True, slots=True)
class Launch:
    """What one launch of an applied program does, whatever its warps and stages."""

    work: ProgramWork
    counted: Traffic

    def cost(self, chip: Gpu, warps: int, stages: int) -> Cost:
        """Its cost on `chip`."""
        return _cost(self.work, self.counted, chip, warps, stages)

    def unfit(self, chip: Gpu, warps: int, stages: int) -> str | None:
        """Why it does not fit `chip`; None where it does."""
        return unfit(resources_of(self.work, chip, warps, stages), chip)


def launches_of(applied: BlockProgram, sizes: Mapping[str, int]) -> tuple[Launch, ...]:
    """The launches of an applied program, in the order of `weft.schedule.kernels`."""
    parts = zip(kernels(applied), by_kernel(applied, sizes), strict=True)
    return tuple(Launch(work_of(applied, part, counted, sizes), counted) for part, counted in parts)


def _cost(work: ProgramWork, counted: Traffic, chip: Gpu, warps: int, stages: int) -> Cost:
    read = {name: size for name, size in counted.loaded.items() if name in counted.shared}
    written = sum(size for name, size in counted.stored.items() if name in counted.shared)
    unique = sum(min(counted.lists[name], size) for name, size in read.items()) + written
    flops = sum(counted.flops.values())
    products = sum(work / chip.flops.get(dtype, chip.vector_flops) for dtype, work in counted.matrix_flops.items())
    vectors = (flops - sum(counted.matrix_flops.values())) / chip.vector_flops
    floor = max(unique / chip.dram, products, vectors)
    found = resources_of(work, chip, warps, stages)
    moved = sum(load.bytes * region.runs for region in work.body.all() for load in region.loads) * work.programs
    first = min(1.0, unique / max(1.0, moved))
    model = _Model(chip, found, warps, stages, chip.dram_seconds * first + chip.cache_seconds * (1 - first))
    on_chip = model.waves(work)
    predicted = chip.launch_seconds + max(on_chip, unique / chip.dram, moved / chip.cache)
    return Cost(sum(read.values()), written, flops, unique, floor, predicted)


@dataclass(frozen=True, slots=True)
class _Use:
    """Clocks of a multiprocessor's units that a program keeps busy, none of which two programs have at once."""

    products: float = 0.0
    slots: float = 0.0
    moving: float = 0.0

    def plus(self, other: _Use, times: float = 1.0) -> _Use:
        return _Use(
            self.products + other.products * times,
            self.slots + other.slots * times,
            self.moving + other.moving * times,
        )

    @property
    def most(self) -> float:
        return max(self.products, self.slots, self.moving)


@dataclass(frozen=True, slots=True)
class _Model:
    """A launch on a chip; `memory`: seconds until what is asked for from memory is there."""

    chip: Gpu
    found: Resources
    warps: int
    stages: int
    memory: float

    def waves(self, work: ProgramWork) -> float:
        """Seconds of all rounds of the grid."""
        alone, use = self.region(work.body)
        spilled = self.found.spilled * _SPILL_BYTES * self.found.threads
        steps = sum(r.runs for r in work.body.all() if not r.inner)
        alone += steps * spilled / self.chip.shared_width
        full, rest = divmod(work.programs, self.found.resident * self.chip.multiprocessors)
        last = ceil(rest / self.chip.multiprocessors)
        clocks = full * max(alone, self.found.resident * use.most) + (max(alone, last * use.most) if rest else 0.0)
        return clocks / self.chip.clock

    def region(self, region: Region) -> tuple[float, _Use]:
        """Clocks that all runs of `region` in one program take when it is alone, and what they use."""
        chip, threads = self.chip, self.found.threads
        copies = sum(_ACCESS_CLOCKS * accesses(load, threads) for load in region.loads)
        copies += sum(_ACCESS_CLOCKS * max(1, lanes * d.bytes // (16 * threads)) for lanes, d in region.stores)
        vectors = sum(clocks * max(1.0, lanes / threads) for lanes, clocks in region.vectors)
        products = sum(self.product(p) for p in region.products)
        passing = sum(
            _PASSING_CLOCKS
            for p in region.products
            if any(p.made) and unit_of(p, chip, self.warps) is not Unit.warpgroup
        )
        waiting = _PRODUCT_CLOCKS * len(region.products) + _REDUCTION_CLOCKS * len(region.reductions) + passing
        per_scheduler = max(1.0, self.warps / chip.schedulers)
        vector_clocks = max(chip.lone_warp, per_scheduler) * vectors
        busy = products + waiting + vector_clocks + per_scheduler * copies + chip.step_clocks
        moving = sum(load.bytes for load in region.loads) / chip.cache_width
        memory = self.memory * chip.clock
        fill = 0.0
        if pipelined(region, self.stages):
            step = max(busy, moving, memory / (self.stages - 1))
            fill = region.entries * (memory + moving)
        else:
            step = busy + (memory + moving if region.loads else 0.0)
        use = _Use(products, per_scheduler * (vectors + copies), moving)
        clocks, total = region.runs * step + fill, _Use().plus(use, region.runs)
        for inner in region.inner:
            more, used = self.region(inner)
            clocks, total = clocks + more, total.plus(used)
        return clocks, total

    def product(self, product: Product) -> float:
        """Clocks of the units that multiply, for one product of blocks."""
        chip = self.chip
        work = product.rows * product.columns * product.depth
        match unit_of(product, chip, self.warps):
            case Unit.warpgroup:
                return work / chip.products_a_clock
            case Unit.warp:
                return work / (chip.products_a_clock * chip.warp_share)
            case Unit.vector:
                conflicts = _CONFLICTS if product.across else 1.0
                return work * conflicts / (128 * _VECTOR_PRODUCTS)
