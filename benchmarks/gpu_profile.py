"""What the kernels of the benchmark's rows keep busy on a GPU, by NVIDIA's profiler: for rows above their goals.

    PYTHONPATH=src python benchmarks/gpu_profile.py FILE [--only ROW ...]   # where there is a GPU, and ncu
    PYTHONPATH=src python benchmarks/gpu_profile.py FILE --table [--only ROW ...]   # a table of what FILE holds

A row is called as a user calls it: what `weft.compile` chose runs, from the cache (WEFT_CACHE_DIR) where it is known. The kernels
of one later call are profiled, those of PyTorch and its libraries too. Clocks are not fixed, and kernels run one by one, apart
from one another, from an empty cache: their times add up to more than the row's. FILE is added to.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import torch
from rich.console import Console
from rich.table import Table

import weft
from weft.api.files import write_json
from weft.lab.workloads.gpu import ROWS

_SECTIONS = ("SpeedOfLight", "Occupancy", "WarpStateStats", "LaunchStats", "ComputeWorkloadAnalysis")
_TIME = "gpu__time_duration.sum"
_NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "nsecond": 1.0, "usecond": 1e3, "msecond": 1e6}
# What a line of the table has, by a part of a metric's name.
_SHOWN = {
    "DRAM %": r"dram_+throughput\.avg\.pct_of_peak_sustained_elapsed",
    "SM %": r"^sm__throughput\.avg\.pct_of_peak_sustained_elapsed",
    "tensor %": r"^sm__pipe_tensor_cycles_active\.avg\.pct_of_peak_sustained_elapsed",
    "warps %": r"^sm__warps_active\.avg\.pct_of_peak_sustained_active",
    "registers": r"^launch__registers_per_thread$",
    "grid": r"^launch__grid_size$",
}
_STALLS = re.compile(r"^smsp__average_warps?(?:_latency)?_issue_stalled_(\w+?)(?:_per_\w+)?(?:\.\w+)*$")
_HOUR = 3600.0


Kernel: TypeAlias = dict[str, str | float]
"""Metrics of a kernel by ncu's names, those that the table is made of; its name as `kernel` and its time as `us`."""


def profiled(row: str) -> list[Kernel]:
    """Profile the kernels of one call of a row, in order; none where ncu failed, which is printed."""
    sections = [part for s in _SECTIONS for part in ("--section", s)]
    command = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw", *sections]
    inside = [sys.executable, str(Path(__file__)), "-", "--inside", row]
    run = subprocess.run([*command, *inside], capture_output=True, text=True, timeout=_HOUR, check=False)
    if run.returncode or '"ID"' not in run.stdout:
        sys.stderr.write(f"{row}: {(run.stderr or run.stdout)[-500:]}\n")
        return []
    return _kernels(run.stdout)


def _kernels(text: str) -> list[Kernel]:
    """Read the lines of a table of ncu's; the second line of it has units."""
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith('"ID"'))
    units, *kernels = csv.DictReader(io.StringIO("\n".join(lines[first:])))
    found: list[Kernel] = []
    for kernel in kernels:
        metrics: Kernel = {"kernel": kernel["Kernel Name"]}
        for name, value in kernel.items():
            if _STALLS.match(name) or any(re.search(pattern, name) for pattern in _SHOWN.values()):
                with suppress(ValueError):
                    metrics[name] = _read(value)
        metrics["us"] = _read(kernel[_TIME]) * _NANOSECONDS[units[_TIME]] / 1e3
        found.append(metrics)
    return found


def _read(value: str) -> float:
    return float(value.replace(",", ""))


def inside(name: str) -> None:
    """Call one row until nothing is compiled any more, and once more for the profiler."""
    row = next(r for r in ROWS if r.name == name)
    inputs = row.inputs(row.example.full, 0, torch.device("cuda"))
    with torch.no_grad():
        call = weft.compile(row.fn)
        for _ in range(2):
            call(*inputs)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        call(*inputs)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def shown(found: Mapping[str, Sequence[Kernel]]) -> Table:
    """Show a line for each kernel."""
    table = Table("row", "kernel", "us", *_SHOWN, "most waits")
    for row, kernels in found.items():
        for number, kernel in enumerate(kernels):
            cells = [_number(kernel, pattern) for pattern in _SHOWN.values()]
            name, took = str(kernel["kernel"])[:40], f"{kernel['us']:.1f}"
            table.add_row("" if number else row, name, took, *cells, _waits(kernel))
    return table


def _number(kernel: Kernel, pattern: str) -> str:
    found = [v for n, v in kernel.items() if re.search(pattern, n) and isinstance(v, float)]
    return f"{max(found):.0f}" if found else ""


def _waits(kernel: Kernel) -> str:
    """Say what warps waited for most, two reasons."""
    found: dict[str, float] = {}
    for name, value in kernel.items():
        match = _STALLS.match(name)
        if match is not None and isinstance(value, float) and match[1] not in ("selected", "not_selected"):
            found[match[1]] = max(found.get(match[1], 0.0), value)
    most = sorted(found, key=lambda n: -found[n])[:2]
    return ", ".join(f"{n.replace('_', ' ')} {found[n]:.1f}" for n in most)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="JSON: metrics of each kernel, by row")
    parser.add_argument("--only", nargs="*", default=[r.name for r in ROWS], help="names of rows")
    parser.add_argument("--table", action="store_true", help="print what the file has")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.inside)
        return
    known: dict[str, list[Kernel]] = json.loads(options.file.read_text()) if options.file.exists() else {}
    if not options.table:
        for row in options.only:
            known[row] = profiled(row)
            write_json(options.file, known)
    Console(width=160).print(shown({row: known[row] for row in options.only if row in known}))


if __name__ == "__main__":
    main()
