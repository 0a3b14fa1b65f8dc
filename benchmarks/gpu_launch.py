"""Starting a kernel on an NVIDIA GPU: what a call costs the host beside Triton's own launch, and whether calls are right.

    PYTHONPATH=src:tests python benchmarks/gpu_launch.py [--json FILE]

Host time: calls are made in batches that the GPU's queue can hold, with a wait in between that is not counted; the median over
batches, in microseconds for each call. The kernel is so small that the GPU has done before the next call arrives. Right is: the
same numbers as PyTorch in each class of calls, in a CUDA graph, on a second stream, from two threads and from a warm process that
compiles nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from testkit.run.gpu_kernels import SOURCE, TEXT, TWICE
from weft.errors import TargetError
from weft.plan.targets.home import of_device
from weft.run import stats
from weft.run.cache import CacheFolder
from weft.run.gpu import GpuBinary, GpuSource, build_gpu, driver

CALLS, BATCH = 10_000, 250
ROWS, COLUMNS = 64, 64


def built(folder: Path, source: GpuSource = SOURCE) -> GpuBinary:
    """Build the kernel for this machine's GPU."""
    parts = {"text": source.text, "signature": str(source.signature)}
    return build_gpu(parts, lambda: source, of_device(torch.device("cuda", 0)), CacheFolder(folder))


