"""What was asked for and is not answered yet, and the thread that has it done, one request after the other.

The queue holds graphs and what arguments look like, never tensors. Most of the time the thread waits for the other process. There
is one such queue for each process: a forked child begins with an empty one, and asks again itself for what it needs.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from weft.api.background.messages import Reply, Request, RequestFailure
from weft.api.background.process import GoneError, Process
from weft.run import stats

_MOST, _MOST_BYTES = 512, 64 << 20
"""Requests, and bytes of them, that may wait; what is asked for beyond that comes to nothing."""
_IDLE_SECONDS = 300.0
"""After so long without a request the process ends; the next request starts another one."""
_MOST_DEATHS = 3
"""After so many of them none is started any more."""


@dataclass(eq=False)
class Pending:
    """A request on its way.

    Attributes:
        request: what is asked, or gives it when its turn has come.
        install: takes the answer, in the thread; returns whether there is something new to run.
        wanted: tells whether anybody still waits for the answer.
        size: bytes that it holds.
        is_first: whether PyTorch runs what it is about until it is answered.
        done: set when the request is answered, or has come to nothing.
    """

    request: Callable[[], Request]
    install: Callable[[Reply], bool]
    wanted: Callable[[], bool]
    size: int = 0
    is_first: bool = True
    done: threading.Event = field(default_factory=threading.Event)


class Requests:
    """The queue of this process."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._condition = threading.Condition()
        # Held while the thread does anything but wait, so that a fork finds no other lock held.
        self._working = threading.RLock()
        self._waiting: deque[Pending] = deque()
        self._current: Pending | None = None
        self._thread: threading.Thread | None = None
        self._process: Process | None = None
        self._bytes = self._deaths = 0
        self._closed = False

    @property
    def process(self) -> Process | None:
        """The process that compiles, if there is one now."""
        return self._process

    def put(self, pending: Pending) -> None:
        """Have a request answered; at once without success where too many wait, or there is no process to be had."""
        stats.count("asked")
        with self._condition:
            refused = self._refused(pending.size) or self._without_thread()
            if refused is None:
                self._waiting.append(pending)
                self._bytes += pending.size
                self._condition.notify_all()
        if refused is not None:
            self._finish(pending, Reply(failure=RequestFailure(refused)))

    def pending(self) -> list[Pending]:
        """List what is not answered yet."""
        with self._condition:
            return [*([] if self._current is None else [self._current]), *self._waiting]

    def start(self) -> None:
        """Start the process now, so that it is ready when the first request comes."""
        with self._condition:
            if not self._closed:
                self._without_thread()

    def _without_thread(self) -> str | None:
        """Start the thread where there is none; say why, where there can be none."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="weft-background", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # too many threads, or the interpreter ends
                return str(error)
            self._thread = thread
        return None

    def _refused(self, size: int) -> str | None:
        if self._deaths >= _MOST_DEATHS:
            return f"the process that compiles ended {self._deaths} times"
        if self._closed:
            return "this process is about to end"
        if len(self._waiting) >= _MOST or self._bytes + size > _MOST_BYTES:
            return f"{len(self._waiting)} graphs already wait to be compiled"
        return None

    def _work(self) -> None:
        """Reply requests until there has been none for a while."""
        while True:
            self._start_process()
            with self._condition:
                if not self._condition.wait_for(lambda: self._waiting or self._closed, _IDLE_SECONDS) or self._closed:
                    # At once: the next request starts another thread, which must not take this process for its own.
                    self._thread, process, self._process = None, self._process, None
                    break
                self._current = self._next()
            self._answer(self._current)
        if process is not None:
            process.stop()

    def _next(self) -> Pending:
        """Take the first that nothing of weft's runs for yet; else the first."""
        found = next((each for each in self._waiting if each.is_first), self._waiting[0])
        self._waiting.remove(found)
        self._bytes -= found.size
        return found

    def _start_process(self) -> None:
        with self._working:
            if self._process is None and not self._closed and self._deaths < _MOST_DEATHS:
                try:
                    self._process = Process()
                except Exception:  # noqa: BLE001 - there is none then, which the answers say; this thread must go on
                    self._deaths = _MOST_DEATHS

    def _answer(self, pending: Pending) -> None:
        answer = Reply()
        if pending.wanted():
            try:
                answer = self._asked(pending)
            except GoneError as error:
                answer = Reply(failure=RequestFailure(f"the process that compiles {error}"))
                self._deaths += not self._closed
                self._end_process()
            except Exception as error:  # noqa: BLE001 - whatever cannot be sent stays with PyTorch, and it is said
                answer = Reply(failure=RequestFailure.of(error))
        with self._working:  # until it has taken effect it is pending
            self._finish(pending, answer)
            with self._condition:
                self._current = None

    def _asked(self, pending: Pending) -> Reply:
        with self._working:
            request, process = pending.request(), self._process
        if process is None:
            raise GoneError("cannot be started")
        answer: Reply = process.ask(request)
        if answer.is_last:
            self._end_process()
        return answer

    def _finish(self, pending: Pending, answer: Reply) -> None:
        """Have the answer take effect; whatever that fails with, PyTorch goes on."""
        with self._working:
            for name, times in answer.counted.items():
                stats.count(name, times)
            try:
                serves = pending.install(answer)
            except Exception as error:  # noqa: BLE001 - a library that cannot be loaded, an operation that is not known here
                serves = pending.install(Reply(failure=RequestFailure.of(error)))
            stats.count("served" if serves else "failed")
            pending.done.set()

    def _end_process(self) -> None:
        with self._working:
            process, self._process = self._process, None
            if process is not None:
                process.stop()

    def close(self) -> None:
        """End the thread and the process, when this process ends."""
        with self._condition:
            self._closed = True
            self._waiting.clear()
            self._condition.notify_all()
        process = self._process
        if process is not None:
            process.stop()

    def before_fork(self) -> None:
        """Wait until the thread holds no lock."""
        self._working.acquire()

    def after_fork(self) -> None:
        """Go on, in the parent."""
        self._working.release()

    def in_child(self) -> None:
        """Begin anew, in a forked child: neither the thread nor the process is its own, and no answer will come here."""
        lost = [*([] if self._current is None else [self._current]), *self._waiting]
        for each in lost:
            each.done = threading.Event()  # the old one's lock may be held by a thread that is not here
            each.done.set()
        stats.count("failed", len(lost))
        if self._process is not None:
            self._process.abandon()
        self._begin()


QUEUE = Requests()
atexit.register(QUEUE.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=QUEUE.before_fork, after_in_parent=QUEUE.after_fork, after_in_child=QUEUE.in_child)


def wait(found: list[Pending], timeout: float | None) -> bool:
    """Wait until all of these are done; tells whether they are, after `timeout` seconds at the latest."""
    deadline = None if timeout is None else time.monotonic() + timeout
    return all(each.done.wait(None if deadline is None else max(0.0, deadline - time.monotonic())) for each in found)
