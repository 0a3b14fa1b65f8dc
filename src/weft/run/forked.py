"""Kernels in a forked child: they run on one thread, because OpenMP would wait for threads that the child does not have.

PyTorch's own operations do: it wants `torch.set_num_threads(1)` in such a child. weft's kernels see to it themselves.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from weakref import WeakSet


@dataclass
class _State:
    """Whether there are threads as this process forks; whether it was itself forked off one with threads."""

    threads_now: bool = False
    threads_gone: bool = False


_state = _State()
_launchers: WeakSet[FunctionType] = WeakSet()


def threads_are_gone() -> bool:
    """Tells whether this process was forked off one that had threads: kernels take one."""
    return _state.threads_gone


def at_most_one_thread_in_children(launcher: FunctionType) -> None:
    """Has `launcher`, whose global `threads` is a number or a function that gives one, take one thread in such a child, and at
    once where this process is one.
    """
    _launchers.add(launcher)
    if _state.threads_gone:
        _limit(launcher)


def _limit(launcher: FunctionType) -> None:
    given = launcher.__globals__["threads"]
    launcher.__globals__["threads"] = _one if callable(given) else 1


def _before() -> None:
    try:
        _state.threads_now = len(list(Path("/proc/self/task").iterdir())) > 1
    except OSError:  # no such folder: it may have some
        _state.threads_now = True


def _in_child() -> None:
    _state.threads_gone = _state.threads_gone or _state.threads_now
    if _state.threads_gone:
        for launcher in _launchers:
            _limit(launcher)


def _one() -> int:
    return 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_child)
