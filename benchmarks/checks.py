"""Seconds that checking takes, per kernel, over the benchmark list: what a kernel costs once before it may run.

    python benchmarks/checks.py [--only ROW ...] [--sizes full|quick] [--cache DIR] [--json FILE]

Each row of `weft bench` is compiled for this CPU, ahead of time, in each of its element types, with checks made though the cache
has them (`verify="always"`). The functions in `CHECKS` are timed where the compiler calls them, in seconds of the calling thread,
since machines do other things; their seconds are divided by the kernels of the row. With a folder that is kept (`--cache`) a second
run compiles nothing and times the checks alone.
Target: a median of 0.05 s for each check.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import weft
from weft.api.workloads import SUITE
from weft.plan import region

# Name of the check: the module that calls it, and the name by which it does.
CHECKS: dict[str, tuple[ModuleType, str]] = {"field check": (region, "verify")}


@contextmanager
def timed(module: ModuleType, name: str, seconds: list[float]) -> Generator[None]:
    """Appends to `seconds` how long each call of a module's function takes."""
    function: Callable[..., Any] = getattr(module, name)

    def call(*args: Any, **options: Any) -> Any:
        begin = time.thread_time()
        try:
            return function(*args, **options)
        finally:
            seconds.append(time.thread_time() - begin)

    setattr(module, name, call)
    try:
        yield
    finally:
        setattr(module, name, function)


def measured(only: list[str], full: bool) -> Iterator[dict[str, Any]]:
    """A row of the table for each example and element type."""
    for example in SUITE:
        if only and example.title not in only:
            continue
        sizes = example.full if full else example.quick
        for dtype in example.dtypes:
            found: dict[str, list[float]] = defaultdict(list)
            function = example.make(sizes)
            if isinstance(function, torch.nn.Module):
                function = function.to(dtype).eval()
            with ExitStack() as stack, torch.no_grad():
                for name, place in CHECKS.items():
                    stack.enter_context(timed(*place, found[name]))
                program = weft.optimize(function, example.inputs(sizes, dtype, 0))
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
                }


def main() -> None:
    """Print the table, and its medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW", help="rows by name; all of them otherwise")
    parser.add_argument("--sizes", choices=("full", "quick"), default="full")
    parser.add_argument("--cache", type=Path, help="a folder to keep kernels in; by default one that is removed again")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, weft.options(cache_dir=str(given.cache or folder), verify="always"):
        rows: list[dict[str, Any]] = []
        for row in measured(given.only, given.sizes == "full"):
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
        given.json.write_text(
            json.dumps({"torch": torch.__version__, "summary": summary, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
