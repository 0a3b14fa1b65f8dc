"""How long the first call takes: with an empty cache, and with a warm cache in a new process, each after `import weft`.

    python benchmarks/startup.py [--json FILE]

The function is relu(x @ w + b), 512x1024x1024 in fp32. Prints the median of three new processes each; targets: cold under 5 s,
warm under 0.5 s.
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

_PROCESS = """
import time
start = time.perf_counter()
import torch
torch_done = time.perf_counter()
import weft
imported = time.perf_counter()

def relu_linear(x, w, b):
    return torch.relu(x @ w + b)

x, w, b = torch.randn(512, 1024), torch.randn(1024, 1024), torch.randn(1024)
fast = weft.compile(relu_linear)
with torch.inference_mode():
    begin = time.perf_counter()
    fast(x, w, b)
    end = time.perf_counter()
print(torch_done - start, imported - torch_done, end - begin, weft.stats().compiles)
"""


def first_call(cache: str) -> tuple[float, float, float, int]:
    """Seconds to import torch, then weft, then for the first call; and how often the compiler ran, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS],
        env={**os.environ, "WEFT_CACHE_DIR": cache},
        check=True,
        capture_output=True,
        text=True,
    )
    torch_import, weft_import, call, compiles = done.stdout.split()
    return float(torch_import), float(weft_import), float(call), int(compiles)


def main() -> None:
    """Measure, print a line for each figure, and write them as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    cold: list[tuple[float, float, float, int]] = []
    warm: list[tuple[float, float, float, int]] = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(first_call(cache))
            warm.append(first_call(cache))
    assert all(run[3] == 1 for run in cold), "a cold start compiles one kernel"
    assert all(run[3] == 0 for run in warm), "a warm start compiles nothing"
    figures = {
        "import torch": statistics.median(run[0] for run in (*cold, *warm)),
        "import weft": statistics.median(run[1] for run in (*cold, *warm)),
        "first call, cold": statistics.median(run[2] for run in cold),
        "first call, warm": statistics.median(run[2] for run in warm),
    }
    for name, seconds in figures.items():
        sys.stdout.write(f"{name:20} {seconds:6.2f} s\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
