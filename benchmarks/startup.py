"""How long the first call takes: with an empty cache, and with a warm cache in a new process, each after `import weft`.

    python benchmarks/startup.py [--device cuda] [--only ROW ...] [--processes N] [--json FILE]

Rows are those of `weft bench`, at its sizes, by name; without --only a linear layer and attention on a CPU, two attentions on a
GPU. Each figure is the median of N new processes, in which the function ran in eager before. `compile` is `weft.compile(fn)`,
which makes PyTorch import its tracer; `first call` traces, compiles or loads, tries against PyTorch, and waits for the result;
`load` is `weft.load` of the same function's saved program with its first call. Targets: a linear layer on a CPU cold under 5 s
and warm under 0.5 s; attention warm under 1 s, cold under 30 s.
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
# What a new process does: argv is the row, the device, the program's file, and whether to load that.
_PROCESS = """
import json, sys, time
row, device, file, what = sys.argv[1:]
start = time.perf_counter()
import torch
torch_done = time.perf_counter()
import weft
figures = {"import torch": torch_done - start, "import weft": time.perf_counter() - torch_done}

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
    if what == "load":
        call = weft.load(file)
    else:
        call = weft.compile(fn)
        figures["compile"] = time.perf_counter() - begin
        begin = time.perf_counter()
    call(*inputs)
    wait()
    figures["load" if what == "load" else "first call"] = time.perf_counter() - begin
figures["compiles"] = weft.stats().compiles
if what == "cold":
    try:
        weft.optimize(fn, inputs).save(file)
    except weft.errors.ProgramFileError as error:
        figures["not saved"] = str(error)
print(json.dumps(figures))
"""


def process(row: str, device: str, file: Path, what: str) -> dict[str, Any]:
    """Measure one new process: `what` is "cold", "warm" or "load"."""
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


def measured(row: str, device: str, processes: int) -> dict[str, float | str]:
    """Measure medians for one row, in seconds."""
    runs: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": [], "load": []}
    for _ in range(processes):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["WEFT_CACHE_DIR"] = str(Path(folder) / "cache")
            file = Path(folder) / "program.weft"
            for what, found in runs.items():
                if what != "load" or file.exists():
                    found.append(process(row, device, file, what))
    every = [run for found in runs.values() for run in found]
    figures: dict[str, float | str] = {
        name: statistics.median(run[name] for run in every) for name in ("import torch", "import weft")
    }
    figures["compile"] = statistics.median(run["compile"] for what in ("cold", "warm") for run in runs[what])
    for what in ("cold", "warm"):
        figures[f"first call, {what}"] = statistics.median(run["first call"] for run in runs[what])
    if runs["load"]:
        figures["load"] = statistics.median(run["load"] for run in runs["load"])
    for what, found in runs.items():
        figures[f"compiles, {what}"] = max((run["compiles"] for run in found), default=0)
    said = next((run["not saved"] for run in every if "not saved" in run), None)
    return figures if said is None else {**figures, "not saved": said}


def main() -> None:
    """Measure row after row, write what there is as JSON after each, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", help="rows, by name")
    parser.add_argument("--processes", type=int, default=3, help="new processes for each figure")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    found: dict[str, dict[str, float | str]] = {}
    for row in arguments.only or _ROWS[arguments.device]:
        found[row] = measured(row, arguments.device, arguments.processes)
        if arguments.json:
            arguments.json.write_text(json.dumps({arguments.device: found}, indent=1) + "\n")
    for row, figures in found.items():
        sys.stdout.write(f"{row}\n")
        for name, value in figures.items():
            sys.stdout.write(f"  {name:20} {f'{value:8.3f} s' if isinstance(value, float) else value}\n")
    again = [row for row, figures in found.items() if figures["compiles, warm"] or figures["compiles, load"]]
    if again:
        raise SystemExit(f"compiled although the cache was warm, or the program loaded: {', '.join(again)}")


if __name__ == "__main__":
    main()
