"""A lock on a GPU's time: processes that time kernels take turns, or they would measure each other."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

_PAUSE = 0.02


def alone_on(device: torch.device) -> AbstractContextManager[bool]:
    """Holds a GPU as `alone` does, by the GPU itself: its number may be another in another process (CUDA_VISIBLE_DEVICES)."""
    found: Any = vars(torch.cuda)["get_device_properties"](device)
    return alone(f"GPU {getattr(found, 'uuid', device)}")


@contextmanager
def alone(name: str, seconds: float = 60.0) -> Generator[bool]:
    """Keeps other processes and threads of the user from holding the same `name` while this lasts. Yields whether it
    does: after `seconds`, or where there is no folder for temporary files, it goes on without.
    """
    held = _held(name, time.monotonic() + seconds)
    try:
        yield held is not None
    finally:
        if held is not None:
            os.close(held)  # which lets go


def _held(name: str, ends: float) -> int | None:
    word = "".join(c if c.isalnum() else "-" for c in name)
    try:
        path = Path(tempfile.gettempdir(), f"weft-{os.geteuid()}-{word}.lock")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        if time.monotonic() >= ends:
            os.close(file)
            return None
        time.sleep(_PAUSE)
