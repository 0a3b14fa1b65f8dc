"""What may happen to a process while another one compiles for it: it is killed, forked, interrupted, ended; the cache goes.

Each test is a script of its own, in a process of its own, that must end well and leave no process behind.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from testkit.processes.running import ran
from testkit.walk import WALK_ALL

BEGIN = """
import os, signal, sys, time, warnings
import torch
import weft
from weft.api.background.requests import QUEUE

torch.set_grad_enabled(False)
torch.set_num_threads(1)
x = torch.randn(6, 8)


def function(number):
    def body(x):
        return torch.softmax(x * number, -1) @ torch.relu(x.mT + number)
    return body, weft.compile(body, compile="background", measure="never")


def check(pair):
    torch.testing.assert_close(pair[1](x), pair[0](x))


def working(seconds=120.0):
    # Waits until the other process is at work on a request.
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if QUEUE.process is not None and QUEUE.pending() and time_used(QUEUE.process.number) > {busy}:
            return QUEUE.process.number
        time.sleep(0.02)
    raise SystemExit("the other process never began")


def time_used(pid):
    fields = open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_there(pid):
    try:
        return open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""


def script(body: str, folder: Path, busy: float = 0.3) -> list[str]:
    """The command that runs `body`; `busy`: seconds of processor time after which the other process counts as at work."""
    text = BEGIN.format(busy=busy) + "\n".join(line.removeprefix("    ") for line in body.splitlines())
    (folder / "script.py").write_text(text)
    return [str(folder / "script.py")]


@pytest.fixture
def run(tmp_path):
    """Runs a script to its end; what it printed."""
    variables = os.environ | {"WEFT_CACHE_DIR": str(tmp_path / "cache")}

    def runs(body: str, busy: float = 0.3, status: int = 0) -> tuple[str, str]:
        made = ran(script(body, tmp_path, busy), variables, timeout=300, as_shipped=True, status=status)
        return made.stdout, made.stderr

    return runs


def gone(pid: int, seconds: float = 60.0) -> bool:
    """Tell whether a process ends in time: one of low priority on a busy machine takes its time."""
    end = time.monotonic() + seconds
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)


def worked_on(pid: int) -> float:
    """Processor time in seconds that a process takes until it ends, which does not depend on what else runs."""
    begin = latest = None
    while not gone(pid, 0.0):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            latest = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            begin = latest if begin is None else begin
        time.sleep(0.05)
    return 0.0 if begin is None or latest is None else latest - begin


def test_a_compiler_that_is_killed_costs_what_it_worked_on_and_one_warning(run) -> None:
    out, err = run("""
    one, two = function(2), function(3)
    check(one)
    os.killpg(working(), signal.SIGKILL)
    assert weft.ready(one[1], 60)
    check(one)
    check(one)
    assert weft.stats().failed == 1 and weft.stats().served == 0, weft.stats()
    check(two)
    assert weft.ready(two[1], 120)
    check(two)
    assert weft.stats().served == 1, weft.stats()
    print(QUEUE.process.number)
    """)
    assert err.count("compiling in the background failed") == 1
    assert "SIGKILL" in err
    assert gone(int(out.splitlines()[-1]))


def test_a_compiler_that_dies_each_time_is_given_up(run) -> None:
    _, err = run("""
    pairs = [function(n) for n in range(2, 7)]
    for pair in pairs:
        check(pair)
        if weft.stats().failed < 3:
            os.killpg(working(), signal.SIGKILL)
        assert weft.ready(pair[1], 60)
        check(pair)
    assert weft.stats().failed == 5, weft.stats()
    assert QUEUE.process is None
    """)
    assert "ended 3 times" in err


@pytest.mark.skipif(not WALK_ALL, reason="three processes; WALK_ALL=1 takes it, and the test before is its first half")
def test_the_next_process_compiles_what_a_killed_compiler_did_not(run) -> None:
    body = """
    pair = function(2)
    check(pair)
    {}
    assert weft.ready(pair[1], 120)
    check(pair)
    print(weft.stats().served)
    """
    assert run(body.format("os.killpg(working(), signal.SIGKILL)"))[0] == "0\n"
    assert run(body.format(""))[0] == "1\n"


def test_a_forked_child_compiles_for_itself_and_the_parent_goes_on(run) -> None:
    out, _ = run("""
    pair = function(2)
    check(pair)
    number = working()
    child = os.fork()
    if child == 0:
        assert QUEUE.process is None and not QUEUE.pending()
        check(pair)
        assert weft.ready(pair[1], 120)
        assert QUEUE.process.number != number
        check(pair)
        assert pair and weft.stats().served == 1, weft.stats()
        print(QUEUE.process.number, flush=True)
        sys.exit(0)
    assert weft.ready(pair[1], 120)
    check(pair)
    assert os.waitpid(child, 0)[1] == 0
    assert is_there(number)
    other = function(3)
    check(other)
    assert weft.ready(other[1], 120)
    assert weft.stats().served == 2 and QUEUE.process.number == number
    print(number)
    """)
    assert all(gone(int(pid)) for pid in out.split())


def test_a_child_that_uses_nothing_ends_at_once_and_ends_nothing(run) -> None:
    run("""
    pair = function(2)
    check(pair)
    working()
    if (child := os.fork()) == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert weft.ready(pair[1], 120)
    check(pair)
    assert weft.stats().served == 1, weft.stats()
    """)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", ["sys.exit(0)", "raise SystemExit", "os._exit(0)", "os.execv('/bin/true', ['true'])"])
def test_a_process_that_ends_meanwhile_does_not_wait_and_leaves_none(run, how: str) -> None:
    out, err = run(f"""
    pair = function(2)
    check(pair)
    print(working(), flush=True)
    {how}
    """)
    assert gone(int(out))
    assert "Traceback" not in err


