"""Whether the cost model ranks schedules well: pairs of a fused program and a schedule, predicted and measured.

    PYTHONPATH=src:benchmarks python benchmarks/pairs.py make DIR [--target cuda:90] [--each 100] [--seed N] [--only NAME ...]
    PYTHONPATH=src:benchmarks python benchmarks/pairs.py time DIR --json FILE [--resume] [--seconds S] [--only NAME ...]
    PYTHONPATH=src:benchmarks python benchmarks/pairs.py judge FILE [--model now] [--fit FILE]

`make` draws pairs of a dozen functions, half of them from the tenth that the model likes best, compiles them and packs them into
DIR; for a GPU nothing else needs to be compiled then, and the GPU need not be here. What DIR has is not made again. `time` checks
each result against fp64 and times it as the tuner does, and writes FILE as it goes. Pairs of a CPU are timed beside a reference
pair, and again where that was disturbed.
`judge` says how well predictions rank what was measured, as they are and with a correction that was fitted to the other functions
(`pairs_correction`). `--model now` predicts again with the model of this checkout; `--fit` writes the correction for all functions.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pairs_judge
import pairs_made
from pairs_correction import fitted
from pairs_workloads import workloads

from weft.api.files import write_json
from weft.lab.gpu.workers import BenchWorker, LostError
from weft.run.gpu import interpreted
from weft.target import CPU, Target

# Seconds without a sign of life after which a process that times pairs is given up; processes lost in a row that end a run.
_SILENT, _LOST = 90.0, 5
# A pair is timed again, so often at most, where the reference took so many times as long beside it as beside most.
_AGAIN, _DISTURBED = 3, 1.5


def file_of(folder: Path, name: str) -> Path:
    """Return the archive of a workload in a folder of `make`."""
    return folder / f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}.tar.xz"


def make(given: argparse.Namespace) -> int:
    """Make what the folder lacks."""
    target = Target.parse(given.target)
    for name, workload in workloads(target).items():
        path, begin = file_of(given.folder, name), time.perf_counter()
        if path.exists() or (given.only and name not in given.only):
            continue
        said = pairs_made.make(workload, target, given.each, given.seed, path, name=name, small=given.small)
        sys.stdout.write(f"{said}, {time.perf_counter() - begin:.0f} s\n")
        sys.stdout.flush()
    return 0


class PairTimer:
    """Times pairs in another process, and starts a new one where a pair takes it down."""

    def __init__(self, device: str) -> None:
        self._command = [str(Path(__file__).with_name("pairs_time.py")), device]
        self._worker = BenchWorker(self._command)
        self.setting = self._worker.ask({"setting": device}, _SILENT)
        self._lost = 0

    def pair(self, archive: Path, number: int) -> dict[str, Any]:
        """Check and time a pair; raises LostError where several pairs in a row took their process down."""
        try:
            found = self._worker.ask({"archive": str(archive), "pair": number}, _SILENT)
            self._lost = 0
        except LostError as lost:
            self._lost += 1
            if self._lost == _LOST:
                raise
            found = {"error": lost.why}
            self._worker = BenchWorker(self._command)
        return found

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def archives(folder: Path, only: Sequence[str]) -> Iterator[tuple[Path, pairs_made.Archive]]:
    """Yield the archives of a folder, or some of them."""
    for path in sorted(folder.glob("*.tar.xz")):
        found = pairs_made.unpack(path)
        if not only or found.about["workload"] in only:
            yield path, found


def timed(given: argparse.Namespace) -> int:
    """Time the pairs of a folder; 1 where one of them is wrong or failed."""
    ends, bad = time.monotonic() + given.seconds, 0
    timing: PairTimer | None = None
    known = json.loads(given.json.read_text(encoding="utf-8"))["pairs"] if given.resume and given.json.exists() else []
    found: dict[str, Any] = {"setting": {}, "workloads": [], "pairs": []}
    for path, archive in archives(given.folder, given.only):
        here = archive.target == CPU or interpreted.is_asked_for()
        timing = timing or PairTimer("cpu" if here else "cuda")
        begin, rows = time.monotonic(), _known(archive, known)
        likeliest = sorted(range(len(archive.pairs)), key=lambda number: archive.pairs[number].predicted)
        wanted = [number for number in likeliest if number not in rows]
        for _ in range(1 + _AGAIN):
            for number in wanted:
                if time.monotonic() < ends:
                    rows[number] = _row(archive, number, timing.pair(path, number))
            wanted = _disturbed(rows)
        _without_drift(list(rows.values()))
        found["setting"] = timing.setting
        found["workloads"].append(dict(archive.about))
        found["pairs"] += rows.values()
        write_json(given.json, found)
        bad += sum("error" in row for row in rows.values())
        sys.stdout.write(f"{_said(archive, list(rows.values()))}, {time.monotonic() - begin:.0f} s\n")
        sys.stdout.flush()
    if timing is not None:
        timing.close()
    return 1 if bad else 0


def _row(archive: pairs_made.Archive, number: int, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the file holds of a pair."""
    own = {name: value for name, value in asdict(archive.pairs[number]).items() if name not in ("launches", "results")}
    return {"workload": archive.about["workload"], **own, **said}


