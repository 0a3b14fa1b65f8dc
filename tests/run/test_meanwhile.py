"""Work of children that this process does not wait for, until it wants what they made."""

from __future__ import annotations

import os
import threading
import time

import pytest

import weft
from weft.options import current
from weft.run import spread
from weft.run.child import can_fork
from weft.run.meanwhile import Meanwhile

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system has no children of that kind")


def same(found: object) -> object:
    """Take what a task gave as it is."""
    return found


def readers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "weft-meanwhile"]


def have_ended(seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while readers() and time.monotonic() < until:
        time.sleep(0.01)
    return not readers()


@pytest.fixture(autouse=True)
def children(monkeypatch):
    monkeypatch.setattr(spread, "processors", lambda: 4)
    assert have_ended()


def test_each_result_is_waited_for_by_itself(tmp_path):
    go = tmp_path / "go"

    def later() -> int:
        while not go.exists():
            time.sleep(0.01)
        return os.getpid()

    made = Meanwhile([later, os.getpid], same)
    assert made.result(1) not in (None, os.getpid())
    go.touch()
    assert made.result(0) not in (None, os.getpid())
    made.wait()
    assert have_ended()


def test_what_fails_has_no_result_and_the_others_have():
    made = Meanwhile([lambda: 1 // 0, lambda: 7, lambda: os._exit(3)], same)
    assert [made.result(n) for n in (0, 1, 2)] == [None, 7, None]


def test_it_ends_whether_or_not_somebody_asks():
    found: list[bytes] = []
    large = bytes(5_000_000)  # more than a pipe has room for
    made = Meanwhile([lambda: large], found.append)
    del made
    assert have_ended()
    assert found == [large]


def test_options_are_those_of_whoever_began_it(tmp_path):
    with weft.options(cache_dir=tmp_path):
        made = Meanwhile([lambda: None], lambda _: current().cache_dir)
    assert made.result(0) == str(tmp_path)


def test_children_that_take_too_long_are_ended():
    made = Meanwhile([lambda: time.sleep(600)], same, seconds=0.2)
    made.wait()
    assert made.result(0) is None
    assert have_ended()


def test_of_no_tasks_there_is_nothing_to_wait_for():
    Meanwhile([], same).wait()
    assert not readers()


def test_without_children_there_are_no_results(monkeypatch):
    monkeypatch.setattr(spread, "can_fork", lambda: False)
    made = Meanwhile([lambda: 1], same)
    made.wait()
    assert made.result(0) is None
