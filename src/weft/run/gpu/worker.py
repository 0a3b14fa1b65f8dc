"""Compiles Triton kernels for `workers`: a script of its own, which imports nothing of weft, nor PyTorch.

It imports Triton and compiles a small kernel once, then forks a child for each job, so that a job finds Triton's pages and caches
in memory, and leaves nothing to the next.

Arguments are the seconds without jobs after which it ends, and the target of the small kernel. Standard input is a Unix socket.
Each message is one byte with two descriptors: a channel (a socket), and a file that holds the job as JSON; what the child prints is
added to it. On the channel, the child sends its process number and a newline as it begins, and a line of JSON when it has done;
last, this process sends a NUL and how the child ended: {"status": its exit status}, or {"errno": ...} if none could be forked.
A child whose channel is shut at the other end is killed, with what it has started. When standard input ends, jobs at work are
finished, unless their channels are shut as well, and this process ends.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

OLDEST = (3, 6)
_LONGEST_MESSAGE = 20_000
# Has Triton import, read and hash what a first kernel needs: most of the time that one takes.
_SMALL = """
import triton
import triton.language as tl

@triton.jit
def small(x, y, size):
    i, j = tl.arange(0, 16), tl.arange(0, 16)
    a = tl.load(x + i[:, None] * 16 + j[None, :], mask=j[None, :] < size, other=0.0)
    b = tl.exp(a - tl.max(a, 1)[:, None])
    tl.store(y + i[:, None] * 16 + j[None, :], tl.dot(a, b / tl.sum(b, 1)[:, None]))
"""


def compiled(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Compile the kernel of `job`: its binary, its assembly, and what Triton says of them. Raises whatever Triton does."""
    try:
        triton, compiler = import_module("triton"), import_module("triton.compiler")
    except Exception as error:  # what is installed may fail in any way, for every kernel alike
        raise ImportError(f"importing it failed with {type(error).__name__}: {error}") from error
    if tuple(int(n) for n in triton.__version__.split(".")[:2]) < OLDEST:
        raise ImportError(f"Triton {triton.__version__} is older than {'.'.join(map(str, OLDEST))}")
    function = getattr(loaded(job["text"], folder / f"{job['name']}.py"), job["name"])
    signature: dict[str, str] = {}
    constants: dict[str, int] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, (name, (kind, divisible, value)) in enumerate(zip(function.arg_names, job["arguments"], strict=True)):
        signature[name] = kind
        if value is not None:
            constants[name] = value
        elif divisible:
            attributes[(place,)] = [["tt.divisibility", 16]]
    backend, arch = job["backend"], job["arch"]
    target = import_module("triton.backends.compiler").GPUTarget(
        backend, int(arch) if backend == "cuda" else arch, 32 if backend == "cuda" else 64
    )
    options = {"num_warps": job["warps"], "num_stages": job["stages"]}
    if "device_assert" in job["text"]:  # which Triton leaves out otherwise, and other assertions of its own with it
        options |= {"debug": True, "sanitize_overflow": False}
    made = compiler.compile(
        compiler.ASTSource(function, signature, constants, attributes), target=target, options=options
    )
    binary, text = ("cubin", "ptx") if backend == "cuda" else ("hsaco", "amdgcn")
    said = made.metadata
    return {
        "binary": base64.b64encode(made.asm[binary]).decode(),
        "assembly": made.asm[text],
        "name": said.name,
        "shared": said.shared,
        "threads": said.num_warps * target.warp_size,
        "scratch": getattr(said, "global_scratch_size", 0) or 0,
        "profile": getattr(said, "profile_scratch_size", 0) or 0,
        "triton": triton.__version__,
    }


