"""GPUs as the model of time sees them: what kernels attain of the published rates of a `Chip`.

Shares were measured on an H200 (docs/measurements/gpu-first-kernels.md); other chips are taken to reach the same. As on a
CPU, nothing is timed here. Latencies are rules of thumb of the same order on all of them; `lone_warp`, `step_cycles` and
`launch_seconds` are read off the first kernels' times on an H200 (docs/internals/gpu-model.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from weft.cost.chip import Chip
from weft.cost.chips import chip
from weft.cost.machine import Machine, MemoryLevel
from weft.errors import TargetError
from weft.target import Target
from weft.tensor.dtypes import DType


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        name: of the chip whose rates these are.
        multiprocessors: how many it has.
        flops: operations per second of matmuls, by operands' type, and of fp32 outside of them.
        dram, cache, shared: bytes per second from memory, second-level cache, and shared memory, all together.
        cache_bytes: of the second-level cache.
        thread_block_bytes: of shared memory that one thread block can have.
        shared_bytes: of shared memory of a multiprocessor.
        l1_bytes: of a multiprocessor's first-level cache, together with its shared memory.
        memory_bytes: of its memory.
        hertz: cycles per second where a kernel does not run into the limit of power.
        matmul_fmas_per_cycle: multiplications with their additions of 16-bit operands, of a multiprocessor.
        lanes: of its vector units, each one multiplication with its addition of fp32 a cycle.
        warpgroups: it has a unit for matmuls that four warps share; a single warp then reaches `warp_share` of the matmuls.
        tensor_memory: that unit keeps results in a memory of its own and reads all operands from shared memory.
        copies_ahead: loops without matmuls that are told to have iterations in flight copy what they load to shared memory.
        operands_in_registers: matmuls read from registers what loops do not move, and what other code reads too.
        registers: of 4 bytes, of a multiprocessor.
        threads: of a multiprocessor at most; a warp has `warp` of them.
        schedulers: of a multiprocessor; each starts one instruction of a warp a cycle.
        lone_warp: cycles for each cycle's work of a scheduler that has a single warp, which waits for its own results.
        cache_width, shared_width: bytes a cycle that a multiprocessor gets from the second-level cache, and from shared memory.
        cache_seconds, dram_seconds: until what is asked for from the cache, or from memory, is there.
        step_cycles: of an iteration of a loop beyond its work: its counter, waiting for all warps.
        launch_seconds: of a launch beyond its work, within a CUDA graph: until its thread blocks run, and after all ended.
    """

    name: str
    multiprocessors: int
    vector_flops: float
    flops: Mapping[DType, float]
    dram: float
    cache: float
    shared: float
    cache_bytes: float
    thread_block_bytes: int
    shared_bytes: int
    l1_bytes: int
    memory_bytes: float
    hertz: float
    matmul_fmas_per_cycle: int
    lanes: int = 128
    warpgroups: bool = False
    warp_share: float = 1.0
    tensor_memory: bool = False
    copies_ahead: bool = True
    operands_in_registers: bool = False
    registers: int = 65536
    threads: int = 2048
    warp: int = 32
    schedulers: int = 4
    lone_warp: float = 2.5
    cache_width: int = 64
    shared_width: int = 128
    cache_seconds: float = 0.3e-6
    dram_seconds: float = 0.6e-6
    step_cycles: int = 60
    launch_seconds: float = 2.2e-6

    def machine(self) -> Machine:
        """Returns what the model of bytes and rates needs of the GPU."""
        return Machine(
            self.multiprocessors,
            self.vector_flops,
            {DType.float32: self.vector_flops, DType.float64: self.vector_flops / 2, **self.flops},
            (
                MemoryLevel("shared memory", self.multiprocessors * float(self.shared_bytes), self.shared),
                MemoryLevel("L2", self.cache_bytes, self.cache),
                MemoryLevel("device memory", self.memory_bytes, self.dram),
            ),
            launch_seconds=self.launch_seconds,
        )


@dataclass(frozen=True, slots=True)
class _Attained:
    """Shares of published rates that kernels reach.

    Attributes:
        halves, bytes: of matrix units, with operands of 16 bits and of 8.
        vectors, memory: of the others.
        cache: bytes per second of the second-level cache; no share: makers publish none.
        shared: bytes a second of shared memory, likewise.
    """

    halves: float
    bytes: float
    vectors: float
    memory: float
    cache: float
    shared: float


