"""Levels of fusion, and running states beside whole rows, on a GPU: what is measured for docs/measurements/gpu-levels.md.

    PYTHONPATH=src python benchmarks/gpu_levels.py FILE [--workers N] [--seconds S] [--only NAME]
    PYTHONPATH=src python benchmarks/gpu_levels.py FILE --plot FOLDER       # draws what FILE holds; needs no GPU
    PYTHONPATH=src python benchmarks/gpu_levels.py FILE --compile           # predicts and compiles for cuda:90, and runs nothing
    TRITON_INTERPRET=1 PYTHONPATH=src python benchmarks/gpu_levels.py FILE --small

Every point is a program that weft derives from plain PyTorch, under a schedule that is enumerated in `gpu_levels_ways.py`. It is
proven over finite fields, judged by `weft.judge` and timed as `weft bench --device cuda` does it: CUDA graphs of one function at
one size in turn, the second-level cache emptied before each, medians. FILE is written after every function and size; what it has
is not measured again. `--small` is for Triton's interpreter: it runs everything, and its times say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from gpu_levels_ways import (
    CELLS,
    CHIP,
    FUNCTIONS,
    SMALL,
    Cell,
    Exchange,
    Fused,
    Placed,
    Way,
    fused,
    ways,
)

from weft.api.files import write_json
from weft.errors import WeftError
from weft.lab.examples import ExampleFunction, OperandSpec
from weft.lab.gpu.clock import Clock, CudaClock, Rates, rates
from weft.lab.gpu.row import RowResult, Session, measure
from weft.lab.gpu.worker import setting
from weft.lab.measure import settle
from weft.lab.workloads.gpu import Workload
from weft.plan.targets.triton.build import Printed, built, launched
from weft.verify import Verdict, verify

T = TypeVar("T")

ROUNDS = 40
# Seconds after which Triton is stopped.
_COMPILING = 60.0
_EAGER = "eager"
_NOT_RUN = "not run"

# What a process of the pool does. Everything that it is given and gives is plain data; kernels come back through weft's cache.


def exchange(assembly: str, threads: int) -> Exchange:
    """Tell between whom a kernel moves values other than through memory, by its PTX and the threads of a program."""
    if re.search(r"\bbar(rier)?(\.cta)?\.sync", assembly):
        return Exchange.block if threads > CHIP.warp else Exchange.warp
    return Exchange.warp if re.search(r"\b(shfl|redux)\.sync", assembly) else Exchange.thread


def enumerated(cell: Cell, programs: Mapping[str, Fused]) -> list[Way]:
    """List the ways of a cell, with all that is read of them."""
    found = list(ways(cell, programs))
    for each in found:
        each.know()
    return found


def compiled(way: Way) -> Exchange | str:
    """Compile all kernels of `way` into the cache: between whom its first one exchanges values, or why there is none."""
    found: Exchange | None = None
    for step in way.steps:
        try:
            for each in built(step.program, step.candidate, step.example):
                made = each.assembled(_COMPILING)
                found = found or exchange(made.assembly, made.threads)
        except WeftError as error:
            return error.what
    assert found is not None
    return found


def proven(step: Placed) -> Verdict:
    """Prove that the applied program of `step` computes what was written."""
    return verify(step.program, step.candidate.applied)


# What is known of a way, and how it runs.


@dataclass(eq=False)
class Known:
    """A way of a cell, and what has become of it so far.

    Attributes:
        way: it.
        compiled: what `compiled` gives.
        proofs: of its steps' programs; equal ones share a proof.
        why: it is not measured because of this; empty: it is.
    """

    way: Way
    compiled: Future[Exchange | str] | None = None
    proofs: tuple[Future[Verdict], ...] = ()
    why: str = ""

    def refused(self) -> str:
        """Say why it is not measured, once it is compiled and proven; empty where it is."""
        if self.why:
            return self.why
        found = None if self.compiled is None else self.compiled.result()
        wanted = self.way.exchange
        if isinstance(found, str):
            self.why = found
        elif found is not None and wanted not in (None, found):
            self.why = f"its first kernel exchanges values in a {found.name}, not in a {wanted.name}"
        else:
            verdicts = (proof.result() for proof in self.proofs)
            self.why = next((str(verdict) for verdict in verdicts if not verdict.agrees), "")
        return self.why

    def call(self) -> Callable[..., Any]:
        """Runs it on the operands of its cell's function."""
        steps = [(step, built(step.program, step.candidate, step.example)) for step in self.way.steps]
        parameters, results = self.way.cell.parameters, self.way.cell.results

        def run(*inputs: torch.Tensor) -> Any:
            values = dict(zip(parameters, inputs, strict=True))
            for step, kernels in steps:
                values.update(zip(step.results, _launch(step, kernels, values), strict=True))
            made = tuple(values[name] for name in results)
            return made if len(made) > 1 else made[0]

        return run

    def written(self, times: RowResult | None) -> dict[str, Any]:
        """Return what the file holds of it."""
        way = self.way
        about: dict[str, Any] = {
            "name": way.name, "level": way.level, "form": way.form, "outputs": way.outputs,
            "schedule": [str(s.candidate.schedule) for s in way.steps], "launches": way.launches,
            "programs": way.first.thread_blocks,
            "waves": way.first.thread_blocks / CHIP.multiprocessors, "resident": way.first.resident,
            "corrections": asdict(way.corrections), "predicted_us": way.predicted * 1e6,
        }  # fmt: skip
        if self.why or times is None or way.name in times.failed:
            return {**about, "why": self.why or (times.failed[way.name] if times else _NOT_RUN)}
        timing, error = times.times[way.name], times.errors[way.name]
        return {
            **about, "us": timing.median_ms * 1e3, "best_us": timing.best_ms * 1e3, "rounds": timing.rounds, "right": error.right,
            "error": error.error, "allowed": error.allowed,
        }  # fmt: skip


