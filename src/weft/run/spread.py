"""Work in Python spread over forked children, where one thread is not enough and there are processors to spare.

A child has all that this process has, and sends back what each of its tasks gives. It ends without running what this process would
run at its end. It must not use a GPU; PyTorch's operations in it have one thread.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import pickle
import selectors
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
_DEATH_SIGNAL = 1
"""Of Linux's `prctl`: what a process is sent when the one that began it ends."""
_FEWEST_WORKERS, _MOST_WORKERS = 3, 15
"""With fewer than the first nothing is spread: this process does it, in the order in which it is needed, and compilers have the
other processors."""


def processors() -> int:
    """Counts the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers() -> int:
    """Counts the children that are worth having: one for each processor but the one that this process has."""
    return min(processors() - 1, _MOST_WORKERS)


def are_side_by_side() -> bool:
    """Tells whether there are processors to spare, so that work in Python is worth spreading."""
    return workers() >= _FEWEST_WORKERS


def spread(tasks: Sequence[Callable[[], T]], seconds: float = 60.0) -> list[T | None]:
    """Runs `tasks` in children, one for each processor that is free, each task in the child that is free.

    A task may spread work itself: its children have the processors that nobody has, which are more and more as other tasks end.

    Args:
        tasks: in the order in which they are begun; what they give is pickled.
        seconds: after so many the children are ended.

    Returns:
        For each task what it gave; None where it failed, or was not done: its child died or took too long, or there can be none, or
        no processor is free.
    """
    found: list[T | None] = [None] * len(tasks)
    with spreading(tasks, seconds) as given:
        for number, each in given:
            found[number] = each
    return found


@contextmanager
def spreading(tasks: Sequence[Callable[[], T]], seconds: float = 60.0) -> Generator[Iterator[tuple[int, T]]]:
    """Runs `tasks` as `spread` does, and gives what each gave as soon as it did, with its number, until none is left to wait for.

    All children are forked when it is entered, so that what is begun with the first results is begun after them: its threads are
    not there when this process forks. They are ended when it is left.
    """
    if not can_fork() or not tasks:
        yield iter(())
        return
    children: dict[int, Child] = {}  # by what is read of them
    latest = time.monotonic() + seconds
    tickets, give = os.pipe()
    os.write(give, b"".join(number.to_bytes(_TICKET, "little") for number in range(min(len(tasks), _MOST_TICKETS))))
    os.close(give)
    try:
        with _free(len(tasks)) as (count, places):
            for _ in range(count):
                try:
                    reading, child = _begun(tasks, tickets, places)
                except OSError:  # too many processes, or too little memory: fewer do it
                    break
                children[reading] = child
            yield _given(tuple(children), latest, places)
    finally:
        os.close(tickets)
        for reading, child in children.items():
            os.close(reading)
            child.end()  # it has ended, or is not waited for


@dataclass
class _Places:
    """Processors that nobody has, as bytes in a pipe that a process shares with all that it has begun.

    Attributes:
        taken: those that this process has for its children, and gives back as these end.
    """

    take: int
    give: int
    taken: int = 0

    def more(self, most: int) -> int:
        """Takes as many as are free, `most` at most, and returns how many these are."""
        with suppress(BlockingIOError):
            self.taken += len(os.read(self.take, most)) if most else 0
        return self.taken

    def back(self, count: int = 1) -> None:
        """Gives back so many of those that were taken."""
        count = min(count, self.taken)
        self.taken -= count
        os.write(self.give, bytes(count))


_shared: list[_Places] = []
"""Of a child: the places of the process that began it."""


@contextmanager
def _free(tasks: int) -> Generator[tuple[int, _Places]]:
    """Yields how many children there may be for so many tasks, and the places that they share.

    A child that has children of its own waits for them, so that one of these has its processor.
    """
    if _shared:
        places = _Places(_shared[0].take, _shared[0].give)
        more = places.more(tasks - 1)
        try:
            yield (more + 1 if more else 0), places
        finally:
            places.back(places.taken)
        return
    take, give = os.pipe()
    os.set_blocking(take, False)
    try:
        places, most = _Places(take, give), max(1, workers())
        places.taken = most
        count = min(most, tasks)
        places.back(most - count)
        yield count, places
    finally:
        os.close(take)
        os.close(give)


def _begun(tasks: Sequence[Callable[[], object]], tickets: int, places: _Places) -> tuple[int, Child]:
    """Starts a child; returns what it writes to, as a descriptor to read, and the child."""
    reading, writing = os.pipe()
    with suppress(OSError):
        fcntl.fcntl(writing, _SET_PIPE_SIZE, _PIPE)
    try:
        child = begun(lambda: _work(tasks, tickets, writing, places))
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return reading, child


def _work(tasks: Sequence[Callable[[], object]], tickets: int, writing: int, places: _Places) -> None:
    _shared[:] = [places]
    with suppress(OSError, AttributeError):  # where there is no such call, what an ended child began ends by itself
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
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


def _given(reading: Sequence[int], latest: float, places: _Places) -> Iterator[tuple[int, Any]]:
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
                    places.back()
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
