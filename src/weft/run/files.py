"""Files and folders of the cache: written atomically, read only if they are ours, removed when their writer died."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from weft.run import manifest

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
KEY = re.compile(r"[0-9a-f]{64}")

STALE_SECONDS = 3600.0
"""What a writer left unfinished for longer than this, its writer no longer wants: a compile is stopped after minutes."""

WAIT_SECONDS = 60.0
"""How long one process waits at most for another that builds the same entry."""

_POLL_SECONDS = 0.02
_SWEEP_SECONDS = 24 * 3600.0
_SWEPT = ".swept"
_TEMPORARY = re.compile(r"\..+\.\d+\.[0-9a-f]{12}")
_LOCK = re.compile(r"\.[0-9a-f]{64}\.lock")


def write_file(path: Path, content: bytes) -> None:
    """Writes `content` to `path` in one step as others see it: temporary name, then rename.

    Raises OSError; then nothing of it remains, unless the process was killed.
    """
    with writing(path) as file:
        file.write(content)


@contextmanager
def writing(path: Path) -> Generator[BinaryIO]:
    """Gives a file to write to, whose content takes the place of `path` in one step when all is written.

    Raises OSError; then nothing of it remains, unless the process was killed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_file(path: Path, most: int) -> bytes:
    """Reads a plain file of this user's.

    Raises OSError for anything else: a link or a pipe in its place, another user's file, one that is longer than `most` bytes.
    """
    # Without O_NONBLOCK, a pipe that lies there would be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & OTHERS_MAY_WRITE:
            raise OSError(errno.EPERM, "not a plain file that only this user can write to", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, "longer than it was written", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def claim(folder: Path) -> None:
    """Makes the entry's folder, in place of anything of that name that weft cannot have made."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if is_ours(folder):
            return
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink()
        folder.mkdir(mode=0o700)


def is_ours(folder: Path) -> bool:
    """Tells whether only this user can have put there what lies in `folder`. Raises OSError."""
    # What others put here while the folder stood open to them stays theirs after `chmod 700`.
    found = folder.lstat()
    safe = found.st_uid == os.geteuid() and not found.st_mode & OTHERS_MAY_WRITE
    return stat.S_ISDIR(found.st_mode) and safe


def entry_folders(root: Path) -> Iterator[Path]:
    """Yields the folders in `root` that have the name of an entry, in the order of names."""
    for child in _children(root):
        if KEY.fullmatch(child.name) and child.is_dir() and not child.is_symlink():
            yield child


def remove_entry(root: Path, key: str) -> bool:
    """Removes the entry `key` with its lock, unless there is anything in it that weft does not write; whether it is gone."""
    folder = root / key
    if folder.is_symlink() or any(not _is_of_an_entry(path.name) for path in _children(folder)):
        return False
    with suppress(OSError):
        # The manifest first: what is left at any instant is no entry.
        for path in (folder / manifest.NAME, *_children(folder)):
            path.unlink(missing_ok=True)
        folder.rmdir()
    with suppress(OSError):
        (root / f".{key}.lock").unlink()
    return not folder.exists()


@contextmanager
def alone(root: Path, key: str, seconds: float = WAIT_SECONDS) -> Generator[None]:
    """Keeps other processes and threads that ask here for `key` waiting while this lasts; for speed alone, nothing relies on it.

    The system takes the lock away from a process that dies. If there can be no lock (a read-only folder, a file system
    without locks), or the other takes longer than `seconds`, this one goes on all the same.
    """
    descriptor = _lock(root / f".{key}.lock", seconds)
    try:
        yield
    finally:
        if descriptor is not None:
            with suppress(OSError):
                (root / f".{key}.lock").unlink()
            # Said aloud: a child that was forked meanwhile holds the same lock, and closing here would not free it.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _lock(path: Path, seconds: float) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < end:
                time.sleep(_POLL_SECONDS)
                continue
        except OSError:
            pass
        else:
            return descriptor
        os.close(descriptor)
        return None


def sweep_daily(root: Path) -> None:
    """Runs `sweep`, unless that was done here within a day. Whatever goes wrong, the next process tries again."""
    stamp = root / _SWEPT
    with suppress(OSError):
        if _age(stamp) < _SWEEP_SECONDS:
            return
    with suppress(OSError):
        stamp.touch(mode=0o600)
        os.utime(stamp)
        sweep(root)


def sweep(root: Path) -> int:
    """Removes what writers left that were killed; how many files and folders that was.

    That is, where it is older than STALE_SECONDS: temporary files, locks, payloads that no manifest names, entries' folders without
    a manifest. An entry that is whole or damaged stays, and so does everything whose name weft does not give.
    """
    removed = 0
    for child in _children(root):
        if _LOCK.fullmatch(child.name):
            removed += _remove_stale(child)
    for folder in entry_folders(root):
        with suppress(OSError):
            removed += _sweep_entry(folder)
    return removed


def _sweep_entry(folder: Path) -> int:
    if not is_ours(folder):
        return 0
    try:
        found = manifest.parse(read_file(folder / manifest.NAME, manifest.MOST_BYTES))
    except FileNotFoundError:
        named, found = set[str](), None
    else:
        if found is None:  # damaged: a person may want to see it, and whoever needs the entry writes it anew
            return 0
        named = {manifest.NAME, *(manifest.stored_name(n, file["sha256"]) for n, file in found["files"].items())}
    stale = _age(folder) > STALE_SECONDS  # asked first: removing a file makes the folder younger
    removed = sum(
        _remove_stale(path) for path in _children(folder) if path.name not in named and _is_of_an_entry(path.name)
    )
    if found is None and stale:
        folder.rmdir()  # an error, unless it is empty
        removed += 1
    return removed


def _is_of_an_entry(name: str) -> bool:
    return name == manifest.NAME or _TEMPORARY.fullmatch(name) is not None or manifest.is_stored_name(name)


def _remove_stale(path: Path) -> bool:
    try:
        if _age(path) <= STALE_SECONDS:
            return False
        path.unlink()
    except OSError:  # gone meanwhile, or not to be removed
        return False
    return True


def _age(path: Path) -> float:
    """Returns the seconds since it was written. A date in the future says that the clock was wrong then or is now: as
    old as it is far off.
    """
    return abs(time.time() - path.lstat().st_mtime)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
