"""What calls of whole models took, as tables; and what is to be reached."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from weft.lab.first.tables import mean
from weft.lab.whole.measured import OWN, PEER, PLAIN, TUNED, ModelResult

_MB = 1e6
_GOALS = (
    ("eager fp32", PEER, 1.03, 0.8),
    ("sdpa fp32", PEER, 1.03, 0.8),
    ("eager bf16", PEER, 1.0, 0.8),
    ("sdpa bf16", PEER, 1.03, 0.95),
    ("bf16", PLAIN, 1.0, 1.0),
)
"""What is to be reached by rows of a kind: weft by a peer, a row at most and the geometric mean; Inductor's is its best mode."""

_COVERED = 0.95
"""And kernels' part of the time outside the library."""


def line(found: ModelResult) -> str:
    """Say what a row took."""
    if found.failed:
        return f"{found.row}: {found.failed}"
    own, peer, plain = map(found.milliseconds, (OWN, PEER, PLAIN))
    tuned = f", tuned {found.milliseconds(TUNED):.2f} ({found.ratio(TUNED):.2f})" * (TUNED in found.times)
    beside = f"{own:.2f} ms beside Inductor's {peer:.2f} ({own / peer:.2f}){tuned}"
    return f"{found.row}: {beside} and eager's {plain:.2f} ({own / plain:.2f})"


def tables(found: Sequence[ModelResult]) -> tuple[Table, ...]:
    """Make the tables: times of each row, where weft's goes, first calls, and the means."""
    return _rows(found), _parts(found), _first(found), _means(found)


def complaints(found: Sequence[ModelResult]) -> list[str]:
    """List what failed, and results that are not right."""
    failed = [f"{each.row}: {each.failed}" for each in found if each.failed]
    return failed + [f"{each.row}: {each.wrong}" for each in found if each.wrong]


def _rows(found: Sequence[ModelResult]) -> Table:
    table = Table(
        *("row", "weft", "Inductor", "its tuned mode", "eager", "weft/best Inductor", "weft/eager"),
        *("memory: weft", "Inductor", "eager"),
        title="a call of whole models, ms; the most memory at once that PyTorch allocates, MB: not what a kernel takes for itself",
        box=None,
    )
    for each in found:
        if each.failed:
            table.add_row(each.row, each.failed)
            continue
        times = [f"{each.milliseconds(name):.2f}" for name in (OWN, PEER, TUNED, PLAIN)]
        ratios = [f"{each.best_ratio:.2f}", f"{each.ratio(PLAIN):.2f}"]
        peaks = [f"{each.peaks[name] / _MB:.1f}" if name in each.peaks else "-" for name in (OWN, PEER, PLAIN)]
        table.add_row(each.row, *times, *ratios, *peaks)
    return table


def _parts(found: Sequence[ModelResult]) -> Table:
    table = Table(
        *("row", "library", "kernels", "other", "of the rest in kernels", "most of the other, ms"),
        title="parts of weft's time, by the profiler",
        box=None,
    )
    for each in found:
        parts = [f"{each.share.get(name, math.nan):.2f}" for name in ("library", "kernels", "other")]
        most = ", ".join(f"{name} {seconds * 1e3:.2f}" for name, seconds in list(each.others.items())[:3])
        table.add_row(each.row, *parts, f"{each.covered:.2f}", most)
    return table


def _first(found: Sequence[ModelResult]) -> Table:
    table = Table(
        *("row", "weft", "Inductor", "weft/Inductor", "most of weft's, by phase", "left to PyTorch"),
        title="torch.compile and the first call, s, in one process: weft's comes first, and includes what both need",
        box=None,
    )
    for each in found:
        own, peer = (each.first.get(name, math.nan) for name in (OWN, PEER))
        most = sorted(each.phases.items(), key=lambda item: -item[1])[:3]
        phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in most)
        table.add_row(
            each.row,
            f"{own:.1f}",
            f"{peer:.1f}",
            f"{own / peer:.2f}",
            phases,
            "-" if each.fallbacks < 0 else str(each.fallbacks),
        )
    return table


def _means(found: Sequence[ModelResult]) -> Table:
    table = Table("", "geometric mean", "to be reached", "most", "to be reached", "rows", box=None)
    for rows, peer, most, middle in _GOALS:
        each = [e.best_ratio if peer == PEER else e.ratio(peer) for e in found if e.row.endswith(rows)]
        ratios = [ratio for ratio in each if not math.isnan(ratio)]
        if ratios:
            figures = f"{mean(ratios):.2f}", f"{middle:.2f}", f"{max(ratios):.2f}", f"{most:.2f}", str(len(ratios))
            table.add_row(f"weft by {peer}, {rows}", *figures)
    covered = [each.covered for each in found if not math.isnan(each.covered)]
    if covered:
        least = f"{min(covered):.2f} (least)", f"{_COVERED:.2f}"
        table.add_row("of the time outside the library in kernels", *least, "", "", str(len(covered)))
    return table
