"""One allocation for the small results of a run that only its kernels read.

Behind a kernel that streams weights through the caches an allocation takes as long as a small kernel. Which results there are, how
long they are and which step reads them last is known when the runner is written, so their places are given out then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_MOST, _MOST_IN_ALL = 1 << 16, 1 << 20
"""Bytes of a result that lies there, and of all at once: larger ones would be kept for longer than they are needed."""
_ALIGNMENT = 64
"""Bytes: what PyTorch gives its own tensors on a CPU."""


@dataclass
class Scratch:
    """The places of results in one allocation.

    Attributes:
        size: bytes that it has.
        taken: places that are in use: the first byte, the one behind the last, and the step that reads it last.
    """

    size: int = 0
    taken: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    def place(self, size: int, step: int, last: int) -> int | None:
        """Give a place to a result of so many bytes, which `step` makes and `last` reads last; None for a large one."""
        if not 0 < size <= _MOST:
            return None
        self.taken = [each for each in self.taken if each[2] >= step]
        start = 0
        for first, end, _ in sorted(self.taken):
            if start + size <= first:
                break
            start = max(start, -(-end // _ALIGNMENT) * _ALIGNMENT)
        if start + size > _MOST_IN_ALL:
            return None
        self.taken.append((start, start + size, last))
        self.size = max(self.size, start + size)
        return start
