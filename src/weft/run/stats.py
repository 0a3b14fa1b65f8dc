"""Counters behind `weft.stats()`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from weft.errors import named

Counter: TypeAlias = Literal[
    "binaries_emitted", "cache_hits", "compiles", "fallbacks", "cache_write_failures", "slower", "library", "kernels"
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
    """

    binaries_emitted: int = 0
    cache_hits: int = 0
    compiles: int = 0
    fallbacks: int = 0
    cache_write_failures: int = 0
    slower: int = 0
    library: int = 0
    kernels: int = 0


class Counters:
    """A `Stats` that any thread may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = Stats()

    def count(self, counter: Counter, times: int = 1) -> None:
        """Adds `times` to one counter."""
        with self._lock:
            now: int = getattr(self._stats, counter)
            self._stats = replace(self._stats, **{counter: now + times})

    def snapshot(self) -> Stats:
        """Returns the counts at this moment, all read together."""
        with self._lock:
            return self._stats


_PROCESS = Counters()


def count(counter: Counter, times: int = 1) -> None:
    """Adds `times` to one of this process's counters."""
    _PROCESS.count(counter, times)


@named("weft.stats")
def snapshot() -> Stats:
    """Returns this process's counts at this moment."""
    return _PROCESS.snapshot()
