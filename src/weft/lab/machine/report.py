"""Measuring this machine, and the table of its figures beside the published ones."""

from __future__ import annotations

from typing import Any

import torch
from rich.table import Table

from weft.cost.chip import Chip
from weft.lab.machine.cpu import measure_cpu
from weft.lab.machine.figures import MeasuredChip, published_as
from weft.lab.machine.gpu import measure_gpu
from weft.tensor.dtypes import DType

_CUDA: Any = torch.cuda
UNSTEADY = 0.1
"""A spread from which on the machine was too busy for its figures."""


def measure_machine(seconds: float) -> MeasuredChip:
    """Measure this machine's first GPU, or its CPU where PyTorch has no GPU, within about `seconds`.

    Raises:
        CompilerError: the CPU's kernels cannot be compiled.
        TargetError: weft has no published figures of the GPU.
    """
    if _CUDA.is_available():
        device = torch.device("cuda", _CUDA.current_device())
        return measure_gpu(seconds, device, _CUDA.get_device_properties(device))
    return measure_cpu(seconds)


def table(found: MeasuredChip) -> Table:
    """Make the table: each measured figure, the published one of the same number of cores if the chip is known, and their ratio."""
    published, shown = published_as(found.chip.name), Table(box=None, pad_edge=False)
    for title in ("figure", "measured", "spread", "published", "ratio"):
        shown.add_column(title, justify="left" if title == "figure" else "right")
    for path, rate in found.rates.items():
        figure = None if published is None else _published(published, found.chip, path)
        beside = ("", "") if figure is None else (_said(figure, path), f"{rate.median / figure:.2f}")
        shown.add_row(f"{_title(path)}, {rate.by}", _said(rate.median, path), f"{rate.spread:.0%}", *beside)
    return shown


def unsteady(found: MeasuredChip) -> list[str]:
    """Name the figures whose repeats differ so much that the machine must have been busy."""
    return [_title(path) for path, rate in found.rates.items() if rate.spread > UNSTEADY]


def _title(path: str) -> str:
    kind, name, *_ = path.split(".")
    return name if kind == "levels" else f"{name} ({'matrix units' if kind == 'matrix' else 'vectors'})"


def _said(figure: float, path: str) -> str:
    return f"{figure / 1e9:,.1f} {'GB/s' if path.startswith('levels') else 'GFLOP/s'}"


def _published(published: Chip, chip: Chip, path: str) -> float | None:
    """Return the rate of `path` as published, of as many cores as `chip` has; None where there is no figure."""
    kind, name, *_ = path.split(".")
    if kind == "levels":
        known = {level.name: level for level in published.levels}.get(name)
        return None if known is None else known.bytes_per_second * chip.level(name).instances / known.instances
    dtype = DType[name]
    flops = published.vector.get(dtype) if kind == "vector" else published.matrix[dtype].flops
    return None if flops is None else float(flops) * chip.multiprocessors * published.hertz
