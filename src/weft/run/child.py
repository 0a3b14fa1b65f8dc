"""Calls in a forked child of this process: a crash or an endless loop ends the child alone.

The child does nothing but the calls, on memory that it shares with this process (`weft.run.guarded`), with one thread: the threads
of OpenMP do not follow into a child.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from weft.errors import CompilerError
from weft.run.compiler import AFTER_KILLED

_EXCEPTION = 113
"""With what status a child ends whose call raised."""
_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
"""Signals by which somebody else ended a child, as the system does where memory runs out: they say nothing about the calls."""


def can_fork() -> bool:
    """Tells whether this system has children of this kind; on macOS the system libraries do not support it."""
    return hasattr(os, "fork") and hasattr(os, "pidfd_open") and sys.platform == "linux"


def ends_well(work: Callable[[], object], seconds: float, meanwhile: Callable[[], object] = lambda: None) -> str | None:
    """Runs `work` in a child and waits for it.

    Args:
        work: C functions on shared memory; it allocates little, and uses no threads.
        seconds: after so many the child is ended.
        meanwhile: what this process does before it waits.

    Returns:
        None where it came to its end; else in words what became of it.

    Raises:
        OSError: there is no child to be had: too many processes, or too little memory.
        CompilerError: somebody else ended the child, or it did not come to its end and nobody can say why.
    """
    done = mmap.mmap(-1, 1)  # shared with the child

    def to_the_end() -> None:
        work()
        done[0] = 1

    child = begun(to_the_end)
    latest, ended = time.monotonic() + seconds, False
    try:
        meanwhile()
        ended = child.ends_within(max(0.0, latest - time.monotonic()))
    finally:
        status = child.end()
    if not ended:
        return f"it did not end in {seconds:g} seconds"
    return None if done[0] else _what_became(status)


def _what_became(status: int | None) -> str:
    """Says in words how a child ended that did not come to its end."""
    if status is None:
        raise CompilerError(
            "a process that tests kernels did not come to its end, and something else in this process waited for it",
            todo="compile before SIGCHLD is ignored, or before something waits for every child; or see whether memory ran out",
        )
    if os.WIFSIGNALED(status):
        cause = signal.Signals(os.WTERMSIG(status))
        if cause in _OTHERS:
            raise CompilerError(f"a process that tests kernels was killed ({cause.name})", todo=AFTER_KILLED)
        return f"it crashed ({cause.name})"
    code = os.waitstatus_to_exitcode(status)
    return "the call failed" if code == _EXCEPTION else f"it ended with status {code}"


@dataclass(frozen=True, slots=True)
class Child:
    """A forked child. It may be waited for by others too: SIGCHLD may be ignored, or have a handler that waits for every child.

    Attributes:
        pid: its number, which another process may have once it was waited for.
        handle: a descriptor that means it and no other; None where it was waited for before there was one.
    """

    pid: int
    handle: int | None

    def ends_within(self, seconds: float) -> bool:
        """Waits for the child, and tells whether it ended in time."""
        return self.handle is None or bool(select.select([self.handle], [], [], seconds)[0])

    def wait(self) -> None:
        """Waits until the child has ended, however long it takes."""
        if self.handle is not None:
            select.select([self.handle], [], [])

    def end(self) -> int | None:
        """Ends the child if it has not ended, and returns its status; None where something else has taken that."""
        if self.handle is None:
            return None
        try:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        finally:
            os.close(self.handle)
        try:
            return os.waitpid(self.pid, 0)[1]
        except ChildProcessError:
            return None


def begun(work: Callable[[], object]) -> Child:
    """Starts a child that runs `work`.

    Raises:
        OSError: there is none to be had: too many processes or open files, or too little memory.
    """
    pid = fork()
    if pid == 0:
        be_the_child(work)
    try:
        return Child(pid, os.pidfd_open(pid))
    except ProcessLookupError:
        return Child(pid, None)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        raise


def fork() -> int:
    """Forks this process, as `os.fork` does."""
    with warnings.catch_warnings():
        # This process may have threads: the child waits for none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def be_the_child(work: Callable[[], object]) -> None:
    """Runs `work` and ends without returning: what this process would do when it ends is the parent's to do."""
    code = _EXCEPTION
    try:
        for each in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a handler of the parent's would write its stack there
        work()
        code = 0
    finally:
        os._exit(code)
