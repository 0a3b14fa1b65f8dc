"""One row of `weft bench --device cuda`: every candidate run on new operands, judged against fp64, then timed in turn.

A candidate that fails is listed with its error and left out. One that leaves the device beyond use takes its process with it: who
runs the row says so next time (`skip`), and the row is measured without it.
"""

from __future__ import annotations

import functools
import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import torch

from weft.lab.demo import Checked, chosen
from weft.lab.examples import Sizes
from weft.lab.gpu import peers as gpu_peers
from weft.lab.gpu.clock import Clock, Rates, Replay, alternate
from weft.lab.measure import PeerTiming
from weft.lab.workloads.gpu import Workload
from weft.options import options
from weft.run import stats
from weft.verify.judge import Draws, judge, reference

OWN = gpu_peers.OWN
_STANDARD = "eager"
_TORCH: Any = torch  # the type of torch.compiler is only partly known
_DRAWS = 4
_SECONDS = 1.0  # of timed replays
_LONGEST = 300  # characters of an error that are kept


@dataclass(frozen=True, slots=True)
class RowResult:
    """What became of a row.

    Attributes:
        row, group: its name, and whose goal it counts for.
        size, dtype: of its operands.
        times: by candidate, as CUDA graphs with the cache emptied.
        errors: by candidate, but for eager, under the error rule: of calls, and of a replay of the graph that is timed.
        failed: why a candidate is not among `times`.
        judged: what part of the result was compared with fp64.
        floor_ms: the larger of bytes (each operand and result once) and matmul operations over the rates.
        rates: of this run: bytes per second of a copy, operations per second of a matmul by element type.
        runs: what `weft.compile` runs: weft, weft with library matmuls, or PyTorch; and whether a part of it is PyTorch.
        kernels: launches of weft's in what it compiled, whatever runs.
        fallbacks: operations that weft left to PyTorch.
        seconds: that the row took.
    """

    row: str
    group: str
    size: str
    dtype: str
    times: Mapping[str, PeerTiming] = field(default_factory=dict[str, PeerTiming])
    errors: Mapping[str, Checked] = field(default_factory=dict[str, Checked])
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    judged: str = ""
    floor_ms: float = math.nan
    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    runs: str = ""
    kernels: int = 0
    fallbacks: int = 0
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """weft's result keeps the error rule, and was timed."""
        return OWN in self.times and self.errors[OWN].right

    @property
    def peer(self) -> str:
        """The fastest right peer; empty where none was timed. Eager sets the rule that the others are judged by."""
        peers = {n: t for n, t in self.times.items() if n != OWN and (n not in self.errors or self.errors[n].right)}
        return min(peers, key=lambda name: peers[name].median_ms, default="")

    @property
    def ratio(self) -> float:
        """weft's median over the best peer's; NaN where one is lacking."""
        return (
            self.times[OWN].median_ms / self.times[self.peer].median_ms if OWN in self.times and self.peer else math.nan
        )

    @property
    def over_floor(self) -> float:
        """weft's median over the floor; NaN where weft failed."""
        return self.times[OWN].median_ms / self.floor_ms if OWN in self.times else math.nan

    def written(self) -> dict[str, Any]:
        """Return what the results file holds of it."""
        figures = {"ratio": self.ratio, "over_floor": self.over_floor, "floor_ms": self.floor_ms}
        said = {name: None if math.isnan(figure) else figure for name, figure in figures.items()}
        return {**asdict(self), **said, "peer": self.peer, "right": self.right}

    @staticmethod
    def read(written: Mapping[str, Any]) -> RowResult:
        """Read what `written` gave, back from a file; raises KeyError or TypeError where that holds something else."""
        own = {n: v for n, v in written.items() if n not in ("ratio", "over_floor", "peer", "right")}
        own["errors"] = {name: Checked(**value) for name, value in written["errors"].items()}
        own["times"] = {name: PeerTiming(**value) for name, value in written["times"].items()}
        own["floor_ms"] = math.nan if written["floor_ms"] is None else written["floor_ms"]
        return RowResult(**own)


