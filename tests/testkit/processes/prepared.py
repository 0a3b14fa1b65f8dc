"""A Python that has imported weft, and forks of which run programs: `python -m testkit.processes.prepared DESCRIPTOR`.

Through the socket DESCRIPTOR come messages: what to run as JSON, with the descriptors of its standard input, output, error and of a
socket, in which the number of the process and, when it has ended, its status are written as lines. It ends when that is closed.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType

LARGEST = 1 << 17
"""Bytes that a message has at most."""


@dataclass(frozen=True)
class Work:
    """What a process is to do.

    Attributes:
        arguments: Python's.
        environment: all its variables.
        folder: where it runs.
        level: how much the compiler optimises its kernels.
    """

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    level: str


def next_work(channel: socket.socket) -> Work | None:
    """Forks a process for each message; gives its work in that process, and None in this one when there are no more messages."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, LARGEST, 4)
        if not message:
            return None
        if os.fork() == 0:
            channel.close()
            if _is_child(descriptors):
                return Work(**json.loads(message))
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):  # none is left
            while os.waitpid(-1, os.WNOHANG)[0]:  # those that have told how their child ended
                pass


def _is_child(descriptors: list[int]) -> bool:
    """Forks; the child has the standard streams, and its parent tells how it ended."""
    child = os.fork()
    if child == 0:
        for place, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, place)
        for descriptor in descriptors:
            os.close(descriptor)
        return True
    with socket.socket(fileno=descriptors[3]) as told, suppress(BrokenPipeError):  # nobody waits any more
        told.sendall(f"{child}\n".encode())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        told.sendall(f"{status}\n".encode())
    return False


def become(work: Work) -> None:
    """Runs a program as Python does, given its command line; this process's own end is the program's."""
    os.environ.clear()
    os.environ.update(work.environment)
    os.chdir(work.folder)
    from weft.run import compiler

    compiler.LEVEL = work.level
    arguments = list(work.arguments)
    while arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # pyright: ignore[reportArgumentType]
        del arguments[:2]
    asked = [folder for folder in work.environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:] = [*asked, *(folder for folder in sys.path if folder not in asked)]
    match arguments:
        case ["-c", text, *rest]:
            sys.argv[:] = ["-c", *rest]
            _run(text, "<string>")
        case ["-m", name, *rest]:
            sys.argv[:] = [name, *rest]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        case [file, *_]:
            sys.argv[:] = arguments
            sys.path.insert(0, os.path.dirname(file))  # noqa: PTH120 - as Python does, of the text it was given
            with open(file, encoding="utf-8") as script:  # noqa: PTH123 - as above
                _run(script.read(), file)
        case _:
            raise ValueError("no program was named")


def _run(text: str, name: str) -> None:
    """Runs a program's text as the module __main__, which stays until the process ends, as its threads may."""
    module = ModuleType("__main__")
    module.__file__ = name
    sys.modules["__main__"] = module
    exec(compile(text, name, "exec"), module.__dict__)


def main() -> None:
    """Imports, then serves; in the process of a program, runs it."""
    gc.disable()
    import weft
    from weft import capture, plan
    from weft.api import backend

    # What is imported when a graph is first compiled: forks have it.
    assert weft.__file__
    assert all(map(callable, (weft.compile, weft.optimize, backend.backend, capture.capture, plan.plan)))
    gc.enable()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        work = next_work(channel)
    if work is not None:
        become(work)


if __name__ == "__main__":
    main()
