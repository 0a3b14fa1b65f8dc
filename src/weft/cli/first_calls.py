"""`weft bench --first-calls`: first calls beside Inductor's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from weft.api.files import write_json
from weft.cli.command import console
from weft.lab.first.compared import FirstCalls, first_calls, read_files
from weft.lab.first.memory import PeakMemory, peak_memory, table, too_much
from weft.lab.first.rows import chosen
from weft.lab.first.tables import complaints, line, tables
from weft.lab.measure import setting


def measure(
    only: Sequence[str], device: str, processes: int, before: Sequence[FirstCalls], out: Path | None
) -> list[str]:
    """Measure the rows that `before` lacks, print all of them, and write them to `out` after each.

    Returns:
        What second processes did again, a line each.

    Raises:
        CommandError: no row's name contains one of `only`.
    """
    terminal, here = console(), asdict(setting())
    subjects = chosen(only, device)
    found = [*before]
    known = {each.row for each in before}
    left = [subject for subject in subjects if subject.name not in known]
    if left:
        read_files(device)
    for subject in left:
        found.append(first_calls(subject, device, processes))
        terminal.print(line(found[-1]), markup=False)
        if out is not None:
            write_json(out, {"setting": here, "device": device, "results": [f.written() for f in found]})
    for each in tables(found):
        terminal.print(each)
    return complaints(found)


def measure_memory(only: Sequence[str], device: str, out: Path | None) -> list[str]:
    """Measure the most memory of the rows' first calls, print it, and write it to `out` after each row.

    Returns:
        For which rows weft takes too much, a line each.

    Raises:
        CommandError: no row's name contains one of `only`.
    """
    here, found = asdict(setting()), list[PeakMemory]()
    for subject in chosen(only, device):
        found.append(peak_memory(subject, device))
        if out is not None:
            write_json(out, {"setting": here, "device": device, "memory": [asdict(each) for each in found]})
    console().print(table(found))
    return too_much(found)
