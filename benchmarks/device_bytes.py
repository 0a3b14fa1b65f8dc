"""Bytes of a GPU's memory as predicted for weft's kernels, beside those that NVIDIA's profiler counts.

    PYTHONPATH=src python benchmarks/device_bytes.py FILE                       # where there is a GPU, and ncu
    PYTHONPATH=src python benchmarks/device_bytes.py FILE --table               # a table of what FILE holds; no GPU
    PYTHONPATH=src python benchmarks/device_bytes.py FILE --predict [--only H1] # what is predicted alone; no GPU

Functions of `weft bench --device cuda`, softmaxes of more widths and elementwise ones are compiled with the schedule that the model
puts first (`effort="none"`), in several processes. Then one process calls each of them once under the profiler. It reads a tensor
of 512 MiB before each of weft's launches and after the last: so no launch finds anything in the second-level cache, and all that
it wrote has gone to memory by the end of the reading that follows, whose own writes are none. (`ncu --cache-control all` would
empty the cache too, but what a kernel leaves in it is then written before the next one is counted, and is counted nowhere.) That
holds where a kernel runs once to be counted: the metrics are few enough, and it is said where they were not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

import ncu_counts as ncu
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

import weft
from weft.api.files import write_json
from weft.lab.examples import ExampleFunction, OperandSpec, Sizes
from weft.lab.gpu.worker import setting
from weft.lab.workloads.cpu import SUITE
from weft.lab.workloads.gpu import ROWS
from weft.plan.targets.kernel import Kernel
from weft.run.gpu import driver

_NAMES = (
    *("H1", "H3", "H6", "H7", "H9", "FA-full-4096", "FA-causal-4096", "GQA-prefill-b8", "MHA-inc-b8", "L1"),
    *("LN-mm-small", "LN-mm-large", "RMS-SwiGLU-decode", "RMS-SwiGLU-narrow", "GatedMLP-b8", "RMSLinear-b8", "LoRA-b8"),
    *(
        "R5",
        "Q3",
        "V4",
        "V6",
        "V8",
        "I4",
        "I8",
        "dims-layernorm",
        "dims-groupnorm-silu",
        "dims-moments",
        "dims-mean-square",
    ),
    *("dims-softmax-channels", "dims-softmax-down", "dims-maxima", "softmax", "log-sum-exp", "Sum + Sum"),
)
_CLOSE = 0.1  # how far a prediction may be off
_LITTLE = 0.02  # of all bytes of a launch: the smaller one of reads and writes is not judged by itself
_EVICTING = 1 << 27  # floats that are read to empty the cache: ten times what it holds
_WORKERS = 8
_COMPILING, _PROFILING = 150.0, 170.0  # seconds


def _rows(sizes: Sizes) -> tuple[OperandSpec, ...]:
    return (OperandSpec(sizes),)


def _pairs(sizes: Sizes) -> tuple[OperandSpec, ...]:
    return OperandSpec(sizes), OperandSpec(sizes)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _gate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.silu(x) * y


def _mine(title: str, fn: Callable[..., Any], operands: Callable[..., Any], sizes: Sizes, name: str) -> ExampleFunction:
    return ExampleFunction(title, lambda _: fn, operands, sizes, sizes, dtypes=(getattr(torch, name),))


_OWN = (
    _mine("softmax-1000", _softmax, _rows, (32768, 1000), "float32"),
    _mine("softmax-8192", _softmax, _rows, (8192, 8192), "bfloat16"),
    _mine("softmax-65536", _softmax, _rows, (512, 65536), "float32"),
    _mine("gate-fp32", _gate, _pairs, (4096, 8192), "float32"),
    _mine("gate-bf16", _gate, _pairs, (8192, 8192), "bfloat16"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A function with the type of its floating operands."""

    example: ExampleFunction
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """What it is called in tables."""
        kind = {torch.float32: "fp32", torch.bfloat16: "bf16"}.get(self.dtype, str(self.dtype))
        return f"{self.example.title}, {kind}"

    def program(self, inputs: Sequence[torch.Tensor], **options: Any) -> weft.Program:
        """Compile it with the schedule that the model puts first; nothing is timed or judged."""
        return weft.optimize(self.example.make(self.example.full), tuple(inputs), effort="none", judge="off", **options)

    def inputs(self, device: str) -> tuple[torch.Tensor, ...]:
        """Draw its operands."""
        return self.example.inputs(self.example.full, self.dtype, 0, device)


