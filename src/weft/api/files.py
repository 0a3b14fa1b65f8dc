"""Reading and writing files that users name; everything wrong with a path is one kind of error."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from weft.api.given import kind_of
from weft.errors import ArgumentError, FileError, MissingFileError


def path_of(path: Any, called: str) -> Path:
    """Return `path`, as a path; ArgumentError where it is none."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            f"{called} is {kind_of(path)}, not a path", todo="give the path of a file, as text or a pathlib.Path"
        )
    text = os.fsdecode(path)  # pyright: ignore[reportUnknownArgumentType] - of text or bytes
    if "\0" in text:
        raise ArgumentError(
            f"{called} contains a null byte: {text!r}", todo="remove it: file names cannot contain null bytes"
        )
    return Path(text)


@contextmanager
def reading(path: Path, *, todo: str | None = None) -> Generator[None]:
    """Raise an OSError of reading `path` as FileError or MissingFileError; `todo`: what to do where it is gone."""
    try:
        yield
    except FileError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingFileError(f"there is no file {path}", todo=todo) from error
    except OSError as error:
        raise _refused(path, error, "read") from error


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """Write a file whole or not at all: with `replacing(path) as new`, what is written to `new` takes the place of
    `path` in the end.

    A path that is no ordinary file (a pipe, a terminal) is written to directly; for a link, the file that it points to is
    replaced.

    Raises:
        MissingFileError: the folder of `path` is not there.
        FileError: `path` is a folder, or cannot be written.
    """
    with _new_for(path, None) as (new, old):
        yield new
        if new != old:
            new.replace(old)


def write_json(path: Path, found: Mapping[str, object]) -> None:
    """Write `found` to `path`, whole or not at all. Raises FileError."""
    with replacing(path) as new:
        new.write_text(f"{json.dumps(found, indent=1)}\n", encoding="utf-8")


def demand_writable(path: Path, *, where: str | None = None) -> None:
    """Raise what `replacing` would, at the place `where`, unless a file can be written at `path`; nothing there changes."""
    with _new_for(path, where) as (new, old):
        if new != old:
            new.touch()
        elif not os.access(old, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def _new_for(path: Path, where: str | None) -> Generator[tuple[Path, Path]]:
    """Yield the path to write to for `path`, and the one that it replaces; for what is no ordinary file both are `path` itself."""
    try:
        if _is_special(path):
            yield path, path
            return
        old = Path(os.path.realpath(path))
        new = old.with_name(f".weft-{os.getpid()}-{secrets.token_hex(6)}.new")
        try:
            yield new, old
        finally:
            with suppress(OSError):
                new.unlink(missing_ok=True)
    except FileError:
        raise
    except OSError as error:
        folder = path.parent
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not folder.is_dir():
            todo = "make the folder, or name a file in another one"
            raise MissingFileError(f"there is no folder {folder}", where=where, todo=todo) from error
        raise _refused(path, error, "written", where) from error


def _is_special(path: Path) -> bool:
    """Tell whether there is something at `path` that is no ordinary file. Raises IsADirectoryError, and OSError."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return not stat.S_ISREG(mode)


def _refused(path: Path, error: OSError, done: str, where: str | None = None) -> FileError:
    """Make the error that `path`, whose folder is there, cannot be read or written."""
    if isinstance(error, IsADirectoryError):
        return FileError(f"{path} is a folder, not a file", where=where, todo=f"name a file in it: {path}/NAME")
    return FileError(f"{path} cannot be {done}: {error.strerror or error}", where=where)
