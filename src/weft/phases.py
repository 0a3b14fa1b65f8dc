"""Where the time of compiling goes: seconds by phase, for whoever measures.

    with phase("rules"):
        ...

Phases may be inside one another; each second counts for the innermost one of its thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

Phase: TypeAlias = Literal[
    "capture",
    "cuts",
    "candidates",
    "rules",
    "pricing",
    "field check",
    "emit",
    "compiler",
    "tuning",
    "judge",
    "library",
    "comparison",
    "trial",
    "keeping",
    "other",
]
"""What is done: "compiler" is waiting for compilers, "tuning" timing candidates, "library" timing PyTorch's matmuls, "comparison"
holding a first call's results against PyTorch's, "keeping" writing choices and plans to the cache, and reading them."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a phase took.

    Attributes:
        wall: seconds in which a thread was in it.
        processor: seconds that all threads of this process used meanwhile; not what compilers and other processes did.
        times: how often it was entered.
    """

    wall: float = 0.0
    processor: float = 0.0
    times: int = 0

    def __add__(self, more: Spent) -> Spent:
        """Add what another stay took."""
        return Spent(self.wall + more.wall, self.processor + more.processor, self.times + more.times)


class _Thread(threading.local):
    """The phases that a thread is in, the innermost last, and when it was last looked at."""

    def __init__(self) -> None:
        self.inside: list[Phase] = []
        self.wall = self.processor = 0.0


_lock = threading.Lock()


def _in_a_child() -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may hold it
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_child)
_spent: dict[Phase, Spent] = {}
_thread = _Thread()


@contextmanager
def phase(name: Phase) -> Generator[None]:
    """Count the time from here on for `name`, until the block ends or another phase begins in it."""
    _turn(0)
    _thread.inside.append(name)
    try:
        yield
    finally:
        _turn(1)
        _thread.inside.pop()


def spent() -> Mapping[Phase, Spent]:
    """Return what each phase took since the process began, for those that are over."""
    with _lock:
        return dict(_spent)


def _turn(times: int) -> None:
    """Count what has passed for the innermost phase of this thread, which ends so many stays."""
    wall, processor = time.perf_counter(), time.process_time()
    if _thread.inside:
        name = _thread.inside[-1]
        found = Spent(wall - _thread.wall, processor - _thread.processor, times)
        with _lock:
            _spent[name] = _spent.get(name, Spent()) + found
    _thread.wall, _thread.processor = wall, processor
