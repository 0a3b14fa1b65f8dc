"""The process that compiles Triton kernels: started ahead or with the first job, kept for a while, never this process.

Triton compiles in another process so that a compiler that crashes takes nothing of the user's with it, can be stopped when it
takes too long, and can run on every core; and so that this process need not import Triton at all. The other process runs
`worker.py` as a script, which has neither PyTorch nor a GPU's context: it imports Triton once and forks a child for each job.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from weft.run.scratch import scratch_base

IDLE_SECONDS = 300.0
"""The process ends after so long without a job."""

_SCRIPT = Path(__file__).with_name("worker.py")
_MOST_OUTPUT = 1 << 16
_STUCK_SECONDS = 60.0
_ENDED = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)
# How the names of variables begin by which Triton's Python and its libraries make other binaries; as of Triton 3.7.
_TRITON = (
    "TRITON_", "AMDGCN_", "NVPTX_", "PTXAS_", "DISABLE_PTXAS_", "DISABLE_LLVM_", "DISABLE_MMA_", "ALLOW_LHS_TMEM_", "MLIR_",
    "LLVM_PASS_", "LLVM_EXTRACT_DI_", "USE_IR_LOC",
)  # fmt: skip


def triton_variables() -> dict[str, str]:
    """Returns the variables of this process's environment that Triton reads."""
    return {name: value for name, value in os.environ.items() if name.startswith(_TRITON)}


def _settings() -> dict[str, str]:
    """Returns the variables by which Triton, or another one, is found and compiles. Raises OSError without room to compile in."""
    found = triton_variables()
    found.pop("TRITON_INTERPRET", None)  # it compiles, whatever this process does
    paths = os.pathsep.join(p for p in sys.path if p)
    # The lines would be those of a file that is gone, in a folder of another name each time.
    return {**found, "TRITON_DISABLE_LINE_INFO": "1", "PYTHONPATH": paths, "TMPDIR": str(scratch_base())}


class WorkerError(Exception):
    """The process ended, or was stopped, while it compiled; `output` is what it wrote."""

    def __init__(self, what: str, output: str) -> None:
        super().__init__(what)
        self.what, self.output = what, output


class _GoneError(Exception):
    """The process had ended before it began."""


class _Call:
    """A job on its way: a channel to the child that does it, and the file with the job and what the child prints."""

    def __init__(self, file: IO[bytes]) -> None:
        """Raises OSError where there can be no more descriptors."""
        self._file, self._begin = file, os.fstat(file.fileno()).st_size
        self._heard, self._lines = bytearray(), 0
        with _lock:
            self._ours, self._theirs = socket.socketpair()
            _sockets.update((self._ours, self._theirs))

    def send(self, control: socket.socket) -> None:
        """Hands the job over; raises _GoneError where nobody takes it."""
        try:
            socket.send_fds(control, [b"\n"], [self._theirs.fileno(), self._file.fileno()])
        except OSError as error:
            if error.errno in _ENDED:
                raise _GoneError from error
            raise
        _close(self._theirs)

    def wait(self, deadline: float) -> bool:
        """Waits for the answer, or the end of the channel; returns False where neither has come by `deadline`."""
        while self._lines < 2:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._ours.settimeout(left)
            try:
                part = self._ours.recv(1 << 20)
            except TimeoutError:
                return False
            if not part:
                break
            self._heard += part
            self._lines += part.count(b"\n")
        return True

    @property
    def child(self) -> int | None:
        """The child's process number, once it has begun."""
        return int(self._heard.partition(b"\n")[0]) if self._lines else None

    def answer(self) -> dict[str, Any] | None:
        """Returns what was answered, else how it ended; None where nobody is left who could say so."""
        said, _, end = self._heard.partition(b"\0")
        _, _, answer = said.partition(b"\n")
        return json.loads(answer if answer.endswith(b"\n") else end or b"null")

    def output(self) -> str:
        """Reads what the child has printed: the first of it, where the mistake is."""
        return os.pread(self._file.fileno(), _MOST_OUTPUT, self._begin).decode(errors="replace")

    def close(self) -> None:
        """Ends the channel, whoever has copies of it: a child that is still at work is killed."""
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        _close(self._ours)
        _close(self._theirs)


