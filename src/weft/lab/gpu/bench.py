"""`weft bench --device cuda`: rows compiled by several processes, measured by one, written as they come, compared with goals."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.api.files import write_json
from weft.errors import CommandError
from weft.lab.gpu import peers as gpu_peers
from weft.lab.gpu.row import OWN, RowResult, blank
from weft.lab.gpu.workers import BenchWorker, LostError, WatchedWorker, compile_all
from weft.lab.workloads.gpu import ROWS, Workload


@dataclass(frozen=True, slots=True)
class Goal:
    """Of a group of rows: the largest ratio to the best peer that one row, and that their geometric mean, may have."""

    each: float = math.inf
    mean: float = math.inf

    def __str__(self) -> str:
        said = [f"{self.each:g} each"] if self.each < math.inf else []
        return ", ".join([*said, f"mean {self.mean:g}"] if self.mean < math.inf else said)


GOALS = {
    "attention": Goal(1.20),
    "decode": Goal(1.03),
    "speculation and prompt": Goal(1.10, 0.9),
    "small layers": Goal(mean=0.75),
    "SwiGLU": Goal(0.97),
    "large layers": Goal(1.03),
    "MLA": Goal(mean=1.0),
    "MoE": Goal(mean=0.45),
    "Quant+GEMM": Goal(mean=0.9),
    "variance": Goal(mean=0.85),
    "inertia": Goal(mean=0.30),
}
ALL = Goal(mean=0.8)
"""For all rows of all groups together."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How a group stands.

    Attributes:
        group: its name.
        goal: what it is to reach.
        ratios: weft's time over the best peer's, of the rows that were measured and are right.
        lacking: rows that were not measured, where weft failed, or whose result is wrong.
    """

    group: str
    goal: Goal
    ratios: Mapping[str, float]
    lacking: tuple[str, ...]

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios; NaN where there is no row."""
        return math.exp(sum(map(math.log, self.ratios.values())) / len(self.ratios)) if self.ratios else math.nan

    @property
    def worst(self) -> tuple[str, float]:
        """The row with the largest ratio."""
        return max(self.ratios.items(), key=lambda each: each[1], default=("", math.nan))

    @property
    def above(self) -> tuple[str, ...]:
        """Rows that miss what each row is to reach."""
        return tuple(name for name, ratio in self.ratios.items() if ratio > self.goal.each)

    @property
    def met(self) -> bool:
        """Every row is there and right, and none misses the goal; nor does their mean."""
        return bool(self.ratios) and not self.lacking and not self.above and self.mean <= self.goal.mean


def reached(ratios: Mapping[str, float]) -> tuple[Reached, ...]:
    """Measure every group, then all rows of groups together; `ratios` of the rows that were measured and are right, by name."""
    members = {group: [row.name for row in ROWS if row.group == group] for group in GOALS}
    everything = [name for names in members.values() for name in names]
    return tuple(
        Reached(group, goal, {n: ratios[n] for n in names if n in ratios}, tuple(n for n in names if n not in ratios))
        for group, goal, names in [*((g, GOALS[g], members[g]) for g in GOALS), ("all", ALL, everything)]
    )


def table(ratios: Mapping[str, float]) -> Table:
    """Show how every group stands, for a terminal."""
    shown = Table("group", "goal", title="weft / best peer, by group")
    for head in ("rows", "geometric mean", "most", "met"):
        shown.add_column(head, justify="right")
    shown.add_column("rows above, and rows that lack")
    for each in reached(ratios):
        name, most = each.worst
        count = f"{len(each.ratios)} of {len(each.ratios) + len(each.lacking)}"
        above = [f"{n} {each.ratios[n]:.2f}" for n in each.above]
        lacking = [f"without {_listed(each.lacking)}"] if each.lacking else []
        met = Text("yes", "green") if each.met else Text("no", "bold red")
        shown.add_row(
            each.group, str(each.goal), count, _figure(each.mean), f"{_figure(most)} {name}".strip(), met,
            "; ".join([", ".join(above), *lacking] if above else lacking),
        )  # fmt: skip
    return shown


