"""What every subcommand of `weft` shares: error messages, a console, output files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import click
from rich.console import Console

from weft.api.files import demand_writable, path_of
from weft.errors import Location, WeftError

P = ParamSpec("P")
R = TypeVar("R")

_WIDTH = 152


class CommandRefused(click.ClickException):
    """An error of weft's as click shows it: whole, without a traceback."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Write it to standard error."""
        click.echo(f"weft: {self.message}", file=file, err=True)


def reporting(command: Callable[P, R]) -> Callable[P, R]:
    """Give `command` an option --debug; errors that weft explains come without a traceback unless it is given."""

    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @functools.wraps(command)
    def run(*args: Any, debug: bool, **kwargs: Any) -> Any:
        caller = Location.of_caller()
        try:
            return cast("Callable[..., Any]", command)(*args, **kwargs)
        except WeftError as error:
            if error.where == caller:  # the line that called this command is none of the user's
                error.where = None
            if debug:
                raise
            raise CommandRefused(str(error)) from error

    return cast("Callable[P, R]", run)


def console() -> Console:
    """Return standard output; where it is not a terminal, wide enough that no table is folded."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


class NewFile(click.ParamType[Path]):
    """A file to be written. Where it cannot be, the command ends before it does any work."""

    name = "file"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path. Raises Refused."""
        del ctx
        try:
            path = path_of(value, "the file")
            demand_writable(path, where=param.opts[0] if param is not None else "the command line")
        except WeftError as error:
            raise CommandRefused(str(error)) from error
        return path
