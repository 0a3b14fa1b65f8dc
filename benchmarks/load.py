"""How long `weft.load` of a saved program takes, with its first call, in a new process after `import weft`.

    python benchmarks/load.py [--device cuda] [--only ROW ...] [--processes N] [--json FILE]

Rows are those of `weft bench`, at its sizes, by name; without --only a linear layer and attention on a CPU, two attentions on a
GPU. Each figure is the median of N new processes, in which the function ran in eager before, and which wait for the result. What
compiling takes instead is measured by `weft bench --first-calls`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_ROWS = {"cpu": ("relu(x @ w + b)", "attention", "attention, causal by mask"), "cuda": ("H1", "FA-causal-4096")}
_SECONDS = 540
# What a new process does: argv is the row, the device, the program's file, and whether to save it or to load it.
_PROCESS = """
import json, sys, time
import torch
import weft
row, device, file, what = sys.argv[1:]

def found():
    if device == "cpu":
        from weft.lab.workloads.cpu import SUITE
        example = next(e for e in SUITE if e.title == row)
        return example.make(example.full), example.inputs(example.full, example.dtypes[0], 0)
    from weft.lab.workloads.gpu import ROWS
    found = next(r for r in ROWS if r.name == row)
    return found.fn, found.inputs(found.example.full, 0, device)

def wait():
    if device == "cuda":
        torch.cuda.synchronize()

fn, inputs = found()
with torch.no_grad():
    fn(*inputs)
    wait()
    begin = time.perf_counter()
    if what == "save":
        weft.optimize(fn, inputs).save(file)
    else:
        weft.load(file)(*inputs)
    wait()
print(json.dumps({"seconds": time.perf_counter() - begin, "compiles": weft.stats().compiles}))
"""


def process(row: str, device: str, file: Path, what: str) -> dict[str, Any]:
    """Measure one new process: `what` is "save" or "load"."""
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS, row, device, str(file), what],
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"{row}, {what}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measured(row: str, device: str, processes: int) -> dict[str, float]:
    """Measure one row: the median in seconds, and the most compiles of a process that loaded."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WEFT_CACHE_DIR"] = str(Path(folder) / "cache")
        file = Path(folder) / "program.weft"
        process(row, device, file, "save")
        runs = [process(row, device, file, "load") for _ in range(processes)]
    return {"load": statistics.median(r["seconds"] for r in runs), "compiles": max(r["compiles"] for r in runs)}


def main() -> None:
    """Measure row after row, write what there is as JSON after each, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", help="rows, by name")
    parser.add_argument("--processes", type=int, default=3, help="new processes for each figure")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for row in arguments.only or _ROWS[arguments.device]:
        found[row] = measured(row, arguments.device, arguments.processes)
        sys.stdout.write(f"{row:30} {found[row]['load']:8.3f} s\n")
        if arguments.json:
            arguments.json.write_text(json.dumps({arguments.device: found}, indent=1) + "\n")
    again = [row for row, figures in found.items() if figures["compiles"]]
    if again:
        raise SystemExit(f"compiled although the program was loaded: {', '.join(again)}")


if __name__ == "__main__":
    main()