def _listed(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _figure(number: float) -> str:
    return "-" if math.isnan(number) else f"{number:.2f}"


_LIMIT = 120.0
# Of the time that there is, the part in which rows are compiled beforehand.
_COMPILING = 0.5
_COMPILED = ("weft", "inductor", "flex")


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What to measure, and how.

    Attributes:
        rows: which.
        peers: "best", "all" or "eager" (`weft.lab.gpu.peers.names`).
        device: "cuda"; "cpu" with small sizes to see that it works.
        small: at small sizes.
        rounds: timed replays of each candidate, at most.
        workers: processes that compile rows before they are measured.
        seconds: after so many no row begins.
        limit: seconds without a sign of life after which a process is ended.
        again: measure also rows that are known.
    """

    rows: Sequence[Workload]
    peers: str = "best"
    device: str = "cuda"
    small: bool = False
    rounds: int = 100
    workers: int = 0
    seconds: float = math.inf
    limit: float = _LIMIT
    again: bool = False

    def worker(self) -> BenchWorker:
        """Start a new process."""
        return BenchWorker(["-m", "weft.lab.gpu.worker", "--device", self.device, *(["--small"] if self.small else [])])


def chosen(only: Sequence[str], *, every: bool) -> list[Workload]:
    """Choose rows whose name is one of `only`, or contains it where none is called so; all that have a goal, or `every`, without.

    Raises:
        CommandError: there is none.
    """
    found: list[Workload] = []
    for text in only:
        called = [row for row in ROWS if row.name.lower() == text.lower()]
        found += called or [row for row in ROWS if text.lower() in row.name.lower()]
    if not only:
        found = [row for row in ROWS if every or row.group]
    if not found:
        names = ", ".join(row.name for row in ROWS)
        raise CommandError(f"no row's name contains {' or '.join(only)}", where="--only", todo=f"there are: {names}")
    return [row for row in ROWS if row in found]


def run(order: BenchRequest, before: Sequence[RowResult], out: Path | None, console: Console) -> list[RowResult]:
    """Measure what `before` has no right result of; results so far, in the order of the tables, are in `out` after each row.

    Raises:
        CommandError: there is no GPU, or processes cannot be started.
        FileError: `out` cannot be written.
    """
    known = set[str]() if order.again else {each.row for each in before if each.right}
    rows = [row for row in order.rows if row.name not in known]
    found = {each.row: each for each in before}
    ends = time.monotonic() + order.seconds
    if not rows or order.seconds <= 0:
        return in_order(found.values())
    if order.device == "cuda" and not torch.cuda.is_available():
        raise CommandError(
            "there is no GPU that PyTorch can use",
            where="--device",
            todo="see what `weft doctor` says, or use --device cpu",
        )
    timer = WatchedWorker(order.worker)
    try:
        place = _place(timer, order)
        _say(console, _described(place))
        if order.workers:
            timer.close()  # its memory is the compiling processes'
            _compile(order, rows, ends, console)
        for row in rows:
            if time.monotonic() >= ends:
                _say(console, f"stopped after {order.seconds:.0f} s, before {row.name}")
                break
            each = _measured(timer, order, row, place["rates"])
            found[row.name] = each
            _say(console, line(each))
            if out is not None:
                write_json(
                    out, {"setting": place["setting"], "results": [f.written() for f in in_order(found.values())]}
                )
    finally:
        timer.close()
    return in_order(found.values())


def _place(timer: WatchedWorker, order: BenchRequest) -> dict[str, Any]:
    """Describe where this is measured, with the rates that floors come from."""
    try:
        return timer.ask({"what": "setting"}, order.limit)
    except LostError as lost:
        raise CommandError(
            f"no row can be measured on {order.device}: {lost.why}",
            where="--device",
            todo="see what `weft doctor` says of the GPU, or measure with --device cpu",
        ) from lost


def _described(place: Mapping[str, Any]) -> str:
    here, rates = place["setting"], place["rates"]
    matmuls = ", ".join(f"{name} matmuls {rate / 1e12:.4g} TFLOP/s" for name, rate in rates["matrix"].items())
    return (
        f"weft {here['weft']}, PyTorch {here['torch']}, Triton {here['triton']}, {here['device']}: "
        f"copies {rates['copy'] / 1e12:.3g} TB/s, {matmuls}\n"
    )


def _compile(order: BenchRequest, rows: Sequence[Workload], ends: float, console: Console) -> None:
    """Fill the persistent caches."""
    requests = [
        {"what": "compile", "row": row.name, "names": [n for n in gpu_peers.names(row, order.peers) if n in _COMPILED]}
        for row in rows
    ]

    def said(request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        seconds = ", ".join(f"{name} {each:.1f} s" for name, each in answer.get("seconds", {}).items())
        failed = [f"{name}: {why}" for name, why in answer.get("failed", {}).items()]
        parts = [*filter(None, [seconds, answer.get("error", "")]), *failed]
        _say(console, f"compiled {request['row']}: {'; '.join(parts)}")

    left = (ends - time.monotonic()) * _COMPILING
    compile_all(order.worker, requests, order.workers, left, order.limit, said)


def _measured(timer: WatchedWorker, order: BenchRequest, row: Workload, rates: Mapping[str, Any]) -> RowResult:
    """Measure one row; where it cannot be measured, the result says why."""
    names = gpu_peers.names(row, order.peers)
    request = {"what": "measure", "row": row.name, "names": names, "rates": rates, "rounds": order.rounds}
    nothing = blank(row, row.sizes(small=order.small))
    try:
        answer = timer.without_what_breaks(request, order.limit)
    except LostError as lost:
        return replace(nothing, failed={lost.trying or "all": lost.why})
    return RowResult.read(answer["found"]) if "found" in answer else replace(nothing, failed={"all": answer["error"]})


def in_order(found: Iterable[RowResult]) -> list[RowResult]:
    """Sort rows in the order of the tables."""
    place = {row.name: number for number, row in enumerate(ROWS)}
    return sorted(found, key=lambda each: place.get(each.row, len(place)))


def line(found: RowResult) -> str:
    """Write a row as it is done."""
    failed = [f"{name} failed: {why}" for name, why in found.failed.items()]
    if OWN not in found.times:
        return f"{found.row}: no time of weft's; {'; '.join(failed)}"
    wrong = [] if found.right else [f"WRONG: {found.errors[OWN].reason}"]
    head = (
        f"{found.row}: {_us(found, OWN)} us, {found.ratio:.2f} x {found.peer}, {found.over_floor:.2f} x floor"
        f" ({found.runs}, {found.seconds:.1f} s)"
    )
    return "; ".join([head, *wrong, *failed])


# What is printed last.


def tables(found: Sequence[RowResult]) -> tuple[Table, Table]:
    """Make the tables of all rows, and of how groups stand."""
    names = dict.fromkeys(name for each in found for name in each.times if name != OWN)
    rows = Table("row", title="us: median of replayed CUDA graphs, cache emptied; * the best peer that is right")
    for head in ("floor", OWN, *(n.removeprefix("sdpa_") for n in names), "/ best", "/ floor"):
        rows.add_column(head, justify="right")
    for head in ("right", "runs"):
        rows.add_column(head)
    for each in found:
        floor = "-" if math.isnan(each.floor_ms) else _three(each.floor_ms)
        peers = [f"{_us(each, name)}{'*' if name == each.peer else ''}" for name in names]
        right = Text("yes", "green") if each.right else Text("NO", "bold red")
        figures = (floor, _us(each, OWN), *peers, _figure(each.ratio), _figure(each.over_floor))
        rows.add_row(each.row, *figures, right, each.runs)
    return rows, table({each.row: each.ratio for each in found if each.right and each.peer})


def complaints(found: Sequence[RowResult]) -> list[str]:
    """Write a line for every row in which weft failed, or is not right."""
    return [f"{each.row} is not right: {_why(each)}" for each in found if not each.right]


def _why(found: RowResult) -> str:
    failed = "; ".join(f"{name}: {why}" for name, why in found.failed.items())
    return found.errors[OWN].reason if OWN in found.errors else failed


def _three(milliseconds: float) -> str:
    us = milliseconds * 1e3
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}"


def _us(found: RowResult, name: str) -> str:
    return _three(found.times[name].median_ms) if name in found.times else ("failed" if name in found.failed else "-")


def _say(console: Console, text: str) -> None:
    """Print a line as it is: errors may hold what a terminal's markup would be."""
    console.print(text, markup=False, soft_wrap=True)
