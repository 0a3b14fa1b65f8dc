"""`weft bench --first-calls`: first calls beside Inductor's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from weft.api.files import write_json
from weft.cli.command import console
from weft.lab.first.compared import FirstCalls, first_calls
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
    for subject in subjects:
        if subject.name in known:
            continue
        each = first_calls(subject, device, processes)
        found.append(each)
        terminal.print(line(each), markup=False)
        if out is not None:
            write_json(out, {"setting": here, "device": device, "results": [f.written() for f in found]})
    for table in tables(found):
        terminal.print(table)
    return complaints(found)
