"""Runs Python programs: with WALK_ALL=1 each in a new Python, else in a fork of one that has imported weft, which takes seconds.

Where it matters what an import does, what Python is given before it starts (PYTHONHASHSEED, -X), or to be killed from outside,
start a Python with `subprocess`.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

from testkit.processes.prepared import LARGEST, Work
from testkit.walk import WALK_ALL
from weft.run import compiler

_READ_AT_IMPORT = "TRITON_INTERPRET"
"""What Triton's functions are is settled when it is imported."""

_SHIPPED = compiler.LEVEL  # before a test's fixture changes it


def ran(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    stderr: int | None = None,
    folder: Path | None = None,
    timeout: float = 600.0,
    as_shipped: bool = False,
    status: int | None = 0,
) -> CompletedProcess[str]:
    """Runs `python ARGUMENTS` to its end.

    What it starts and leaves behind may hold its output open: that goes to files.

    Args:
        arguments: as of Python's command line: "-W" and an action, then "-c" and text, "-m" and a module's name, or a file.
        environment: all its variables; this process's where none are given. The folders of `sys.path` come before PYTHONPATH's.
        stderr: a descriptor of where its standard error goes, which is then not given.
        folder: where it runs; this process's current folder where none is given.
        timeout: seconds after which it is killed.
        as_shipped: its kernels are optimised as users' are, and as those of other processes that it starts.
        status: how it must end; None for however it does.

    Raises:
        AssertionError: it ended otherwise; has the end of what it said.
        TimeoutExpired: it had to be killed.
    """
    variables = dict(os.environ if environment is None else environment)
    paths = [*(path for path in sys.path if path), variables.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open() as nothing:
        streams = (nothing.fileno(), out.fileno(), err.fileno() if stderr is None else stderr)
        level = _SHIPPED if as_shipped else "-Og"
        work = Work(list(arguments), variables, str(folder or Path.cwd()), level)
        run = _in_new if WALK_ALL or sys.platform != "linux" else _in_fork
        ended = run(work, streams, timeout)
        said: list[str] = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read().decode(errors="replace"))
    assert status is None or ended == status, f"ended with {ended}\n{said[0][-1000:]}{said[1][-3000:]}"
    return CompletedProcess(list(arguments), ended, *said)


def _in_new(work: Work, streams: tuple[int, int, int], timeout: float) -> int:
    """Runs a new Python, which optimises as users' do, and gives its status."""
    command, (given, out, err) = [sys.executable, *work.arguments], streams
    with subprocess.Popen(
        command, env=work.environment, cwd=work.folder, stdin=given, stdout=out, stderr=err
    ) as process:
        try:
            return process.wait(timeout)
        except TimeoutExpired:
            process.kill()
            raise


def _in_fork(work: Work, streams: tuple[int, int, int], timeout: float) -> int:
    """Runs a fork of the prepared Python, and gives its status."""
    message = json.dumps(asdict(work)).encode()
    assert len(message) < LARGEST, "too long: put it into a file"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(
            _prepared(os.getpid(), work.environment.get(_READ_AT_IMPORT, "")), [message], [*streams, theirs.fileno()]
        )
        theirs.close()
        with ours.makefile() as told:
            number = int(told.readline())
            ours.settimeout(timeout)
            try:
                return int(told.readline())
            except TimeoutError:
                os.kill(number, signal.SIGKILL)
                raise TimeoutExpired(work.arguments, timeout) from None


@cache
def _prepared(process: int, read_at_import: str) -> socket.socket:
    """Starts a Python that is forked, once for this process, whose number this is; gives its socket."""
    del process
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    paths = os.pathsep.join(path for path in sys.path if path)
    with theirs:
        started = subprocess.Popen(
            [sys.executable, "-m", "testkit.processes.prepared", str(theirs.fileno())],
            env={**os.environ, "PYTHONPATH": paths, _READ_AT_IMPORT: read_at_import},
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        started.wait(60)

    atexit.register(end)
    return ours