class RowError(Exception):
    """A row cannot be measured: the message says why."""


def blank(row: Workload, sizes: Sizes) -> RowResult:
    """Return what is known of a row before it is measured."""
    return RowResult(row.name, row.group, "x".join(map(str, sizes)), str(row.dtype).removeprefix("torch."))


@dataclass(slots=True)
class Session:
    """One row being measured.

    Attributes:
        row, sizes: what.
        clock: where, and by what.
        trying: told the name of each candidate before it runs.
        failed: candidates to leave out, and why; those that fail come to it.
        calls: the others, each once it was run.
        results: by candidate, what is judged of its results: of each draw, then of a replay.
    """

    row: Workload
    sizes: Sizes
    clock: Clock
    trying: Callable[[str], None]
    failed: dict[str, str] = field(default_factory=dict[str, str])
    calls: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    results: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def attempt(self, name: str, run: Callable[[], Any]) -> Any:
        """Run a candidate, and return its result; None where it fails, and `name` is given up.

        Raises:
            RowError: `name` is eager, by which all others are judged.
            RuntimeError: the device is beyond use after that.
        """
        self.trying(name)
        try:
            done = run()
            self.clock.wait()
        except Exception as error:  # whatever is wrong with one candidate, the others are measured
            self.failed[name] = said(error)
            self.calls.pop(name, None)
            self.results.pop(name, None)
            self.clock.wait()
            if name == _STANDARD:
                raise RowError(f"eager fails: {said(error)}") from error
            return None
        return done

    def call(self, name: str, inputs: Sequence[Any]) -> Any:
        """Call a candidate, and return its result, or None; it is made where it was not."""

        def run() -> Any:
            if name not in self.calls:
                self.calls[name] = gpu_peers.candidate(self.row, name)
            return self.calls[name](*inputs)

        return self.attempt(name, run)

    def inputs(self, number: int) -> tuple[torch.Tensor, ...]:
        """Draw random operands."""
        return self.row.inputs(self.sizes, number, self.clock.device)

    def kept(self, out: Any) -> Any:
        """Copy the part of a result that is judged."""
        parts = tuple(self.row.cut(t).clone() for t in tensors(out))
        return parts if isinstance(out, tuple) else parts[0]

    def clean(self) -> None:
        """Give memory back."""
        self.calls.clear()
        self.results.clear()
        gc.collect()
        self.clock.clear()


