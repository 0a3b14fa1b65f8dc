"""This machine's GPU as a chip: bandwidth of memory and L2, rates of matmuls by PyTorch; the other figures are published ones."""

from __future__ import annotations

import platform
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from weft.cost.chip import Chip, ChipLevel
from weft.cost.chip_file import Origin
from weft.errors import TargetError
from weft.lab.machine.figures import MeasuredChip, Repeat, Step, measured, published_as
from weft.lab.workloads.gpu import scaled_mm
from weft.tensor.dtypes import DType

_SIDE = 8192
_COPIED = 4 << 30  # bytes, at most
_READS = 512  # of the buffer in L2, by one call
_CUDA: Any = torch.cuda


def measure_gpu(seconds: float, device: torch.device, properties: Any) -> MeasuredChip:
    """Measure `device` within about `seconds`.

    Args:
        seconds: in all.
        device: where to measure.
        properties: as `torch.cuda.get_device_properties` gives them.

    Raises:
        TargetError: weft has no published figures of this GPU to complete the measured ones with.
    """
    published = published_as(properties.name)
    if published is None:
        todo = "hide the GPU to measure the CPU (CUDA_VISIBLE_DEVICES=), or add the chip to weft.cost.chips"
        raise TargetError(f"weft has no published figures of {properties.name}, which a measurement needs", todo=todo)
    levels, origins = _levels(published, properties)
    halves = {DType.bfloat16, DType.float16, DType.float32} & published.matrix.keys()
    caches = {level.name: level for level in levels}
    steps: dict[str, Step] = {
        "levels.device memory.bytes_per_second": partial(_copies, device, int(caches["device memory"].bytes)),
        "levels.L2.bytes_per_second": partial(_reads, device, int(caches["L2"].bytes) * caches["L2"].instances // 4),
        **{f"matrix.{d.name}.flops": partial(_matmul, device, d) for d in sorted(halves, key=lambda d: d.name)},
    }
    if DType.float8_e4m3fn in published.matrix:
        steps["matrix.float8_e4m3fn.flops"] = partial(_eighths, device)
    rates = measured(steps, seconds)
    cycles = properties.multi_processor_count * published.hertz
    chip = replace(
        published,
        name=properties.name,
        multiprocessors=properties.multi_processor_count,
        levels=tuple(
            replace(level, bytes_per_second=rates[path].median)
            if (path := f"levels.{level.name}.bytes_per_second") in rates
            else level
            for level in levels
        ),
        matrix={
            d: replace(unit, flops=rates[path].median / cycles) if (path := f"matrix.{d.name}.flops") in rates else unit
            for d, unit in published.matrix.items()
        },
        threads=properties.max_threads_per_multi_processor,
        warp=properties.warp_size,
    )
    machine = f"{properties.name}, {platform.system()} {platform.machine()}, PyTorch {torch.__version__}"
    return MeasuredChip(chip, rates, origins, Origin("published", f"weft.cost.CHIPS[{published.name!r}]"), machine)


def _levels(published: Chip, properties: Any) -> tuple[list[ChipLevel], dict[str, Origin]]:
    """Return the published levels with the sizes that the system states, and which figures of the chip it states."""
    count = properties.multi_processor_count
    stated = {"shared memory": properties.shared_memory_per_multiprocessor, "device memory": properties.total_memory}
    if published.level("L2").instances == 1:
        stated["L2"] = properties.L2_cache_size
    system = Origin("system")
    origins = {"multiprocessors": system, "threads": system, "warp": system}
    levels: list[ChipLevel] = []
    for level in published.levels:
        if level.name in stated:
            origins[f"levels.{level.name}.bytes"] = system
        of_each = level.instances == published.multiprocessors
        if of_each:
            origins[f"levels.{level.name}.instances"] = system
        size, instances = stated.get(level.name, level.bytes), count if of_each else level.instances
        levels.append(replace(level, bytes=size, instances=instances))
    return levels, origins


def _copies(device: torch.device, memory: int, aim: float) -> Repeat:
    size = min(_COPIED, memory // 8)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    by = f"copies of {size >> 20} MiB, reads and writes counted"
    return _repeat(lambda: target.copy_(source), 2 * size, aim, by)


def _reads(device: torch.device, size: int, aim: float) -> Repeat:
    buffer = torch.ones(size // 4, dtype=torch.float32, device=device).expand(_READS, -1)
    return _repeat(lambda: buffer.sum(1), _READS * size, aim, f"PyTorch's sums of {size >> 20} MiB, {_READS} times")


def _matmul(device: torch.device, dtype: DType, aim: float) -> Repeat:
    left, right = (torch.randn(_SIDE, _SIDE, device=device).to(getattr(torch, dtype.name)) for _ in range(2))

    def multiply() -> torch.Tensor:
        with _tensor_float32():
            return left @ right

    by = f"PyTorch's matmul of {_SIDE} x {_SIDE}{' in tf32' if dtype is DType.float32 else ''}"
    return _repeat(multiply, 2 * _SIDE**3, aim, by)


def _eighths(device: torch.device, aim: float) -> Repeat | None:
    """Prepare PyTorch's matmul of 8-bit floats; None where PyTorch has none here: the published figure stays."""
    left, right = (torch.randn(_SIDE, _SIDE, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones(1, device=device)

    def multiply() -> torch.Tensor:
        return scaled_mm(left, right.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    try:
        return _repeat(multiply, 2 * _SIDE**3, aim, f"PyTorch's scaled matmul of {_SIDE} x {_SIDE}")
    except RuntimeError:
        return None


@contextmanager
def _tensor_float32() -> Generator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _repeat(call: Callable[[], Any], work: float, aim: float, by: str) -> Repeat:
    _seconds(call, 2)  # libraries choose their kernels, clocks rise
    count = max(1, int(aim / _seconds(call, 1)))
    return Repeat(work * count, by, lambda: _seconds(call, count))


def _seconds(call: Callable[[], Any], count: int) -> float:
    begin, end = _CUDA.Event(enable_timing=True), _CUDA.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
