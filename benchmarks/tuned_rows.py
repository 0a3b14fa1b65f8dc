"""Records what the tuner measures with effort "full" for rows of the GPU's benchmark list, and says what quick tuning would lose.

    PYTHONPATH=src python benchmarks/tuned_rows.py record FILE [--only ROW ...] [--of N --part K] [--seconds S]
    PYTHONPATH=src python benchmarks/tuned_rows.py judge FILE ... [--verbose ROW] [--json FILE]

FILE gets, pickled, each region's sizes and candidates: fused program, schedule, seconds. `judge` needs no GPU: it predicts all of
them again with this checkout's model, and follows the quick search among them. A row's loss is the time of what that search takes
over that of the fastest, all regions together.
"""

from __future__ import annotations

import argparse
import math
import pickle
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from pairs_judge import spearman

import weft
from weft.api.files import write_json
from weft.block.program import BlockProgram, Dot
from weft.block.walk import every
from weft.cost import gpu, launches_of, total
from weft.emit.triton import GRANULARITY
from weft.lab.workloads.gpu import ROWS
from weft.plan.targets.candidates import Example
from weft.plan.targets.triton import rounds, tune
from weft.schedule import Schedule, apply, kernels


@dataclass
class Tuned:
    """A region: what was measured of it, in seconds."""

    row: str
    example: Example
    measured: list[tuple[BlockProgram, Schedule, float]] = field(
        default_factory=list[tuple[BlockProgram, Schedule, float]]
    )


def record(names: Sequence[str], file: Path, seconds: float) -> None:
    """Tune rows, and write what was measured after each."""
    found: dict[rounds.Rounds, Tuned] = {}
    timed, ends, name = rounds.Rounds.time, time.monotonic() + seconds, ""

    def noted(self: rounds.Rounds, ready: rounds.Ready, timing: rounds.CandidateTimer | None) -> None:
        timed(self, ready, timing)
        if self.times and self.times[-1][0] is ready.candidate:
            region = found.setdefault(self, Tuned(name, self.example))
            region.measured.append((ready.candidate.fused, ready.candidate.schedule, self.times[-1][1]))

    rounds.Rounds.time = noted
    for name in names:
        if time.monotonic() > ends:
            break
        workload, begun = next(each for each in ROWS if each.name == name), time.perf_counter()
        try:
            inputs = workload.inputs(workload.sizes(small=False), 0, "cuda")
            weft.optimize(workload.fn, inputs, judge="off", effort="full")(*inputs)
        except Exception as error:  # noqa: BLE001 - the other rows are measured all the same
            sys.stdout.write(f"{name}: {type(error).__name__}: {error}\n"[:300])
        own = [len(each.measured) for each in found.values() if each.row == name]
        sys.stdout.write(f"{name}: {own} candidates of its regions in {time.perf_counter() - begun:.1f} s\n")
        sys.stdout.flush()
        file.write_bytes(pickle.dumps(list(found.values())))


@dataclass(frozen=True, slots=True)
class _Way:
    applied: BlockProgram
    schedule: Schedule
    predicted: float
    measured: float

    @property
    def launches(self) -> int:
        return len(kernels(self.applied))


def ways(region: Tuned) -> list[_Way]:
    """Predict each candidate of a region; the likeliest first."""
    known: dict[tuple[int, Schedule], BlockProgram] = {}
    found: dict[tuple[int, Schedule], _Way] = {}
    example = region.example
    for fused, schedule, seconds in region.measured:
        places = id(fused), replace(schedule, warps=1, stages=1, merging_warps=0)
        if places not in known:
            known[places] = apply(fused, schedule, GRANULARITY)
        launches, chip = launches_of(known[places], example.sizes, example.innermost), gpu(example.target)
        if any(each.unfit(chip, schedule.warps_of(merges=each.merges), schedule.stages) for each in launches):
            continue  # this checkout does not consider it
        cost = total(each.cost(chip, schedule.warps_of(merges=each.merges), schedule.stages) for each in launches)
        found[id(fused), schedule] = _Way(known[places], schedule, cost.predicted_seconds, seconds)
    return sorted(found.values(), key=lambda way: way.predicted)


