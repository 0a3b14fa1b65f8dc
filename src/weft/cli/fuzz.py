"""`weft fuzz`: campaigns of random functions, programs and rules, which can be resumed."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count as counted
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from weft.cli.command import NewFile, console, reporting
from weft.errors import CommandError
from weft.lab.fuzz.campaign import Course, Tally
from weft.lab.fuzz.record import Outcome

_COUNT = 200
_INTERRUPTED = 130
# Options that are of one kind alone.
_OF_KIND = {"jobs": "functions", "seconds": "functions", "operations": "programs", "compiled": "programs"}


@click.command()
@click.option(
    "--count",
    type=click.IntRange(min=1),
    help="Number of functions or programs; for rules, of applications.  "
    f"[default: {_COUNT}, or with --minutes as many as there is time for]",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="First seed; each further case adds 1."
)
@click.option(
    "--kind",
    type=click.Choice(["functions", "programs", "rules"]),
    default="functions",
    show_default=True,
    help="PyTorch functions through optimize and compile, tensor programs through every rewrite, or single rewrites.",
)
@click.option("--minutes", type=click.FloatRange(min=0), help="Start no new seed after this many minutes.")
@click.option(
    "--resume",
    "file",
    type=NewFile(),
    metavar="FILE",
    help="Write the result of each seed to FILE as it comes; if FILE exists, continue with the seeds that it lacks.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Functions: number of processes."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    help="Functions: time limit for each, on an idle machine.",
)
@click.option(
    "--operations",
    type=click.IntRange(min=1),
    help="Programs: approximate number of operations in each.  [default: 3 to 10]",
)
@click.option("--compiled", is_flag=True, help="Programs: also build each one's kernels and judge their results.")
@reporting
def fuzz(
    count: int | None,
    seed: int,
    kind: str,
    minutes: float | None,
    file: Path | None,
    jobs: int,
    **particular: Any,
) -> None:
    """Check random PyTorch functions, or random programs with every rewrite, each beside what was written.

    Functions are called through `weft.optimize` or `weft.compile`, with arguments of every type, odd values and layouts, at
    several sizes, and judged against eager PyTorch and fp64. A kernel that weft fails to make, or that its judge refuses, is a
    failure too. Programs go through every rewrite, random schedules and, with --compiled, kernels. For rules, each
    application of a law or a rule is checked by itself; if the check refutes a right one, that is a false alarm.

    For each failure it prints the seed and the smallest case that fails in the same way; for functions, as a file that can be
    run. Exits with 1 if anything failed. Ctrl-C ends the campaign and prints what was found so far.
    """
    _demand_kind(kind)
    count = count if count is not None or minutes is not None else _COUNT
    of_kind = {name: value for name, value in particular.items() if _OF_KIND[name] == kind}
    with ExitStack() as opened:
        kept = None
        if file is not None:
            from weft.lab.fuzz.record import record

            kept = opened.enter_context(record(file, {"kind": kind, "seed": seed, "count": count, **of_kind}))
            for line in kept.said:
                click.echo(line, err=True)
        course = Course(minutes, kept, _show)
        tally = _campaign(kind, count, seed, jobs, of_kind, course)
    console().print(tally.table())
    if tally.failures:
        raise SystemExit(1)
    if tally.interrupted:
        raise SystemExit(_INTERRUPTED)


def _demand_kind(kind: str) -> None:
    """Refuses options that say nothing of this kind. Raises CommandError."""
    context = click.get_current_context()
    given = [name for name in _OF_KIND if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    for name in given:
        if _OF_KIND[name] != kind:
            raise CommandError(
                f"it does not apply to {kind}, only to {_OF_KIND[name]}",
                where=f"--{name}",
                todo=f"omit it, or give --kind {_OF_KIND[name]}",
            )


def _show(failure: Outcome) -> None:
    click.echo(f"{failure}\n", err=True)


def _campaign(kind: str, count: int | None, seed: int, jobs: int, of_kind: dict[str, Any], course: Course) -> Tally:
    from weft.lab.fuzz import functions as fuzz_functions
    from weft.lab.fuzz import programs as fuzz
    from weft.lab.fuzz import rules as fuzz_rules

    if kind == "rules":
        return fuzz_rules.campaign(count, seed, course=course)
    seeds = counted(seed) if count is None else range(seed, seed + count)
    if kind == "functions":
        return fuzz_functions.campaign(seeds, jobs=jobs, course=course, **of_kind)
    return fuzz.campaign(seeds, course=course, **of_kind)
