"""Where kernels for a CPU run to be judged."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

from weft.plan.targets.bench import Bench
from weft.run.build import Binary
from weft.run.child import can_fork, ends_well
from weft.run.launch import Launcher, make_launcher

SECONDS = 20.0
"""After so many a kernel that is judged does not end."""


@dataclass(eq=False)
class ChildBench(Bench):
    """Notes what is launched, and runs it in a child process: a crash or an endless loop ends the child alone."""

    words: list[tuple[Binary, bytes]] = field(default_factory=list[tuple[Binary, bytes]])
    _flags: list[ctypes.c_int64] = field(default_factory=list[ctypes.c_int64])

    def launcher(self, made: Binary) -> Launcher:
        def noted(given: bytes) -> None:
            self.words.append((made, given))

        def flag() -> ctypes.c_int64:
            self._flags.append(ctypes.c_int64())  # it is there when the kernel runs
            return self._flags[-1]

        return make_launcher(made.signature, noted, 1, self.memory.allocate, flag)

    def ended(self, meanwhile: Callable[[], None]) -> str | None:
        def work() -> None:
            for made, given in self.words:
                made.function(given)

        failed = ends_well(work, SECONDS, meanwhile) if can_fork() else work()
        return failed or super().ended(meanwhile)
