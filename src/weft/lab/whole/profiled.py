"""Where the time of a call goes, as PyTorch's profiler sees it: library products, weft's kernels, and other operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from weft.lab.whole.rows import Inputs

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "convolution", "attention", "grouped", "rnn", "lstm")
"""Parts of the names of library calls that weft leaves as they are: products, convolutions, attention, recurrent layers."""

_PRODUCT_KERNELS = (
    *("gemm", "nvjet", "cutlass", "xmma", "cudnn", "fprop", "splitkreduce", "flash", "fmha"),
    *("conv2d", "convolve", "nchw", "rnn", "lstm"),
)
"""Parts of the names of CUDA kernels of such libraries, in lower case."""


def profile(
    call: Callable[[Inputs], Any], pool: Sequence[Inputs], device: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the parts of a call's time on `device`, and the seconds of PyTorch's operations that are no products, by name.

    On a GPU what counts is what its kernels take, on a CPU what operations take themselves.
    """
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CPU] if device == "cpu" else [activity.CPU, activity.CUDA]
    with torch.profiler.profile(activities=activities):
        call(pool[0])  # the first one has the profiler's own beginnings in it
    with torch.profiler.profile(activities=activities) as seen:
        for given in pool:
            call(given)
        if device != "cpu":
            torch.cuda.synchronize()
    parts = {"library": 0.0, "kernels": 0.0, "other": 0.0}
    others: dict[str, float] = {}
    for name, seconds in _events(seen, device):
        part = part_of(name, device)
        parts[part] += seconds
        if part == "other":
            others[name] = seconds / len(pool)
    whole = sum(parts.values())
    most = sorted(others, key=lambda name: -others[name])[:8]
    return {name: each / whole for name, each in parts.items()}, {name: others[name] for name in most}


def part_of(name: str, device: str = "cpu") -> str:
    """Tell which part an operation of a CPU belongs to, or a kernel of a GPU."""
    if name.startswith("weft"):
        return "kernels"
    parts, text = (_PRODUCTS, name) if device == "cpu" else (_PRODUCT_KERNELS, name.lower())
    return "library" if any(part in text for part in parts) else "other"


def _events(seen: Any, device: str) -> Iterator[tuple[str, float]]:
    """Yield names and seconds; of a GPU's, its kernels, and not the spans with names that contain them."""
    for event in seen.key_averages():
        on_gpu = event.device_type.name != "CPU"
        if device == "cpu":
            if not on_gpu:
                yield event.key, event.self_cpu_time_total / 1e6
        elif on_gpu and not getattr(event, "is_user_annotation", False):
            yield event.key, event.self_device_time_total / 1e6
