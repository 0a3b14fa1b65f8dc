"""Children for tests of the cache: other users, other file systems, and processes that report back."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOBODY = 65534
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_CLONE_NEWNS = 0x20000


def child(run: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Starts `run` in a forked process; the result waits for it and gives what it gave, or raises what it raised."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def body() -> None:
        try:
            send.send((True, run(*args)))
        except BaseException:  # noqa: BLE001 - told to the parent, which raises
            send.send((False, traceback.format_exc()))

    process = context.Process(target=body)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads
        process.start()
    send.close()

    def result() -> Any:
        good, value = receive.recv()
        process.join()
        assert good, value
        return value

    return result


def as_nobody(run: Callable[..., Any], *args: Any) -> Any:
    """`run(*args)` in a child without any right of root's; needs root."""

    def body() -> Any:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return run(*args)

    return child(body)()


def in_mounts(mounts: Callable[[], None], run: Callable[..., Any], *args: Any) -> Any:
    """`run(*args)` in a child that has made mounts of its own, which end with it. PermissionError where that is not allowed."""

    def body() -> Any:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNS) != 0:
            return None
        mount("none", "/", None, _MS_REC | _MS_PRIVATE)
        mounts()
        return (run(*args),)

    given = child(body)()
    if given is None:
        raise PermissionError("this process may not mount")
    return given[0]


def mount(what: str, where: Path | str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    texts = [None if t is None else str(t).encode() for t in (what, where, kind)]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(*texts, ctypes.c_ulong(flags), None if data is None else data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(where))


def mount_read_only(folder: Path) -> None:
    mount(str(folder), folder, None, _MS_BIND)
    mount("none", folder, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def mount_small(folder: Path | str, kib: int) -> None:
    mount("tmpfs", folder, "tmpfs", 0, f"size={kib}k,mode=0700")


# --- Faults