def said(error: BaseException) -> str:
    """Say an error in one line."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:_LONGEST]


def tensors(out: Any) -> tuple[torch.Tensor, ...]:
    """Return the tensors of a result."""
    return cast("tuple[torch.Tensor, ...]", out if isinstance(out, tuple) else (out,))


def warm(session: Session, names: Sequence[str]) -> dict[str, Any]:
    """Run candidates once, so that what they compile is in their caches: seconds of each, and why others failed.

    Others run beside this one: weft decides nothing by times (`measure="never"`), which would be kept.
    """
    _TORCH.compiler.reset()
    taken: dict[str, float] = {}
    inputs = session.inputs(0)
    with torch.no_grad(), options(measure="never"):
        for name in names:
            begin = time.perf_counter()
            session.call(name, inputs)
            if name in session.calls:
                taken[name] = time.perf_counter() - begin
    session.clean()
    return {"seconds": taken, "failed": session.failed}


def measure(session: Session, names: Sequence[str], rates: Rates, rounds: int) -> RowResult:
    """Judge and time the candidates of a row.

    Args:
        session: which row, and where.
        names: of candidates (`weft.lab.gpu.peers`); eager must be one.
        rates: of this run.
        rounds: as `alternate` takes it.

    Raises:
        RowError: eager itself fails, so that nothing can be judged.
        RuntimeError: the device is beyond use.
    """
    begin, row = time.perf_counter(), session.row
    _TORCH.compiler.reset()  # sizes of an earlier row would make this one's dynamic, which is slower
    with torch.no_grad():
        before = stats.snapshot()
        exact, gaps, moved = _draws(session, [name for name in names if name not in session.failed])
        after = stats.snapshot()
        session.clock.clear()
        replays = _replays(session)
        session.trying("the judge")
        errors = _judged(session, exact, gaps)
        session.trying("the clock")
        times = alternate(replays, session.clock, rounds, _SECONDS)
    floor = rates.floor(moved, row.flops(session.sizes), row.matrix) * 1e3
    found = replace(
        blank(row, session.sizes),
        times=times,
        errors=errors,
        failed=session.failed,
        judged=_part(row, session.results[_STANDARD][0], session.sizes),
        floor_ms=floor,
        rates={"copy": rates.copy, **rates.matrix},
        runs=_runs(before, after) if OWN in times else "",
        kernels=after.kernels - before.kernels,
        fallbacks=after.fallbacks - before.fallbacks,
    )
    del replays, exact
    session.clean()
    return replace(found, seconds=time.perf_counter() - begin)


def _draws(session: Session, names: Sequence[str]) -> tuple[list[Any], list[Any], float]:
    """Run every candidate on every draw; results in fp64, near-ties, and the bytes of operands and results."""
    row, exact, gaps, moved = session.row, list[Any](), list[Any](), 0.0
    for number in range(_DRAWS):
        inputs = session.inputs(number)
        for name in names:
            if name in session.failed:
                continue
            out = session.call(name, inputs)
            if name in session.calls:
                session.results.setdefault(name, []).append(session.kept(out))
            if name == _STANDARD:
                moved = float(sum(t.nbytes for t in (*inputs, *tensors(out))))
            del out
        part = row.part(inputs)
        exact.append(reference(row.exact or row.fn, part))
        gaps.append(None if row.example.gaps is None else row.example.gaps(*part))
    return exact, gaps, moved


def _replays(session: Session) -> dict[str, Replay]:
    """Make every candidate ready; what a replay leaves in results that were spoilt before is judged with the rest."""
    inputs = session.inputs(0)
    replays: dict[str, Replay] = {}

    def replayed(call: Callable[..., Any]) -> tuple[Replay, Any]:
        replay = session.clock.ready(call, inputs)
        for tensor in tensors(replay.out):
            tensor.fill_(math.nan if tensor.is_floating_point() else -1)
        replay.run()
        session.clock.wait()
        return replay, session.kept(replay.out)

    for name, call in list(session.calls.items()):
        made = session.attempt(name, functools.partial(replayed, call))
        if made is not None:
            replays[name] = made[0]
            session.results[name].append(made[1])
    return replays


def _judged(session: Session, exact: list[Any], gaps: list[Any]) -> dict[str, Checked]:
    """Judge every candidate's results; the last of each are a replay on the first operands."""
    eager = session.results[_STANDARD]
    near = None if gaps[0] is None else Draws([*gaps, gaps[0]])
    return {
        name: Checked.of(judge(Draws(results), Draws(eager), Draws([*exact, exact[0]]), gaps=near))
        for name, results in session.results.items()
        if name != _STANDARD
    }


def _runs(before: stats.Stats, after: stats.Stats) -> str:
    """Name what a compiled function runs."""
    if after.kernels == before.kernels:
        return "PyTorch"
    left = after.fallbacks > before.fallbacks
    what = chosen(before, after)
    return f"{what}, in part PyTorch" if left and what != "PyTorch" else what


def _part(row: Workload, kept: Any, sizes: Sizes) -> str:
    cut = list(zip(tensors(kept)[0].shape, sizes, strict=False))[: len(row.judged)]
    return "all" if all(n == whole for n, whole in cut) else "the first " + " x ".join(f"{n} of {w}" for n, w in cut)