def _gpu(known: Chip, attained: _Attained, boost: float, l1: int, **own: Any) -> Gpu:
    """Return what kernels attain on a chip.

    Args:
        boost: its clock where a kernel does not run into the limit of power.
        l1: KiB of a multiprocessor's first-level cache with its shared memory (CUDA Programming Guide 13, section on unified data
            caches; CDNA 3 white paper).
    """
    halves, narrow = known.matrix[DType.bfloat16], (DType.int8, DType.uint8, DType.float8_e4m3fn, DType.float8_e5m2)
    half = known.matrix_flops(DType.bfloat16) * attained.halves
    wide = dict.fromkeys((DType.bfloat16, DType.float16), half)
    few = {
        t: known.matrix_flops(t) * attained.bytes if known.unit_of(t) is not halves and t in known.matrix else half
        for t in narrow
    }
    levels = {level.name: level for level in known.levels}
    last = levels.get("L3", levels["L2"])
    return Gpu(
        known.name.removesuffix(" SXM"),
        known.multiprocessors,
        known.vector[DType.float32] * known.multiprocessors * boost * attained.vectors,
        {**wide, **few},
        levels["device memory"].bytes_per_second * attained.memory,
        attained.cache,
        attained.shared,
        last.bytes,
        known.thread_block_bytes,
        int(levels["shared memory"].bytes),
        l1 << 10,
        levels["device memory"].bytes,
        hertz=boost,
        matmul_fmas_per_cycle=int(halves.flops) // 2,
        lanes=int(known.vector[DType.float32]) // 2,
        registers=int(levels["registers"].bytes) // 4,
        threads=known.threads,
        warp=known.warp,
        **own,
    )


# Measured on an H200 (docs/measurements/gpu-first-kernels.md): operations of matmuls, others, and bytes of memory. Other chips are
# taken to reach the same shares.
_H200 = _Attained(672 / 989, 1240 / 1979, 0.897, 4.27 / 4.8, cache=10e12, shared=33e12)

_AMPERE, _ADA, _HOPPER, _BLACKWELL = (Target("cuda", arch) for arch in ("80", "89", "90", "100"))
_CDNA = Target("hip", "gfx942")

_CHIPS = {
    _AMPERE: chip("A100 SXM"),
    _ADA: chip("RTX 4090"),
    _HOPPER: chip("H200 SXM"),
    _BLACKWELL: chip("B200"),
    _CDNA: chip("MI300X"),
}

_GPUS = {
    _AMPERE: _gpu(_CHIPS[_AMPERE], replace(_H200, cache=4e12, shared=17e12), 1.41e9, 192),
    _HOPPER: _gpu(_CHIPS[_HOPPER], _H200, 1.98e9, 256, warpgroups=True, warp_share=0.5),
    _BLACKWELL: _gpu(
        _CHIPS[_BLACKWELL], replace(_H200, cache=15e12, shared=37e12), 1.92e9, 256,
        warpgroups=True, warp_share=0.25, tensor_memory=True,
    ),
    _CDNA: _gpu(
        _CHIPS[_CDNA], replace(_H200, cache=12e12, shared=60e12), 2.1e9, 96, copies_ahead=False, operands_in_registers=True,
    ),
}  # fmt: skip


# Compute capabilities that have what another one has, but for shared memory: KiB of a thread block and of a multiprocessor, and of
# the latter with its first-level cache.
# Those of 8.6, 8.9 and 12.x have less of it, and 12.x multiplies with its warps' own units.
_LIKE = {
    **dict.fromkeys(("86", "89", "120", "121"), ("80", 99, 100, 128)),
    "87": ("80", 163, 164, 192),
    "103": ("100", 227, 228, 256),
}


def published_chip(target: Target) -> Chip:
    """Return the chip whose published figures stand for `target`: one of those that have its architecture.

    Raises:
        TargetError: weft has figures of none.
    """
    if target not in _CHIPS:
        raise TargetError(f"weft has no published figures of a chip for {target}", todo="name a chip")
    return _CHIPS[target]


def gpu(target: Target) -> Gpu:
    """Returns the GPU that `target` is taken to be: for an architecture without rates of its own, the one that it is like.

    Raises:
        TargetError: weft makes no kernels for it.
    """
    known = _GPUS.get(target)
    if known is not None:
        return known
    if target.kind != "cuda" or target.arch not in _LIKE:
        older = target.kind == "cuda" and int(target.arch) < 80
        why = ": Triton's kernels need compute capability 8.0" if older else ""
        kinds = ", ".join(map(str, (*_GPUS, *(Target("cuda", arch) for arch in _LIKE))))
        raise TargetError(f"weft makes no kernels for {target}{why}", todo=f"use the CPU, or one of {kinds}")
    like, thread_block, multiprocessor, l1 = _LIKE[target.arch]
    known = _GPUS[Target("cuda", like)]
    return replace(
        known,
        name=f"{known.name}-like",
        thread_block_bytes=thread_block << 10,
        shared_bytes=multiprocessor << 10,
        l1_bytes=l1 << 10,
    )
