"""weft in a user's program: what calls cost, threads and processes, and everything that may be an argument or a result."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from testkit.processes.running import ran

TASKS = Path("/proc/self/task")


def relu_linear(x, w, b):
    return torch.relu(x @ w + b)


def operands(rows: int = 8, inner: int = 8, columns: int = 8) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(columns)


@pytest.mark.skipif(not TASKS.is_dir(), reason="needs /proc")
def test_small_work_wakes_no_thread():
    many = threads_alive() + 8
    fast = weft.compile(relu_linear, threads=many)
    fast(*operands())
    assert threads_alive() < many
    fast(*operands(512, 256, 256))
    assert threads_alive() >= many


def threads_alive() -> int:
    return len(list(TASKS.iterdir()))


def close(found, wanted) -> bool:
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("call", [lambda fn, given: weft.compile(fn)(*given), weft.optimize])
def test_a_shape_error_comes_without_pytorchs_log(call, caplog):
    with pytest.raises(weft.errors.ShapeError):
        call(relu_linear, (torch.randn(2, 3), torch.randn(4, 5), torch.randn(5)))
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


class TestThreadsAndProcesses:
    def test_threads_that_race_for_the_first_calls(self):
        fast = weft.compile(relu_linear)
        together = threading.Barrier(8)
        found: dict[int, bool] = {}

        def work(rows: int) -> None:
            given = operands(rows)
            together.wait()
            found[rows] = all(close(fast(*given), relu_linear(*given)) for _ in range(10))

        threads = [threading.Thread(target=work, args=(rows,), daemon=True) for rows in (1, 2, 3, 5, 8, 9, 33, 64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert found == dict.fromkeys((1, 2, 3, 5, 8, 9, 33, 64), True)

    def test_several_models(self):
        models = [nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4)).eval() for width in (3, 8, 17)]
        compiled = [weft.compile(model) for model in models]
        with torch.no_grad():
            for x in (torch.randn(5, 8), torch.randn(2, 8)):
                for model, fast in zip(models, compiled, strict=True):
                    assert close(fast(x), model(x))

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_does_not_wait_for_its_parents_threads(self):
        assert ran(["-c", FORK], timeout=120).stderr == ""

    def test_spawned_workers(self):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as workers:
            assert workers.submit(difference, 40).result(120) < 1e-4

    def test_the_number_of_threads_may_change(self):
        fast, given, before = weft.compile(relu_linear), operands(256, 64, 64), torch.get_num_threads()
        try:
            for threads in (1, 3, 2):
                torch.set_num_threads(threads)
                assert close(fast(*given), relu_linear(*given))
        finally:
            torch.set_num_threads(before)


compiled_relu_linear = weft.compile(relu_linear)


def difference(rows: int) -> float:
    given = operands(rows)
    return float((compiled_relu_linear(*given) - relu_linear(*given)).abs().max())


FORK = """
import os, signal, sys, torch, weft

def f(x, w):
    return torch.relu(x @ w) + 1

torch.set_num_threads(2)
x, w = torch.randn(512, 256), torch.randn(256, 256)
compiled = [weft.compile(f, measure="never"), weft.compile(f, measure="never", threads=2)]
wanted = [fast(x, w)[::100, 0].tolist() for fast in compiled]
new = f(x[:300], w)
child = os.fork()
if child == 0:
    signal.alarm(60)
    found = [fast(x, w)[::100, 0].tolist() for fast in compiled]
    other = weft.compile(f, measure="auto")(x[:300], w)
    near = max(abs(a - b) for a, b in zip(other[::100, 0].tolist(), new[::100, 0].tolist()))
    os._exit(0 if found == wanted and near < 1e-3 else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
