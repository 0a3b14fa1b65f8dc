"""One row of `weft bench --models`, in a process of its own: times, errors, and where weft's time goes."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.api.backend import backend
from weft.lab.first.compared import environment
from weft.lab.measure import PeerTiming, compare, settle
from weft.lab.whole.memory import most_allocated
from weft.lab.whole.rows import Inputs, ModelRow, cast, rows
from weft.verify.judge import Draws, judge

OWN, PEER, PLAIN = "weft", "Inductor", "eager"

_TORCH: Any = torch  # the type of torch.compile is only partly known
_DRAWS, _PROFILED, _SECONDS = 2, 5, 1800
_PROCESS = "import sys; from weft.lab.whole.measured import answer; answer(sys.argv[1], int(sys.argv[2]))"
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "convolution", "attention", "grouped")
"""Parts of the names of library calls that weft leaves as they are: products, convolutions, attention of the library."""


@dataclass(frozen=True, slots=True)
class ModelResult:
    """What was measured of a row.

    Attributes:
        row: its name.
        times: by compiler, what a call takes.
        wrong: why weft's results are not right; empty where they are.
        share: of weft's time, by "library" (products and convolutions), "kernels" (weft's) and "other" (PyTorch's other
            operations).
        others: seconds a call of the operations in "other" that take most, by name.
        peaks: by compiler, the most bytes of tensors at once beyond those before the call.
        failed: why there are no figures.
    """

    row: str
    times: Mapping[str, PeerTiming] = field(default_factory=dict[str, PeerTiming])
    wrong: str = ""
    share: Mapping[str, float] = field(default_factory=dict[str, float])
    others: Mapping[str, float] = field(default_factory=dict[str, float])
    peaks: Mapping[str, int] = field(default_factory=dict[str, int])
    failed: str = ""

    def ratio(self, peer: str) -> float:
        """Divide weft's median by that of `peer`; NaN where one is lacking."""
        if not {OWN, peer} <= self.times.keys():
            return math.nan
        return self.times[OWN].median_ms / self.times[peer].median_ms

    @property
    def covered(self) -> float:
        """Divide the time of weft's kernels by all that is outside the library; NaN where nothing was profiled."""
        own, other = self.share.get("kernels", 0.0), self.share.get("other", 0.0)
        return own / (own + other) if own + other else math.nan

    @staticmethod
    def read(written: Mapping[str, Any]) -> ModelResult:
        """Read what `asdict` gave, back from a file; raises KeyError or TypeError where that holds something else."""
        times = {name: PeerTiming(**each) for name, each in written["times"].items()}
        more: dict[str, Any] = {**written, "times": times}
        return ModelResult(**more)


def measured(row: ModelRow, rounds: int) -> ModelResult:
    """Measure a row in a new process with empty caches."""
    with tempfile.TemporaryDirectory(prefix="weft-models-") as folder:
        command = [sys.executable, "-c", _PROCESS, row.name, str(rounds)]
        try:
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=_SECONDS, env=environment(folder)
            )
        except subprocess.CalledProcessError as error:
            said = error.stderr.strip().splitlines() or [f"status {error.returncode}"]
            return ModelResult(row.name, failed=said[-1])
        except subprocess.TimeoutExpired:
            return ModelResult(row.name, failed=f"it had not ended after {_SECONDS} s")
    return ModelResult.read(json.loads(done.stdout.splitlines()[-1]))


def answer(name: str, rounds: int) -> None:
    """Measure the row called `name` here, and print the result as a line of JSON."""
    warnings.simplefilter("ignore")
    settle()
    row = next(r for small in (False, True) for r in rows(small=small) if r.name == name)
    with torch.no_grad():
        sys.stdout.write(json.dumps(asdict(_here(row, rounds))) + "\n")


def _here(row: ModelRow, rounds: int) -> ModelResult:
    model: Any = row.model()
    runs = {
        OWN: _TORCH.compile(model, backend=backend),
        PEER: _TORCH.compile(model, backend="inductor"),
        PLAIN: model,
    }
    calls = {name: row.caller(run, model) for name, run in runs.items()}
    for call in calls.values():  # each compiles in a turn of its own
        for number in range(row.first_calls):
            call(row.inputs(number))
    times = compare(calls, lambda number: (row.inputs(number),), rounds)
    wrong = _wrong(row, model, calls)
    share, others = _profile(calls[OWN], list(map(row.inputs, range(_PROFILED))))
    given = row.inputs(_PROFILED)
    peaks = {name: most_allocated(lambda call=call: call(given)) for name, call in calls.items()}
    return ModelResult(row.name, times, wrong, share, others, peaks)


def _wrong(row: ModelRow, model: Any, calls: Mapping[str, Callable[[Inputs], list[Tensor]]]) -> str:
    """Hold weft's results to the error rule, beside eager's; say why they are not right."""
    reference = copy.deepcopy(model).double()
    if getattr(reference, "_can_set_experts_implementation", lambda: False)():
        reference.set_experts_implementation("eager")  # PyTorch's grouped products take no fp64
    exact = row.caller(reference, reference)
    given = list(map(row.inputs, range(_DRAWS)))
    own, eager = (Draws([calls[name](each) for each in given]) for name in (OWN, PLAIN))
    wanted = Draws([exact(cast(each, torch.float64)) for each in given])
    found = judge(own, eager, wanted)
    return "" if found else found.reason


def _profile(call: Callable[[Inputs], Any], pool: Sequence[Inputs]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the parts of weft's time, and the seconds a call of PyTorch's operations that are no products."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        for given in pool:
            call(given)
    parts = {"library": 0.0, "kernels": 0.0, "other": 0.0}
    others: dict[str, float] = {}
    for name, seconds in _events(seen):
        part = _part(name)
        parts[part] += seconds
        if part == "other":
            others[name] = seconds / len(pool)
    whole = sum(parts.values())
    most = sorted(others, key=lambda name: -others[name])[:8]
    return {name: each / whole for name, each in parts.items()}, {name: others[name] for name in most}


def _events(seen: Any) -> Iterator[tuple[str, float]]:
    for event in seen.key_averages():
        yield event.key, event.self_cpu_time_total / 1e6


def _part(name: str) -> str:
    if name.startswith("weft"):
        return "kernels"
    return "library" if any(part in name for part in _PRODUCTS) else "other"
