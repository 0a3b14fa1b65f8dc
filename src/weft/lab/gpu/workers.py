"""Processes that compile and measure rows, watched: one that dies, or takes too long, costs one candidate of one row."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

_GRACE = 10.0
_KEPT = 300


class LostError(Exception):
    """A process is of no more use: why, and what it was trying."""

    def __init__(self, why: str, trying: str) -> None:
        super().__init__(why)
        self.why = why
        self.trying = trying


# Inductor would start as many compilers of its own as there are processors, for each worker.
_ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


def _started(command: Sequence[str], errors: Any) -> Any:
    """Start the process; its input and output are pipes of lines, which its type does not say."""
    given = _ENVIRONMENT | os.environ
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=given)


class BenchWorker:
    """A process that answers requests, a line of JSON each; `weft.lab.gpu.worker` says which."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = _started([sys.executable, *arguments], self._errors)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._last = ""
        self.trying = ""

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Ask the process for the answer.

        Args:
            request: what `weft.lab.gpu.worker.answer` takes.
            seconds: between two signs of life.

        Raises:
            LostError: there is none; the process is gone.
        """
        self.trying = ""
        try:
            self._process.stdin.write(f"{json.dumps(request)}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._lost("ended") from error
        while True:
            try:
                line = self._lines.get(timeout=seconds)
            except queue.Empty:
                raise self._lost(f"took more than {seconds:.0f} s") from None
            if line is None:
                raise self._lost("ended")
            said: dict[str, Any] = json.loads(line)
            if "broken" in said:
                raise self._lost(said["broken"])
            if "trying" in said:
                self.trying = said["trying"]
            elif "ready" not in said:
                self.trying = ""
                return said

    def _lost(self, why: str) -> LostError:
        self.close()
        if why == "ended":
            why = f"its process ended with {self._process.returncode}: {self._last}"[:_KEPT]
        return LostError(why, self.trying)

    def close(self) -> None:
        """End the process, if need be by force."""
        with suppress(OSError):
            self._process.stdin.close()
        if self.trying:
            self._process.kill()  # it may be at work for ever
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        if not self._errors.closed:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").splitlines()
            self._last = next((line for line in reversed(lines) if line.strip()), "")
            self._errors.close()


class WatchedWorker:
    """One worker at a time, another where it is lost."""

    def __init__(self, make: Callable[[], BenchWorker]) -> None:
        self._make = make
        self._worker: BenchWorker | None = None

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Ask as `BenchWorker.ask` does, and start another process after one that was lost."""
        if self._worker is None:
            self._worker = self._make()
        try:
            return self._worker.ask(request, seconds)
        except LostError:
            self._worker = None
            raise

    def close(self) -> None:
        """End it."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def without_what_breaks(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Ask for an answer in which candidates that cost a process are skipped; it says which, and the reason.

        Raises:
            LostError: it was not a candidate's doing, or it was that of eager, which is needed.
        """
        skip: dict[str, str] = {}
        while True:
            try:
                return self.ask({**request, "skip": skip}, seconds)
            except LostError as lost:
                if lost.trying in ("", "eager", *skip) or lost.trying not in request["names"]:
                    raise
                skip[lost.trying] = lost.why


def compile_all(
    make: Callable[[], BenchWorker],
    requests: Sequence[Mapping[str, Any]],
    count: int,
    seconds: float,
    limit: float,
    said: Callable[[Mapping[str, Any], Mapping[str, Any]], None],
) -> None:
    """Answer `requests` in `count` processes at once, in order; none begins after `seconds`.

    Args:
        make: a new worker.
        requests: what to ask for.
        count: how many at once.
        seconds: in all; what is at work then is ended.
        limit: of one candidate of one request.
        said: told each request and its answer, or {"error": why}.
    """
    ends = time.monotonic() + seconds
    waiting: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    for request in requests:
        waiting.put(request)
    telling = threading.Lock()

    def work() -> None:
        watched = WatchedWorker(make)
        try:
            while (left := ends - time.monotonic()) > 0:
                try:
                    request = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    answer = watched.ask(request, min(limit, left))
                except LostError as lost:
                    answer = {"error": f"{lost.trying or 'it'}: {lost.why}"}
                with telling:
                    said(request, answer)
        finally:
            watched.close()

    threads = [threading.Thread(target=work) for _ in range(min(count, len(requests)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
