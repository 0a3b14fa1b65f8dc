"""Seconds that checking takes, per kernel, over the benchmark list: what a kernel costs once before it may run.

    python benchmarks/checks.py [--only ROW ...] [--sizes full|quick] [--device cuda] [--cache DIR] [--json FILE]

Each row of `weft bench` is compiled for this CPU, or each of `weft bench --device cuda` and then of the CPU's for the GPU, ahead of
time, in each of its element types, with checks made though the cache has them (`verify="always"`, `judge="always"`). What the judge
refuses, and what it did not judge and why, is said. The functions in `CHECKS` are timed where
the compiler calls them: the field check in seconds of the calling thread, since machines do other things; the judge, which waits
for a child or a GPU, by the clock. Their seconds are divided by the kernels of the row. With a folder that is kept (`--cache`) a
second run compiles nothing and times the checks alone.
Target: a median of 0.05 s for each check, of the judge on a GPU 0.1 s.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import weft
from weft.api.files import write_json
from weft.lab.measure import setting
from weft.lab.workloads.cpu import SUITE
from weft.lab.workloads.gpu import ROWS
from weft.plan.choose import region
from weft.plan.judge import judging
from weft.plan.targets.kernel import NOT_JUDGED

# Name of the check: the module that calls it, the name by which it does, and the clock.
CHECKS: dict[str, tuple[ModuleType, str, Callable[[], float]]] = {
    "field check": (region, "verify", time.thread_time),
    "judge": (judging, "wrong_of", time.perf_counter),
}


@contextmanager
def timed(module: ModuleType, name: str, clock: Callable[[], float], seconds: list[float]) -> Generator[None]:
    """Appends to `seconds` how long each call of a module's function takes."""
    function: Callable[..., Any] = getattr(module, name)

    def call(*args: Any, **options: Any) -> Any:
        begin = clock()
        try:
            return function(*args, **options)
        finally:
            seconds.append(clock() - begin)

    setattr(module, name, call)
    try:
        yield
    finally:
        setattr(module, name, function)


def measured(only: list[str], full: bool, device: str) -> Iterator[dict[str, Any]]:
    """Yield a row of the table for each example and element type."""
    for example in SUITE if device == "cpu" else (*(row.example for row in ROWS), *SUITE):
        if only and example.title not in only:
            continue
        sizes = example.full if full else example.quick
        for dtype in example.dtypes:
            found: dict[str, list[float]] = defaultdict(list)
            function = example.make(sizes)
            if isinstance(function, torch.nn.Module):
                function = function.to(device, dtype).eval()
            with ExitStack() as stack, torch.no_grad():
                for name, place in CHECKS.items():
                    stack.enter_context(timed(*place, found[name]))
                program = weft.optimize(function, example.inputs(sizes, dtype, 0, device))
            refused = [f.reason for f in program.fallbacks if "hard inputs" in f.reason]
            unjudged = sorted({kernel.judged for kernel in program.kernels if kernel.judged.startswith(NOT_JUDGED)})
            sys.stdout.writelines(f"{example.title}, {dtype}: {reason}\n" for reason in (*refused, *unjudged))
            count = len(program.kernels)
            if count:
                seconds = {name: sum(each) / count for name, each in found.items()}
                claims = sorted({kernel.verdict.claim.partition(" (")[0] for kernel in program.kernels})
                yield {
                    "row": example.title,
                    "dtype": str(dtype).removeprefix("torch."),
                    "kernels": count,
                    "claims": claims,
                    "seconds per kernel": seconds,
                    "refused": refused,
                    "not judged": unjudged,
                }


def main() -> None:
    """Print the table, and its medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW", help="rows by name; all of them otherwise")
    parser.add_argument("--sizes", choices=("full", "quick"), default="full")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cache", type=Path, help="a folder to keep kernels in; by default one that is removed again")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        weft.options(cache_dir=str(given.cache or folder), verify="always", judge="always"),
    ):
        rows: list[dict[str, Any]] = []
        for row in measured(given.only, given.sizes == "full", given.device):
            rows.append(row)
            seconds = "  ".join(f"{name} {1e3 * s:7.1f} ms" for name, s in row["seconds per kernel"].items())
            sys.stdout.write(f"{seconds}  {row['row']}, {row['dtype']}, {row['kernels']}: {', '.join(row['claims'])}\n")
            sys.stdout.flush()
    summary: dict[str, dict[str, float]] = {}
    for name in CHECKS:
        each = sorted(row["seconds per kernel"].get(name, 0.0) for row in rows)
        summary[name] = {"median": statistics.median(each), "largest": each[-1], "rows": len(each)}
        median, largest = (1e3 * summary[name][which] for which in ("median", "largest"))
        sys.stdout.write(f"{name}: median {median:.1f} ms, largest {largest:.1f} ms of {len(each)} rows\n")
    if given.json is not None:
        here = asdict(setting())
        if given.device == "cuda":
            here["gpu"] = torch.cuda.get_device_name()
        arguments = {
            "device": given.device,
            "sizes": given.sizes,
            "only": given.only,
            "cached": given.cache is not None,
        }
        write_json(given.json, {"setting": here, "arguments": arguments, "summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
