"""What PyTorch's profiler shows of weft's kernels on a GPU: the user's functions and lines, around the kernels that they are."""

from __future__ import annotations

import torch

import weft


def halves(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1) / 2


def test_kernels_on_a_gpu_run_under_the_names_of_functions_and_lines() -> None:
    x = torch.randn(512, 1024, device="cuda")
    program = weft.optimize(halves, (x,))
    program(x)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        program(x)
        torch.cuda.synchronize()
    (kernel,) = program.kernels
    events = {event.key: event for event in found.key_averages()}
    (name,) = (key for key in events if key.startswith(f"{kernel.name}: halves (test_profiled.py:"))
    assert events[name].device_time_total > 0
    assert events[kernel.name].device_time_total > 0
