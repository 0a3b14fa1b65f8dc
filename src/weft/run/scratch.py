"""Where temporary files go, and the folder of this process alone."""

from __future__ import annotations

import atexit
import errno
import functools
import os
import shutil
import tempfile
from pathlib import Path

ROOM_BYTES = 64 * 2**20
"""A compile and its binary need a few MiB; a folder with less room than this is passed over."""

_MEMORY = Path("/dev/shm")  # noqa: S108 - only unique folders of mode 0700 are made in it


def scratch_base() -> Path:
    """A writable folder with room: the platform's for temporary files, else one in memory.

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


@functools.cache
def private_folder() -> Path:
    """A folder (mode 0700) of this process, removed when it ends. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix="weft-", dir=scratch_base()))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child leaves its parent's folder alone
        shutil.rmtree(folder, ignore_errors=True)
