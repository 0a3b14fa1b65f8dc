"""`weft bench --models`: whole models beside Inductor and eager PyTorch."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from weft.api.files import write_json
from weft.cli.command import console
from weft.lab.measure import setting
from weft.lab.whole.measured import ModelResult, measured
from weft.lab.whole.rows import chosen
from weft.lab.whole.tables import complaints, line, tables


def measure(
    only: Sequence[str],
    device: str,
    rounds: int,
    before: Sequence[ModelResult],
    out: Path | None,
    *,
    small: bool,
    tuned: bool = False,
    seconds: float = math.inf,
) -> list[str]:
    """Measure the rows for `device` that `before` lacks, print all of them, and write them to `out` after each.

    Args:
        only, device: as `chosen` takes them.
        rounds: timed calls of each compiler.
        before: results that need not be measured again.
        out: a file.
        small: take small models.
        tuned: time beside Inductor with tuned products too, which takes minutes a row to compile.
        seconds: begin no row after so many.

    Returns:
        What failed or is not right, a line each.

    Raises:
        CommandError: no row's name contains one of `only`, or the package transformers is missing.
    """
    terminal, here = console(), asdict(setting())
    found = [*before]
    known = {each.row for each in before}
    begin = time.monotonic()
    for row in chosen(only, device, small=small):
        if row.name in known or time.monotonic() - begin > seconds:
            continue
        found.append(measured(row, rounds, tuned=tuned))
        terminal.print(line(found[-1]), markup=False)
        if out is not None:
            write_json(out, {"setting": here, "device": device, "results": [asdict(each) for each in found]})
    for each in tables(found):
        terminal.print(each)
    return complaints(found)
