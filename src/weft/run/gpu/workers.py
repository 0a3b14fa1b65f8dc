"""Processes that compile Triton kernels: started when there is something to compile, kept for a while, never this process.

Triton compiles in another process so that a compiler that crashes takes nothing of the user's with it, can be stopped when it
takes too long, and can run on every core; and so that this process need not import Triton at all. The other process runs
`worker.py` as a script: it has neither PyTorch nor a GPU's context.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from weft.run.scratch import scratch_base

_SCRIPT = Path(__file__).with_name("worker.py")
_MOST_OUTPUT = 1 << 16
# How the names of variables begin by which Triton's Python and its libraries make other binaries; as of Triton 3.7.
_TRITON = (
    "TRITON_", "AMDGCN_", "NVPTX_", "PTXAS_", "DISABLE_PTXAS_", "DISABLE_LLVM_", "DISABLE_MMA_", "ALLOW_LHS_TMEM_", "MLIR_",
    "LLVM_PASS_", "LLVM_EXTRACT_DI_", "USE_IR_LOC",
)  # fmt: skip

_idle: list[Worker] = []
_lock = threading.Lock()


def triton_variables() -> dict[str, str]:
    """Returns the variables of this process's environment that Triton reads."""
    return {name: value for name, value in os.environ.items() if name.startswith(_TRITON)}


def _settings() -> dict[str, str]:
    """Returns the variables by which Triton, or another one, is found and compiles."""
    found = triton_variables()
    found.pop("TRITON_INTERPRET", None)  # it compiles, whatever this process does
    # The lines would be those of a file that is gone, in a folder of another name each time.
    return {**found, "TRITON_DISABLE_LINE_INFO": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


class WorkerError(Exception):
    """The process ended, or was stopped, while it compiled; `output` is what it wrote."""

    def __init__(self, what: str, output: str) -> None:
        super().__init__(what)
        self.what, self.output = what, output


class _GoneError(Exception):
    """The process had ended before it began."""


class Worker:
    """One process, for one job at a time."""

    def __init__(self) -> None:
        """Raises OSError where no process can be started."""
        base = str(scratch_base())
        self.settings = _settings()
        others = {name: value for name, value in os.environ.items() if not name.startswith(_TRITON)}
        environment = {**others, **self.settings, "TMPDIR": base}
        self._errors = tempfile.TemporaryFile(dir=base)  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_SCRIPT)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._read = bytearray()

    def ask(self, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Asks the process for what `worker.answer` gives for `job`.

        Raises:
            WorkerError: it crashed, or took longer than `seconds`.
            _GoneError: it had ended before.
        """
        begin = os.fstat(self._errors.fileno()).st_size
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise _GoneError from error
        deadline = time.monotonic() + seconds
        begun = self._line(deadline)
        if begun is None and time.monotonic() < deadline:
            raise _GoneError
        line = None if begun is None else self._line(deadline)
        if line is None:
            output, late = self._output(begin), time.monotonic() >= deadline
            status = self.stop(0.0 if late else 2.0)
            said = (
                f"had not finished after {seconds:g} s and was stopped" if late else f"crashed (exit status {status})"
            )
            raise WorkerError(f"Triton {said}", output)
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            found["output"] = self._output(begin)
        return found

    def stop(self, patience: float = 2.0) -> int:
        """Ends the process, by force where it has not ended `patience` seconds after it has been told; its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            status = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # what it started (ptxas) goes with it
            status = self._process.wait()
        self._process.stdout.close()
        self._errors.close()
        return status

    def abandon(self) -> None:
        """Lets go of the parent's process, in a forked child."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    os.close(stream.fileno())

    def _line(self, deadline: float) -> bytes | None:
        """Reads the next line without its end; None where there is none by `deadline`, or ever."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while (end := self._read.find(b"\n")) < 0:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                return None
            part = os.read(fd, 1 << 20)
            if not part:
                return None
            self._read += part
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        return line

    def _output(self, begin: int) -> str:
        """Reads what it has written on standard error since there were `begin` bytes: the first of it, where the mistake is."""
        return os.pread(self._errors.fileno(), _MOST_OUTPUT, begin).decode(errors="replace")


def ask(job: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Asks a worker for `job`: one that waits, or a new one.

    Raises:
        WorkerError: it crashed, or took longer than `seconds`; the next job gets another.
        OSError: no process can be started.
    """
    while True:
        with _lock:
            worker = _idle.pop() if _idle else None
        if worker is not None and worker.settings != _settings():
            worker.stop()
            continue
        fresh = worker is None
        worker = worker or Worker()
        try:
            found = worker.ask(job, seconds)
        except _GoneError as error:  # it had waited long enough
            output, status = "", worker.stop(0.0)
            if fresh:
                raise WorkerError(f"Triton's process ended at once (exit status {status})", output) from error
            continue
        except BaseException as error:  # an interrupt leaves it at work
            if not isinstance(error, WorkerError):
                worker.stop(0.0)
            raise
        with _lock:
            _idle.append(worker)
        return found


def retire(keep: int = 0) -> None:
    """Ends all processes that wait but `keep` of them."""
    with _lock:
        ended = _idle[keep:]
        del _idle[keep:]
    for worker in ended:
        worker.stop()


def _in_child() -> None:
    for worker in _idle:
        worker.abandon()
    _idle.clear()


atexit.register(retire)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