def quick(every_: Sequence[_Way]) -> list[_Way]:
    """Follow the quick search among what was measured."""
    matmuls = any(isinstance(node, Dot) for node in every(every_[0].applied.graph.nodes))
    search = tune.SEARCHES["quick", matmuls]
    firsts: list[_Way] = []
    most = tune.AS_GOOD * every_[0].predicted
    as_good = sorted((way for way in every_ if way.predicted <= most), key=lambda way: way.launches)
    for way in (*as_good, *(way for way in every_ if way.predicted > most)):
        if len(firsts) < search.programs and all(way.applied is not first.applied for first in firsts):
            firsts.append(way)
    tried = _within(firsts, [], search.binaries, surely=True)
    more: list[_Way] = []
    for best in sorted(tried, key=lambda way: way.measured)[: search.closely]:
        others = [way for way in every_ if way.applied is best.applied and way not in tried]
        one = best.schedule
        others.sort(key=lambda c: (c.schedule.warps != one.warps) + (c.schedule.stages != one.stages))
        more += others[: search.variants]
    return tried + _within(more, tried, search.binaries, surely=False)


def _within(wanted: Sequence[_Way], done: Sequence[_Way], binaries: float, *, surely: bool) -> list[_Way]:
    taken: list[_Way] = []
    left = binaries - sum(way.launches for way in done)
    for way in wanted:
        if sum(each.launches for each in [*taken, way]) <= left or (surely and not taken):
            taken.append(way)
    return taken


def judge(files: Sequence[Path], verbose: str, written: Path | None) -> None:
    """Print for each row what quick tuning loses, and how well its regions are ranked; and write it."""
    rows: defaultdict[str, list[tuple[float, float, float, int]]] = defaultdict(list)
    for file in files:
        for region in pickle.loads(file.read_bytes()):  # noqa: S301 - it is this tool's own file
            found = ways(region)
            taken = min(quick(found), key=lambda way: way.measured)
            best = min(found, key=lambda way: way.measured)
            ranks = spearman([way.predicted for way in found], [way.measured for way in found])
            rows[region.row].append((taken.measured, best.measured, ranks, len(found)))
            if region.row == verbose:
                _shown(found)
    losses: dict[str, float] = {}
    for name, regions in rows.items():
        losses[name] = sum(r[0] for r in regions) / sum(r[1] for r in regions)
        said = ", ".join(f"{1e6 * t:.1f} of {1e6 * b:.1f} us, {s:.2f} of {n}" for t, b, s, n in regions)
        sys.stdout.write(f"{name:20}{losses[name]:6.2f}   {said}\n")
    ranked = [r[2] for regions in rows.values() for r in regions if r[3] > 4]
    mean = math.exp(statistics.fmean(map(math.log, losses.values())))
    if written is not None:
        keys = ("quick_seconds", "fastest_seconds", "rank_correlation", "candidates")
        each = {name: [dict(zip(keys, r, strict=True)) for r in regions] for name, regions in rows.items()}
        write_json(written, {"geometric_mean": mean, "losses": losses, "regions": each})
    sys.stdout.write(
        f"{len(losses)} rows: geometric mean {mean:.3f}; median rank correlation {statistics.median(ranked):.2f}\n"
    )


def _shown(found: Sequence[_Way]) -> None:
    taken = quick(found)
    for rank, way in sorted(enumerate(found), key=lambda each: each[1].measured):
        text = str(way.schedule).replace("\n", "; ")
        sys.stdout.write(
            f"  {1e6 * way.measured:8.1f} {1e6 * way.predicted:8.1f} #{rank:<3}{'*' if way in taken else ' '} {text}\n"
        )


def main() -> None:
    """Run a subcommand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "judge"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--only", nargs="*", default=[], metavar="ROW")
    parser.add_argument("--of", type=int, default=1, help="record one row of so many")
    parser.add_argument("--part", type=int, default=0, help="and begin with this one")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verbose", default="", metavar="ROW")
    given = parser.parse_args()
    if given.what == "judge":
        judge(given.files, given.verbose, given.json)
        return
    names = given.only or [each.name for each in ROWS if each.group]
    with torch.no_grad():
        record(names[given.part :: given.of], given.files[0], given.seconds)


if __name__ == "__main__":
    main()
