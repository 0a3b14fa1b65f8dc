"""`weft demo` and `weft bench`: examples of the papers, and times beside those of others."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from weft.api.files import write_json
from weft.cli import first_calls as first
from weft.cli import models
from weft.cli.command import NewFile, R, console, reporting
from weft.errors import CommandError
from weft.lab import demo as study
from weft.lab import examples
from weft.lab.derivation import DERIVED, Compiled, DerivationOutcome, show
from weft.lab.first.compared import FirstCalls
from weft.lab.gpu import bench as gpu_bench
from weft.lab.gpu import peers as gpu_peers
from weft.lab.gpu.row import RowResult
from weft.lab.measure import setting, settle
from weft.lab.whole.measured import ModelResult
from weft.lab.workloads import cpu as workloads
from weft.run.compiler import find_compiler

# More than this many processes ready to run before it begins, and a benchmark's times say little.
_QUIET = 0.5


@click.command()
@click.option("--quick", is_flag=True, help="Small sizes, few rounds, without Inductor.")
@click.option("--json", "out", type=NewFile(), help="Also write the results to this file.")
@click.option(
    "--derivation",
    type=click.Choice(sorted(DERIVED)),
    help="Show only this derivation, with the program after every step.",
)
@reporting
def demo(quick: bool, out: Path | None, derivation: str | None) -> None:
    """Derive attention step by step; compile four functions in fp32 and bf16; show what was fused, how it was checked, times.

    Exits with 1 if a result is wrong or anything was left to PyTorch.
    """
    terminal = console()
    find_compiler()  # before anything is printed
    settle()
    derived = _derived(terminal, derivation or "attention", every=derivation is not None)
    if derivation is None:
        terminal.print()
        _study(examples.EXAMPLES, 3 if quick else 20, out, quick=quick, derived=derived)
    elif out is not None:
        write_json(out, {"setting": asdict(setting()), "derivation": asdict(derived)})
    _exit_where([] if derived.right else [f"{derived.function} is not right"])


def _derived(terminal: Console, name: str, *, every: bool) -> DerivationOutcome:
    """Derive and show the example of the paper with this name."""
    compiled = Compiled.of(name)
    found = compiled.found()
    show(terminal, compiled, found, every=every)
    return found


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=50, show_default=True, help="Timed calls of each peer.")
@click.option("--quick", is_flag=True, help="Small sizes, few rounds, without Inductor: a quick test.")
@click.option("--json", "out", type=NewFile(), help="Write each result to this file as soon as it is measured.")
@click.option(
    "--only", multiple=True, metavar="TEXT", help="Only functions whose name contains TEXT; may be given several times."
)
@click.option("--resume", is_flag=True, help="Keep the results that the --json file has, and measure what it lacks.")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="Device to measure on.  [default: cuda if there is a GPU]"
)
@click.option(
    "--peers",
    type=click.Choice(gpu_peers.CHOICES),
    default="best",
    show_default=True,
    help="GPU: what to time beside eager PyTorch; with --models, all has Inductor with tuned products too.",
)
@click.option(
    "--workers", type=click.IntRange(min=0), default=0, help="GPU: number of processes that compile rows in advance."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=math.inf, help="GPU: start no row after this many seconds."
)
@click.option("--every", is_flag=True, help="GPU: also measure rows of the papers' tables that have no target time.")
@click.option(
    "--again", is_flag=True, help="GPU: with --resume, also measure rows again whose result in the file is right."
)
@click.option("--first-calls", "instead", flag_value="time", help="Measure first calls instead, in new processes.")
@click.option(
    "--first-memory",
    "instead",
    flag_value="memory",
    help="Measure the most memory of first calls instead, all processes.",
)
@click.option("--models", "instead", flag_value="models", help="Measure whole models instead, each in a new process.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="With --first-calls: processes for each figure.",
)
@reporting
def bench(
    rounds: int,
    quick: bool,
    out: Path | None,
    only: tuple[str, ...],
    resume: bool,
    device: str | None,
    instead: str | None,
    processes: int,
    **gpu: Any,
) -> None:
    """Time the papers' functions beside eager PyTorch, Inductor and, for attention, PyTorch's own kernels; judge all errors.

    Lists what is left to PyTorch. Exits with 1 if a result is wrong. On a GPU, `--resume --seconds 0` only prints the results that
    the file holds. With --first-calls, rows are the benchmark's and small models of the package transformers, on a GPU those of
    --models too; exits with 1 if a second process compiles or chooses anything, or with --first-memory if compiling takes over
    2 GB beyond eager. With --models, rows are BERT, GPT-2, Llama and Mixtral in the sizes that people run.
    """
    if resume and out is None:
        raise CommandError("there is no file to resume", where="--resume", todo="give --json FILE too")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if instead == "models":
        earlier = _results(out, ModelResult.read) if resume and out is not None and out.exists() else []
        count, tuned = 3 if quick else rounds, gpu["peers"] == "all"
        seconds = gpu["seconds"]
        _exit_where(models.measure(only, device, count, earlier, out, small=quick, tuned=tuned, seconds=seconds))
        return
    if instead == "memory":
        _exit_where(first.measure_memory(only, device, out))
        return
    if instead == "time":
        measured = _results(out, FirstCalls.read) if resume and out is not None and out.exists() else []
        _exit_where(first.measure(only, device, processes, measured, out))
        return
    if device == "cuda":
        rows = gpu_bench.chosen(only, every=gpu.pop("every"))
        before = _results(out, RowResult.read) if resume and out is not None and out.exists() else []
        gpu |= {"peers": "eager", "small": True, "rounds": 3} if quick else {"rounds": rounds}
        done = gpu_bench.run(gpu_bench.BenchRequest(rows, **gpu), before, out, console())
        for table in gpu_bench.tables(done):
            console().print(table)
        _exit_where(gpu_bench.complaints(done))
        return
    chosen = [e for e in workloads.SUITE if not only or any(text.lower() in e.title.lower() for text in only)]
    if not chosen:
        titles = ", ".join(e.title for e in workloads.SUITE)
        raise CommandError(
            f"no function's name contains {' or '.join(only)}", where="--only", todo=f"there are: {titles}"
        )
    known = _results(out, study.WorkloadOutcome.read) if resume and out is not None and out.exists() else []
    _study(chosen, 3 if quick else rounds, out, quick=quick, derived=None, before=known)


def _results(path: Path, read: Callable[[Any], R]) -> list[R]:
    """Read what an earlier run wrote."""
    try:
        return [read(each) for each in json.loads(path.read_text(encoding="utf-8"))["results"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} does not hold results of this benchmark: {type(error).__name__}: {error}",
            where=str(path),
            todo="name a file that `weft bench --json` wrote, or omit --resume",
        ) from error


def _study(
    chosen: Sequence[examples.ExampleFunction],
    rounds: int,
    out: Path | None,
    *,
    quick: bool,
    derived: DerivationOutcome | None,
    before: Sequence[study.WorkloadOutcome] = (),
) -> None:
    """Run examples, print what was found, write it to `out` as it comes; exit with 1 unless all is right.

    With a derivation this is a demonstration: what was fused is shown too, and nothing may be left to PyTorch.
    """
    terminal = console()
    here = setting()
    terminal.print(f"weft {here.weft}, PyTorch {here.torch}, {here.threads} threads of {here.processor}\n")
    if derived is None and here.load > _QUIET:
        terminal.print(f"The machine is busy (load {here.load}): times will not be reliable.\n")
    found = [*before]
    more = {} if derived is None else {"derivation": asdict(derived)}
    for outcome in study.outcomes(chosen, rounds, quick=quick, known={o.row for o in before}):
        found.append(outcome)
        if derived is not None:
            study.show(terminal, outcome, with_listing=len(found) == 1)
            terminal.print()
        else:
            terminal.print(f"measured {', '.join(outcome.row)}: weft / best peer {outcome.ratio:.2f}")
        if out is not None:
            write_json(out, {"setting": asdict(here), "results": [each.written() for each in found], **more})
    _concluded(terminal, found, parts=derived is None)


def _concluded(terminal: Console, found: Sequence[study.WorkloadOutcome], *, parts: bool) -> None:
    """Print the tables; exit with 1 where something is wrong. With `parts` PyTorch may run some: that is listed."""
    for table in study.tables(found):
        terminal.print(table)
    if parts:
        terminal.print(study.summary(found))
        for outcome in found:
            if outcome.fallbacks:
                terminal.print(
                    f"left to PyTorch in {', '.join(outcome.row)}: {'; '.join(dict.fromkeys(outcome.fallbacks))}"
                )
    _exit_where(list(study.complaints(found, parts=parts)))


def _exit_where(wrong: Sequence[str]) -> None:
    """Print a line for everything that is wrong, and exit with 1 where anything is."""
    for line in wrong:
        click.echo(line, err=True)
    if wrong:
        raise SystemExit(1)