def exact(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute in PyTorch what the kernel computes."""
    return 2 * x + b


def same(found: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> bool:
    """Tell whether a result is PyTorch's up to one rounding (the GPU may fuse the addition)."""
    return torch.allclose(found, exact(x, b), rtol=1e-6, atol=1e-6)


def per_call(call: Callable[[], Any]) -> float:
    """Measure the microseconds of the host for each call: the median over batches."""
    for _ in range(BATCH):
        call()
    torch.cuda.synchronize()
    found: list[float] = []
    for _ in range(CALLS // BATCH):
        begin = time.perf_counter()
        for _ in range(BATCH):
            call()
        found.append((time.perf_counter() - begin) / BATCH * 1e6)
        torch.cuda.synchronize()
    return statistics.median(found)


def jit_function(folder: Path) -> Any:
    """Load the kernel as Triton itself does."""
    path = folder / "by_triton.py"
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("by_triton", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.twice


def host_times(binary: GpuBinary, folder: Path) -> dict[str, float]:
    """Measure the microseconds of the host for one call, by who makes it."""
    x, b = torch.randn(ROWS, COLUMNS, device="cuda"), torch.randn(COLUMNS, device="cuda")
    out = torch.empty_like(x)
    taking = replace(TWICE, kernel=TWICE.kernel._replace(given=(0,)))
    into = built(folder, replace(SOURCE, signature=taking)).launch
    started = jit_function(folder)[(-(-ROWS // 16),)]

    def by_triton(result: torch.Tensor) -> None:
        started(x, b, result, ROWS, COLUMNS, *x.stride(), *b.stride(), BLOCK_n=COLUMNS, num_warps=4, num_stages=1)

    launch = binary.launch
    return {
        "weft": per_call(lambda: launch(x, b)),
        "weft, output given": per_call(lambda: into(x, b, out)),
        "Triton": per_call(lambda: by_triton(torch.empty_strided((ROWS, COLUMNS), (COLUMNS, 1), device="cuda"))),
        "Triton, output given": per_call(lambda: by_triton(out)),
        "PyTorch, one addition": per_call(lambda: x + b),
        "PyTorch, an empty tensor": per_call(lambda: torch.empty_strided((ROWS, COLUMNS), (COLUMNS, 1), device="cuda")),
    }


def classes(binary: GpuBinary) -> bool:
    """Check shapes, strides and addresses of many classes, and results without elements."""
    right = True
    for m, n in ((64, 64), (17, 33), (1, 1), (5, 48), (48, 5), (0, 7)):
        for x in (
            torch.randn(m, n, device="cuda"),
            torch.randn(n, m, device="cuda").T,
            torch.randn(m, 2 * n, device="cuda")[:, ::2],
        ):
            b = torch.randn(n + 1, device="cuda")
            right &= all(same(binary.launch(x, row)[0], x, row) for row in (b[:n], b[1:], b[:1].expand(n)))
    return right


def in_a_graph(binary: GpuBinary, rows: int) -> bool:
    """Check that captured calls follow the inputs as they are when replayed; a class not met before may be captured too."""
    x, b = torch.randn(rows, COLUMNS, device="cuda"), torch.randn(COLUMNS, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (first,) = binary.launch(x, b)
        (second,) = binary.launch(first, b)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    return same(first, x, b) and same(second, first, b)


def on_a_stream(binary: GpuBinary) -> bool:
    """Check that a call on another stream follows what that stream does, not the default stream."""
    x, b = torch.zeros(4096, COLUMNS, device="cuda"), torch.randn(COLUMNS, device="cuda")
    new = torch.randn_like(x)
    big = torch.randn(4096, 4096, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(20):
            big = big @ big * 1e-3
        x.copy_(new)
        (found,) = binary.launch(x, b)
        waiting = not stream.query()
        x.zero_()
    torch.cuda.synchronize()
    return waiting and same(found, new, b)


def from_threads(binary: GpuBinary) -> bool:
    """Check two threads at once, each with shapes of its own and a context that PyTorch has not yet made."""
    wrong: list[str] = []

    def work(number: int) -> None:
        try:
            for i in range(2000):
                x, b = inputs[number][i % len(inputs[number])]
                (found,) = binary.launch(x, b)
                if i % 50 == 0 and not same(found, x, b):
                    wrong.append(f"thread {number}, call {i}")
        except Exception as error:  # noqa: BLE001 - said below
            wrong.append(f"thread {number}: {error}")

    inputs = [
        [
            (torch.randn(m, n, device="cuda"), torch.randn(n, device="cuda"))
            for m in (3, 32, 65)
            for n in (7 + k, 16, 64)
        ]
        for k in range(2)
    ]
    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for line in wrong:
        sys.stderr.write(f"{line}\n")
    return not wrong


def refuses_the_cpu(binary: GpuBinary) -> bool:
    """Check that tensors of the CPU are an error that says so."""
    try:
        binary.launch(torch.zeros(2, 2), torch.zeros(2))
    except TargetError:
        return True
    return False


def warm(folder: Path) -> None:
    """Run in another process the kernel from the cache, without Triton. Prints what it saw."""
    x, b = torch.randn(ROWS, COLUMNS, device="cuda"), torch.randn(COLUMNS, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    binary = built(folder)
    (found,) = binary.launch(x, b)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    counts = stats.snapshot()
    right = same(found, x, b) and binary.from_cache and counts.compiles == 0
    sys.stdout.write(json.dumps({"right": right, "seconds": seconds}) + "\n")


def measured(folder: Path) -> dict[str, Any]:
    """Measure everything."""
    x, b = torch.randn(ROWS, COLUMNS, device="cuda"), torch.randn(COLUMNS, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    binary = built(folder)
    binary.launch(x, b)
    torch.cuda.synchronize()
    cold = time.perf_counter() - begin
    # PyTorch's compiler imports Triton where it finds it: there it finds none.
    script = "import runpy, sys; sys.modules['triton'] = None; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", script, __file__, "--warm", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    again = (
        json.loads(done.stdout.splitlines()[-1])
        if done.returncode == 0
        else {"right": False, "why": done.stderr[-2000:]}
    )
    (first, *_) = binary.assembled
    loaded = driver.load(first, 0)
    right = {
        "numbers in every class": classes(binary),
        "in a CUDA graph": in_a_graph(binary, ROWS),
        "in a CUDA graph, of a class not met before": in_a_graph(built(folder), 33),
        "on a second stream": on_a_stream(binary),
        "from two threads": from_threads(binary),
        "tensors of the CPU are refused": refuses_the_cpu(binary),
        "a warm process compiles nothing and needs no Triton": bool(again["right"]),
    }
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "host_microseconds": host_times(binary, folder),
        "right": right,
        "first_call_seconds": {"cold": cold, "warm": again.get("seconds"), "warm_failed": again.get("why", "")},
        "kernel": {
            "class": str(first.kind),
            "registers": loaded.registers,
            "spilled": loaded.spilled,
            "shared": first.shared,
        },
        "classes": len(binary.assembled),
    }


def main() -> None:
    """Measure, then write the JSON and the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write everything that was measured here")
    parser.add_argument("--warm", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.warm:
        warm(arguments.warm)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    out = sys.stdout.write
    out(f"{found['device']}, torch {found['torch']}\n\nmicroseconds of the host for a call\n")
    for name, value in found["host_microseconds"].items():
        out(f"  {name:28}{value:8.2f}\n")
    out("\nright\n")
    for name, value in found["right"].items():
        out(f"  {name:62}{'yes' if value else 'NO'}\n")
    seconds = found["first_call_seconds"]
    out(f"\nfirst call, seconds: {seconds['cold']:.2f} cold, {seconds['warm'] or float('nan'):.3f} from the cache\n")
    out(f"{seconds['warm_failed']}\nkernel: {found['kernel']}; {found['classes']} classes\n")
    sys.exit(0 if all(found["right"].values()) else 1)


if __name__ == "__main__":
    main()