def cases(only: Sequence[str]) -> list[Case]:
    """List what is measured; `only`: titles."""
    known = {e.title: e for e in (*SUITE, *(row.example for row in ROWS), *_OWN)}
    chosen = [known[name] for name in (*_NAMES, *(e.title for e in _OWN)) if not only or name in only]
    return [Case(example, dtype) for example in chosen for dtype in example.dtypes]


def described(kernels: Sequence[Kernel]) -> list[dict[str, Any]]:
    """Give the name and the predicted bytes of each kernel, and what its time is predicted to be."""
    return [
        {
            "name": kernel.name,
            "read": kernel.cost.device_read,
            "written": kernel.cost.device_written,
            "asked": kernel.cost.bytes_read,
            "once": kernel.cost.unique_bytes,
            "schedule": str(kernel.schedule),
        }
        for kernel in kernels
    ]


def say(line: str) -> None:
    """Print a line now: whoever waits sees that something is going on."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def note(log: TextIO, found: Mapping[str, Any]) -> None:
    """Write a line of JSON: what is known outlives the process."""
    log.write(f"{json.dumps(found)}\n")
    log.flush()


class Evicting:
    """Starts weft's kernels, each after the second-level cache was emptied, while `active`."""

    def __init__(self) -> None:
        self.start = driver.start()
        self.tensor = torch.zeros(_EVICTING, device="cuda")
        self.active = False
        self.launched = 0

    def empty(self) -> None:
        """Read what the cache has no room for: one kernel of PyTorch's, whose name is not one of weft's."""
        self.tensor.sum()

    def __call__(self, *arguments: Any) -> int:
        """Start a kernel as the driver does."""
        if self.active:
            self.empty()
            self.launched += 1
        return self.start(*arguments)

    def profile(self, call: Callable[[], object]) -> None:
        """Profile the launches of one call; two readings in a row say where it begins."""
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        self.active, self.launched = True, 0
        try:
            self.empty()
            call()
            self.empty()
            torch.cuda.synchronize()
        finally:
            self.active = False
            torch.cuda.profiler.stop()


def inside(given: argparse.Namespace) -> None:
    """Call each case once for the profiler; a line of JSON in the log says what ran, or why it did not."""
    begin, evicting = time.monotonic(), Evicting()
    with (
        given.log.open("w", encoding="utf-8") as log,
        mock.patch.object(driver, "start", return_value=evicting),
        torch.no_grad(),
    ):
        for case in cases(given.only):
            if time.monotonic() - begin > _PROFILING:
                note(log, {"case": case.name, "error": "there was no time left"})
                continue
            found: dict[str, Any] = {"case": case.name}
            try:
                inputs = case.inputs("cuda")
                program = case.program(inputs, cache_dir=str(given.cache))
                found["kernels"] = described(program.kernels)
                if program.fallbacks:
                    found["error"] = f"PyTorch runs a part: {program.fallbacks[0].reason}"
                else:
                    program(*inputs)
                    found["launched"] = 0
                    evicting.profile(lambda program=program, inputs=inputs: program(*inputs))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one case, the others go on
                found["error"] = f"{type(error).__name__}: {error}"[:300]
            if "launched" in found:
                found["launched"] = evicting.launched
            program = inputs = None
            note(log, found)
            say(f"{time.monotonic() - begin:6.1f} s  {case.name} {found.get('error', '')}")


