"""Counters behind `weft.stats()`."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from weft.errors import named

Counter: TypeAlias = Literal[
    "binaries_emitted",
    "cache_hits",
    "compiles",
    "fallbacks",
    "cache_write_failures",
    "slower",
    "library",
    "kernels",
    "asked",
    "served",
    "failed",
    "meanwhile",
    "untimed",
]


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts since the process began (a forked child goes on from its parent's counts).

    Attributes:
        binaries_emitted: binaries that a compiler gave.
        cache_hits: binaries that came, whole and checked, from the cache instead.
        compiles: runs of a compiler, those that failed included.
        fallbacks: parts of programs that were left to PyTorch.
        cache_write_failures: entries that the cache folder did not take (read-only, full).
        slower: compiled graphs that PyTorch runs after all, since it was measured to be faster.
        library: compiled graphs whose matmuls PyTorch's library runs between weft's kernels, since that was measured to be faster.
        kernels: weft's own launches in the graphs that were compiled.
        asked: what calls asked to have compiled in the background: graphs, and size classes of graphs to be timed.
        served: how much of that is done, whatever was chosen to run.
        failed: how much of it came to nothing, so that PyTorch, or what ran before, goes on.
        meanwhile: calls of graphs that PyTorch ran while they were being compiled in the background.
        untimed: calls of graphs that ran what was compiled first, while that was being timed in the background.
    """

    binaries_emitted: int = 0
    cache_hits: int = 0
    compiles: int = 0
    fallbacks: int = 0
    cache_write_failures: int = 0
    slower: int = 0
    library: int = 0
    kernels: int = 0
    asked: int = 0
    served: int = 0
    failed: int = 0
    meanwhile: int = 0
    untimed: int = 0

    @property
    def in_progress(self) -> int:
        """Count what was asked for in the background and is not done yet."""
        return self.asked - self.served - self.failed


class Counters:
    """A `Stats` that any thread may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys((each.name for each in fields(Stats)), 0)

    def count(self, counter: Counter, times: int = 1) -> None:
        """Adds `times` to one counter."""
        with self._lock:
            self._counts[counter] += times

    def snapshot(self) -> Stats:
        """Returns the counts at this moment, all read together."""
        with self._lock:
            return Stats(**self._counts)

    def unlock(self) -> None:
        """Begins with a lock that nobody holds, in a forked child: a thread that held it in the parent is not here."""
        self._lock = threading.Lock()


_PROCESS = Counters()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PROCESS.unlock)


def count(counter: Counter, times: int = 1) -> None:
    """Adds `times` to one of this process's counters."""
    _PROCESS.count(counter, times)


@named("weft.stats")
def snapshot() -> Stats:
    """Returns this process's counts at this moment."""
    return _PROCESS.snapshot()
