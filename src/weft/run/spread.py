"""Work in Python spread over forked children, where one thread is not enough and there are processors to spare.

A child has all that this process has, and sends back what each of its tasks gives. It ends without running what this process would
run at its end. It must not use a GPU; PyTorch's operations in it have one thread.
"""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import selectors
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch

from weft.run.child import Child, begun, can_fork

T = TypeVar("T")

_TICKET = 4
"""Bytes of a task's number, as children take them from a pipe: a read of so few is one piece."""
_MOST_TICKETS = 4096 // _TICKET
"""So many fit into a pipe whatever the system."""
_PIPE = 1 << 20
"""Bytes that a child's pipe has room for, if the system lets it: what reads it may have other work to do."""
_SET_PIPE_SIZE = getattr(fcntl, "F_SETPIPE_SZ", 1031)


def processors() -> int:
    """Counts the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(tasks: Sequence[Callable[[], T]], workers: int, seconds: float) -> list[T | None]:
    """Runs `tasks` in so many children, each task in the one that is free.

    Args:
        tasks: in the order in which they are begun; what they give is pickled.
        workers: how many children at most.
        seconds: after so many the children are ended.

    Returns:
        For each task what it gave; None where it failed, or was not done: its child died or took too long, or there can be none.
    """
    found: list[T | None] = [None] * len(tasks)
    with spreading(tasks, workers, seconds) as given:
        for number, each in given:
            found[number] = each
    return found


@contextmanager
def spreading(tasks: Sequence[Callable[[], T]], workers: int, seconds: float) -> Generator[Iterator[tuple[int, T]]]:
    """Runs `tasks` as `spread` does, and gives what each gave as soon as it did, with its number, until none is left to wait for.

    All children are forked when it is entered, so that what is begun with the first results is begun after them: its threads are
    not there when this process forks. They are ended when it is left.
    """
    children: dict[int, Child] = {}  # by what is read of them
    latest = time.monotonic() + seconds
    if not can_fork() or not tasks:
        yield iter(())
        return
    tickets, give = os.pipe()
    os.write(give, b"".join(number.to_bytes(_TICKET, "little") for number in range(min(len(tasks), _MOST_TICKETS))))
    os.close(give)
    try:
        for _ in range(min(workers, len(tasks))):
            try:
                reading, child = _begun(tasks, tickets)
            except OSError:  # too many processes, or too little memory: fewer do it
                break
            children[reading] = child
        yield _given(tuple(children), latest)
    finally:
        os.close(tickets)
        for reading, child in children.items():
            os.close(reading)
            child.end()  # it has ended, or is not waited for


def _begun(tasks: Sequence[Callable[[], object]], tickets: int) -> tuple[int, Child]:
    """Starts a child; returns what it writes to, as a descriptor to read, and the child."""
    reading, writing = os.pipe()
    with suppress(OSError):
        fcntl.fcntl(writing, _SET_PIPE_SIZE, _PIPE)
    try:
        child = begun(lambda: _work(tasks, tickets, writing))
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return reading, child


def _work(tasks: Sequence[Callable[[], object]], tickets: int, writing: int) -> None:
    gc.disable()  # what it would collect may be the parent's memory on a GPU
    torch.set_num_threads(1)
    with os.fdopen(writing, "wb") as to:
        while ticket := os.read(tickets, _TICKET):
            number = int.from_bytes(ticket, "little")
            try:
                text = pickle.dumps(tasks[number]())
            except Exception:  # noqa: BLE001, S112 - the parent does it, and says what is wrong
                continue
            to.write(ticket + len(text).to_bytes(8, "little") + text)
            to.flush()


def _given(reading: Sequence[int], latest: float) -> Iterator[tuple[int, Any]]:
    """Reads what children give until they have ended, or it is too late."""
    texts = {each: bytearray() for each in reading}
    with selectors.DefaultSelector() as waiting:
        for each in reading:
            waiting.register(each, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(max(0.0, latest - time.monotonic()))
            for key, _ in ready:
                part = os.read(key.fd, 1 << 20)
                texts[key.fd] += part
                if not part:
                    waiting.unregister(key.fd)
            # Of what has come, all is taken before anybody works with it, so that no child waits for room in its pipe.
            for key, _ in ready:
                yield from _whole(texts[key.fd])
            if not ready:
                return


def _whole(text: bytearray) -> Iterator[tuple[int, Any]]:
    """Takes the results off the beginning of `text` that are there as a whole."""
    head = _TICKET + 8
    while len(text) >= head:
        size = int.from_bytes(text[_TICKET:head], "little")
        if len(text) < head + size:
            return
        number, given = int.from_bytes(text[:_TICKET], "little"), bytes(text[head : head + size])
        del text[: head + size]
        yield number, pickle.loads(given)  # noqa: S301 - of a child of this process