def compiling(given: argparse.Namespace) -> None:
    """Compile some of the cases, for the cache: every so many, from one on."""
    number, count = map(int, given.compile.split("/"))
    with torch.no_grad():
        for case in cases(given.only)[number::count]:
            begin, error = time.monotonic(), ""
            try:
                inputs = case.inputs("cuda")
                case.program(inputs, cache_dir=str(given.cache))(*inputs)
            except Exception as failed:  # noqa: BLE001 - the process that profiles says why
                error = f"{type(failed).__name__}: {failed}".partition("\n")[0][:150]
            inputs = None
            torch.cuda.empty_cache()
            say(f"compiled in {time.monotonic() - begin:5.1f} s  {case.name} {error}")


def compile_all(given: argparse.Namespace) -> None:
    """Compile in several processes, for a limited time: what they do not get to is compiled later."""
    own = [sys.executable, __file__, str(given.file), "--cache", str(given.cache), *_only(given)]
    running = [subprocess.Popen([*own, "--compile", f"{n}/{_WORKERS}"]) for n in range(_WORKERS)]
    end = time.monotonic() + _COMPILING
    for each in running:
        try:
            each.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.kill()


def profiled(
    given: argparse.Namespace, metrics: Sequence[str], folder: Path
) -> tuple[ncu.Profile, list[dict[str, Any]]]:
    """Run all cases under the profiler; gives what it counted, and what the process says of each case."""
    log, text = folder / "cases", folder / "ncu.csv"
    options = ["--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off", "--csv"]
    options += ["--target-processes", "application-only", "--print-units", "base", "--log-file", str(text)]
    command = ["ncu", *options, "--metrics", ",".join(metrics), sys.executable, __file__, str(given.file)]
    run = subprocess.run(
        [*command, "--cache", str(given.cache), "--inside", "--log", str(log), *_only(given)], check=False
    )
    said = text.read_text(encoding="utf-8", errors="replace") if text.exists() else ""
    known = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    try:
        return ncu.read_profile(said), known
    except ncu.CountsError as error:
        say(f"{error} (ncu returned {run.returncode})")
        return ncu.Profile((), 1), known


def _only(given: argparse.Namespace) -> list[str]:
    return ["--only", *given.only] if given.only else []


