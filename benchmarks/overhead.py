"""What a call of a compiled function costs where there is next to nothing to compute: 8x8 tensors.

    python benchmarks/overhead.py [--json FILE] [--threads N ...] [--rounds N]

Each side is called 200 times per round, rounds alternate between the sides, and the median over the rounds counts, in
microseconds: of the processor's time of the calling thread, and of the time on the wall. "Dynamo alone" is
`torch.compile(backend="eager")`: guards and nothing behind them, which all compiled sides pay. Target: weft at most twice Inductor.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import weft
from weft.lab.measure import setting

Side = Callable[..., Any]
torch_compile: Callable[..., Any] = vars(torch)["compile"]

CALLS = 200
LAYERS = 25
BASE, LIMIT = "Inductor", 2.0


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute one product and two operations on its result: one kernel."""
    return torch.relu(x @ w + b)


def pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute two elementwise operations: one kernel."""
    return x * 2 + y


class Scales(nn.Module):
    """Fifty parameters and one kernel: what guards on a module's parameters cost, and arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.randn(8)) for _ in range(2 * LAYERS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale and shift by turns."""
        for scale, shift in zip(self.scales[::2], self.scales[1::2], strict=True):
            x = x * scale + shift
        return x


def stack() -> nn.Module:
    """Build fifty parameters and as many kernels as there are layers: what running a plan costs per kernel."""
    return nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(8, 8), nn.ReLU())))


@dataclass(frozen=True, slots=True)
class Overhead:
    """Microseconds of a call: the calling thread's processor time, and the wall's."""

    cpu_us: float
    wall_us: float


def sides(fn: Side) -> dict[str, Side]:
    """Return the ways to call `fn`, each with code of its own, so that none shares Dynamo's entries with another."""
    never = {"measure": "never"}
    return {
        "eager": fn,
        "Dynamo alone": torch_compile(own(fn), backend="eager"),
        "Inductor": torch_compile(own(fn)),
        "Inductor, dynamic=False": torch_compile(own(fn), dynamic=False),
        "Inductor, dynamic=True": torch_compile(own(fn), dynamic=True),
        "weft.compile, measure=never": weft.compile(own(fn), **never),
        "weft.compile": weft.compile(own(fn)),
        "torch.compile(backend=weft)": torch_compile(own(fn), backend="weft", options=never),
        "torch.compile(backend=weft), dynamic=True": torch_compile(
            own(fn), backend="weft", options=never, dynamic=True
        ),
    }


def own(fn: Side) -> Side:
    """Copy a function or module."""
    if isinstance(fn, types.FunctionType):
        return types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__)
    return copy.deepcopy(fn)


def measure(candidates: Mapping[str, Side], inputs: Sequence[Any], rounds: int) -> dict[str, Overhead]:
    """Measure medians over `rounds` rounds, each of which begins with another side."""
    names = list(candidates)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with torch.no_grad():
        for call in candidates.values():
            for _ in range(CALLS):
                call(*inputs)
        gc.disable()
        for number in range(rounds):
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                found[name].append(timed(candidates[name], inputs))
        gc.enable()
    return {
        name: Overhead(*(statistics.median(ts) for ts in zip(*pairs, strict=True))) for name, pairs in found.items()
    }


def timed(call: Side, inputs: Sequence[Any]) -> tuple[float, float]:
    """Measure the microseconds of one call of many."""
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(CALLS):
        call(*inputs)
    return (time.thread_time() - cpu) / CALLS * 1e6, (time.perf_counter() - wall) / CALLS * 1e6


def main() -> None:
    """Measure, print a table for each function, and write the figures as JSON where asked."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, torch.get_num_threads()])
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    x, w, b = torch.randn(8, 8), torch.randn(8, 8), torch.randn(8)
    functions: dict[str, tuple[Side, tuple[Any, ...]]] = {
        "relu(x @ w + b)": (linear, (x, w, b)),
        "x * 2 + y": (pointwise, (x, w)),
        "50 parameters, 1 kernel": (Scales().eval(), (x,)),
        f"50 parameters, {LAYERS} layers": (stack().eval(), (x,)),
    }
    results: list[dict[str, Any]] = []
    for threads in sorted(set(arguments.threads)):
        torch.set_num_threads(threads)
        for name, (fn, inputs) in functions.items():
            torch.compiler.reset()
            found = measure(sides(fn), inputs, arguments.rounds)
            results.append({"function": name, "threads": threads, "us": {k: asdict(v) for k, v in found.items()}})
            sys.stdout.write(table(name, threads, found))
    if arguments.json:
        made = {"setting": asdict(setting()), "calls per round": CALLS, "results": results}
        arguments.json.write_text(json.dumps(made, indent=1) + "\n")


def table(name: str, threads: int, found: Mapping[str, Overhead]) -> str:
    """Write the figures of one function, and each beside Inductor's."""
    base = found[BASE]
    lines = [f"{name}, threads: {threads}", f"  {'us of a call':45} {'cpu':>8} {'wall':>8}  {'beside ' + BASE:>14}"]
    for side, us in found.items():
        beside = us.cpu_us / base.cpu_us
        late = "  above the target" if "weft" in side and beside > LIMIT else ""
        lines.append(f"  {side:45} {us.cpu_us:8.2f} {us.wall_us:8.2f}  {beside:14.2f}{late}")
    return "\n".join([*lines, "", ""])


if __name__ == "__main__":
    main()