class Worker:
    """The process that imports Triton, and its children, one for each job."""

    def __init__(self, settings: dict[str, str], target: tuple[str, str]) -> None:
        """Starts it; it makes itself ready for jobs for `target` (backend, architecture). `_lock` is held.

        Raises:
            OSError: no process can be started.
        """
        self.settings = settings
        others = {name: value for name, value in os.environ.items() if not name.startswith(_TRITON)}
        self._errors = tempfile.TemporaryFile(dir=settings["TMPDIR"])  # noqa: SIM115 - closed with the process
        self._control, theirs = socket.socketpair()
        _sockets.add(self._control)
        self._ending = threading.Lock()
        self._ended: tuple[int, str] | None = None
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(_SCRIPT), str(IDLE_SECONDS), *target],
                    env={**others, **settings},
                    stdin=theirs.fileno(),
                    stdout=self._errors,
                    stderr=self._errors,
                    start_new_session=True,
                )
        except BaseException:
            _close(self._control)
            self._errors.close()
            raise

    def ask(self, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Asks for what `worker.answer` gives for `job`.

        Raises:
            WorkerError: the child crashed, or took longer than `seconds`.
            OSError: there can be no child.
            _GoneError: the process had ended before.
        """
        with tempfile.TemporaryFile(dir=self.settings["TMPDIR"]) as file:
            file.write(json.dumps(job).encode())
            file.flush()
            call = _Call(file)
            answered = False
            try:
                call.send(self._control)
                answered = call.wait(time.monotonic() + seconds)
                if not answered:
                    if call.child is None and seconds >= _STUCK_SECONDS:
                        _ended(self)  # it does not serve: the next job gets another
                    raise WorkerError(f"Triton had not finished after {seconds:g} s and was stopped", call.output())
                return self._answer(call)
            finally:
                call.close()
                if not answered and call.child is not None and self._process.poll() is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(call.child, signal.SIGKILL)  # nobody else is left to do so

    def _answer(self, call: _Call) -> dict[str, Any]:
        match call.answer():
            case {"errno": int(number)}:
                raise OSError(number, os.strerror(number))
            case {"status": int(status)}:
                raise WorkerError(f"Triton crashed (exit status {status})", call.output())
            case None if call.child is None:
                raise _GoneError
            case None:
                raise WorkerError("Triton crashed with the process that had started it", call.output())
            case found:
                return {**found, "output": call.output()} if "error" in found else found

    def leave(self) -> bool:
        """Has it end when its jobs are done; returns whether it has ended."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        ended = self._process.poll() is not None
        if ended:
            self.stop()
        return ended

    def stop(self, patience: float = 2.0) -> tuple[int, str]:
        """Ends it and its children, by force where it has not ended in `patience` seconds.

        Returns:
            Its exit status, and what it has printed.
        """
        with self._ending:
            if self._ended is None:
                self._process.terminate()
                try:
                    status = self._process.wait(patience)
                except subprocess.TimeoutExpired:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(self._process.pid, signal.SIGKILL)  # what it started (ptxas) goes with it
                    status = self._process.wait()
                _close(self._control)
                output = os.pread(self._errors.fileno(), _MOST_OUTPUT, 0).decode(errors="replace")
                self._errors.close()
                self._ended = status, output
            return self._ended

    def abandon(self) -> None:
        """Lets go of the process in a forked child, whose it is not."""
        self._process.returncode = 0
        self._errors.close()


_lock = threading.RLock()
"""Held while sockets and processes are made, and while this process forks: so a forked child knows all that it must close."""
_sockets: set[socket.socket] = set()
_serving: list[Worker] = []  # one or none
_leaving: list[Worker] = []


def warm(backend: str, arch: str) -> None:
    """Starts the process, if there is none, before there is a job for the target. Raises OSError where it cannot be started."""
    _current(backend, arch)


def ask(job: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Has a child do `job`.

    Raises:
        WorkerError: it crashed, or took longer than `seconds`.
        OSError: no process can be started.
    """
    tried = 0
    while True:
        worker = _current(job["backend"], job["arch"])
        try:
            return worker.ask(job, seconds)
        except _GoneError as error:  # it had waited long enough, or was killed, or cannot be started
            status, output = _ended(worker)
            tried += 1
            if tried == 2:
                raise WorkerError(f"Triton's process ended at once (exit status {status})", output) from error


def retire() -> None:
    """Ends all processes; what they compile is not finished."""
    with _lock:
        ended = [*_serving, *_leaving]
        _serving.clear()
        _leaving.clear()
    for worker in ended:
        worker.stop()


def _current(backend: str, arch: str) -> Worker:
    """Returns the process with the settings that are in force, and starts it if there is none."""
    with _lock:
        settings = _settings()
        _leaving[:] = [each for each in _leaving if not each.leave()]
        if _serving and _serving[0].settings != settings:
            _leaving.extend(each for each in _serving if not each.leave())
            _serving.clear()
        if not _serving:
            _serving.append(Worker(settings, (backend, arch)))
        return _serving[0]


def _ended(worker: Worker) -> tuple[int, str]:
    """Forgets a process that has taken no job; returns its exit status, and what it has printed."""
    with _lock:
        if worker in _leaving:  # others' jobs are not done yet
            return 0, ""
        if worker in _serving:
            _serving.remove(worker)
    return worker.stop(0.0)


def _close(each: socket.socket) -> None:
    with _lock:
        _sockets.discard(each)
        each.close()


def _in_child() -> None:
    try:
        for each in _sockets:
            each.close()
        for worker in (*_serving, *_leaving):
            worker.abandon()
        for known in (_sockets, _serving, _leaving):
            known.clear()
    finally:
        _lock.release()


def _at_exit() -> None:
    _lock.acquire()  # for good: a thread whose job is ended starts no other process
    retire()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)
