"""Entries of the cache in one file, to be carried to other machines: written in one step, read entry by entry.

    weft cache 1
    weft entry KEY LENGTH       KEY is 64 hex digits, LENGTH 12
    ...                         the entry, as `artifacts.packed` gives it
    weft entry KEY LENGTH
    ...
    weft end COUNT SUM          of the entries, 12 hex digits; and the CRC-32 of these, 8

What is damaged costs the entries that it lies in: the next one is found by its line. Nothing in the file is unpickled; entries hold
native code, which runs once something asks for their keys.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from weft.errors import FileError, MissingFileError
from weft.run import artifacts
from weft.run import files as on_disk
from weft.run.cache import CacheFolder
from weft.run.manifest import Manifest

_FORMAT = 1
_FIRST = re.compile(rb"weft cache (\d{1,9})\n")
_LINE = re.compile(rb"weft (?:entry ([0-9a-f]{64}) ([0-9a-f]{12})|end ([0-9a-f]{12}) ([0-9a-f]{8}))\n")
_LONGEST = len(f"weft entry {'0' * 64} {'0' * 12}\n")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of the entries of a file.

    Attributes:
        new: the parts of those that were written, of each what its key is made of.
        here: how many were here already, or newer.
        damaged: how many were passed over.
        whole: whether the file has its end.
    """

    new: tuple[Mapping[str, str], ...]
    here: int
    damaged: int
    whole: bool


def export(path: Path, entries: Iterable[tuple[str, bytes]]) -> int:
    """Write entries, each with its key and as `CacheFolder.packed` gives it, and return how many there were.

    Raises:
        FileError: the file cannot be written; what was there before is there still.
    """
    count = 0
    try:
        with on_disk.writing(path) as file:
            file.write(f"weft cache {_FORMAT}\n".encode())
            for key, data in entries:
                file.write(f"weft entry {key} {len(data):012x}\n".encode())
                file.write(data)
                count += 1
            file.write(f"weft end {count:012x} {_sum(b'%012x' % count)}\n".encode())
    except OSError as error:
        raise FileError(
            f"{path} cannot be written: {error.strerror or error}", todo="free space there, or name another file"
        ) from error
    return count


def take_all(folder: CacheFolder, path: Path, *, trusted: bool = False) -> Imported:
    """Write the entries of a file to the cache folder: those that are whole, and not here already or newer.

    Args:
        folder: where they go.
        path: what `export` wrote.
        trusted: read the file whoever may have written it.

    Raises:
        FileError: the file cannot be read, or is something else; others may have written it; or the folder takes no more. Each
            entry is then there as a whole or not at all, and what was there before is there still.
    """
    with _opened(path, trusted=trusted) as file:
        new: list[Mapping[str, str]] = []
        here = found = bad = 0
        stated: int | None = None
        for each in _entries(file, path):
            match each:
                case None:
                    bad += 1
                case int():
                    stated = each
                case manifest, files:
                    found += 1
                    if _adopted(folder, manifest, files, len(new)):
                        new.append(manifest["parts"])
                    else:
                        here += 1
    return Imported(tuple(new), here, max(bad, (stated or 0) - found), stated is not None)


def _adopted(folder: CacheFolder, manifest: Manifest, files: Mapping[str, bytes], before: int) -> bool:
    try:
        return folder.adopt(manifest, files)
    except OSError as error:
        raise FileError(
            f"the cache folder {folder.path} cannot be written to: {error.strerror or error}; of the file, {before} "
            f"{'entry was' if before == 1 else 'entries were'} written",
            todo="free space there, or name another folder in WEFT_CACHE_DIR, and import again",
        ) from error


def _entries(file: BinaryIO, path: Path) -> Iterator[tuple[Manifest, dict[str, bytes]] | int | None]:
    """Yield each entry that is whole, None for one that is not, and at the end how many there should have been."""
    try:
        first = _FIRST.match(file.read(_LONGEST))
        if first is None or int(first[1]) != _FORMAT:
            what = (
                "is not what `weft cache export` writes" if first is None else "was written by a later version of weft"
            )
            raise FileError(f"{path} {what}", todo="export it again, with this version of weft")
        size, place = os.fstat(file.fileno()).st_size, first.end()
        while (line := _next_line(file, place)) is not None:
            place, match = line
            if match[3] is not None:
                if _sum(match[3]) == match[4].decode():
                    yield int(match[3], 16)
                continue
            length, entry = int(match[2], 16), None
            if length <= size - place:
                file.seek(place)
                entry = artifacts.unpacked(match[1].decode(), file.read(length))
            if entry is not None:
                place += length  # else the next line is looked for inside: the length may be what is damaged
            yield entry
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error


def _sum(text: bytes) -> str:
    return f"{zlib.crc32(text):08x}"


def _next_line(file: BinaryIO, place: int) -> tuple[int, re.Match[bytes]] | None:
    """Find the next line at `place` or behind it, and where it ends; None where there is none."""
    width = _LONGEST
    while True:
        file.seek(place)
        chunk = file.read(width)
        found = _LINE.search(chunk)
        if found is not None:
            return place + found.end(), found
        if len(chunk) < width:
            return None
        place += width - _LONGEST + 1
        width = _CHUNK


def _opened(path: Path, *, trusted: bool) -> BinaryIO:
    """Open a file that only this user can have written, or any where it is trusted."""
    try:
        # Without O_NONBLOCK, a pipe that lies there would be waited for.
        links = 0 if trusted else os.O_NOFOLLOW
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | links), "rb")
        try:
            _demand_own(path, os.fstat(file.fileno()), trusted=trusted)
        except BaseException:
            file.close()
            raise
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no file {path}") from error
    except OSError as error:
        if isinstance(error, FileError):
            raise
        if path.is_symlink() and not trusted:
            raise FileError(f"{path} is a link", todo="name the file itself, or give --trust") from error
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    return file


def _demand_own(path: Path, found: os.stat_result, *, trusted: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise FileError(f"{path} is no file", todo="name what `weft cache export` wrote")
    if trusted:
        return
    why = "could put code there that runs as you"
    trust = "or give --trust if you know who wrote it"
    if found.st_uid != os.geteuid():
        raise FileError(
            f"{path} belongs to another user (uid {found.st_uid}, yours is {os.geteuid()}), who {why}",
            todo=f"copy it from a place that you trust as yourself, {trust}",
        )
    if found.st_mode & on_disk.OTHERS_MAY_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        raise FileError(
            f"{path} can be written to by others (mode {mode:04o}), who {why}",
            todo=f"run `chmod go-w {path}` if nobody else has changed it, {trust}",
        )
    if not on_disk.is_ours(path.absolute().parent):
        raise FileError(
            f"{path} lies in a folder that others own or can write to, who {why}",
            todo=f"keep such files in a folder of your own, {trust}",
        )
