"""One row of `weft bench --models`, in a process of its own: times, errors, and where weft's time goes."""

from __future__ import annotations

import copy
import functools
import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from weft.api.backend import backend
from weft.errors import LeftToPyTorchWarning
from weft.lab.first.compared import environment
from weft.lab.gpu.clock import CudaClock, Replay, alternate
from weft.lab.measure import PeerTiming, compare, settle
from weft.lab.whole.memory import most_allocated
from weft.lab.whole.profiled import profile
from weft.lab.whole.rows import Inputs, ModelRow, cast, rows
from weft.phases import spent
from weft.run import stats
from weft.verify.judge import Draws, judge

OWN, PEER, TUNED, PLAIN = "weft", "Inductor", "Inductor, tuned", "eager"
"""The compilers; the third is Inductor with tuned products. On a GPU the benchmark captures calls of all in CUDA graphs."""

_TORCH: Any = torch  # the type of torch.compile is only partly known
_DRAWS, _PROFILED, _TIMED_SECONDS = 2, 5, 5.0
_SECONDS = {"cpu": 1800, "cuda": 300}
_PROCESS = (
    "import sys; from weft.lab.whole.measured import answer; answer(*sys.argv[1:3], int(sys.argv[3]), sys.argv[4:])"
)


@dataclass(frozen=True, slots=True)
class ModelResult:
    """What was measured of a row.

    Attributes:
        row: its name.
        times: by compiler, what a call takes; on a GPU as a CUDA graph, without those that cannot be captured.
        wrong: why weft's results are not right; empty where they are, or cannot be compared.
        share: of weft's time, by "library" (products and convolutions), "kernels" (weft's) and "other" (PyTorch's other
            operations).
        others: seconds a call of the operations in "other" that take most, by name.
        peaks: by compiler, the most bytes of tensors at once beyond those before the call.
        first: by compiler, seconds of `torch.compile` and the calls that compile, one compiler after the other in one process.
        phases: seconds of weft's first calls by phase, of the thread that calls.
        left: what weft leaves to PyTorch, as its warnings say: graphs, and what it failed on.
        fallbacks: how many operations weft leaves to PyTorch, warned of or not; -1 where that was not counted.
        failed: why there are no figures.
    """

    row: str
    times: Mapping[str, PeerTiming] = field(default_factory=dict[str, PeerTiming])
    wrong: str = ""
    share: Mapping[str, float] = field(default_factory=dict[str, float])
    others: Mapping[str, float] = field(default_factory=dict[str, float])
    peaks: Mapping[str, int] = field(default_factory=dict[str, int])
    first: Mapping[str, float] = field(default_factory=dict[str, float])
    phases: Mapping[str, float] = field(default_factory=dict[str, float])
    left: Sequence[str] = ()
    fallbacks: int = -1
    failed: str = ""

    def ratio(self, peer: str) -> float:
        """Divide weft's median by that of `peer`; NaN where one is lacking."""
        return self.milliseconds(OWN) / self.milliseconds(peer)

    @property
    def best_ratio(self) -> float:
        """Divide weft's median by the lesser of Inductor's, tuned where that was measured; NaN where one is lacking."""
        return max(self.ratio(peer) for peer in (PEER, TUNED) if peer == PEER or peer in self.times)

    def milliseconds(self, name: str) -> float:
        """Return a compiler's median; NaN where it has none."""
        return self.times[name].median_ms if name in self.times else math.nan

    @property
    def covered(self) -> float:
        """Divide the time of weft's kernels by all that is outside the library; NaN where nothing was profiled."""
        own, other = self.share.get("kernels", 0.0), self.share.get("other", 0.0)
        return own / (own + other) if own + other else math.nan

    @staticmethod
    def read(written: Mapping[str, Any]) -> ModelResult:
        """Read what `asdict` gave, back from a file; raises KeyError or TypeError where that holds something else."""
        times = {name: PeerTiming(**each) for name, each in written["times"].items()}
        more: dict[str, Any] = {**written, "times": times, "left": tuple(written["left"])}
        return ModelResult(**more)


def measured(row: ModelRow, rounds: int, *, tuned: bool = False) -> ModelResult:
    """Measure a row in a new process with empty caches; `tuned`: also beside Inductor with tuned products."""
    with tempfile.TemporaryDirectory(prefix="weft-models-") as folder:
        command = [sys.executable, "-c", _PROCESS, row.name, row.device, str(rounds), *[TUNED] * tuned]
        try:
            done = subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                timeout=_SECONDS[row.device],
                env=environment(folder),
            )
        except subprocess.CalledProcessError as error:
            said = error.stderr.strip().splitlines() or [f"status {error.returncode}"]
            return ModelResult(row.name, failed=said[-1])
        except subprocess.TimeoutExpired:
            return ModelResult(row.name, failed=f"it had not ended after {_SECONDS[row.device]} s")
    return ModelResult.read(json.loads(done.stdout.splitlines()[-1]))


