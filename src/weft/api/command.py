"""What every subcommand of `weft` needs: errors as the terminal shows them, a console, results as JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import click
from rich.console import Console

from weft.errors import CommandError, Location, WeftError

P = ParamSpec("P")
R = TypeVar("R")

_WIDTH = 152


class Refused(click.ClickException):
    """An error of weft's as click shows it: whole, without a traceback."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        """Write it to standard error."""
        click.echo(f"weft: {self.message}", file=file, err=True)


def reporting(command: Callable[P, R]) -> Callable[P, R]:
    """`command` with an option --debug; errors that weft explains come without a traceback unless it is given."""

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
            raise Refused(str(error)) from error

    return cast("Callable[P, R]", run)


def package_version() -> str:
    """The version of weft that is installed."""
    try:
        return version("weft")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0+unknown"


def console() -> Console:
    """Standard output; where it is not a terminal, wide enough that no table is folded."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH)


def write_json(path: Path, found: Mapping[str, object]) -> None:
    """Write `found` to `path`. Raises CommandError."""
    beside = path.with_name(f"{path.name}.new")  # whoever stops the command finds whole results
    try:
        beside.write_text(f"{json.dumps(found, indent=1)}\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> CommandError:
    """The error that `path` cannot be written."""
    return CommandError(
        f"{path} cannot be written: {error.strerror}", where=str(path), todo="name a file in a folder that is there"
    )
