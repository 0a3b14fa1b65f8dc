"""What the model of GPU programs predicts for the candidates of `gpu_first.py`, beside what an H200 took.

    PYTHONPATH=src:tests:benchmarks python benchmarks/gpu_model.py [--vary] [FILE]

`--vary` takes each constant of the model a third smaller and a half larger, to see what the choice hangs on.

Kendall's rank correlation is over the candidates of a program and type, and over all pairs of candidates of one; `off` is how much
longer the candidate that the model puts first takes than the fastest. Nothing is compiled or run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import gpu_first

from weft.cost import Gpu, Launch, gpu, launches_of, total
from weft.emit.triton import GRANULARITY
from weft.schedule import apply
from weft.target import Target
from weft.tensor.dtypes import DType

H200 = gpu(Target("cuda", "90"))
MEASURED = Path(__file__).parent / "results" / "gpu_first.json"


@dataclass(frozen=True)
class Pair:
    """A candidate: microseconds as predicted and as measured."""

    candidate: str
    predicted: float
    measured: float


@dataclass(frozen=True)
class Row:
    """The candidates of one program in one element type."""

    program: str
    dtype: str
    pairs: Sequence[Pair]

    @property
    def off(self) -> float:
        """The time of the candidate predicted to be fastest, relative to that of the fastest."""
        first = min(self.pairs, key=lambda p: p.predicted)
        return first.measured / min(p.measured for p in self.pairs)

    @property
    def agreement(self) -> tuple[int, int]:
        """Pairs of candidates in the order that was measured, and those that are not."""
        pairs = [(a.predicted - b.predicted) * (a.measured - b.measured) for a, b in combinations(self.pairs, 2)]
        return sum(p > 0 for p in pairs), sum(p < 0 for p in pairs)


@dataclass(frozen=True)
class Measured:
    """A candidate, what its launches do, and microseconds by CUDA graph."""

    candidate: gpu_first.Candidate
    launches: Sequence[Launch]
    time: float


Candidates = Mapping[tuple[str, str], Sequence[Measured]]


def candidates(file: Path = MEASURED) -> Candidates:
    """Return the candidates of each program and element type that the JSON file has times of."""
    found: dict[tuple[str, str], list[Measured]] = {}
    for result in json.loads(file.read_text())["results"]:
        problem = gpu_first.PROBLEMS[result["program"]]
        dtype = DType[result["dtype"]]
        programs = problem.build(dtype)
        times = {row["candidate"]: row["graph"] for row in result["rows"] if row["what"] == "weft" and "graph" in row}
        some = found.setdefault((result["program"], dtype.name), [])
        for candidate in problem.candidates[dtype]:
            program = programs[candidate.program]
            applied = apply(program, gpu_first.schedule(program, candidate.levels), GRANULARITY)
            some.append(Measured(candidate, launches_of(applied, problem.sizes), times[str(candidate)]))
    return found


def rows(known: Candidates, chip: Gpu = H200) -> list[Row]:
    """Predict for `chip`, beside the times."""
    found: list[Row] = []
    for (program, dtype), some in known.items():
        pairs: list[Pair] = []
        for each in some:
            costs = (launch.cost(chip, each.candidate.warps, each.candidate.stages) for launch in each.launches)
            pairs.append(Pair(str(each.candidate), 1e6 * total(costs).predicted_seconds, each.time))
        found.append(Row(program, dtype, pairs))
    return found


def kendall(agreement: tuple[int, int]) -> float:
    """Return the rank correlation of so many pairs in order and out of order."""
    return (agreement[0] - agreement[1]) / max(1, sum(agreement))


def agreed(some: Sequence[Row]) -> tuple[int, int]:
    """Count the pairs in order and out of order of several programs."""
    return sum(row.agreement[0] for row in some), sum(row.agreement[1] for row in some)


CONSTANTS = (
    "hertz", "matmul_fmas_per_cycle", "warp_share", "lone_warp", "cache_width", "shared_width", "cache_seconds", "dram_seconds",
    "step_cycles", "launch_seconds", "cache", "dram",
)  # fmt: skip
"""The figures of a `Gpu` that predictions for these candidates use."""


def summary(some: Sequence[Row]) -> str:
    """Say how well the order agrees, how often the first is the fastest, how far it is off at worst."""
    first, worst = sum(r.off == 1.0 for r in some), max(r.off for r in some)
    return f"Kendall {kendall(agreed(some)):.2f}, first in {first} of {len(some)}, off at most {worst:.2f}"


def vary(known: Candidates) -> None:
    """Print what the choice is with other constants."""
    for name in CONSTANTS:
        for factor in (1 / 1.5, 1.5):
            chip = replace(H200, **{name: type(getattr(H200, name))(getattr(H200, name) * factor)})
            sys.stdout.write(f"{name:17} x {factor:.2f}: {summary(rows(known, chip))}\n")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=MEASURED, help="what gpu_first.py wrote")
    parser.add_argument("--vary", action="store_true", help="with other constants")
    arguments = parser.parse_args()
    known = candidates(arguments.file)
    if arguments.vary:
        vary(known)
        return
    found = rows(known)
    for row in found:
        sys.stdout.write(f"{row.program} {row.dtype}: {summary([row])}\n")
        for pair in sorted(row.pairs, key=lambda p: p.measured):
            ratio = pair.predicted / pair.measured
            sys.stdout.write(f"{pair.predicted:9.1f}{pair.measured:9.1f}{ratio:7.2f}  {pair.candidate}\n")
    for name in ("bfloat16", "float32"):
        sys.stdout.write(f"{name}: {summary([row for row in found if row.dtype == name])}\n")
    sys.stdout.write(f"all: {summary(found)}\n")


if __name__ == "__main__":
    main()
