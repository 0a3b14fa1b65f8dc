"""A process that checks and times pairs: a request a line on standard input, `{"archive": path, "pair": number}`.

Answers are lines of JSON, as those of `weft.lab.gpu.worker`: `{"trying": name}`, then what is found of the pair or
`{"error": why}`; after `{"broken": why}` the process is of no more use. What libraries print goes to standard error.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch
from pairs_made import Archive, MadePair, PackedLaunch, unpack
from pairs_space import PairSpace, read
from pairs_workloads import problem, workloads

from weft.lab.gpu.worker import setting
from weft.lab.measure import settle
from weft.lab.workloads.gpu import Workload
from weft.plan.measure.clock import first_calls, measure
from weft.plan.measure.spare import Spare
from weft.plan.targets import launch_specs, toolchain
from weft.plan.targets.candidates import Candidate, Way
from weft.plan.targets.graphs import GraphTimer, cache_filler
from weft.run.build import Binary
from weft.run.gpu import GpuBinary, driver
from weft.run.launch import make_launcher
from weft.target import CPU
from weft.verify.judge import reference

Tensors = Mapping[str, torch.Tensor]
Launcher = Callable[..., Sequence[torch.Tensor]]

_CUDA: Any = torch.cuda
# A result may be as far from fp64, in norm, as so many times eager's is, and by as many roundings of its type beside; and by
# what a long chain of additions loses in float32, where eager has a tree. What a wrong kernel gives is further away.
_ROUNDINGS, _CHAIN = 2, 1e-5


class WrongError(Exception):
    """A pair's result is wrong: the message says how."""


