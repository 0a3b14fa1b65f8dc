"""The most memory that a first call takes, with all processes that it starts, beside what `backend="eager"` takes."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from weft.lab.first.compared import OWN, PEER, TRACER, command, environment
from weft.lab.first.process import below
from weft.lab.first.rows import FirstRow

_SECONDS_BETWEEN = 0.05
_GB = 1e9
MOST_ABOVE = 2.0
"""Gigabytes that compiling may take beyond what eager takes."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The most memory that first calls of a row took with empty caches.

    Attributes:
        row: its name.
        peaks: by compiler, bytes: what the processes use alone, and of what several share each its part.
        processes: by compiler, how many there were at once at most.
        failed: by compiler, why there is no figure; "" for the whole row.
    """

    row: str
    peaks: Mapping[str, int] = field(default_factory=dict[str, int])
    processes: Mapping[str, int] = field(default_factory=dict[str, int])
    failed: Mapping[str, str] = field(default_factory=dict[str, str])

    def above(self, compiler: str) -> float | None:
        """Return the gigabytes that a compiler takes beyond eager; None where one is lacking."""
        if not {compiler, TRACER} <= self.peaks.keys():
            return None
        return (self.peaks[compiler] - self.peaks[TRACER]) / _GB


def peak_memory(subject: FirstRow, device: str) -> PeakMemory:
    """Call a row for the first time with each compiler, in a new process with empty caches."""
    if subject.missing:
        return PeakMemory(subject.name, failed={"": subject.missing})
    peaks, processes, failed = dict[str, int](), dict[str, int](), dict[str, str]()
    for compiler in (OWN, PEER, TRACER):
        with tempfile.TemporaryDirectory(prefix="weft-memory-") as folder, tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                command(subject.name, device, compiler),
                env=environment(folder),
                stdout=subprocess.DEVNULL,
                stderr=said,
                text=True,
            )
            most, count = watched(process)
            if process.returncode:
                said.seek(0)
                failed[compiler] = (said.read().strip().splitlines() or [f"status {process.returncode}"])[-1]
            else:
                peaks[compiler], processes[compiler] = most, count
    return PeakMemory(subject.name, peaks, processes, failed)


def watched(process: subprocess.Popen[str]) -> tuple[int, int]:
    """Wait for a process; return the most bytes that it and those below it used at once, and how many there were at most."""
    most = count = 0
    while True:
        sizes = list(_used((process.pid, *below(process.pid))))
        most, count = max(most, sum(sizes)), max(count, len(sizes))
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_BETWEEN)
            return most, count


def _used(numbers: Iterable[int]) -> Iterator[int]:
    """Yield the bytes of each process, as Linux says them; of memory that is shared, its part."""
    for number in numbers:
        with suppress(OSError, ValueError, StopIteration):
            lines = Path(f"/proc/{number}/smaps_rollup").read_text(encoding="ascii").splitlines()
            yield 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])


def table(found: Sequence[PeakMemory]) -> Table:
    """Make the table of peaks in gigabytes, and of what is beyond eager's."""
    made = Table(
        *(
            "row",
            "weft",
            "Inductor",
            "eager",
            "weft beyond eager",
            "Inductor beyond eager",
            "processes: weft",
            "Inductor",
        ),
        title=f"the most memory of first calls, all processes together, GB; weft at most {MOST_ABOVE:.0f} beyond eager",
        box=None,
    )
    for each in found:
        if not each.peaks:
            made.add_row(each.row, "; ".join(each.failed.values()))
            continue
        peaks = [f"{each.peaks[name] / _GB:.2f}" if name in each.peaks else "-" for name in (OWN, PEER, TRACER)]
        beyond = [each.above(name) for name in (OWN, PEER)]
        counts = [str(each.processes.get(name, "-")) for name in (OWN, PEER)]
        made.add_row(each.row, *peaks, *("-" if b is None else f"{b:.2f}" for b in beyond), *counts)
    return made


def too_much(found: Sequence[PeakMemory]) -> list[str]:
    """List the rows for which compiling takes too much, and those without a figure."""
    wrong = [f"{each.row}: {name}: {why}" for each in found for name, why in each.failed.items() if name]
    for each in found:
        above = each.above(OWN)
        if above is not None and above > MOST_ABOVE:
            wrong.append(f"{each.row}: compiling takes {above:.2f} GB beyond eager")
    return wrong
