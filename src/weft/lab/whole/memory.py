"""The most memory of tensors that a call has at once, as PyTorch's profiler sees its allocator."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def most_allocated(call: Callable[[], Any], device: str = "cpu") -> int:
    """Return the most bytes that `call` has allocated on `device` at once beyond those before it, its results among them.

    What a kernel takes for itself and gives back is not seen. 0 where nothing is allocated.
    """
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as seen:
        kept = call()
    with tempfile.TemporaryDirectory(prefix="weft-models-") as folder:
        trace = Path(folder, "trace.json")
        seen.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    del kept  # until now, so that what is given back after the call does not count
    found = [event["args"] for event in events if event.get("name") == "[memory]"]
    if not found:
        return 0
    return max(each["Total Allocated"] for each in found) - (found[0]["Total Allocated"] - found[0]["Bytes"])
