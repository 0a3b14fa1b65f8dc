"""Machines as the cost model sees them: a few rates and sizes, read off the system, never timed.

A timing would differ from process to process, and with it the schedule that is chosen and the key
that its binary is cached under. What cannot be read off is a rule of thumb per cycle, stated
here; the model ranks schedules by it, and reports are to be read as "about".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from weft.tensor.dtypes import DType

# Bytes that one core moves per cycle from each level, where the data is streamed: from L1 a vector,
# from L2 half of one, and from what cores share the numbers typical of current servers.
_L3_BYTES_PER_CYCLE = 10
_MEMORY_BYTES_PER_CYCLE = 5
# Until the first elements of a row come, of several that are on their way at once.
_L3_SECONDS, _MEMORY_SECONDS = 20e-9, 30e-9
# Tile units (AMX: 16x16x32 matmuls in 16 cycles) wait for their operands most of the time: small
# panels that come from L2 attain about a third of the peak.
_TILE_FLOPS_PER_CYCLE = 1024 * 0.3
_DEFAULT_HERTZ = 2.5e9


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """One level of memory.

    Attributes:
        bytes: of all cores together.
        bytes_per_second: that all cores together get from it, where they read on and on.
        row_seconds: of one core, until the first elements of a row are there that lies anywhere in it.
    """

    name: str
    bytes: float
    bytes_per_second: float
    row_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Processor:
    """What the system says of its CPU.

    Attributes:
        hertz: the clock, cycles per second.
        vector_bytes: the width of its vectors.
        tiles: the types of which it has a unit for matmuls of tiles.
        caches: bytes of one core's L1 for data and L2, and of the L3 that cores share (0: not described).
        pairs: the types of which its vectors multiply and add up two elements in the place of one of fp32.
    """

    hertz: float
    vector_bytes: int
    tiles: frozenset[DType]
    caches: tuple[int, int, int]
    pairs: frozenset[DType] = frozenset()

    @staticmethod
    def here() -> Processor:
        """Describes this machine's processor.

        Caches come from the system's description of its first core, the width of vectors from PyTorch, the clock and the tile
        unit from the processor's. Anything not described gets a modest default: 32 KiB, 512 KiB and 2 MiB a core, 2.5 GHz.
        """
        units = {"amx_bf16": DType.bfloat16, "amx_int8": DType.int8}
        flags = _cpu_description().get("flags", "").split()
        found = _cache_bytes()
        return Processor(
            _hertz(),
            _vector_bytes(),
            frozenset(dtype for unit, dtype in units.items() if unit in flags),
            (found.get(1, 32 << 10), found.get(2, 512 << 10), found.get(3, 0)),
            frozenset({DType.bfloat16}) if "avx512_bf16" in flags else frozenset(),
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of all `cores` together.

    Attributes:
        cores: threads that a kernel may use.
        vector_flops: operations per second on vectors of fp32.
        matrix_flops: operations per second of matmuls, by the type of the operands.
        levels: from the fastest to the largest; the last has no end.
        lanes: elements of fp32 in a vector.
        launch_seconds: what one kernel costs before it does any work (guards, allocation, threads).
    """

    cores: int
    vector_flops: float
    matrix_flops: Mapping[DType, float]
    levels: tuple[MemoryLevel, ...]
    lanes: int = 16
    launch_seconds: float = 5e-6

    @property
    def cycle_seconds(self) -> float:
        """The time in which a core multiplies and adds up two vectors."""
        return 4 * self.lanes * self.cores / self.vector_flops

    @property
    def near_bytes(self) -> float:
        """Bytes of one core's second-level cache."""
        return self.levels[min(1, len(self.levels) - 1)].bytes / self.cores

    def holding(self, size: float) -> MemoryLevel:
        """Returns the fastest level that holds `size` bytes."""
        return next((level for level in self.levels if size <= level.bytes), self.levels[-1])

    def matrix_rate(self, dtype: DType) -> float:
        """Returns the operations per second of matmuls of `dtype`; types without an entry go by vectors."""
        return self.matrix_flops.get(dtype, self.vector_flops)

    @staticmethod
    def here(cores: int | None = None) -> Machine:
        """Describes this machine's CPU, for `cores` threads (default: as many as PyTorch uses now)."""
        return Machine.of(Processor.here(), torch.get_num_threads() if cores is None else cores)

    @staticmethod
    def of(processor: Processor, cores: int) -> Machine:
        """Describes `cores` cores of such a processor."""
        clock = cores * processor.hertz
        vector = processor.vector_bytes
        flops = 4.0 * vector / 4 * clock  # two units, each one multiplication and one addition
        tiles = max(flops, _TILE_FLOPS_PER_CYCLE * clock)
        vectors = {d: 2 * flops if d in processor.pairs else flops for d in (DType.bfloat16, DType.int8)}
        half, bytes_ = (max(rate, tiles) if d in processor.tiles else rate for d, rate in vectors.items())
        l1, l2, l3 = processor.caches
        return Machine(
            cores,
            flops,
            {
                DType.float64: flops / 2,
                DType.float32: flops,
                DType.bfloat16: half,
                DType.int8: bytes_,
                DType.uint8: bytes_,
            },
            (
                MemoryLevel("L1", cores * l1, vector * clock),
                MemoryLevel("L2", cores * l2, vector / 2 * clock),
                MemoryLevel("L3", l3 or cores * (2 << 20), _L3_BYTES_PER_CYCLE * clock, _L3_SECONDS),
                MemoryLevel("memory", float("inf"), _MEMORY_BYTES_PER_CYCLE * clock, _MEMORY_SECONDS),
            ),
            processor.vector_bytes // 4,
        )


def _vector_bytes() -> int:
    capability = torch.backends.cpu.get_cpu_capability()
    if "512" in capability:
        return 64
    return 32 if "256" in capability or "AVX2" in capability else 16


@functools.cache
def _cpu_description() -> Mapping[str, str]:
    """Reads the first processor's fields, where the system lists them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    fields = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


@functools.cache
def _hertz() -> float:
    """Returns the clock that the processor is sold with, in Hz (its current one would change by the second)."""
    named = re.search(r"@ ([\d.]+)GHz", _cpu_description().get("model name", ""))
    if named:
        return float(named[1]) * 1e9
    steps = _number(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"))
    if steps:
        return steps * 1e3
    try:  # on x86 twice the clock, in MHz; elsewhere (an Arm's timer) far too small to be one
        found = float(_cpu_description().get("bogomips", "0")) / 2 * 1e6
    except ValueError:
        return _DEFAULT_HERTZ
    return round(found, -8) if found > 1e9 else _DEFAULT_HERTZ


@functools.cache
def _cache_bytes() -> Mapping[int, int]:
    """Reads the sizes of the first core's data caches, by level."""
    found: dict[int, int] = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
        except OSError:
            continue
        level, size = _number(folder / "level"), _number(folder / "size")
        if kind != "Instruction" and level and size:
            found[level] = size
    return found


def _number(path: Path) -> int:
    """Reads the number in a file, with the system's K, M and G; 0 where there is none."""
    try:
        match = re.fullmatch(r"(\d+)([KMG]?)", path.read_text().strip())
    except OSError:
        return 0
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0
