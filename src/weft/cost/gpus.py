"""GPUs as the cost model sees them: rates and sizes of the architectures that kernels are made for.

The rates of an H200 (sm_90) are measured (docs/measurements/gpu-first-kernels.md), the others published: of an A100 (sm_80),
a B200 (sm_100) and an MI300X (gfx942), at the share that an H200 reaches of its own. As on a CPU, nothing is timed here.

Cycles, widths and matmuls a cycle are published ones. Latencies are rules of thumb of the same order on all of them; `lone_warp`,
`step_cycles` and `launch_seconds` are read off the first kernels' times on an H200 (docs/internals/gpu-model.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
            operation_seconds=0.0,
            launch_seconds=self.launch_seconds,
        )


def _tensor_cores(half: float, byte: float | None) -> dict[DType, float]:
    """Returns the rates of matmuls by the operands' type; `byte`: of 8 bits, None where bytes run as half precision."""
    wide = dict.fromkeys((DType.bfloat16, DType.float16), half)
    narrow = dict.fromkeys((DType.float8_e4m3fn, DType.float8_e5m2, DType.int8, DType.uint8), byte or half)
    return {**wide, **narrow}


_GPUS = {
    Target("cuda", "80"): Gpu(
        "A100", 108, 17e12, _tensor_cores(212e12, 424e12), 1.7e12, 4e12, 17e12, 40e6, 163 << 10, 164 << 10, 80e9,
        hertz=1.41e9, matmul_fmas_per_cycle=1024, lanes=64,
    ),
    Target("cuda", "90"): Gpu(
        "H200", 132, 60e12, _tensor_cores(672e12, 1240e12), 4.27e12, 10e12, 33e12, 50e6, 227 << 10, 228 << 10, 141e9,
        hertz=1.98e9, matmul_fmas_per_cycle=2048, warpgroups=True, warp_share=0.5,
    ),
    Target("cuda", "100"): Gpu(
        "B200", 148, 65e12, _tensor_cores(1500e12, 3000e12), 6.8e12, 15e12, 37e12, 126e6, 227 << 10, 228 << 10, 180e9,
        hertz=1.92e9, matmul_fmas_per_cycle=4096, warpgroups=True, warp_share=0.25, tensor_memory=True,
    ),
    Target("hip", "gfx942"): Gpu(
        "MI300X", 304, 110e12, _tensor_cores(800e12, 1600e12), 4.3e12, 12e12, 60e12, 256e6, 64 << 10, 64 << 10, 192e9,
        hertz=2.1e9, matmul_fmas_per_cycle=1024, copies_ahead=False, operands_in_registers=True, warp=64,
    ),
}  # fmt: skip


# Compute capabilities that have what another one has, but for shared memory: KiB of a thread block and of a multiprocessor.
# Those of 8.6, 8.9 and 12.x have less of it, and 12.x multiplies with its warps' own units.
_LIKE = {
    **dict.fromkeys(("86", "89", "120", "121"), ("80", 99, 100)),
    "87": ("80", 163, 164),
    "103": ("100", 227, 228),
}


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
    like, thread_block, multiprocessor = _LIKE[target.arch]
    chip = _GPUS[Target("cuda", like)]
    return replace(
        chip, name=f"{chip.name}-like", thread_block_bytes=thread_block << 10, shared_bytes=multiprocessor << 10
    )
