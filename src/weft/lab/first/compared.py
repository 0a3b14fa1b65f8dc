"""First calls of a row with each compiler, in new processes that take turns."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weft.lab.first.rows import READING, FirstRow

OWN, PEER, TRACER = "weft", "inductor", "eager"
"""The compilers, as `torch.compile` calls them; the last one compiles nothing, so what it takes is Dynamo's part."""

_SECONDS = 900
# What the tracer imports is imported here in all three: a part of each first call. So is what weft imports to be a backend: the
# process's own module would import it after the clock.
_PROCESS = """
import sys, time, torch
wall, processor = time.perf_counter(), time.process_time()
if sys.argv[3] == "weft":
    import weft
    import weft.api.backend
    import weft.phases
else:
    import torch._dynamo
imported = time.perf_counter() - wall, time.process_time() - processor
from weft.lab.first.process import answer
answer(*sys.argv[1:], imported)
"""


@dataclass(frozen=True, slots=True)
class FirstCalls:
    """What first calls of a row took, medians over processes.

    Attributes:
        row, family, layers: which; the last two of a model.
        cold, warm: by compiler, seconds (wall, processor): with empty caches, and in a second process.
        phases, phases_warm: of weft's cold and warm calls, by phase, seconds (wall, processor); "import" and "Dynamo" are
            among them, and "processes": compilers, and kernels that are judged in a process of their own.
        compiles, choices: of weft's, cold and warm: runs of a compiler, and regions that were chosen for.
        failed: by compiler, why there is no figure; "" for the whole row.
    """

    row: str
    family: str = ""
    layers: int = 0
    cold: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    warm: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    phases: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    phases_warm: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    compiles: tuple[int, int] = (0, 0)
    choices: tuple[int, int] = (0, 0)
    failed: Mapping[str, str] = field(default_factory=dict[str, str])

    def ratio(self, *, warm: bool = False, processor: bool = False) -> float:
        """Divide weft's seconds by Inductor's; NaN where one is lacking."""
        found = self.warm if warm else self.cold
        return found[OWN][processor] / found[PEER][processor] if {OWN, PEER} <= found.keys() else math.nan

    def written(self) -> dict[str, Any]:
        """Return what the results file holds of it."""
        ratios = {
            f"{'warm' if warm else 'cold'} {'processor' if processor else 'wall'}": self.ratio(
                warm=warm, processor=processor
            )
            for warm in (False, True)
            for processor in (False, True)
        }
        return {**asdict(self), "ratios": {n: None if math.isnan(r) else r for n, r in ratios.items()}}

    @staticmethod
    def read(written: Mapping[str, Any]) -> FirstCalls:
        """Read what `written` gave, back from a file; raises KeyError or TypeError where that holds something else."""
        own: dict[str, Any] = {name: written[name] for name in ("row", "family", "layers", "failed")}
        for name in ("cold", "warm", "phases", "phases_warm"):
            own[name] = {each: tuple(figures) for each, figures in written[name].items()}
        own |= {name: tuple(written[name]) for name in ("compiles", "choices")}
        return FirstCalls(**own)


def first_calls(subject: FirstRow, device: str, processes: int) -> FirstCalls:
    """Measure a row: `processes` new processes for each figure; which compiler goes first changes from one to the next."""
    if subject.missing:
        return FirstCalls(subject.name, subject.family, subject.layers, failed={"": subject.missing})
    cold: dict[str, list[Mapping[str, Any]]] = {OWN: [], PEER: [], TRACER: []}
    warm: dict[str, list[Mapping[str, Any]]] = {OWN: [], PEER: []}
    failed: dict[str, str] = {}
    for number in range(processes):
        for compiler in list(cold)[:: -1 if number % 2 else 1]:
            if compiler in failed:
                continue
            try:
                first, *more = _runs(subject.name, device, compiler, 1 + (compiler in warm))
            except _FailedError as error:
                failed[compiler] = str(error)
                continue
            cold[compiler].append(first)
            warm.get(compiler, []).extend(more)
    return FirstCalls(
        subject.name,
        subject.family,
        subject.layers,
        {name: _median(runs) for name, runs in cold.items() if runs},
        {name: _median(runs) for name, runs in warm.items() if runs},
        _phases(cold[OWN]),
        _phases(warm[OWN]),
        (_most(cold[OWN], "stats", "compiles"), _most(warm[OWN], "stats", "compiles")),
        (_most(cold[OWN], "phases", "candidates", "times"), _most(warm[OWN], "phases", "candidates", "times")),
        failed,
    )


def read_files(device: str) -> None:
    """Have each compiler compile something, once a session: else the first to be measured reads from the disk what others find in
    memory, seconds of a first call on a new machine.
    """
    for compiler in (OWN, PEER):
        with suppress(_FailedError):  # the rows will say why
            list(_runs(READING, device, compiler, 1))


class _FailedError(Exception):
    """A process gave no figure."""


def command(name: str, device: str, compiler: str) -> list[str]:
    """Return the command that calls a row for the first time with a compiler."""
    return [sys.executable, "-c", _PROCESS, name, device, compiler]


def environment(folder: str) -> dict[str, str]:
    """Return the environment of such a process, whose compilers have their caches in `folder`."""
    places = ("WEFT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    made = {**os.environ, **{place: str(Path(folder, place)) for place in places}}
    # PyTorch was installed with its bytecode: without weft's, its sources would be compiled anew in each process.
    made.pop("PYTHONDONTWRITEBYTECODE", None)
    return made


def _runs(name: str, device: str, compiler: str, processes: int) -> Iterator[Mapping[str, Any]]:
    """Run so many processes one after another, the first of which finds no caches, the others what it left."""
    with tempfile.TemporaryDirectory(prefix="weft-first-") as folder:
        for _ in range(processes):
            try:
                done = subprocess.run(
                    command(name, device, compiler),
                    check=True,
                    capture_output=True,
                    text=True,
                    timeout=_SECONDS,
                    env=environment(folder),
                )
            except subprocess.CalledProcessError as error:
                said = error.stderr.strip().splitlines() or [f"status {error.returncode}"]
                raise _FailedError(said[-1]) from error
            except subprocess.TimeoutExpired as error:
                raise _FailedError(f"it had not ended after {_SECONDS} s") from error
            yield json.loads(done.stdout.splitlines()[-1])


def _median(runs: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    return statistics.median(r["wall"] for r in runs), statistics.median(r["processor"] for r in runs)


def _most(runs: Sequence[Mapping[str, Any]], *path: str) -> int:
    """Return the largest of a figure, found along `path`; 0 where there is none."""
    most = 0
    for found in runs:
        each: Any = found
        for name in path:
            each = each.get(name, {})
        most = max(most, each or 0)
    return most


def _phases(runs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return what each phase took; what is in none of them is Dynamo's."""
    every: list[dict[str, tuple[float, float]]] = []
    for run in runs:
        known = {name: (each["wall"], each["processor"]) for name, each in run["phases"].items()}
        known["import"] = run["imported"][0], run["imported"][1]
        known["processes"] = 0.0, run["others"]
        walls, processors = zip(*known.values(), strict=True)
        every.append({**known, "Dynamo": (run["wall"] - sum(walls), run["processor"] - sum(processors))})
    names = dict.fromkeys(name for found in every for name in found)
    return {
        name: (
            statistics.median(found.get(name, (0.0, 0.0))[0] for found in every),
            statistics.median(found.get(name, (0.0, 0.0))[1] for found in every),
        )
        for name in names
    }