def loaded(text: str, path: Path) -> Any:
    """Load a module of Triton functions from the file `path`, where Triton reads its source, whenever it runs."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(line: bytes) -> dict[str, Any]:
    """Answer one job: as `compiled`, or {"error": ..., "message": ...}."""
    try:
        with tempfile.TemporaryDirectory(prefix="weft-compile-", ignore_cleanup_errors=True) as folder:
            os.environ["TRITON_CACHE_DIR"] = folder  # weft's own cache keeps what is made
            return compiled(json.loads(line), Path(folder))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this job's alone
        return {"error": type(error).__name__, "message": str(error)[-_LONGEST_MESSAGE:]}


def warm(backend: str, arch: str) -> None:
    """Compile a small kernel; an error is ignored, since each job would meet it and report it."""
    arguments = [["*fp32", True, None], ["*fp32", True, None], ["i32", False, None]]
    named = {"text": _SMALL, "name": "small", "arguments": arguments}
    answer(json.dumps({**named, "backend": backend, "arch": arch, "warps": 4, "stages": 1}).encode())
    gc.collect()
    gc.freeze()  # a collection in a child would write to every page that it shares


class Parent:
    """Forks a child for each job, and watches over the children."""

    def __init__(self, control: socket.socket) -> None:
        """Serves what comes over `control`."""
        self._control: socket.socket | None = control
        self._channels: dict[int, socket.socket | None] = {}  # of children, by process number; None: it is being killed
        self._woken, self._waking = os.pipe()
        for end in (self._woken, self._waking):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, _wake)
        signal.set_wakeup_fd(self._waking)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def serve(self, idle: float) -> None:
        """Serve jobs until there can be no more, or there has been none for `idle` seconds."""
        try:
            while self._control is not None or self._channels:
                open_channels = [each for each in self._channels.values() if each is not None]
                waiting = [self._woken, *open_channels, *([] if self._control is None else [self._control])]
                ready = select.select(waiting, (), (), None if self._channels else idle)[0]
                if not ready:
                    return
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                for pid, channel in self._channels.items():
                    if channel is not None and channel in ready:
                        self._kill(pid)
                self._reap()
                if self._control is not None and self._control in ready:
                    self._take(self._control)
        finally:
            for pid in self._channels:
                self._kill(pid)

    def _take(self, control: socket.socket) -> None:
        """Takes the next job and forks a child for it."""
        message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not message:
            control.close()
            self._control = None
            return
        for each in descriptors:
            os.set_inheritable(each, False)  # what a child starts has no part in them
        channel, file = socket.socket(fileno=descriptors[0]), descriptors[1]
        try:
            pid = os.fork()
        except OSError as error:
            _tell(channel, {"errno": error.errno})
            os.close(file)
            return
        if pid == 0:
            self._be_the_child(channel, file)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the child does so too: whoever comes first
        os.close(file)
        self._channels[pid] = channel

    def _be_the_child(self, channel: socket.socket, file: int) -> NoReturn:
        """Does the job in `file` and ends."""
        status = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            for each in (self._control, *self._channels.values()):
                if each is not None:
                    each.close()
            channel.sendall(b"%d\n" % os.getpid())
            for stream in (1, 2):
                os.dup2(file, stream)
            found = answer(os.pread(file, os.fstat(file).st_size, 0))
            sys.stdout.flush()
            channel.sendall(json.dumps(found).encode() + b"\n")
            status = 0
        finally:
            os._exit(status)

    def _kill(self, pid: int) -> None:
        """Kills a child that nobody waits for, and what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        channel = self._channels[pid]
        if channel is not None:
            channel.close()
            self._channels[pid] = None

    def _reap(self) -> None:
        """Says of each child that has ended how it did."""
        for pid in tuple(self._channels):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                channel = self._channels.pop(pid)
                if channel is not None:
                    _tell(channel, {"status": os.waitstatus_to_exitcode(status)})


def _wake(number: int, frame: object) -> None:
    """Does nothing: a signal that has a handler is written to the pipe that `Parent.serve` reads."""


def _end(number: int, frame: object) -> NoReturn:
    """Ends this process by an exception: folders for temporary files are removed, and children killed, on the way."""
    del number, frame
    sys.exit()


def _tell(channel: socket.socket, end: dict[str, int | None]) -> None:
    """Sends what comes last on a channel."""
    with channel, contextlib.suppress(OSError):
        channel.sendall(b"\0" + json.dumps(end).encode())


def main() -> None:
    """Serve jobs until there can be no more."""
    idle, backend, arch = sys.argv[1:]
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGTERM, _end)
    warm(backend, arch)
    Parent(control).serve(float(idle))


if __name__ == "__main__":
    with contextlib.suppress(SystemExit):
        main()
    os._exit(0)  # there is nothing left to do for which the interpreter would have to be taken down
