"""The process that compiles: started by this one, niced, in a process group of its own; it ends when this one does.

It is started as a new Python, never forked off: this process may have threads, and a GPU's context. A message is its length in 8
bytes, then so many bytes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

# Until all is imported, collections of cycles would take a third of the time: they look at all that PyTorch's modules hold.
_RUN = "import gc, os; gc.disable(); os.nice(5); from weft.api.background.server import main; gc.enable(); main()"
_LENGTH = 8
PATIENCE = 1800.0
"""Seconds after which a process that does not answer is ended."""


class GoneError(Exception):
    """The process ended, or was ended, before it answered."""


class Process:
    """One process, for one request at a time."""

    def __init__(self) -> None:
        """Start it. Raises OSError where no process can be started."""
        if not sys.executable:
            raise OSError("this Python does not know its own program (sys.executable)")
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(_folders(sys.path))}
        # Nothing of the user's is imported: not the main module, as multiprocessing does, and no module of the folder it is in.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _RUN],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # no session: Linux gives each session its share of the processors, whatever the nice value
        )

    @property
    def number(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, request: Any, seconds: float = PATIENCE) -> Any:
        """Send a request, and return the answer.

        Raises:
            GoneError: it ended before it answered, or took longer than `seconds`.
            Exception: the request cannot be pickled.
        """
        data = pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)
        assert self._process.stdin is not None
        if (
            self._process.poll() is not None
        ):  # not written to: where SIGPIPE has its default, that would end this process
            raise GoneError(self._said())
        try:
            self._process.stdin.write(len(data).to_bytes(_LENGTH, "little"))
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise GoneError(self._said()) from error
        deadline = time.monotonic() + seconds
        try:
            answer = self._read(int.from_bytes(self._read(_LENGTH, deadline), "little"), deadline)
        except (
            OSError,
            ValueError,
            MemoryError,
        ) as error:  # what is left of the answer is not to be read as the next one
            raise GoneError(f"could not be listened to ({type(error).__name__}: {error})") from error
        return pickle.loads(answer)  # noqa: S301 - from a process of our own

    def stop(self) -> None:
        """End it: ask, so that it removes its temporary files, and after a second end it and what it started by force."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self.abandon()

    def abandon(self) -> None:
        """Let go of it: in a forked child, whose parent's it is, or when it has ended."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _signal(self, number: int) -> None:
        """Send a signal to it and to what it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        poll = select.poll()  # select.select takes no descriptor above 1023
        poll.register(fd, select.POLLIN)
        found = bytearray()
        while len(found) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(1000 * left):
                raise GoneError("took too long, and was ended")
            part = os.read(fd, min(count - len(found), 1 << 20))
            if not part:
                raise GoneError(self._said())
            found += part
        return bytes(found)

    def _said(self) -> str:
        """Say in words how it ended."""
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "stopped listening"
        if status < 0:
            return f"was ended by the signal {signal.Signals(-status).name}"
        return f"ended with the status {status}"


def _folders(path: Sequence[Any]) -> list[str]:
    """List the folders of `sys.path` but the current one. Python passes over what is no text, such as a Path, too."""
    return [folder for folder in path if isinstance(folder, str) and folder]
