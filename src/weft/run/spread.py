"""Work in Python spread over forked children, where one thread is not enough and there are processors to spare.

A child has all that this process has, and sends back what each of its tasks gives. It ends without running what this process would
run at its end. It must not use a GPU; PyTorch's operations in it have one thread.
"""

from __future__ import annotations

import gc
import os
import pickle
import selectors
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from weft.run.child import Child, begun, can_fork

T = TypeVar("T")

_TICKET = 4
"""Bytes of a task's number, as children take them from a pipe: a read of so few is one piece."""
_MOST_TICKETS = 4096 // _TICKET
"""So many fit into a pipe whatever the system."""


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
    if not can_fork() or not tasks:
        return found
    tickets, give = os.pipe()
    os.write(give, b"".join(number.to_bytes(_TICKET, "little") for number in range(min(len(tasks), _MOST_TICKETS))))
    os.close(give)
    children: dict[int, Child] = {}  # by what is read of them
    latest = time.monotonic() + seconds
    try:
        for _ in range(min(workers, len(tasks))):
            try:
                reading, child = _begun(tasks, tickets)
            except OSError:  # too many processes, or too little memory: fewer do it
                break
            children[reading] = child
        for number, given in _given(tuple(children), latest):
            found[number] = given
    finally:
        os.close(tickets)
        for reading, child in children.items():
            os.close(reading)
            child.end()  # it has ended, or is not waited for
    return found


def _begun(tasks: Sequence[Callable[[], object]], tickets: int) -> tuple[int, Child]:
    """Starts a child; returns what it writes to, as a descriptor to read, and the child."""
    reading, writing = os.pipe()
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


def _given(reading: Sequence[int], latest: float) -> list[tuple[int, Any]]:
    """Reads what children give until they have ended, or it is too late."""
    texts = {each: bytearray() for each in reading}
    with selectors.DefaultSelector() as waiting:
        for each in reading:
            waiting.register(each, selectors.EVENT_READ)
        while waiting.get_map() and (left := latest - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                part = os.read(key.fd, 1 << 20)
                texts[key.fd] += part
                if not part:
                    waiting.unregister(key.fd)
    found: list[tuple[int, Any]] = []
    for text in texts.values():
        place = 0
        while len(text) >= place + _TICKET + 8:
            number = int.from_bytes(text[place : place + _TICKET], "little")
            begin = place + _TICKET + 8
            place = begin + int.from_bytes(text[place + _TICKET : begin], "little")
            if place <= len(text):
                found.append((number, pickle.loads(text[begin:place])))  # noqa: S301 - of a child of this process
    return found
