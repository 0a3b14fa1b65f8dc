"""The file of a campaign: a line of JSON for what it is, then one for each seed, written when the seed is done.

So a campaign that was stopped, by whatever, goes on at the seeds that its file lacks.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

import torch

from weft import __version__
from weft.api.files import reading
from weft.errors import CommandError
from weft.lab.measure import commit


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one seed.

    Attributes:
        seed: of what was drawn, and of all choices.
        stage: where it is wrong; None where nothing is, `PYTORCH` where that is none of weft's doing.
        what: is wrong, in words.
        text: what was drawn, and the smallest found that fails at the same stage.
        counts: what the tally adds up.
        seconds: that it took, without making it smaller.
        minimal: the smallest itself; not kept in files.
    """

    seed: int
    stage: str | None = None
    what: str = ""
    text: str = ""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0
    minimal: Any = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.stage}: {self.what}\n\n{self.text}"


_KEPT = [f.name for f in fields(Outcome) if f.name != "minimal"]
_ARGUMENTS = "arguments"


class Record:
    """An open file of a campaign; see `record`.

    Attributes:
        outcomes: what was found before it was opened.
        said: what the user should know: where it goes on, and with which other commit.
    """

    def __init__(self, file: TextIO, outcomes: list[Outcome], said: list[str], made_by: Mapping[str, Any]) -> None:
        self._file, self.outcomes, self.said, self._made_by = file, outcomes, said, made_by

    def add(self, outcome: Outcome) -> None:
        """Write one more outcome, with the commit that it is of; it is in the file when this returns."""
        self.write({**{name: getattr(outcome, name) for name in _KEPT}, **self._made_by})

    def write(self, line: Mapping[str, Any]) -> None:
        """Write a line, of whatever."""
        self._file.write(f"{json.dumps(line)}\n")
        self._file.flush()


@contextmanager
def record(path: Path, arguments: Mapping[str, Any]) -> Generator[Record]:
    """Open the file of a campaign, and begin it where there is none.

    Args:
        path: of the file.
        arguments: all that decides what the campaign finds of a seed, and its seeds.

    Raises:
        CommandError: the file is one of other arguments, or none of a campaign; or another process writes it.
        FileError: it cannot be read or written.
    """
    made_by = {"commit": commit(), "torch": torch.__version__}
    with reading(path), path.open("a+", encoding="utf-8") as file:
        _alone(file, path)
        lines = _whole_lines(file)
        header, outcomes = _read(lines, path)
        kept = Record(file, outcomes, [], made_by)
        if header is None:
            kept.write({_ARGUMENTS: dict(arguments), "weft": __version__, **made_by})
        else:
            _demand_same(header[_ARGUMENTS], arguments, path)
            kept.said.append(f"{path} has {len(outcomes)} seeds; the others follow.")
            before = {name: header.get(name) for name in made_by}
            if before != made_by:
                kept.said.append(f"It was begun with {_named(before)}, and goes on with {_named(made_by)}.")
        yield kept


def _alone(file: TextIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CommandError(
            f"another campaign writes {path}", where="--resume", todo="name another file, or wait for it"
        ) from error


def _whole_lines(file: TextIO) -> list[str]:
    """Return the lines that were written whole; half a line at the end, of a process that was stopped, is taken off the file."""
    file.seek(0)
    text = file.read()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        os.truncate(file.fileno(), len(whole.encode()))
        file.seek(0, os.SEEK_END)
    return whole.splitlines()


def _read(lines: list[str], path: Path) -> tuple[dict[str, Any] | None, list[Outcome]]:
    try:
        made: list[dict[str, Any]] = [json.loads(line) for line in lines]
        header = {**made[0], _ARGUMENTS: dict(made[0][_ARGUMENTS])} if made else None
        return header, [Outcome(**{name: each[name] for name in _KEPT}) for each in made[1:]]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} holds no results of `weft fuzz`: {type(error).__name__}: {error}",
            where="--resume",
            todo="name a file that `weft fuzz --resume` began, or one that is not there yet",
        ) from error


def _demand_same(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    other = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if other:
        was = ", ".join(f"{name} {before.get(name)} (now {now.get(name)})" for name in other)
        raise CommandError(
            f"{path} is a campaign of other arguments: {was}",
            where="--resume",
            todo="give the arguments that it was begun with, or name another file",
        )


def _named(made_by: Mapping[str, Any]) -> str:
    return f"commit {made_by['commit'] or 'unknown'}, PyTorch {made_by['torch']}"