def answer(name: str, device: str, rounds: int, more: Sequence[str] = ()) -> None:
    """Measure the row called `name` here, beside `more` peers than usual, and print the result as a line of JSON."""
    warnings.simplefilter("ignore")
    settle()
    row = next(r for small in (False, True) for r in rows(device, small=small) if r.name == name)
    with torch.no_grad():
        sys.stdout.write(json.dumps(asdict(_here(row, rounds, more))) + "\n")


def _compiled(name: str, model: Any) -> Any:
    if name == PLAIN:
        return model
    model = _with_own_code(model)
    choice = {OWN: {"backend": backend}, PEER: {"backend": "inductor"}, TUNED: {"mode": "max-autotune-no-cudagraphs"}}
    return _TORCH.compile(model, **choice[name])


def _with_own_code(model: nn.Module) -> nn.Module:
    """Return a model of the same tensors whose `forward` is code of its own.

    Where Dynamo gives up some code under one compiler, as a recurrent layer under Inductor, it runs that code in eager for all.
    """
    old: Any = type(model).forward
    code = old.__code__.replace()
    forward = FunctionType(code, old.__globals__, old.__name__, old.__defaults__, old.__closure__)
    forward.__kwdefaults__ = old.__kwdefaults__
    own = copy.copy(model)
    own.__class__ = type(type(model).__name__, (type(model),), {"forward": functools.wraps(old)(forward)})
    return own


def _here(row: ModelRow, rounds: int, more: Sequence[str]) -> ModelResult:
    model: Any = row.model()
    calls: dict[str, Callable[[Inputs], list[Tensor]]] = {}
    first: dict[str, float] = {}
    phases: dict[str, float] = {}
    left: tuple[str, ...] = ()
    fallbacks = -1
    for name in (OWN, PEER, *more, PLAIN):
        inputs = list(map(row.inputs, range(row.first_calls)))
        _wait(row.device)
        begin = time.perf_counter()
        calls[name] = row.caller(_compiled(name, model), model)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", LeftToPyTorchWarning)
            for each in inputs:
                calls[name](each)
        _wait(row.device)
        first[name] = time.perf_counter() - begin
        if name == OWN:
            fallbacks = stats.snapshot().fallbacks
            phases |= {phase: each.wall for phase, each in spent().items()}
            left = tuple(dict.fromkeys(str(w.message) for w in said if issubclass(w.category, LeftToPyTorchWarning)))
    times = _times(row, calls, rounds)
    wrong = _wrong(row, model, calls) if row.judged else ""
    share, others = profile(calls[OWN], list(map(row.inputs, range(_PROFILED))), row.device)
    given = row.inputs(_PROFILED)
    peaks = {name: most_allocated(lambda call=call: call(given), row.device) for name, call in calls.items()}
    return ModelResult(row.name, times, wrong, share, others, peaks, first, phases, left, fallbacks)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _times(row: ModelRow, calls: Mapping[str, Callable[[Inputs], list[Tensor]]], rounds: int) -> dict[str, PeerTiming]:
    """Time the calls in turn: on a GPU as CUDA graphs of one input, those that can be captured."""
    if row.device == "cpu":
        return compare(calls, lambda number: (row.inputs(number),), rounds)
    clock, given = CudaClock(row.device), row.inputs(0)
    replays: dict[str, Replay] = {}
    for name, call in calls.items():
        with suppress(RuntimeError):  # a call that waits for the GPU is no graph
            replays[name] = clock.ready(call, (given,))
    return alternate(replays, clock, rounds, _TIMED_SECONDS)


def _wrong(row: ModelRow, model: Any, calls: Mapping[str, Callable[[Inputs], list[Tensor]]]) -> str:
    """Hold weft's results to the error rule, beside eager's; say why they are not right.

    Where the results of several draws and their references do not fit a GPU beside one another, one draw says it.
    """
    reference = copy.deepcopy(model).double()
    if getattr(reference, "_can_set_experts_implementation", lambda: False)():
        reference.set_experts_implementation("eager")  # PyTorch's grouped products take no fp64
    exact = row.caller(reference, reference)
    try:
        return _wrong_in(row, calls, exact, _DRAWS)
    except torch.OutOfMemoryError:
        pass  # what the failed attempt holds is let go of when it is no longer handled
    torch.cuda.empty_cache()
    return _wrong_in(row, calls, exact, 1)


def _wrong_in(
    row: ModelRow,
    calls: Mapping[str, Callable[[Inputs], list[Tensor]]],
    exact: Callable[[Inputs], list[Tensor]],
    draws: int,
) -> str:
    given = list(map(row.inputs, range(draws)))
    own, eager = (Draws([calls[name](each) for each in given]) for name in (OWN, PLAIN))
    wanted = Draws([exact(cast(each, torch.float64)) for each in given])
    found = judge(own, eager, wanted)
    return "" if found else found.reason