def _launch(step: Placed, kernels: Sequence[Printed], values: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    own = {name: values[parameter] for parameter, name in step.inputs}
    made = launched(kernels, own, step.example.sizes)
    return [made[name] for name in step.candidate.applied.graph.outputs]


# The run.


@dataclass
class Run:
    """One run of the script.

    Attributes:
        pool: processes that fuse, compile and prove; None: this one does.
        begin: when it began.
    """

    pool: ProcessPoolExecutor | None
    begin: float

    def later(self, function: Callable[..., Any], *given: Any) -> Future[Any]:
        """Run `function` in a process of the pool."""
        if self.pool is not None:
            return self.pool.submit(function, *given)
        done: Future[Any] = Future()
        done.set_result(function(*given))
        return done

    def once(self, known: dict[str, Future[T]], key: str, function: Callable[..., T], *given: Any) -> Future[T]:
        """Run `function` once for all that ask with one `key`."""
        if key not in known:
            known[key] = self.later(function, *given)
        return known[key]

    def say(self, text: str) -> None:
        """Print a line, with the seconds so far."""
        sys.stderr.write(f"{time.monotonic() - self.begin:6.1f} s  {text}\n")

    def known(self, cells: Sequence[Cell], *, run: bool) -> dict[Cell, list[Known]]:
        """Return the ways of all cells, being compiled and proven; `run`: they are to run here."""
        asked = {name: self.later(fused, name) for name in dict.fromkeys(s for c in cells for s in c.functions)}
        programs: dict[str, Fused] = {name: each.result() for name, each in asked.items()}
        self.say(f"fused {', '.join(programs)}")
        found: dict[Cell, list[Known]] = {}
        proofs: dict[str, Future[Verdict]] = {}
        compiling: dict[str, Future[Exchange | str]] = {}
        asked_ways = {cell: self.later(enumerated, cell, {n: programs[n] for n in cell.functions}) for cell in cells}
        for cell, each_way in asked_ways.items():
            some = each_way.result()
            if run and _interpreted():  # warps and stages mean nothing there
                some = list({tuple(s.candidate.applied for s in way.steps): way for way in some}.values())
            found[cell] = [Known(way, why=way.unfit or "") for way in some]
            taken = [each for each in found[cell] if not each.why]
            # What takes longest goes first: many segments are many iterations of what is proven.
            for each in sorted(taken, key=lambda each: -each.way.outputs):
                steps = zip(each.way.proofs, each.way.steps, strict=True)
                each.proofs = tuple(self.once(proofs, key, proven, step) for key, step in steps)
            for each in taken if not (run and _interpreted()) else ():
                each.compiled = self.once(compiling, each.way.text, compiled, each.way)
        self.say(f"{sum(map(len, found.values()))} ways, {len(proofs)} proofs, {len(compiling)} sets of kernels")
        return found


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def workload(cell: Cell) -> Workload:
    """Return `cell` as a row of the benchmark: its function, operands, sizes."""
    function = FUNCTIONS[cell.function]
    operands = tuple(OperandSpec(shape) for shape in cell.shapes)
    example = ExampleFunction(
        str(cell), lambda _: function.fn, lambda _: operands, cell.sizes, cell.sizes, dtypes=(function.dtype,)
    )
    return Workload(example, "", lambda _: function.flops(cell.sizes), judged=cell.judged)


def measured(cell: Cell, known: Sequence[Known], clock: Clock, rate: Rates, rounds: int) -> tuple[RowResult, list[str]]:
    """Judge and time what is to be measured of a cell, in turn with eager; what is wrong with the others is in `Known.why`."""
    calls: dict[str, Callable[..., Any]] = {}
    for each in known:
        if not each.refused():
            calls[each.way.name] = each.call()
    session = Session(workload(cell), cell.sizes, clock, lambda _: None, calls=dict(calls))
    return measure(session, (_EAGER, *calls), rate, rounds), list(calls)


def written(cell: Cell, known: Sequence[Known], times: RowResult | None) -> dict[str, Any]:
    """Return a cell as the file has it."""
    about: dict[str, Any] = {"function": cell.function, "sizes": list(cell.sizes)}
    if times is not None:
        eager = times.times[_EAGER].median_ms * 1e3
        about |= {"eager_us": eager, "floor_us": times.floor_ms * 1e3, "judged": times.judged}
    return {**about, "points": [each.written(times) for each in known]}


def read(path: Path) -> dict[str, Any]:
    """Read the file; nothing where there is none."""
    return json.loads(path.read_text()) if path.exists() else {"cells": []}


def measure_all(arguments: argparse.Namespace, run: Run) -> dict[str, Any]:
    """Measure what the file lacks; all that it then holds."""
    path: Path = arguments.file
    held = read(path)
    have = {Cell(c["function"], tuple(c["sizes"])): c for c in held["cells"] if "eager_us" in c}
    wanted = [c for c in (SMALL if arguments.small else CELLS) if arguments.only in (None, c.function)]
    known = run.known([c for c in wanted if c not in have], run=True)
    for each in (each for some in known.values() for each in some):
        each.refused()
    run.say("all is compiled and proven")  # nothing else runs while times are taken
    settle()
    clock: Clock = Clock() if arguments.small else CudaClock()
    rate = rates(clock, small=arguments.small)
    place = asdict(setting(clock.device))
    found: dict[Cell, dict[str, Any]] = dict(have)
    measurements: dict[Cell, RowResult] = {}

    def save() -> dict[str, Any]:
        for cell, times in measurements.items():
            found[cell] = written(cell, known[cell], times)
        order = sorted(found, key=wanted.index) if set(found) <= set(wanted) else list(found)
        made = {"setting": place, "rates": asdict(rate), "cells": [found[cell] for cell in order]}
        write_json(path, made)
        return made

    for cell, some in known.items():
        if time.monotonic() - run.begin > arguments.seconds:
            run.say(f"stopped before {cell}")
            break
        measurements[cell], names = measured(cell, some, clock, rate, 1 if arguments.small else ROUNDS)
        save()
        run.say(f"{cell}: {len(names)} ways, {len(some) - len(names)} left out")
    return save()


def compile_all(arguments: argparse.Namespace, run: Run) -> dict[str, Any]:
    """Predict, compile and prove everything, and run nothing; what the file would hold but for times."""
    wanted = [c for c in (SMALL if arguments.small else CELLS) if arguments.only in (None, c.function)]
    known = run.known(wanted, run=False)
    for cell, some in known.items():
        refused = {each.way.name: each.refused() for each in some}
        for name, why in refused.items():
            if why:
                run.say(f"{cell}, {name}: {why}")
        run.say(f"{cell}: {sum(not why for why in refused.values())} of {len(some)} compiled")
    made = {"setting": asdict(setting("cpu")), "cells": [written(cell, some, None) for cell, some in known.items()]}
    write_json(arguments.file, made)
    return made


# What is printed last.


def best(cell: Mapping[str, Any], key: str = "us") -> dict[tuple[str, str, int], dict[str, Any]]:
    """Find the fastest right point for each level, form and number of outputs; with "predicted_us" the likeliest."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for point in cell["points"]:
        counts = point.get("right", False) if key == "us" else point["why"] == _NOT_RUN
        place = (point["level"], point["form"], point["outputs"])
        if counts and (place not in found or point[key] < found[place][key]):
            found[place] = point
    return found


def table(held: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each level and form of each cell."""
    for cell in held["cells"]:
        timed = "eager_us" in cell
        some = best(cell, "us" if timed else "predicted_us")
        eager = f", eager {cell['eager_us']:.1f} us, floor {cell['floor_us']:.1f} us" if timed else ""
        yield f"\n{cell['function']} {'x'.join(map(str, cell['sizes']))}{eager}"
        yield f"{'':34}{'us':>9}{'predicted':>10}{'launches':>9}{'programs':>9}{'waves':>7}{'corrected':>10}"
        base = some.get(("", "unfused", 1))
        for (level, form, outputs), p in some.items():
            corrections = sum(p["corrections"].values()) - p["corrections"]["empty"]
            own = f"{p['us']:9.1f}" if timed else f"{'-':>9}"
            beside = f"  {p['us'] / base['us']:.2f} x unfused" if timed and base else ""
            head = f"{f'{level} {form}'.strip()}, {outputs} outputs"
            yield (
                f"{head:34}{own}{p['predicted_us']:10.1f}{p['launches']:9}{p['programs']:9}{p['waves']:7.1f}"
                f"{corrections:10}{beside}"
            )
        wrong = [p for p in cell["points"] if not p.get("right", True)]
        left = [p for p in cell["points"] if "us" not in p and p["why"] != _NOT_RUN]
        yield f"{len(wrong)} wrong, {len(left)} left out" + "".join(
            f"\n  {p['name']}: error {p['error']:.3g}, allowed {p['allowed']:.3g}" for p in wrong
        )


def main() -> None:
    """Measure, compile or draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="JSON; what it has is not measured again")
    parser.add_argument("--only", choices=list(dict.fromkeys(c.function for c in CELLS)), help="one function")
    parser.add_argument(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="processes that compile and prove; 0: this one",
    )
    parser.add_argument("--seconds", type=float, default=480.0, help="no function and size is begun after so many")
    parser.add_argument("--compile", action="store_true", help="predict, compile and prove; run nothing")
    parser.add_argument("--small", action="store_true", help="at small sizes on a CPU, with TRITON_INTERPRET=1")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw what the file holds")
    arguments = parser.parse_args()
    if arguments.plot is not None:
        import gpu_levels_plot

        gpu_levels_plot.draw(read(arguments.file), arguments.plot)
        return
    pool = None
    if arguments.workers > 0:
        pool = ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn"))
    try:
        run = Run(pool, time.monotonic())
        held = (compile_all if arguments.compile else measure_all)(arguments, run)
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    sys.stdout.write("\n".join(table(held)) + "\n")


if __name__ == "__main__":
    main()