def _known(archive: pairs_made.Archive, known: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Find the pairs of an archive among those that were timed before, by number."""
    rows = {(row["workload"], row["program"], json.dumps(row["schedule"])): row for row in known if "seconds" in row}
    names = [(archive.about["workload"], pair.program, json.dumps(pair.schedule)) for pair in archive.pairs]
    return {number: rows[name] for number, name in enumerate(names) if name in rows}


def _disturbed(rows: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """List the pairs beside which the reference took far longer than beside most: the machine did something else."""
    beside = {number: row["beside"] for number, row in rows.items() if "beside" in row}
    most = _DISTURBED * statistics.median(beside.values()) if beside else 0.0
    return [number for number, seconds in beside.items() if seconds > most]


def _without_drift(rows: Sequence[dict[str, Any]]) -> None:
    """Make times of a CPU, each of which was taken beside the reference, those that the reference's median stands for."""
    beside = [row["beside"] for row in rows if "beside" in row]
    for row in rows:
        if "beside" in row:
            row["seconds"] = row["taken"] * statistics.median(beside) / row["beside"]


def _said(archive: pairs_made.Archive, rows: Sequence[Mapping[str, Any]]) -> str:
    measured = [row["seconds"] for row in rows if "seconds" in row]
    wrong = [row["error"] for row in rows if "error" in row]
    left = len(archive.pairs) - len(rows)
    said = f"{archive.about['workload']}: {len(measured)} measured"
    if measured:
        said += f", {1e6 * min(measured):.1f} to {1e6 * max(measured):.1f} us"
    said += f", {len(wrong)} failed ({wrong[0]})" if wrong else ""
    return said + (f", {left} left for want of time" if left else "")


def judge(given: argparse.Namespace) -> int:
    """Print how well pairs are ranked."""
    found: dict[str, Any] = json.loads(given.file.read_text(encoding="utf-8"))
    if given.model == "now":
        found = pairs_judge.again(found)
    sys.stdout.write(pairs_judge.table(pairs_judge.judged(found)) + "\n")
    if given.fit is not None:
        write_json(given.fit, fitted(pairs_judge.observations(found)).to_json())
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say, by default those of the process; 1 where pairs are wrong or failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("make", help="draw and compile pairs")
    making.add_argument("folder", type=Path, metavar="DIR")
    making.add_argument("--target", default="cuda:90", help="cpu, or a GPU that need not be here")
    making.add_argument("--each", type=int, default=100, metavar="N", help="pairs of each workload")
    making.add_argument("--seed", type=int, default=0)
    making.add_argument(
        "--only", nargs="*", default=[], metavar="NAME", help="workloads by name; all of them otherwise"
    )
    making.add_argument("--small", action="store_true", help="at small sizes, for tests")
    making.set_defaults(run=make)
    timing = commands.add_parser("time", help="check and time what make has packed")
    timing.add_argument("folder", type=Path, metavar="DIR")
    timing.add_argument("--json", type=Path, required=True, metavar="FILE")
    timing.add_argument("--resume", action="store_true", help="keep what the file has, but for what was disturbed")
    timing.add_argument("--seconds", type=float, default=1e9, metavar="S", help="no pair is begun after so many")
    timing.add_argument("--only", nargs="*", default=[], metavar="NAME")
    timing.set_defaults(run=timed)
    judging = commands.add_parser("judge", help="compare predictions with times")
    judging.add_argument("file", type=Path, metavar="FILE", help="what time has written")
    judging.add_argument("--model", choices=("then", "now"), default="then", help="whose predictions")
    judging.add_argument("--fit", type=Path, metavar="FILE", help="where to write a correction for all functions")
    judging.set_defaults(run=judge)
    given = parser.parse_args(arguments)
    return given.run(given)


if __name__ == "__main__":
    raise SystemExit(main())
