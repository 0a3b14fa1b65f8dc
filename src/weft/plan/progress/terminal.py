"""A line on the terminal that says how far compiling a graph is: drawn once it has taken a while, and removed at its end.

It is drawn anew at each event and by no thread of its own: kernels are judged in forked children, which threads would disturb.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, assert_never

from weft.options import current
from weft.plan.progress.events import (
    CandidateBuilt,
    CandidateTimed,
    PieceWeighed,
    ProgressEvent,
    RegionDone,
    RegionStarted,
    following,
    observer,
)

if TYPE_CHECKING:
    from rich.progress import Progress

AFTER = 2.0
"""Seconds for which nothing is drawn: most graphs take less."""


@contextmanager
def shown() -> Generator[None]:
    """Show the progress of what is compiled meanwhile on standard error.

    Not where that is no terminal, the option `progress` is off, somebody else follows, or this process works for another one.
    """
    if observer() is not None or not current().progress or not _is_terminal() or _is_worker():
        yield
        return
    line = ProgressLine()
    try:
        with following(line):
            yield
    finally:
        line.close()


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _is_worker() -> bool:
    """Tell whether another process shows what there is to show: that which began this one, or the first of a distributed run."""
    return multiprocessing.parent_process() is not None or os.environ.get("LOCAL_RANK", "0") != "0"


class ProgressLine:
    """An observer that draws what it hears of as one line."""

    def __init__(self) -> None:
        self._begin, self._process, self._lock = time.monotonic(), os.getpid(), threading.Lock()
        self._bar: Progress | None = None
        self._closed = False
        self._number = self._done = self._of = self._weighed = 0
        self._built: set[str] = set()
        self._predicted: float | None = None
        self._measured: float | None = None

    def __call__(self, event: ProgressEvent) -> None:
        """Take note of `event`, and draw the line if it is time to."""
        with self._lock:
            self._note(event)
            late = time.monotonic() - self._begin >= AFTER
            if late and not self._closed and os.getpid() == self._process:
                try:
                    self._draw()
                except (OSError, ValueError):  # the terminal is gone
                    self._closed = True

    def close(self) -> None:
        """Remove the line."""
        with self._lock:
            self._closed = True
            if self._bar is not None and os.getpid() == self._process:
                try:
                    self._bar.stop()
                except (OSError, ValueError):
                    return

    def _note(self, event: ProgressEvent) -> None:
        match event:
            case PieceWeighed():
                self._weighed += 1
            case RegionStarted(number, of):
                self._number, self._done, self._of, self._built = number, number - 1, of, set()
                self._predicted = self._measured = None
            case CandidateBuilt(name, seconds):
                self._built.add(name)
                self._predicted = min(seconds, self._predicted or seconds)
            case CandidateTimed(seconds):
                self._measured = min(seconds, self._measured or seconds)
            case RegionDone(number, of):
                self._done, self._of = number, of
            case _:
                assert_never(event)

    def _draw(self) -> None:
        if self._bar is None:
            from rich.console import Console  # most compilations draw nothing
            from rich.progress import Progress, TextColumn

            text = TextColumn("weft: {task.description}", markup=False)
            console = Console(stderr=True)
            self._bar = Progress(text, console=console, transient=True, auto_refresh=False, redirect_stdout=False)
            self._bar.add_task("")
            self._bar.start()
        (task,) = self._bar.task_ids
        self._bar.update(task, description=self._said())
        self._bar.refresh()

    def _said(self) -> str:
        if not self._number:
            return f"choosing what becomes one kernel: {self._weighed} {'piece' if self._weighed == 1 else 'pieces'} weighed"
        parts = [f"{self._done} of {self._of} regions done"]
        if self._built:
            count = len(self._built)
            parts.append(f"{count} {'candidate' if count == 1 else 'candidates'} compiled")
        if self._measured is not None:
            parts.append(f"best measured {self._measured * 1e3:.3g} ms")
        elif self._predicted is not None:
            parts.append(f"best predicted {self._predicted * 1e3:.3g} ms")
        return ", ".join(parts)
