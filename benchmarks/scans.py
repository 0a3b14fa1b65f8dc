"""Scans beside PyTorch's own, Inductor's and a copy of the same tensor, in turn; on a GPU where there is one.

    PYTHONPATH=src python benchmarks/scans.py [--only TEXT ...] [--seconds S] [--json FILE]

`cumsum`, `cumprod`, `cummax` and `logcumsumexp` of rows, `cumsum` down columns and in bf16. weft runs its own kernels
(`weft.optimize`), PyTorch its calls; Inductor compiles the same function. On a GPU calls are replayed as CUDA graphs. Medians in
microseconds. Errors are the largest beside fp64, in parts of the largest element, beside eager's: exits with 1 where weft's is
over twice eager's and 1e-6. The table comes last, and says which rows PyTorch runs for weft.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from mask_timing import DEVICE, Run, medians, replayed
from torch import Tensor

import weft
from weft.lab.measure import setting

_LEEWAY = 1e-6
# What peers make more of than weft, their indices: in the table, and not in its means.
_UNEQUAL = {"cummax 64x65536 fp32"}
ROWS: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...], torch.dtype]] = {
    "cumsum 64x65536 fp32": (lambda x: torch.cumsum(x, -1), (64, 65536), torch.float32),
    "cumsum 4096x4096 fp32": (lambda x: torch.cumsum(x, -1), (4096, 4096), torch.float32),
    "cumsum 65536x64 fp32": (lambda x: torch.cumsum(x, -1), (65536, 64), torch.float32),
    "cumsum 1x4194304 fp32": (lambda x: torch.cumsum(x, -1), (1, 1 << 22), torch.float32),
    "cumsum 7x1000003 fp32": (lambda x: torch.cumsum(x, -1), (7, 1_000_003), torch.float32),
    "cumsum down 65536x64 fp32": (lambda x: torch.cumsum(x, 0), (65536, 64), torch.float32),
    "cumsum 64x65536 bf16": (lambda x: torch.cumsum(x, -1), (64, 65536), torch.bfloat16),
    "cumprod 64x65536 fp32": (lambda x: torch.cumprod(1 + x * 1e-3, -1), (64, 65536), torch.float32),
    "cummax 64x65536 fp32": (lambda x: torch.cummax(x, -1).values, (64, 65536), torch.float32),
    "logcumsumexp 64x65536 fp32": (lambda x: torch.logcumsumexp(x, -1), (64, 65536), torch.float32),
}


def measured(name: str) -> dict[str, Any]:
    """Measure one row."""
    function, shape, dtype = ROWS[name]
    x = torch.randn(shape, device=DEVICE, dtype=dtype)
    begin = time.perf_counter()
    program: Any = weft.optimize(function, (x,))
    seconds = time.perf_counter() - begin
    compiled: Any = torch.compile(function, dynamic=False)
    into = torch.empty_like(x)
    peers: dict[str, Run] = {
        "weft": lambda: program(x),
        "eager": lambda: function(x),
        "inductor": lambda: compiled(x),
        "copy": lambda: into.copy_(x),
    }
    exact = function(x.double())
    largest = float(exact.abs().max())
    errors = {
        each: float((run().double() - exact).abs().max()) / largest for each, run in peers.items() if each != "copy"
    }
    us = medians(replayed(peers))
    return {
        "row": name,
        "us": us,
        "errors": errors,
        "weft compiles, s": seconds,
        "kernels": len(program.kernels),
        "left": [f"{f.operation}: {f.reason}" for f in program.fallbacks],
    }


def wrong(row: dict[str, Any]) -> bool:
    """Tell whether weft's result is less exact than it may be."""
    return row["errors"]["weft"] > 2 * row["errors"]["eager"] + _LEEWAY


def table(rows: list[dict[str, Any]]) -> str:
    """Write the rows, and the geometric means by the best peer and by a copy."""
    lines = [
        f"{'us':28}{'weft':>9}{'eager':>9}{'inductor':>10}{'copy':>8}{'by best':>9}{'by copy':>9}   error weft, eager"
    ]
    logs: dict[str, list[float]] = {"best": [], "copy": []}
    for row in rows:
        us, off = row["us"], row["errors"]
        by = {"best": us["weft"] / min(us["eager"], us["inductor"]), "copy": us["weft"] / us["copy"]}
        for each, ratio in by.items() if row["row"] not in _UNEQUAL else ():
            logs[each].append(math.log(ratio))
        numbers = f"{us['weft']:9.1f}{us['eager']:9.1f}{us['inductor']:10.1f}{us['copy']:8.1f}"
        said = "  WRONG" * wrong(row) + "  PyTorch's" * (not row["kernels"])
        lines.append(
            f"{row['row']:28}{numbers}{by['best']:9.2f}{by['copy']:9.2f}   {off['weft']:.1e} {off['eager']:.1e}{said}"
        )
    means = {each: math.exp(statistics.fmean(found)) for each, found in logs.items() if found}
    lines.append(f"geometric means: {', '.join(f'by {each} {mean:.2f}' for each, mean in means.items())}")
    return "\n".join(lines)


def main() -> None:
    """Measure, write and print; exits with 1 where a row is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after so many no row is begun")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    found, begin = list[dict[str, Any]](), time.perf_counter()
    for name in ROWS:
        if time.perf_counter() - begin > given.seconds or not any(text in name for text in given.only or [""]):
            continue
        found.append(measured(name))
        if given.json is not None:
            given.json.write_text(
                json.dumps({"setting": asdict(setting()), "device": device, "rows": found}, indent=1) + "\n"
            )
    sys.stdout.write(table(found) + "\n")
    sys.exit(any(map(wrong, found)))


if __name__ == "__main__":
    main()
