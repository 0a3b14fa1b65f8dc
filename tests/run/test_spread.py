"""Work spread over forked children: whatever becomes of a child, each task has its own result or none."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path

import pytest
import torch

from weft.errors import CompilerError
from weft.run import child as forking
from weft.run import spread as module
from weft.run.child import can_fork, ends_well, fork
from weft.run.spread import spread, spreading

pytestmark = pytest.mark.skipif(not can_fork(), reason="needs fork and pidfd_open, as Linux has them")


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes of all children that are forked."""
    found: list[int] = []

    def noted() -> int:
        pid = fork()
        if pid:
            found.append(pid)
        return pid

    monkeypatch.setattr(forking, "fork", noted)
    return found


def are_gone(children: list[int]) -> bool:
    return bool(children) and not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.fixture(autouse=True)
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two children at most, whatever this machine has."""
    monkeypatch.setattr(module, "workers", lambda: 2)


def test_each_task_has_its_own_result_from_several_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "workers", lambda: 3)

    def task(number: int) -> tuple[int, int, bytes]:
        time.sleep(0.05)
        return number, os.getpid(), bytes(300_000)  # more than a pipe holds

    found = spread([lambda n=n: task(n) for n in range(20)])
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

    found = spread([lambda: 1, fails, dies, threading.Lock, lambda: 5])
    assert found == [1, None, None, None, 5]  # a lock cannot be pickled


def test_a_child_that_hangs_is_ended(children: list[int]) -> None:
    began = time.monotonic()
    found = spread([lambda: 1, lambda: time.sleep(300)], 1.0)
    assert found == [1, None]
    assert time.monotonic() - began < 60
    assert are_gone(children)


def test_results_are_there_while_others_are_worked_on(tmp_path: Path, children: list[int]) -> None:
    known = tmp_path / "known"

    def after_the_first() -> int:
        while not known.exists():
            time.sleep(0.01)
        return 2

    with spreading([after_the_first, lambda: 1], 60.0) as given:
        assert len(children) == 2, "both are forked before the first result is worked with"
        assert next(given) == (1, 1)
        known.touch()
        assert list(given) == [(0, 2)]
    assert are_gone(children)


def test_nobody_waits_for_a_parent_that_works_with_the_first_results() -> None:
    began = [time.monotonic()]

    def task() -> float:
        return time.monotonic()

    with spreading([task] * 40, 60.0) as given:
        ended = [next(given)[1]]
        time.sleep(1.0)
        ended += [each for _, each in given]
    assert len(ended) == 40
    assert max(ended) - began[0] < 1.0


def test_who_turns_away_ends_the_children(children: list[int]) -> None:
    with spreading([lambda: time.sleep(300), lambda: 1], 300.0) as given:
        assert next(given) == (1, 1)
    assert are_gone(children)


def test_a_child_has_one_thread_and_collects_nothing() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (found,) = spread([lambda: (torch.get_num_threads(), gc.isenabled(), float(torch.ones(1 << 20).sum()))])
    finally:
        torch.set_num_threads(before)
    assert found == (1, False, float(1 << 20))


def test_an_interrupt_ends_the_children(children: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_given", interrupted)
    with pytest.raises(KeyboardInterrupt):
        spread([lambda: time.sleep(300)], 300.0)
    assert are_gone(children)


def test_without_room_for_children_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise OSError("too many processes")

    monkeypatch.setattr(forking, "fork", refused)
    assert spread([lambda: 1, lambda: 2]) == [None, None]
    assert spread([]) == []


@pytest.mark.parametrize("how", ["ignored", "reaped"])
def test_what_waits_for_every_child_takes_no_result_and_leaves_no_descriptor(how: str) -> None:
    """A server may ignore SIGCHLD, or have a handler that waits for whatever child has ended."""

    def reap(*_: object) -> None:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN if how == "ignored" else reap)
    try:
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        assert spread([lambda n=n: n for n in range(6)]) == list(range(6))
        assert ends_well(lambda: None, 10) is None
        assert ends_well(lambda: None, 10, lambda: time.sleep(0.1)) is None
        assert ends_well(lambda: time.sleep(60), 0.1) == "it did not end in 0.1 seconds"
        with pytest.raises(CompilerError, match="did not come to its end"):
            ends_well(lambda: 1 / 0, 10)
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    finally:
        signal.signal(signal.SIGCHLD, before)


@dataclass(frozen=True, slots=True)
class Pair:
    """What a task gives: read without a look at what is made."""

    one: object
    other: object
    made: int = field(init=False, default=0, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "made", self.made + 1)


@dataclass(frozen=True, slots=True)
class Own(Pair):
    """Says itself how it is made again."""

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return Own, (self.one, "again")


@dataclass
class Plain:
    """Has no slots."""

    one: object


def test_dataclasses_are_given_as_they_are() -> None:
    shared = Pair((1, 2), None)
    (found,) = spread([lambda: (Pair(shared, {"a": shared}), Own(1, 2), Plain(shared), frozenset((shared,)))])
    assert found is not None
    first, own, plain, several = found
    assert (first, own, plain, several) == (Pair(shared, {"a": shared}), Own(1, "again"), Plain(shared), {shared})
    assert isinstance(first.other, dict)
    assert first.one is first.other["a"] is plain.one  # what is shared is shared again
    assert [each.made for each in (first, own)] == [1, 1]
    with pytest.raises(FrozenInstanceError):
        first.one = 3  # type: ignore[misc]


def test_children_begin_others_and_leave_no_descriptor(monkeypatch: pytest.MonkeyPatch, children: list[int]) -> None:
    """This process forks two of nine children, and each of them has one task at once."""
    monkeypatch.setattr(module, "workers", lambda: 9)

    def task() -> tuple[int, int]:
        time.sleep(1.0)
        return os.getpid(), len(list(Path("/proc/self/fd").iterdir()))

    before = len(list(Path("/proc/self/fd").iterdir()))
    found = [each for each in spread([task] * 9) if each is not None]
    assert len({pid for pid, _ in found}) == 9
    assert len(children) == 2
    most = max(count for _, count in found)
    assert (
        most <= before + 18
    )  # the ends to read, one to write, those of the tasks and the processors, and its children
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert are_gone([pid for pid, _ in found])


def test_a_task_shares_its_work_where_processors_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def inner() -> list[int | None]:
        return spread([lambda n=n: os.getpid() + 0 * n for n in range(8)])

    monkeypatch.setattr(module, "workers", lambda: 4)
    (found,) = spread([inner])
    assert found is not None
    assert None not in found
    monkeypatch.setattr(module, "workers", lambda: 1)
    assert spread([inner]) == [[None] * 8]  # it has the only processor: it does its work itself


def test_processors_of_tasks_that_have_ended_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def late() -> list[int | None]:
        time.sleep(0.5)
        first = spread([lambda: 1, lambda: 2])
        return [*first, *spread([lambda: 3, lambda: 4])]  # what it took it has given back

    monkeypatch.setattr(module, "workers", lambda: 2)
    assert spread([lambda: None, late]) == [None, [1, 2, 3, 4]]


def test_children_of_a_child_that_is_ended_end_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def sleeps(number: int) -> None:
        (tmp_path / f"{number}").write_text(str(os.getpid()))
        time.sleep(300)

    monkeypatch.setattr(module, "workers", lambda: 3)
    assert spread([lambda: spread([lambda n=n: sleeps(n) for n in range(2)], 300.0)], 2.0) == [None]
    began = [int(each.read_text()) for each in tmp_path.iterdir()]
    assert began
    latest = time.monotonic() + 10
    while any(_runs(pid) for pid in began) and time.monotonic() < latest:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in began)


def _runs(pid: int) -> bool:
    """Tells whether a process is there that has not ended, though nobody may have waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