def joined(profile: ncu.Profile, known: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Put what was counted beside what was predicted: the calls that were profiled are those of the cases, in order."""
    calls = iter(ncu.calls_of(profile.kernels))
    for case in known:
        call = next(calls, None) if case.get("launched") else None
        kernels: list[dict[str, Any]] = case.get("kernels", [])
        row: dict[str, Any] = {**case, "kernels": kernels}
        if "error" not in case:
            try:
                found = ncu.counted(call or (), [kernel["name"] for kernel in kernels])
                row["kernels"] = [{**k, "counted": asdict(c)} for k, c in zip(kernels, found, strict=True)]
            except ncu.CountsError as error:
                row["error"] = str(error)
        yield row


def ratios(kernel: Mapping[str, Any]) -> tuple[float, float, float]:
    """Divide predicted by counted bytes: read, written, and both together."""
    read, written, counted = kernel["read"], kernel["written"], kernel["counted"]
    pairs = ((read, counted["read"]), (written, counted["written"]))
    total = (read + written, counted["read"] + counted["written"])
    first, second, both = (p / c if c else float("inf") for p, c in (*pairs, total))
    return first, second, both


def close(kernel: Mapping[str, Any]) -> bool:
    """Tell whether reads, writes and their sum are predicted to within a tenth; reads or writes that are few count in the sum."""
    counted = kernel["counted"]
    least = _LITTLE * (counted["read"] + counted["written"])
    judged = zip(ratios(kernel), (counted["read"], counted["written"], float("inf")), strict=True)
    return all(abs(ratio - 1) <= _CLOSE for ratio, size in judged if size >= least)


def shown(found: Mapping[str, Any]) -> tuple[Table, str]:
    """Show a line for each kernel, in MB, and say how many predictions are close."""
    columns = ("read", "counted", "ratio", "written", "counted", "ratio", "both", "asked of L2", "counted", "")
    table = Table("function", "kernel", *columns, pad_edge=False)
    kernels: list[Mapping[str, Any]] = []
    for row in found["cases"]:
        if "error" in row:
            table.add_row(row["case"], row["error"][:70])
        for kernel in row["kernels"]:
            counted = kernel.get("counted")
            cells = [_mb(kernel["read"]), "", "", _mb(kernel["written"]), "", "", "", _mb(kernel["asked"]), "", ""]
            if counted is not None:
                kernels.append(kernel)
                first, second, both = (f"{ratio:.3f}" for ratio in ratios(kernel))
                cells[1:3], cells[4:7] = [_mb(counted["read"]), first], [_mb(counted["written"]), second, both]
                cells[8:] = [_mb(counted["cache_read"]), "" if close(kernel) else "off"]
            table.add_row(row["case"], kernel["name"][:24], *cells)
    few = sum(map(close, kernels))
    failed = sum("error" in row for row in found["cases"])
    return table, f"within 10 %: {few} of {len(kernels)} kernels; {failed} of {len(found['cases'])} functions failed"


def _mb(size: float) -> str:
    return f"{size / 1e6:.2f}"


def predicted(given: argparse.Namespace) -> dict[str, Any]:
    """Predict without a GPU: nothing is compiled."""
    from plans import PlannedError, only_planned

    rows: list[dict[str, Any]] = []
    for case in cases(given.only):
        with tempfile.TemporaryDirectory() as folder, torch.no_grad(), only_planned() as (_, made):
            with suppress(PlannedError):
                case.program(case.inputs("cpu"), target="cuda:90", cache_dir=folder)
            kernels = [kernel for region in made for kernel in region.kernels]
            rows.append({"case": case.name, "kernels": described(kernels)})
        say(f"{case.name}: {len(kernels)} kernels")
    return {"cases": rows}


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Compile, profile, and count again with fewer metrics where a kernel had to run more than once."""
    begin = time.monotonic()
    compile_all(given)
    say(f"{time.monotonic() - begin:6.1f} s  compiled")
    metrics = [ncu.READ, ncu.WRITTEN, ncu.CACHE_READ, ncu.CACHE_WRITTEN]
    with tempfile.TemporaryDirectory() as folder:
        profile, known = profiled(given, metrics, Path(folder))
        if profile.passes > 1:
            say(f"{profile.passes} passes with {', '.join(metrics)}: again with two metrics")
            profile, known = profiled(given, metrics[:2], Path(folder))
    card: Any = torch.cuda
    here: dict[str, Any] = {**asdict(setting("cuda")), "cache": card.get_device_properties(0).L2_cache_size}
    here["commit"] = given.commit or here["commit"]
    seconds = time.monotonic() - begin
    rows = list(joined(profile, known))
    return {"setting": here, "seconds": seconds, "passes": profile.passes, "ncu": profile.said, "cases": rows}


def main() -> int:
    """Run the command line; 1 where a kernel is off or a function failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON: what is predicted and what was counted")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="TITLE", help="functions by name; all of them otherwise"
    )
    parser.add_argument("--table", action="store_true", help="print what the file has")
    parser.add_argument("--predict", action="store_true", help="predict alone: no GPU is needed")
    parser.add_argument("--cache", type=Path, help="a folder to keep kernels in; by default one that is removed again")
    parser.add_argument("--commit", help="of weft's sources, where git does not know it")
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside or given.compile:
        (inside if given.inside else compiling)(given)
        return 0
    if not given.table:
        with tempfile.TemporaryDirectory() as folder:
            given.cache = given.cache or Path(folder)
            write_json(given.file, (predicted if given.predict else measured)(given))
    found = json.loads(given.file.read_text(encoding="utf-8"))
    table, said = shown(found)
    Console(width=190).print(table)
    say(said)
    return 0 if given.predict or (found["cases"] and " 0 of " in said) else 1


if __name__ == "__main__":
    raise SystemExit(main())
