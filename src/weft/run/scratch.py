"""Where temporary files go, and the folder that belongs to this process alone."""

from __future__ import annotations

import atexit
import errno
import functools
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOM_BYTES = 64 * 2**20
"""A compile and its binary need a few MiB; a folder with less room than this is passed over."""

STALE_SECONDS = 3600.0
"""A compiler's folder that is older than this is of a process that was killed: a compiler is stopped after minutes."""

_MEMORY = Path("/dev/shm")  # noqa: S108 - only unique folders of mode 0700 are made in it
_COMPILE, _PRIVATE = "weft-compile-", "weft-private-"
_LEFT = re.compile(rf"(?:{_COMPILE}|{_PRIVATE}(?P<pid>\d+)-)\w+")

_private: dict[int, Path] = {}
_lock = threading.Lock()


def scratch_base() -> Path:
    """Finds a writable folder with room: the platform's for temporary files, else one in memory.

    Raises OSError where neither will do.
    """
    for base in _bases():
        try:
            has_room = shutil.disk_usage(base).free >= ROOM_BYTES
        except OSError:
            continue
        if has_room and os.access(base, os.W_OK | os.X_OK):
            return base
    raise OSError(errno.ENOSPC, "no folder for temporary files is writable and has room")


def _bases() -> list[Path]:
    try:
        return [Path(tempfile.gettempdir()), _MEMORY]
    except FileNotFoundError:  # tempfile tried its candidates by writing to them
        return [_MEMORY]


@contextmanager
def compile_folder() -> Generator[Path]:
    """Makes a folder (mode 0700) for one run of the compiler, removed afterwards. Raises OSError."""
    base = scratch_base()
    sweep(base)
    folder, owner = Path(tempfile.mkdtemp(prefix=_COMPILE, dir=base)), os.getpid()
    try:
        yield folder
    finally:  # no `TemporaryDirectory`: a child that is forked off meanwhile would remove it when it ends
        _remove(folder, owner)


def private_folder() -> Path:
    """Returns a folder (mode 0700) of this process, removed when it ends. Raises OSError.

    A forked child gets one of its own; one that was removed from outside (by what tidies up folders for temporary files) is
    replaced, under another name.
    """
    with _lock:
        folder = _private.get(os.getpid())
        if folder is None or not folder.is_dir():
            base = scratch_base()
            folder = Path(tempfile.mkdtemp(prefix=f"{_PRIVATE}{os.getpid()}-", dir=base))
            _private[os.getpid()] = folder
            atexit.register(_remove, folder, os.getpid())
            sweep(base)
        return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child leaves its parent's folder alone
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def sweep(base: Path) -> None:
    """Removes folders in `base` of this user's that killed processes left; once in this process.

    A private folder goes when there is no process of its number, and not before it is as old as a compiler's has to be: on a
    machine where processes are numbered anew in each container, a folder of another container may lie here.
    """
    for path in _children(base):
        match = _LEFT.fullmatch(path.name)
        if match is None or not _is_stale(path):
            continue
        if match["pid"] is not None and _lives(int(match["pid"])):
            continue
        shutil.rmtree(path, ignore_errors=True)


def _children(base: Path) -> list[Path]:
    try:
        return [base / name for name in os.listdir(base) if name.startswith((_COMPILE, _PRIVATE))]  # noqa: PTH208 - many names
    except OSError:
        return []


def _is_stale(path: Path) -> bool:
    with suppress(OSError):
        found = path.lstat()
        # A date in the future says that the clock was wrong then or is now.
        old = abs(time.time() - found.st_mtime) > STALE_SECONDS
        return old and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process now
        return False
    return True
