"""Calls in a child: what becomes of it is told, and this process goes on."""

import ctypes
import mmap
import os
import time

import pytest
import torch

from weft.run.child import can_fork, ends_well
from weft.run.guarded import Guarded, GuardedOnGpu

pytestmark = pytest.mark.skipif(
    not can_fork(), reason="this system has no children of that kind: kernels are run in this process"
)


def test_what_ends_well_leaves_its_results():
    memory = Guarded(1 << 16)
    result = memory.allocate((3, 4), (4, 1), dtype=torch.float32)

    def work():
        ctypes.memset(result.data_ptr(), 0, 48)

    assert bool(result.isnan().all())
    assert ends_well(work, 10) is None
    torch.testing.assert_close(result, torch.zeros(3, 4))
    assert memory.touched() is None


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda: ctypes.memset(8, 0, 8), "it crashed (SIGSEGV)"),
        (os.abort, "it crashed (SIGABRT)"),
        (lambda: 1 / 0, "the call failed"),
        (lambda: os._exit(3), "it ended with status 3"),
    ],
)
def test_what_does_not_is_said(work, said, capfd):
    assert ends_well(work, 60) == said
    assert capfd.readouterr() == ("", "")


def test_what_hangs_is_said(capfd):
    assert ends_well(lambda: time.sleep(60), 0.2) == "it did not end in 0.2 seconds"
    assert capfd.readouterr() == ("", "")


def test_no_child_is_left_behind(monkeypatch):
    fork, made = os.fork, []

    def noted():
        made.append(fork())
        return made[-1]

    monkeypatch.setattr(os, "fork", noted)
    assert ends_well(lambda: None, 10) is None
    assert ends_well(lambda: time.sleep(60), 0.1) is not None
    with pytest.raises(ZeroDivisionError):
        ends_well(lambda: time.sleep(60), 60, lambda: 1 / 0)
    for pid in made:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_writes_beside_a_tensor_and_into_an_input_are_seen():
    for place in (-1, 0, 12):
        memory = Guarded(1 << 16)
        given = memory.holding(
            torch.arange(6, dtype=torch.float32).reshape(2, 3).numpy(), torch.float32, (4, 1), offset=1
        )
        result = memory.allocate((3, 4), (4, 1), dtype=torch.float32)
        assert memory.touched() is None
        assert given.tolist() == [[0, 1, 2], [3, 4, 5]]
        ctypes.memset(result.data_ptr() + 4 * place, 0, 4)
        assert (memory.touched() is None) == (place == 0)
        memory = Guarded(1 << 16)
        given = memory.holding(torch.arange(6, dtype=torch.float32).numpy(), torch.float32, (1,))
        given[2] = 7
        assert memory.touched() == "an input was written to"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_so_they_are_on_a_gpu(dtype):
    """Strides and bits are as asked for, and what lies between the elements is poison."""
    here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    values = torch.arange(6).reshape(2, 3).remainder(2).to(dtype)
    for place in (-1, 0, 7):
        memory = GuardedOnGpu(here)
        given = memory.holding(values, (4, 1))
        result = memory.allocate((2, 4), (4, 1), dtype)
        assert memory.touched() is None
        assert given.tolist() == values.tolist()
        assert (given.stride(), given.dtype, given.device.type) == ((4, 1), dtype, here.type)
        assert given.as_strided((4,), (1,)).view(torch.uint8)[3 * dtype.itemsize :].eq(0xFF).all()
        result.as_strided((1,), (1,), result.storage_offset() + (place if place < 0 else place + (place > 0))).zero_()
        assert (memory.touched() is None) == (place == 0)
        memory = GuardedOnGpu(here)
        given = memory.holding(values.to(here).T, (1, 4))
        assert given.tolist() == values.T.tolist()
        given[1, 1] = 1 - given[1, 1].long()
        assert memory.touched() == "an input was written to"


def test_what_lies_behind_an_input_is_not_what_lies_behind_a_result():
    """A row too many that a kernel reads, and writes as it came, a NaN with its bits, would not be seen."""
    memory = Guarded(1 << 16)
    given = memory.holding(torch.arange(4, dtype=torch.float32).numpy(), torch.float32, (1,))
    result = memory.allocate((4,), (1,), dtype=torch.float32)
    ctypes.memmove(result.data_ptr(), given.data_ptr(), 5 * 4)
    assert memory.touched() == "something was written beside a tensor"


def test_without_room_it_says_so():
    with pytest.raises(MemoryError):
        Guarded(1 << 12).allocate((1 << 12,), (1,), dtype=torch.float32)


def test_this_process_goes_on_meanwhile():
    shared = mmap.mmap(-1, 1)

    def waiting():
        until = time.monotonic() + 10
        while not shared[0]:
            assert time.monotonic() < until
            time.sleep(0.001)

    def answer():
        shared[0] = 1

    assert ends_well(waiting, 20, answer) is None
