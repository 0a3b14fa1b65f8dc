"""Work in Python spread over forked children, where one thread is not enough and there are processors to spare.

A child has all that this process has, and sends back what each of its tasks gives. It ends without running what this process would
run at its end. It must not use a GPU; PyTorch's operations in it have one thread.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import io
import os
import pickle
import selectors
import signal
import sys
import termios
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from types import MemberDescriptorType
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
_MOMENT = 1.0
"""Seconds that a child without work left may take to end."""
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


def has_free() -> bool:
    """Tells whether there is a processor that a task which spreads work would get, for a child beside its own."""
    if not _shared:
        return True
    waiting = fcntl.ioctl(_shared[0].take, termios.FIONREAD, bytes(4))
    return int.from_bytes(waiting, sys.byteorder) > 0


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
    latest = time.monotonic() + seconds
    tickets, give = os.pipe()
    os.write(give, b"".join(number.to_bytes(_TICKET, "little") for number in range(min(len(tasks), _MOST_TICKETS))))
    os.close(give)
    pipes: list[tuple[int, int]] = []
    children: list[Child] = []
    done = False
    try:
        with _free(len(tasks)) as (count, places):
            with suppress(OSError):  # too many open files: fewer do it
                pipes += (_pipe() for _ in range(count))
            crew = _Crew(tasks, tickets, tuple(writing for _, writing in pipes), places)
            try:
                children += crew.begun(None)
            finally:
                for _, writing in pipes:
                    os.close(writing)

            def given() -> Iterator[tuple[int, T]]:
                nonlocal done
                done = yield from _given([reading for reading, _ in pipes], latest, places)

            yield given()
    finally:
        os.close(tickets)
        for reading, _ in pipes:
            os.close(reading)
        for child in children:
            child.ends_within(_MOMENT if done else 0.0)  # so long it has to wait for those that it has started
            child.end()


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


def _pipe() -> tuple[int, int]:
    """Makes a pipe with room for what is given, if the system lets it; returns the descriptors to read and to write."""
    reading, writing = os.pipe()
    with suppress(OSError):
        fcntl.fcntl(writing, _SET_PIPE_SIZE, _PIPE)
    return reading, writing


@dataclass(frozen=True)
class _Crew:
    """Children that share tasks. To fork a large process takes 10 ms and more, so that each child forks others before it works:
    child i forks the children 2 i + 2 and 2 i + 3, and the process that wants the work the first two.

    Attributes:
        tasks, tickets: what is to be done, and the pipe with the numbers of what nobody has begun.
        writing: what each child writes to.
        places: processors.
    """

    tasks: Sequence[Callable[[], object]]
    tickets: int
    writing: Sequence[int]
    places: _Places

    def begun(self, number: int | None) -> list[Child]:
        """Starts the children of child `number`, or of this process. With too many processes, or too little memory, fewer do it."""
        first = 0 if number is None else 2 * number + 2
        found: list[Child] = []
        with suppress(OSError):
            found += (begun(partial(self._work, each)) for each in range(first, min(first + 2, len(self.writing))))
        return found

    def _work(self, number: int) -> None:
        """Starts the children of child `number`, does its work, and waits for them: they end with it."""
        _end_with_parent()
        own = self._below(number)
        for each in (self._below(number // 2 - 1) if number > 1 else set(range(len(self.writing)))) - own:
            os.close(self.writing[each])  # those that the process which started it had open
        children = self.begun(number)
        for each in own - {number}:
            os.close(self.writing[each])
        _work(self.tasks, self.tickets, self.writing[number], self.places)
        for child in children:
            child.wait()
            child.end()

    def _below(self, number: int) -> set[int]:
        """Lists child `number`, and those that are started by it or by one that is."""
        found, waiting = set[int](), [number]
        while waiting:
            each = waiting.pop()
            if each < len(self.writing):
                found.add(each)
                waiting += (2 * each + 2, 2 * each + 3)
        return found


def _end_with_parent() -> None:
    """Has this child killed when the process that began it ends; where there is no such call, it ends when it has no work left."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _work(tasks: Sequence[Callable[[], object]], tickets: int, writing: int, places: _Places) -> None:
    _shared[:] = [places]
    gc.disable()  # what it would collect may be the parent's memory on a GPU
    torch.set_num_threads(1)
    with os.fdopen(writing, "wb") as to:
        while ticket := os.read(tickets, _TICKET):
            number = int.from_bytes(ticket, "little")
            try:
                text = _pickled(tasks[number]())
            except Exception:  # noqa: BLE001, S112 - the parent does it, and says what is wrong
                continue
            to.write(ticket + len(text).to_bytes(8, "little") + text)
            to.flush()


class _Pickler(pickle.Pickler):
    """Writes frozen dataclasses with slots so that they are read by a call for each: as Python has it, to read one asks what its
    fields are each time, which took half a second of the parent's for a model's layer.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Returns how to make `obj` again; NotImplemented where Python's own way is taken."""
        names = _slots_of(obj.__class__)
        if not names:
            return NotImplemented
        return _made_of, (obj.__class__, *[getattr(obj, name) for name in names])


@cache
def _slots_of(kind: type) -> tuple[str, ...]:
    """Lists the fields of a dataclass with a slot for each; none of another class, or where it says itself how it is made again."""
    own_way = kind.__reduce__ is not object.__reduce__
    if own_way or not is_dataclass(kind) or "__slots__" not in kind.__dict__:
        return ()
    names = tuple(each.name for each in fields(kind))
    return names if all(isinstance(getattr(kind, n, None), MemberDescriptorType) for n in names) else ()


@cache
def _setters_of(kind: type) -> tuple[Callable[[object, object], None], ...]:
    return tuple(getattr(kind, name).__set__ for name in _slots_of(kind))


def _made_of(kind: type[object], *values: object) -> object:
    """Makes a frozen dataclass of the values of its fields, as they were: nothing is checked or worked out again."""
    made = object.__new__(kind)
    for put, value in zip(_setters_of(kind), values, strict=True):
        put(made, value)
    return made


def _pickled(value: object) -> bytes:
    with io.BytesIO() as text:
        _Pickler(text, pickle.HIGHEST_PROTOCOL).dump(value)
        return text.getvalue()


def _given(reading: Sequence[int], latest: float, places: _Places) -> Generator[tuple[int, Any], None, bool]:
    """Reads what children give until they have no work left, or it is too late; returns whether they have none."""
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
                return False
    return True


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
