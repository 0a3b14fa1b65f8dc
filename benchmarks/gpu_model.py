"""What the model of GPU programs predicts for the candidates of `gpu_first.py`, beside what an H200 took.

    PYTHONPATH=src:tests:benchmarks python benchmarks/gpu_model.py [FILE]

Kendall's rank correlation is over the candidates of a program and type, and over all pairs of candidates of one; `off` is how much
longer the candidate that the model puts first takes than the fastest. Nothing is compiled or run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import gpu_first

from weft.cost import estimate_gpu, total
from weft.schedule import apply
from weft.target import Target
from weft.tensor.dtypes import DType

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
        """How much longer than the fastest candidate that takes which is predicted to be it."""
        first = min(self.pairs, key=lambda p: p.predicted)
        return first.measured / min(p.measured for p in self.pairs)

    @property
    def agreement(self) -> tuple[int, int]:
        """Pairs of candidates in the order that was measured, and those that are not."""
        pairs = [(a.predicted - b.predicted) * (a.measured - b.measured) for a, b in combinations(self.pairs, 2)]
        return sum(p > 0 for p in pairs), sum(p < 0 for p in pairs)


def rows(measured: Path = MEASURED) -> Iterator[Row]:
    """Predictions beside the times by CUDA graph of the JSON file `measured`."""
    for result in json.loads(measured.read_text())["results"]:
        problem = gpu_first.PROBLEMS[result["program"]]
        dtype = DType[result["dtype"]]
        programs = problem.build(dtype)
        times = {row["candidate"]: row["graph"] for row in result["rows"] if row["what"] == "weft" and "graph" in row}
        found: list[Pair] = []
        for candidate in problem.candidates[dtype]:
            program = programs[candidate.program]
            applied = apply(program, gpu_first.schedule(program, candidate.levels))
            costs = estimate_gpu(applied, problem.sizes, Target("cuda", "90"), candidate.warps, candidate.stages)
            found.append(Pair(str(candidate), 1e6 * total(costs).predicted_seconds, times[str(candidate)]))
        yield Row(result["program"], dtype.name, found)


def kendall(agreement: tuple[int, int]) -> float:
    """The rank correlation of so many pairs in order and out of order."""
    return (agreement[0] - agreement[1]) / max(1, sum(agreement))


def agreed(some: Sequence[Row]) -> tuple[int, int]:
    """Pairs in order and out of order of several programs."""
    return sum(row.agreement[0] for row in some), sum(row.agreement[1] for row in some)


def main() -> None:
    """Print the table."""
    found = list(rows(*map(Path, sys.argv[1:2])))
    for row in found:
        sys.stdout.write(f"{row.program} {row.dtype}: Kendall {kendall(row.agreement):.2f}, off {row.off:.2f}\n")
        for pair in sorted(row.pairs, key=lambda p: p.measured):
            ratio = pair.predicted / pair.measured
            sys.stdout.write(f"{pair.predicted:9.1f}{pair.measured:9.1f}{ratio:7.2f}  {pair.candidate}\n")
    for name in ("bfloat16", "float32"):
        some = [row for row in found if row.dtype == name]
        first = sum(r.off == 1.0 for r in some)
        worst = max(r.off for r in some)
        sys.stdout.write(
            f"{name}: Kendall {kendall(agreed(some)):.2f}, first in {first} of {len(some)}, off at most {worst:.2f}\n"
        )


if __name__ == "__main__":
    main()
