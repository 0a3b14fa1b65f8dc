"""What first calls took, as tables; and what is to be reached."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import get_args

from rich.table import Table

from weft.lab.first.compared import OWN, PEER, TRACER, FirstCalls
from weft.phases import Phase

_COLD, _WARM, _LAYER = 1.0, 0.5, 0.05
"""What is to be reached: weft's cold and warm first calls by Inductor's, and seconds of a further equal layer."""

_PARTS = ("import", "Dynamo", *(each for each in get_args(Phase) if each != "compiler"), "processes")
"""Columns of processor seconds: for compilers, which are processes, it is the wall's that say something."""


def tables(found: Sequence[FirstCalls]) -> tuple[Table, ...]:
    """Make the tables: first calls beside Inductor's, where weft's went, and the means."""
    return _compared(found), _spent(found), _spent(found, warm=True), _means(found)


def line(found: FirstCalls) -> str:
    """Say what a row took."""
    wrong = [f"{name or 'left out'}: {why}" for name, why in found.failed.items()]
    if OWN not in found.cold or PEER not in found.cold:
        return f"{found.row}: {'; '.join(wrong)}"
    own, peer = found.cold[OWN], found.cold[PEER]
    return (
        f"{found.row}: {own[0]:.2f} s beside Inductor's {peer[0]:.2f} ({found.ratio():.2f}), "
        f"processor {own[1]:.2f} beside {peer[1]:.2f} ({found.ratio(processor=True):.2f})"
    )


def complaints(found: Sequence[FirstCalls]) -> list[str]:
    """List what a second process did again."""
    return [
        f"{each.row}: a second process compiled {each.compiles[1]} times and chose {each.choices[1]} times"
        for each in found
        if each.compiles[1] or each.choices[1]
    ]


def mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean of those that are numbers; NaN where none is."""
    known = [math.log(ratio) for ratio in ratios if not math.isnan(ratio)]
    return math.exp(statistics.mean(known)) if known else math.nan


def further_layers(found: Sequence[FirstCalls]) -> Iterator[tuple[str, float, float]]:
    """Yield for each family of models the seconds (wall, processor) of one more equal layer, beyond what Dynamo takes for it."""
    families: dict[str, list[FirstCalls]] = {}
    for each in found:
        if each.family and {OWN, TRACER} <= each.cold.keys():
            families.setdefault(each.family, []).append(each)
    for family, rows in families.items():
        few, many = min(rows, key=lambda r: r.layers), max(rows, key=lambda r: r.layers)
        if many.layers > few.layers:
            more = many.layers - few.layers
            wall, processor = (
                (many.cold[OWN][i] - few.cold[OWN][i] - many.cold[TRACER][i] + few.cold[TRACER][i]) / more
                for i in (0, 1)
            )
            yield family, wall, processor


def _compared(found: Sequence[FirstCalls]) -> Table:
    table = Table(
        *("row", "weft", "Inductor", "eager", "ratio", "processor", "warm: weft", "Inductor", "ratio", "processor"),
        *("compiles", "choices"),
        title="first calls, seconds; ratios to Inductor's of wall and processor seconds",
        box=None,
    )
    for each in found:
        if not each.cold:
            table.add_row(each.row, "; ".join(each.failed.values()))
            continue
        cold = [_seconds(each.cold[name][0]) if name in each.cold else "-" for name in (OWN, PEER, TRACER)]
        warm = [_seconds(each.warm[name][0]) if name in each.warm else "-" for name in (OWN, PEER)]
        ratios = [f"{each.ratio(warm=w, processor=p):.2f}" for w in (False, True) for p in (False, True)]
        counts = [f"{first}, {second}" for first, second in (each.compiles, each.choices)]
        table.add_row(each.row, *cold, *ratios[:2], *warm, *ratios[2:], *counts)
    return table


def _spent(found: Sequence[FirstCalls], *, warm: bool = False) -> Table:
    """Make the table of processor seconds, and of the wall's in which compilers were waited for."""
    title = f"where weft's processor seconds went, {'warm' if warm else 'cold'}"
    table = Table("row", *_PARTS, "wait for compilers", title=title, box=None)
    for each in found:
        phases = each.phases_warm if warm else each.phases
        if phases:
            parts = [_seconds(phases.get(name, (0.0, 0.0))[1]) for name in _PARTS]
            table.add_row(each.row, *parts, _seconds(phases.get("compiler", (0.0, 0.0))[0]))
    return table


def _means(found: Sequence[FirstCalls]) -> Table:
    table = Table("geometric means, or seconds", "wall", "processor", "at most", box=None)
    groups: tuple[tuple[str, Callable[[FirstCalls], bool]], ...] = (
        ("functions", lambda each: not each.family),
        ("models of two layers", lambda each: each.layers == 2),
    )
    for name, belongs in groups:
        rows = [each for each in found if belongs(each)]
        for warm, most in ((False, _COLD), (True, _WARM)):
            means = [mean([r.ratio(warm=warm, processor=p) for r in rows]) for p in (False, True)]
            if not math.isnan(means[0]):
                table.add_row(f"{name}, {'warm' if warm else 'cold'}", *(f"{m:.2f}" for m in means), f"{most:.2f}")
    for family, wall, processor in further_layers(found):
        table.add_row(f"one more layer of {family}", f"{wall:.3f} s", f"{processor:.3f} s", f"{_LAYER:.2f} s")
    return table


def _seconds(number: float) -> str:
    return f"{number:.2f}"