def spoilt(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Make a tensor whose elements show if nothing is written to them."""
    made = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
    return made.fill_(math.nan if dtype.is_floating_point else -1)


@dataclass
class PairSession:
    """The pairs of one archive.

    Attributes:
        archive: it.
        device: where they run: "cuda", or "cpu", also for what Triton's interpreter runs.
        best: the least seconds so far.
    """

    archive: Archive
    device: str
    best: float = math.inf

    @cached_property
    def workload(self) -> Workload:
        """Return what is computed."""
        return workloads(self.archive.target)[self.archive.about["workload"]]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that pairs were made for."""
        return tuple(self.archive.about["sizes"])

    @cached_property
    def operands(self) -> tuple[torch.Tensor, ...]:
        """Random operands."""
        return self.workload.inputs(self.sizes, 0, self.device)

    @cached_property
    def inputs(self) -> dict[str, torch.Tensor]:
        """Make what launches read of them, by name."""
        views = ((e, self.operands[e.operand]) for e in self.archive.inputs)
        return {e.name: torch.as_strided(own, e.shape, e.strides, e.offset) for e, own in views}

    @cached_property
    def exact(self) -> list[tuple[torch.Tensor, float, tuple[int, ...]]]:
        """For each result of the function: fp64's, of the part that is judged; the error allowed; and the shape of all of it."""
        work = self.workload
        eager = _tuple(work.fn(*self.operands))
        found: list[tuple[torch.Tensor, float, tuple[int, ...]]] = []
        exact = _tuple(reference(work.exact or work.fn, work.part(self.operands)))
        for own, wanted in zip(eager, exact, strict=True):
            error = _relative(work.cut(own), wanted)
            found.append((wanted, _ROUNDINGS * (error + torch.finfo(own.dtype).eps) + _CHAIN, tuple(own.shape)))
        return found

    @cached_property
    def timer(self) -> GraphTimer:
        """Make what times on a GPU."""
        return GraphTimer(cache_filler(torch.device("cuda", _CUDA.current_device())))

    def run(
        self, launches: Sequence[tuple[PackedLaunch, Launcher]], results: Sequence[str]
    ) -> tuple[torch.Tensor, ...]:
        """Run launches in order on the inputs, and return those tensors that are called `results`."""
        values = dict(self.inputs)
        for launch, call in launches:
            made = call(*(values[n] for n in (*launch.reads, *launch.begun)), *launch.sizes)
            values.update(zip(launch.writes, made, strict=True))
        return tuple(values[name] for name in results)

    def check(self, results: Sequence[torch.Tensor]) -> float:
        """Return the largest error of results, in norm, relative to fp64's; raises WrongError where it is not allowed."""
        worst = 0.0
        for own, (wanted, allowed, shape) in zip(results, self.exact, strict=True):
            if not bool(torch.isfinite(own).all()):
                raise WrongError("a result is not finite, or was not written")
            error = _relative(self.workload.cut(own.reshape(shape)), wanted)
            if not error <= allowed:
                raise WrongError(f"its relative error is {error:.3g}, where {allowed:.3g} is allowed")
            worst = max(worst, error)
        return worst

    def answer(self, number: int) -> dict[str, Any]:
        """Check and time a pair."""
        pair = self.archive.pairs[number]
        if self.archive.target == CPU:
            return self.on_cpu(pair)
        own = [(launch, self.archive.kernel(launch.kernel)) for launch in pair.launches]
        spoiling = [(launch, made.launching(partial(spoilt, device=self.device))) for launch, made in own]
        error = self.check(self.run(spoiling, pair.results))
        run = partial(self.run, [(launch, made.launch) for launch, made in own], pair.results)
        if self.device == "cpu":  # the interpreter's time says nothing
            return {"error_norm": error, "seconds": pair.predicted}
        seconds = self.timer.median(run, self.best)
        for _, made in own:
            if len(made.assembled) > 1:
                raise WrongError("it was compiled for another class of calls")
        self.best = min(self.best, seconds)
        return {"error_norm": error, "seconds": seconds, "binaries": [_loaded(made) for _, made in own]}

    # On a CPU.

    @cached_property
    def space(self) -> PairSpace:
        """The problem's pairs, of which kernels are made."""
        return PairSpace(problem(self.workload, self.sizes, CPU), CPU)

    def compiled(self, way: Way | Candidate) -> list[tuple[PackedLaunch, Binary]]:
        """Compile a program with places for a CPU, or find its kernels in the cache."""
        own = self.space.problem
        found: list[tuple[PackedLaunch, Binary]] = []
        for spec in launch_specs(own.program, way.applied, way.schedule, own.example):
            made = cast("Binary", toolchain(CPU).build(spec, dict).made)
            sizes = tuple(own.example.sizes[name] for name in made.signature.passed)
            found.append((PackedLaunch("", spec.part.reads, spec.part.begun, spec.part.writes, sizes), made))
        return found

    @cached_property
    def standard(self) -> Callable[[], Any]:
        """Make what is timed beside all pairs: the likeliest that weft itself would consider."""
        chosen = self.space.all(0, 0)[0].candidate
        calls = [(launch, made.launch) for launch, made in self.compiled(chosen)]
        return partial(self.run, calls, chosen.applied.graph.outputs)

    def on_cpu(self, pair: MadePair) -> dict[str, Any]:
        """Check and time a pair on a CPU, and in turn with it the reference, whose seconds are those `beside`."""
        way = self.space.way(pair.program, read(pair.schedule))
        if way is None:
            raise WrongError("this version of weft has no such pair")
        own = self.compiled(way)
        allocate = partial(spoilt, device="cpu")
        spoiling = [(launch, make_launcher(made.signature, made.function, None, allocate)) for launch, made in own]
        error = self.check(self.run(spoiling, pair.results))
        run = partial(self.run, [(launch, made.launch) for launch, made in own], pair.results)
        timed = measure(first_calls((run, self.standard), Spare(())), Spare(()))
        if timed.failure is not None:
            raise timed.failure
        mine, other = timed.timings
        seconds = {"seconds": mine.seconds, "taken": mine.seconds, "beside": other.seconds}
        return {"error_norm": error, **seconds, "load": round(timed.load, 2)}


def _relative(own: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of a difference relative to that of what is wanted."""
    return math.sqrt(float((own.double() - wanted).square().sum()) / float(wanted.square().sum()))


def _tuple(results: Any) -> tuple[torch.Tensor, ...]:
    return cast("tuple[torch.Tensor, ...]", results) if isinstance(results, tuple) else (results,)


def _loaded(made: GpuBinary) -> dict[str, int]:
    """Tell what the driver says of a kernel's binary."""
    (assembled,) = made.assembled
    found = driver.load(assembled, _CUDA.current_device())
    return {"registers": found.registers, "local_bytes": found.spilled, "shared_bytes": assembled.shared}


def serve(device: str) -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session: PairSession | None = None
    path = ""

    def say(found: Mapping[str, Any]) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    settle()
    say({"ready": device})
    for line in sys.stdin:
        asked = json.loads(line)
        if "setting" in asked:
            say(asdict(setting(device)))
            continue
        say({"trying": f"pair {asked['pair']}"})
        try:
            if session is None or path != asked["archive"]:
                session, path = None, asked["archive"]
                gc.collect()
                session = PairSession(unpack(Path(path)), device)
            with torch.no_grad():
                found = session.answer(asked["pair"])
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one pair, the others are measured
            found = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
            if device == "cuda" and (why := _beyond_use()):
                say({"broken": f"{found['error']}; {why}"})
                return
        say(found)


def _beyond_use() -> str:
    """Tell what is wrong with the GPU after an error; empty where it can go on."""
    try:
        _CUDA.synchronize()
        _CUDA.empty_cache()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


if __name__ == "__main__":
    serve(sys.argv[1])
