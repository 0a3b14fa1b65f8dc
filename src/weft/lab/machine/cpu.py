"""This machine's CPU as a chip: reads of each level and multiplications on vectors in C++, matmuls by PyTorch."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from weft.cost.chip import Chip, ChipLevel, MatrixUnit, OnChip
from weft.cost.chip_file import Origin
from weft.cost.machine import Processor
from weft.errors import CompilerError
from weft.lab.machine.figures import MeasuredChip, Repeat, Step, measured
from weft.lab.measure import processor as processor_name
from weft.run.cache import write_file
from weft.run.compiler import compile_shared_library
from weft.run.load import NativeFunction, load
from weft.run.scratch import private_folder
from weft.tensor.dtypes import DType

_SOURCE = Path(__file__).with_name("kernels.cpp")
_FUNCTIONS = ("weft_read", "weft_float32", "weft_float32_work", "weft_float64", "weft_float64_work")
_PAGE = 4096
_LEAST_MEMORY = 64 << 20
_SIDES = (1024, 4096)  # of the matrices of a matmul
_TILE_COLUMNS, _TILE_BYTES = 16, 64  # of AMX: 16 rows of 64 bytes
_MULTIPLY: dict[DType, Any] = {DType.bfloat16: torch.matmul, DType.int8: torch.ops.aten._int_mm}  # noqa: SLF001 - no public one


def measure_cpu(seconds: float) -> MeasuredChip:
    """Measure the CPU on as many threads as PyTorch uses, within about `seconds` and the second that the compiler takes.

    Raises:
        CompilerError: there is no C++ compiler, or what it compiled cannot be loaded.
    """
    processor, threads = Processor.here(), torch.get_num_threads()
    kernels, sizes = _kernels(), _level_sizes(processor, threads)
    steps: dict[str, Step] = {
        f"levels.{name}.bytes_per_second": partial(_read, kernels["weft_read"], threads, size)
        for name, (_, _, size) in sizes.items()
    }
    for dtype in (DType.float32, DType.float64):
        work = (
            _called(kernels[f"weft_{dtype.name}_work"], 1)[0] * threads
        )  # the compiler's width of vectors, not PyTorch's
        steps[f"vector.{dtype.name}"] = partial(_multiplied, kernels[f"weft_{dtype.name}"], threads, work)
    for dtype in _MULTIPLY:
        tiled = dtype in processor.tiles
        steps[f"matrix.{dtype.name}.flops" if tiled else f"vector.{dtype.name}"] = partial(_matmul, dtype)
    rates = measured(steps, seconds)
    clock = threads * processor.hertz
    flops = {path: rate.median / clock for path, rate in rates.items()}
    name = processor_name()
    wide = processor.vector_bytes == 64 or platform.machine() == "aarch64"
    registers = ChipLevel("registers", processor.vector_bytes * (32 if wide else 16), threads, 0)
    levels = (
        ChipLevel(level, bytes_, instances, rates[f"levels.{level}.bytes_per_second"].median)
        for level, (bytes_, instances, _) in sizes.items()
    )
    chip = Chip(
        name,
        threads,
        processor.hertz,
        (registers, *levels),
        {d: _tile_unit(d, flops[path]) for d in _MULTIPLY if (path := f"matrix.{d.name}.flops") in flops},
        {d: flops[path] for d in DType if (path := f"vector.{d.name}") in flops},
        special=0,
    )
    shapes = ("rows", "depth", "columns", "threads", "left", "right", "result")
    origins = {f"matrix.{d.name}.{part}": Origin("published", "Intel AMX") for d in chip.matrix for part in shapes}
    machine = f"{name}, {threads} threads, {platform.system()} {platform.machine()}"
    return MeasuredChip(chip, rates, origins, Origin("system"), machine)


def _tile_unit(dtype: DType, flops: float) -> MatrixUnit:
    return MatrixUnit(
        flops, 16, _TILE_BYTES // dtype.bytes, _TILE_COLUMNS, 1, OnChip.tensor, OnChip.tensor, OnChip.tensor
    )


def _level_sizes(processor: Processor, threads: int) -> dict[str, tuple[int, int, int]]:
    """List the levels: bytes of an instance, instances, and bytes that each thread reads to measure it.

    Half of a level, but so much of the shared L3 that the L2s cannot hold it: it is left out where they are larger.
    """
    l1, l2, l3 = processor.caches
    sizes = {"L1": (l1, threads, l1 // 2), "L2": (l2, threads, l2 // 2)}
    shared = _shared_caches()
    share = max(min(l3 // 2, l3 * shared // (2 * threads)), l2 + l2 // 2)
    if share * threads <= l3 * shared + l2 * threads and l3:
        sizes["L3"] = (l3, shared, share)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    outside = max(_LEAST_MEMORY, 4 * l3 * shared, 8 * l2 * threads)
    return {**sizes, "memory": (memory, 1, outside // threads)}


def _shared_caches() -> int:
    """Count the L3 caches of the machine; 1 where the system does not say."""
    found: set[str] = set()
    for cache in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*"):
        try:
            if (cache / "level").read_text().strip() == "3":
                found.add((cache / "shared_cpu_list").read_text().strip())
        except OSError:
            continue
    return max(1, len(found))


def _kernels() -> dict[str, NativeFunction]:
    library = compile_shared_library(_SOURCE.read_text(encoding="utf-8"))
    try:
        path = private_folder() / "machine.so"
        write_file(path, library)
        return {name: load(path, name) for name in _FUNCTIONS}
    except OSError as error:
        todo = "name a folder in TMPDIR whose file system has space and allows execution"
        raise CompilerError(f"the compiled loops could not be loaded: {error}", todo=todo) from error


def _called(kernel: NativeFunction, count: int, *words: int) -> list[float]:
    """Call `kernel`, which leaves `count` numbers."""
    left = (ctypes.c_double * count)()
    kernel(struct.pack("6q", ctypes.addressof(left), count, *words, *(0,) * (4 - len(words))))
    return list(left)


def _read(kernel: NativeFunction, threads: int, size: int, aim: float) -> Repeat:
    each = max(_PAGE, size // _PAGE * _PAGE)
    buffer = torch.empty(each * threads + _PAGE, dtype=torch.uint8)
    return _multiplied(kernel, threads, each * threads, aim, (each, buffer), f"reads of {each >> 10} KiB a thread")


def _multiplied(
    kernel: NativeFunction,
    threads: int,
    work: float,
    aim: float,
    buffer: tuple[int, torch.Tensor | None] = (0, None),
    by: str = "multiplications with additions on vectors",
) -> Repeat:
    """Prepare `kernel`, of which one pass does `work`, with so many passes that a repeat takes about `aim` seconds.

    `buffer`: bytes of each thread, and the memory of all of them and a page more, which the repeats keep.
    """
    size, memory = buffer

    def timed(passes: int) -> float:
        start = 0 if memory is None else -(-memory.data_ptr() // _PAGE) * _PAGE
        return _called(kernel, 1, threads, passes, size, start)[0]

    passes = 1
    while (taken := min(timed(passes), timed(passes))) < aim / 2:
        passes *= max(2, min(32, int(aim / max(taken, 1e-9))))
    return Repeat(work * passes, by, lambda: timed(passes))


def _matmul(dtype: DType, aim: float) -> Repeat | None:
    """Prepare PyTorch's matmul of the largest square matrices for which there is time; None where it has none of `dtype`."""
    multiply, (side, most) = _MULTIPLY[dtype], _SIDES
    while True:
        matrix = torch.randint(-4, 4, (side, side)).to(getattr(torch, dtype.name))
        try:
            multiply(matrix, matrix)
        except (RuntimeError, AttributeError):
            return None
        taken = _seconds(multiply, matrix)
        if side >= most or 8 * taken > aim:
            break
        side *= 2
    count = max(1, int(aim / taken))

    def run() -> float:
        return sum(_seconds(multiply, matrix) for _ in range(count))

    return Repeat(2 * side**3 * count, f"PyTorch's matmul of {side} x {side}", run)


def _seconds(multiply: Any, matrix: torch.Tensor) -> float:
    begin = time.perf_counter()
    multiply(matrix, matrix)
    return time.perf_counter() - begin
