"""The paper's attention under a schedule that the model alone derives, beside the one that the tuner finds.

    PYTHONPATH=src python benchmarks/derived.py [--json FILE]

Both are kernels of the same fused program. Nothing is compiled or timed to derive the first
(`weft.plan.targets.triton.derived`); the tuner works as for any user, quick and full. Times are medians as the tuner takes
them, in turn, and errors beside eager's are against fp64.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import weft
from weft.api.files import write_json
from weft.cost import chip
from weft.lab.gpu.worker import setting
from weft.plan.choose.region import CompiledRegion
from weft.plan.targets import toolchain
from weft.plan.targets.candidates import Candidate, Example
from weft.plan.targets.graphs import GraphTimer, cache_filler
from weft.plan.targets.triton.build import Printed, built, launched
from weft.plan.targets.triton.derived import derived_schedule
from weft.plan.targets.triton.select import GpuWays
from weft.target import Target

# Heads, queries, keys, width.
SHAPES = ((1, 4096, 4096, 64), (1, 4096, 4096, 128), (32, 2048, 2048, 64), (32, 2048, 2048, 128))
_ROUNDS = 5
_TARGET = Target("cuda", "90")


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute attention as the paper writes it."""
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def kernel_of(region: CompiledRegion, sizes: Mapping[str, int]) -> tuple[str, list[Printed]]:
    """Build the kernel of the derived schedule for the fused program of `region`."""
    example = Example(sizes, {}, 1, _TARGET)
    derived = derived_schedule(region.fused, sizes, {}, chip("H200 SXM"))
    way = GpuWays(region.fused, sizes, {}, toolchain(_TARGET)).given(derived.schedule)
    candidate = Candidate("derived", region.fused, region.trace, way.schedule, way.applied, way.cost)
    kernels = built(region.program, candidate, example)
    for each in kernels:
        each.assembled()
    schedule = way.schedule
    blocks = ", ".join(f"{name} {loop.levels[-1].size}" for name, loop in schedule.loops if loop.levels[-1].size)
    return f"{blocks}; warps {schedule.warps}, stages {schedule.stages}", kernels


def row(shape: tuple[int, int, int, int]) -> dict[str, Any]:
    """Measure one shape."""
    heads, queries, keys, width = shape
    lead = () if heads == 1 else (heads,)
    tensors = [torch.randn(*lead, n, width, device="cuda", dtype=torch.bfloat16) for n in (queries, keys, keys)]
    runs: dict[str, Callable[[], torch.Tensor]] = {}
    found: dict[str, Any] = {"shape": shape}
    streamed = None
    for effort in ("quick", "full"):
        program = weft.optimize(attend, tuple(tensors), effort=effort)
        runs[effort] = lambda program=program: program(*tensors)
        (region,) = program.plans[0].regions
        streamed = region if len(region.kernels) == 1 else streamed
        found[f"{effort} schedule"] = "; ".join(str(region.kernels[0].schedule).splitlines())
    assert streamed is not None, "the tuner splits the keys: no kernel of one launch to derive a schedule for"
    dims = zip(streamed.program.inputs, tensors, strict=True)
    sizes = {a.space.name: n for node, t in dims for a, n in zip(node.axes, t.shape, strict=True)}
    found["derived schedule"], kernels = kernel_of(streamed, sizes)
    operands = {node.name: t for node, t in zip(streamed.program.inputs, tensors, strict=True)}
    (output,) = kernels[-1].spec.part.writes
    runs["derived"] = lambda: launched(kernels, operands, sizes)[output]
    exact = attend(*(t.double() for t in tensors))
    eager = float((attend(*tensors).double() - exact).abs().max())
    timer = GraphTimer(cache_filler(torch.device("cuda")))
    for name, run in runs.items():
        found[f"{name} error"] = float((run().reshape(exact.shape).double() - exact).abs().max()) / eager
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            times[name].append(timer.median(run))
    found |= {f"{name} us": 1e6 * statistics.median(each) for name, each in times.items()}
    return found


def main() -> int:
    """Print a table; 1 where a shape failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        try:
            rows.append(row(shape))
        except Exception as error:  # noqa: BLE001 - the others are measured all the same
            rows.append({"shape": shape, "error": str(error)})
        sys.stdout.write(f"{rows[-1]}\n")
    table = Table(
        "heads, queries, keys, width", "derived us", "quick us", "full us", "derived / full", "error / eager's"
    )
    for each in rows:
        if "error" in each:
            table.add_row(str(each["shape"]), each["error"][:60])
            continue
        derived, quick, full = (each[f"{name} us"] for name in ("derived", "quick", "full"))
        said = f"{each['derived error']:.2f}"
        table.add_row(
            str(each["shape"]), f"{derived:.1f}", f"{quick:.1f}", f"{full:.1f}", f"{derived / full:.2f}", said
        )
    Console(width=132).print(table)
    if given.json is not None:
        write_json(given.json, {"setting": asdict(setting("cuda")), "rows": rows})
    return 1 if any("error" in each for each in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
