"""Work spread over forked children: whatever becomes of a child, each task has its own result or none."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

from weft.run.child import can_fork
from weft.run.gpu import workers
from weft.run.spread import spread

pytestmark = pytest.mark.skipif(not can_fork(), reason="needs fork and pidfd_open, as Linux has them")


@pytest.fixture(autouse=True)
def _childless() -> None:
    """Ends the one child of this process that other tests may have left: here it is asked whether there is any."""
    workers.retire()


def test_each_task_has_its_own_result_from_several_children() -> None:
    def task(number: int) -> tuple[int, int, bytes]:
        time.sleep(0.05)
        return number, os.getpid(), bytes(300_000)  # more than a pipe holds

    found = spread([lambda n=n: task(n) for n in range(20)], 3, 60.0)
    assert [None if each is None else each[0] for each in found] == list(range(20))
    processes = {each[1] for each in found if each is not None}
    assert len(processes) == 3
    assert os.getpid() not in processes


def test_what_fails_or_dies_takes_nothing_else_along() -> None:
    def fails() -> int:
        raise ValueError("no")

    def dies() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    found = spread([lambda: 1, fails, dies, threading.Lock, lambda: 5], 2, 60.0)
    assert found == [1, None, None, None, 5]  # a lock cannot be pickled


def test_a_child_that_hangs_is_ended() -> None:
    began = time.monotonic()
    found = spread([lambda: 1, lambda: time.sleep(300)], 2, 1.0)
    assert found == [1, None]
    assert time.monotonic() - began < 60
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_child_has_one_thread_and_collects_nothing() -> None:
    import gc

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (found,) = spread(
            [lambda: (torch.get_num_threads(), gc.isenabled(), float(torch.ones(1 << 20).sum()))], 1, 60.0
        )
    finally:
        torch.set_num_threads(before)
    assert found == (1, False, float(1 << 20))


def test_an_interrupt_ends_the_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.run.spread._given", interrupted)
    with pytest.raises(KeyboardInterrupt):
        spread([lambda: time.sleep(300)], 1, 300.0)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_without_room_for_children_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise OSError("too many processes")

    monkeypatch.setattr("weft.run.spread.fork", refused)
    assert spread([lambda: 1, lambda: 2], 2, 60.0) == [None, None]
    assert spread([], 2, 60.0) == []
