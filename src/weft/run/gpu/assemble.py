"""From a kernel's text and a class to a binary, by Triton, for a GPU that need not be here; many at once."""

from __future__ import annotations

import base64
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from weft.cost.gpus import gpu
from weft.errors import CompilerError, UnsupportedError, WeftError
from weft.run import stats
from weft.run.cache import Json
from weft.run.compiler import shorten
from weft.run.gpu import workers as processes
from weft.run.gpu.classes import KernelClass
from weft.run.spread import processors
from weft.target import Target

T = TypeVar("T")

ASSEMBLY_SECONDS = 300.0
"""A kernel that takes Triton longer than this is given up; most take less than one second."""

_INSTALL = "install Triton 3.6 or newer: pip install 'weft[gpu]'"
_REPORT = "report this with the kernel's source"
_ENTRY = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\(([^)]*)\)")
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z]+(\d+)")


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to be compiled; plain data.

    Attributes:
        text: a Python module.
        name: of the Triton function in it.
        kind: the class of calls that it is compiled for.
        target: a GPU.
        warps, stages: Triton's num_warps and num_stages.
    """

    text: str
    name: str
    kind: KernelClass
    target: Target
    warps: int = 4
    stages: int = 1


@dataclass(frozen=True, slots=True)
class Assembled:
    """A kernel compiled for one class of calls.

    Attributes:
        name: of the function in `binary`.
        kind: the class of calls.
        target: that it runs on.
        binary: a cubin, or for AMD an hsaco.
        assembly: PTX, or AMD's, as text.
        shared: bytes of shared memory of a thread block.
        threads: of a thread block.
        parameters: bytes of each parameter of the function, as PTX states them: of the class's arguments that are no constants,
            then of addresses of Triton's own memory. Empty for AMD.
        scratch: bytes of that memory that each thread block of a launch needs.
    """

    name: str
    kind: KernelClass
    target: Target
    binary: bytes
    assembly: str
    shared: int
    threads: int
    parameters: tuple[int, ...]
    scratch: int = 0

    def to_json(self) -> Json:
        """Returns all but binary and assembly as JSON, for the meta of a cache entry."""
        return {
            "name": self.name,
            "class": str(self.kind),
            "target": str(self.target),
            "shared": self.shared,
            "threads": self.threads,
            "parameters": list(self.parameters),
            "scratch": self.scratch,
        }

    @staticmethod
    def from_json(text: Json, binary: bytes, assembly: str) -> Assembled:
        """Reads what `to_json` wrote, with the rest. KeyError, TypeError or ValueError otherwise."""
        found = cast("dict[str, Any]", text)
        return Assembled(
            name=found["name"],
            kind=KernelClass.parse(found["class"]),
            target=Target.parse(found["target"]),
            binary=binary,
            assembly=assembly,
            shared=int(found["shared"]),
            threads=int(found["threads"]),
            parameters=tuple(int(n) for n in found["parameters"]),
            scratch=int(found["scratch"]),
        )


def assemble(job: Job, seconds: float = ASSEMBLY_SECONDS) -> Assembled:
    """Compiles one kernel, in a process of Triton's own (`workers`).

    Args:
        job: what to compile.
        seconds: the time after which Triton is stopped; it is not begun where there is none.

    Raises:
        CompilerError: Triton is missing or too old, refused the kernel or its target, crashed, or took too long.
        UnsupportedError: a thread block would need more shared memory than the target has.
        TargetError: the target is no GPU that weft makes kernels for.
    """
    most = gpu(job.target).thread_block_bytes
    if seconds <= 0:
        none = processes.WorkerError("there was no time", "")  # with more, Triton may well compile it
        raise CompilerError(_of(job, "not compiled: out of time"), kernel=job.name) from none
    stats.count("compiles")
    try:
        found = processes.ask(_described(job), seconds)
    except processes.WorkerError as error:
        raise CompilerError(
            _of(job, error.what), output=shorten(error.output), kernel=job.name, todo=_REPORT
        ) from error
    except OSError as error:
        raise CompilerError(
            f"Triton's process could not be started: {error}", todo="free memory and space for temporary files"
        ) from error
    if "error" in found:
        raise _refused(job, found)
    made = _assembled(job, found)
    if made.shared > most:
        raise UnsupportedError(
            _of(job, f"a thread block needs {made.shared} bytes of shared memory, but {job.target} has {most}"),
            todo="take smaller tiles or fewer stages",
        )
    stats.count("binaries_emitted")
    return made


def warm(target: Target) -> None:
    """Starts the process that compiles for `target` ahead of the first kernel: it imports Triton meanwhile."""
    with suppress(OSError):  # the first kernel's error says so
        processes.warm(target.kind, target.arch)


class Assembling:
    """A task that was begun ahead; while nobody holds it, it need not be done."""


class _Ahead:
    """Tasks that wait for a thread, and threads that do them: at most one for each processor, and none without work."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: deque[tuple[weakref.ref[Assembling], Callable[[], object]]] = deque()
        self.threads = 0

    def begin(self, task: Callable[[], object]) -> Assembling:
        token = Assembling()
        with self.lock:
            self.waiting.append((weakref.ref(token), task))
            if self.threads < processors():
                with suppress(RuntimeError):  # no further thread to be had: others do it, or whoever needs it
                    threading.Thread(target=self._work, name="weft assembly ahead", daemon=True).start()
                    self.threads += 1
        return token

    def _work(self) -> None:
        while True:
            with self.lock:
                token, task = self.waiting.popleft() if self.waiting else (None, None)
                if token is None or task is None:
                    self.threads -= 1
                    return
            if token() is not None:
                with suppress(WeftError, OSError):  # whoever asks for it finds the same
                    task()


