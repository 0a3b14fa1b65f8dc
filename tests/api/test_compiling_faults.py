"""What goes wrong while a first call compiles: PyTorch runs, one warning says why, and the next process compiles.

Each is tried in processes of its own, one after another, which share a cache. `compile="background"` has such tests of its own
(`tests/background/test_faults.py`), and so has the cache (`tests/run/test_cache_faults.py`).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

import pytest

from testkit.processes.running import ran
from testkit.walk import WALK_ALL
from weft.run.child import can_fork
from weft.run.compiler import find_compiler

_SCRIPT = """
import json, os, shutil, signal, subprocess, sys, threading, time, warnings, torch, weft
from weft.errors import CacheFolderWarning

def f(x):
    return torch.softmax(torch.exp(x) * 1.625, -1)

x = torch.linspace(-1, 1, 4096).reshape(32, 128)
FAULT
with warnings.catch_warnings(record=True) as said, torch.no_grad():
    warnings.simplefilter("always")
    fast = weft.compile(f, measure="never")
    for _ in range(2):
        torch.testing.assert_close(fast(x), f(x))
heard = [str(w.message) for w in said if w.category.__module__.startswith("weft")]
print(json.dumps({"heard": heard, "compiles": weft.stats().compiles, "fallbacks": weft.stats().fallbacks}))
"""


@dataclass(frozen=True)
class Outcome:
    """What a process heard and did."""

    heard: list[str]
    compiles: int
    fallbacks: int


@pytest.fixture
def process(tmp_path):
    """Runs the script in a process, with a fault: lines that are run before anything is compiled."""

    def run(fault: str = "", **variables: str) -> Outcome:
        environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path / "cache")}
        environment |= {"WEFT_DEFECTS": "warn", "WEFT_JUDGE": "first", **variables}
        done = ran(["-c", _SCRIPT.replace("FAULT", fault)], environment, timeout=300)
        return Outcome(**json.loads(done.stdout.splitlines()[-1]))

    return run


@pytest.mark.parametrize("who", ["compiler", *["its child"] * WALK_ALL])
def test_a_compiler_that_is_killed_while_it_works(process, tmp_path, who):
    """By the system for want of memory, say: the driver, or what does its work, which it then reports itself."""
    killing = tmp_path / "killing"
    killing.touch()
    (real,) = find_compiler().command[:1]
    compiler = tmp_path / "g++"
    fault = "kill -9 $$" if who == "compiler" else f'( sleep 0.3; pkill -9 -P $P cc1plus ) & exec {real} "$@"'
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *kernel.cpp*) if [ -e {killing} ]; then P=$$; {fault}; fi;; esac\nexec {real} "$@"\n'
    )
    compiler.chmod(0o755)
    first = process(WEFT_CXX=str(compiler))
    killing.unlink()
    second = process(WEFT_CXX=str(compiler))
    assert len(first.heard) == 1
    assert "the compiler was killed while it worked" in first.heard[0]
    assert first.fallbacks > 0
    assert (second.heard, second.fallbacks) == ([], 0)
    assert second.compiles > 0


@pytest.mark.skipif(not can_fork(), reason="kernels are judged in this process")
def test_a_process_that_judges_kernels_is_killed(process):
    """The kernels are not to blame: nothing is remembered of them."""
    first = process("""
import weft.run.child as child
fork = os.fork
def killed():
    pid = fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return pid
os.fork = killed
""")
    second = process()
    assert len(first.heard) == 1
    assert "SIGKILL" in first.heard[0]
    assert "wrong" not in first.heard[0]
    assert (second.heard, second.fallbacks) == ([], 0)


def test_a_cache_that_is_deleted_while_it_is_compiled(process):
    first = process("""
def deleting():
    while True:
        shutil.rmtree(os.environ["WEFT_CACHE_DIR"], ignore_errors=True)
        time.sleep(0.01)
threading.Thread(target=deleting, daemon=True).start()
""")
    second = process()
    assert len(first.heard) <= 1
    assert (first.fallbacks, second.heard, second.fallbacks) == (0, [], 0)
    assert second.compiles > 0
    assert process().compiles == 0


def test_a_fork_in_the_middle_of_compiling(process):
    """Another thread forks while the compiler works: the child runs, ends, and takes neither compilers nor files with it."""
    found = process("""
import atexit
run, child = subprocess.Popen.communicate, []
def forking(process, *given, **more):
    if not child and "kernel.cpp" in process.args:
        child.append(os.fork())
        if child[0] == 0:
            signal.alarm(100)
            torch.set_num_threads(1)
            assert f(x).isfinite().all()
            atexit._run_exitfuncs()
            os._exit(0)
        assert os.waitpid(child[0], 0)[1] == 0
        assert process.poll() is None, "it still works"
    return run(process, *given, **more)
subprocess.Popen.communicate = forking
""")
    assert (found.heard, found.fallbacks) == ([], 0)
    assert found.compiles > 0
    again = process()
    assert (again.heard, again.fallbacks, again.compiles) == ([], 0, 0)