def test_a_process_that_is_killed_leaves_none_that_works_on(run) -> None:
    """Killed in the middle of a long piece of work, which the other process would else finish first."""
    out, _ = run(
        """
    def long(x):
        for number in range(2, 60):
            x = torch.softmax(x * number, -1) @ torch.softmax(x.mT + number, -1) @ x
        return x
    pair = long, weft.compile(long, compile="background", measure="never")
    check(pair)
    print(working(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """,
        busy=6.0,
        status=-signal.SIGKILL,
    )
    assert worked_on(int(out)) < 4.0


def test_a_process_that_ends_meanwhile_leaves_no_compiler_and_no_file_of_one(run, tmp_path) -> None:
    slow, temporary = tmp_path / "slow", tmp_path / "temporary"
    temporary.mkdir()
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *kernel.cpp*) echo $$ >> {tmp_path}/started; exec sleep 100;; esac\nexec c++ "$@"\n'
    )
    slow.chmod(0o700)
    run(f"""
    os.environ |= {{"WEFT_CXX": "{slow}", "TMPDIR": "{temporary}"}}
    def two(x):
        return torch.softmax(x * 2, -1), torch.relu(x.mT) @ x
    pair = two, weft.compile(two, compile="background", measure="never")
    check((lambda x: two(x)[0], lambda x: pair[1](x)[0]))
    end = time.monotonic() + 120
    while not os.path.exists("{tmp_path}/started") and time.monotonic() < end:
        time.sleep(0.02)
    """)
    started = (tmp_path / "started").read_text().split()
    assert all(gone(int(pid)) for pid in started)  # they would sleep for longer
    end = time.monotonic() + 60
    while (left := list(temporary.glob("weft-*"))) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []


def test_an_interrupt_reaches_the_user_and_not_the_compiler(run) -> None:
    run("""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
    pair = function(2)
    check(pair)
    working()
    try:
        os.killpg(0, signal.SIGINT)  # as Ctrl-C does: all processes of the group
        assert weft.ready(pair[1], 120)
        raise SystemExit("not interrupted")
    except KeyboardInterrupt:
        pass
    assert weft.ready(pair[1], 120)
    check(pair)
    assert weft.stats().served == 1, weft.stats()
    """)


def test_a_cache_that_is_removed_meanwhile_costs_nothing(run) -> None:
    run("""
    import shutil
    folder = os.environ["WEFT_CACHE_DIR"]
    pairs = [function(n) for n in range(2, 5)]
    for pair in pairs:
        check(pair)
        if pair is pairs[0]:  # the others may be done before anybody looks
            working()
        while not weft.ready(pair[1], 0.05):
            shutil.rmtree(folder, ignore_errors=True)
        check(pair)
    assert weft.stats().served + weft.stats().failed == 3, weft.stats()
    """)


def test_a_full_disk_leaves_it_to_pytorch(run) -> None:
    _, err = run("""
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # no file may be longer
    pair = function(2)
    check(pair)
    assert weft.ready(pair[1], 120)
    check(pair)
    assert weft.stats().kernels == 0, weft.stats()
    """)
    assert "Warning" in err


@pytest.mark.skipif(not WALK_ALL, reason="threads for seconds; WALK_ALL=1 takes it, and benchmarks/background.py soaks")
def test_many_threads_call_while_it_is_compiled(run) -> None:
    run("""
    import threading
    pairs = [function(n) for n in range(2, 4)]
    stop, wrong = threading.Event(), []

    def calls(seed):
        torch.set_grad_enabled(False)
        own = torch.Generator().manual_seed(seed)
        while not stop.is_set():
            for body, compiled in pairs:
                y = torch.randn(int(torch.randint(1, 40, (), generator=own)), 8, generator=own)
                try:
                    torch.testing.assert_close(compiled(y), body(y))
                except BaseException as error:
                    wrong.append(error)
                    return
                time.sleep(0.02)  # eight threads without a pause leave a process of low priority nothing

    threads = [threading.Thread(target=calls, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 90
    while time.monotonic() < end and (weft.stats().in_progress or not weft.stats().served):
        time.sleep(0.2)
    time.sleep(1)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    assert weft.stats().served >= 2 and not weft.stats().failed, weft.stats()
    """)


def test_what_a_killed_process_was_to_time_is_timed_by_a_call(run):
    _, err = run("""
    fast = weft.compile(lambda x: torch.softmax(x * 3, -1) @ torch.relu(x.mT + 3), compile="first", measure="auto")
    first = fast(x)
    os.killpg(working(), signal.SIGKILL)
    assert weft.ready(fast, 60)
    torch.testing.assert_close(fast(x), first)
    now = weft.stats()
    assert (now.failed, now.served, now.untimed) == (1, 0, 1), now
    from weft.run.cache import CacheFolder
    assert sum("trial" in entry.parts for entry in CacheFolder().entries()) == 1
    """)
    assert not err


def test_an_operator_of_the_users_process_alone_is_named_at_the_users_line(run) -> None:
    out, err = run("""
    @torch.library.custom_op("mine::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x):
        return torch.empty_like(x)

    def body(x):
        return torch.softmax(twice(x), -1)

    pair = body, weft.compile(body, compile="background", measure="never")
    check(pair)
    print(weft.ready(pair[1]), weft.stats().failed)
    check(pair)
    """)
    assert out.split() == ["True", "1"]
    assert "torch.ops.mine.twice is known to your process alone" in err
    assert err.count("what to do:") == 1
    assert 'compile="blocking"' in err
    assert "script.py:" in err.partition("LeftToPyTorchWarning")[0]