_ahead = _Ahead()


def begun(task: Callable[[], object]) -> Assembling:
    """Has `task`, which compiles and keeps what it gives, done in a thread, as soon as a processor is free for that."""
    return _ahead.begin(task)


def _in_a_child() -> None:
    """Forgets what the parent does: its threads are not here."""
    global _ahead  # noqa: PLW0603 - another thread of the parent may hold its lock
    _ahead = _Ahead()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_child)


def side_by_side(tasks: Sequence[Callable[[], T]], workers: int | None = None) -> list[T | WeftError]:
    """Runs `tasks`, which compile, side by side: so many at a time, or one for each core that this process may use.

    Returns:
        For each, in order, what it gave, or weft's error: one that fails, crashes or takes too long ends nothing.
    """
    found: dict[int, T | WeftError] = {}
    failed: list[BaseException] = []
    left = iter(enumerate(tasks))
    lock = threading.Lock()

    def work() -> None:
        while not failed:
            with lock:
                number, task = next(left, (-1, None))
            if task is None:
                return
            try:
                found[number] = task()
            except WeftError as error:
                found[number] = error
            except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
                failed.append(error)

    # Threads only wait here: each kernel is compiled in a process of its own.
    count = max(1, min(workers or processors(), len(tasks)))
    threads = [threading.Thread(target=work, name=f"weft assembly {i}", daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException as error:  # an interrupt: no thread begins another task
        failed.append(error)
        raise
    if failed:
        raise failed[0]
    return [found[number] for number in range(len(tasks))]


def _described(job: Job) -> dict[str, Any]:
    return {
        "text": job.text,
        "name": job.name,
        "arguments": [[a.kind, a.divisible, a.value] for a in job.kind.arguments],
        "backend": job.target.kind,
        "arch": job.target.arch,
        "warps": job.warps,
        "stages": job.stages,
    }


def _of(job: Job, what: str) -> str:
    return f"kernel {job.name} for {job.target}, {job.warps} warps, {job.stages} stages: {what}"


def _refused(job: Job, found: Mapping[str, Any]) -> WeftError:
    """Makes the error for what Triton's process says went wrong."""
    kind, message = str(found["error"]), str(found["message"])
    match kind:
        case "ModuleNotFoundError" | "ImportError":
            return CompilerError(f"Triton cannot be used: {message}", todo=_INSTALL)
        case "OutOfResources":
            return UnsupportedError(_of(job, message), todo="take smaller tiles or fewer stages")
        case "PTXASError":
            what = "the assembler (ptxas) failed"
        case _:
            what = f"Triton refused it ({kind})"
    output = "\n".join(text for text in (message, str(found.get("output", ""))) if text)
    return CompilerError(_of(job, what), output=shorten(output), kernel=job.name, todo=_REPORT)


def _assembled(job: Job, found: Mapping[str, Any]) -> Assembled:
    """Returns the result of a job, once what Triton passes to the binary is known to be what weft passes."""
    parameters: tuple[int, ...] = ()
    if job.target.kind == "cuda":
        parameters = parameters_of(found["assembly"], found["name"])
        own = [a.bytes for a in job.kind.arguments if a.value is None]
        rest = parameters[len(own) :]
        if list(parameters[: len(own)]) != own or len(rest) > 2 or any(n != 8 for n in rest):
            raise CompilerError(
                _of(job, f"Triton {found['triton']} made a binary with parameters of {parameters} bytes for {own}"),
                todo=f"use a Triton between 3.6 and 3.7, or {_REPORT}",
            )
    if found["profile"]:
        raise CompilerError(_of(job, "Triton's profiling is on"), todo="unset Triton's profiling variables")
    return Assembled(
        name=found["name"],
        kind=job.kind,
        target=job.target,
        binary=base64.b64decode(found["binary"]),
        assembly=found["assembly"],
        shared=found["shared"],
        threads=found["threads"],
        parameters=parameters,
        scratch=found["scratch"],
    )


def parameters_of(assembly: str, name: str) -> tuple[int, ...]:
    """Returns the bytes of each parameter of the kernel `name` in PTX. ValueError where there is no such kernel."""
    for entry, text in _ENTRY.findall(assembly):
        if entry == name:
            return tuple(int(bits) // 8 for bits in _PARAMETER.findall(text))
    raise ValueError(f"no kernel {name} in the assembly")
