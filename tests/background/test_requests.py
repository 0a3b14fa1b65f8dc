"""The queue of requests, with processes that are not weft's own: quick, and as wrong as a test wants them."""

from __future__ import annotations

import os
import resource
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from testkit.processes.running import ran
from weft.api.background import process, requests
from weft.api.background.messages import Reply, RequestFailure
from weft.api.background.process import Process
from weft.api.background.requests import Pending, Requests

ECHO = """
import sys
while length := int.from_bytes(sys.stdin.buffer.read(8), "little"):
    sys.stdout.buffer.write(length.to_bytes(8, "little") + sys.stdin.buffer.read(length))
    sys.stdout.buffer.flush()
"""
SECONDS = 30.0


class Answering:
    """A process that answers at once with `reply`."""

    made: list[Answering]
    reply = Reply()

    def __init__(self) -> None:
        self.made.append(self)
        self.asked: list[Any] = []

    def ask(self, request: Any) -> Reply:
        self.asked.append(request)
        return self.reply

    def stop(self) -> None:
        pass


@pytest.fixture
def processes(monkeypatch) -> list[Answering]:
    monkeypatch.setattr(Answering, "made", [], raising=False)
    monkeypatch.setattr(requests, "Process", Answering)
    return Answering.made


def pending(number: int, installed=lambda _: True) -> Pending:
    return Pending(lambda: number, installed, lambda: True)  # type: ignore[arg-type]


@pytest.fixture
def echo(monkeypatch):
    """A process that sends back what it is sent."""
    monkeypatch.setattr(process, "_RUN", ECHO)
    made: list[Process] = []

    def start() -> Process:
        made.append(Process())
        return made[-1]

    yield start
    for each in made:
        each.stop()


def test_a_path_that_is_no_text_does_not_matter(echo, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [Path("/nowhere"), None, *sys.path])
    assert echo().ask({"a": 1}) == {"a": 1}


def test_a_process_with_thousands_of_open_files_is_answered(echo) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while held[-1] < 1100:
            held.append(os.dup(held[0]))
        assert echo().ask("one") == "one"
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_answer_that_cannot_be_read_is_not_read_as_the_next_one(echo, monkeypatch) -> None:
    one = echo()
    with monkeypatch.context() as patched:
        real, given = os.read, []

        def read(fd: int, count: int) -> bytes:
            if given:
                raise MemoryError
            given.append(fd)
            return real(fd, count)

        patched.setattr(process.os, "read", read)
        with pytest.raises(process.GoneError, match="MemoryError"):
            one.ask("x" * 100)


def test_a_process_that_cannot_be_started_is_said(monkeypatch) -> None:
    class Failing:
        def __init__(self) -> None:
            raise ValueError("embedded null byte")

    monkeypatch.setattr(requests, "Process", Failing)
    said: list[RequestFailure | None] = []

    def installed(reply: Reply) -> bool:
        said.append(reply.failure)
        return False

    queue, one = Requests(), pending(1, installed)
    queue.put(one)
    assert one.done.wait(SECONDS)
    assert said == [RequestFailure("the process that compiles cannot be started")]


def test_a_process_that_has_taken_much_memory_is_replaced_without_loss(processes, monkeypatch) -> None:
    monkeypatch.setattr(Answering, "reply", Reply(is_last=True))
    queue, said = Requests(), list[RequestFailure | None]()

    def installed(reply: Reply) -> bool:
        said.append(reply.failure)
        return True

    for number in range(5):
        one = pending(number, installed)
        queue.put(one)
        assert one.done.wait(SECONDS)
    assert said == [None] * 5
    assert [each.asked for each in processes if each.asked] == [[0], [1], [2], [3], [4]]


def test_what_does_not_serve_yet_is_pending(processes) -> None:
    queue, listed = Requests(), list[list[Pending]]()

    def installed(_: Reply) -> bool:
        listed.append(queue.pending())
        return True

    one = pending(1, installed)
    queue.put(one)
    assert one.done.wait(SECONDS)
    assert listed == [[one]]
    assert processes


def test_where_no_thread_can_be_started_a_request_fails_at_once(processes, monkeypatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    queue, said = Requests(), list[RequestFailure | None]()

    def installed(reply: Reply) -> bool:
        said.append(reply.failure)
        return False

    one = pending(1, installed)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        queue.start()
        queue.put(one)
    assert one.done.is_set()
    assert said == [RequestFailure("can't start new thread")]
    two = pending(2)
    queue.put(two)
    assert two.done.wait(SECONDS)
    assert processes


def test_a_process_that_is_gone_does_not_end_this_one_where_pipes_do_by_default() -> None:
    text = """if True:
    import signal
    from weft.api.background import process
    process._RUN = "pass"
    one = process.Process()
    one._process.wait()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        one.ask("anything")
    except process.GoneError as error:
        print(error)
    """
    made = ran(["-c", text], timeout=120)
    assert made.stdout == "ended with the status 0\n"
