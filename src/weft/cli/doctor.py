"""`weft doctor`: what weft finds on this machine, line by line."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.text import Text

from weft.cli.command import console, reporting
from weft.cli.findings import findings

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@reporting
def doctor(as_json: bool) -> None:
    """Look at everything that weft needs or uses here, compile, prove and run a small kernel, and say what to do.

    Exits with 1 where something fails.
    """
    terminal, failed, seen = console(), False, list[dict[str, str]]()
    for finding in findings():
        failed |= finding.state == "fail"
        if as_json:
            seen.append(asdict(finding))
            continue
        terminal.print(
            Text(f"{finding.state:<5}", _COLOURS[finding.state]), f"{finding.name}: {finding.found}", markup=False
        )
        if finding.todo:
            terminal.print(f"      what to do: {finding.todo}", markup=False)
    if as_json:
        click.echo(json.dumps({"failed": failed, "findings": seen}, indent=1))
    if failed:
        raise SystemExit(1)
