"""Calls in a forked child of this process: a crash or an endless loop ends the child alone.

The child does nothing but the calls, on memory that it shares with this process (`weft.run.guarded`), with one thread: the threads
of OpenMP do not follow into a child.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable

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
        CompilerError: somebody else ended the child.
    """
    pid = fork()
    if pid == 0:
        be_the_child(work)
    latest, ended = time.monotonic() + seconds, False
    try:
        meanwhile()
        ended = _wait(pid, max(0.0, latest - time.monotonic()))
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if not ended:
        return f"it did not end in {seconds:g} seconds"
    if os.WIFSIGNALED(status):
        cause = signal.Signals(os.WTERMSIG(status))
        if cause in _OTHERS:
            raise CompilerError(f"a process that tests kernels was killed ({cause.name})", todo=AFTER_KILLED)
        return f"it crashed ({cause.name})"
    code = os.waitstatus_to_exitcode(status)
    return None if code == 0 else "the call failed" if code == _EXCEPTION else f"it ended with status {code}"


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


def _wait(pid: int, seconds: float) -> bool:
    """Waits for the child, and tells whether it ended in time."""
    handle = os.pidfd_open(pid)
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)
