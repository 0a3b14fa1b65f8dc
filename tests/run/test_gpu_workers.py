"""The process that imports Triton and forks a child for each job: who ends it, what a child's end means, what a child keeps."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from testkit.run.gpu_kernels import H100, JOB, TEXT
from weft.errors import CompilerError
from weft.run.gpu import Assembled, Job, assemble, side_by_side, warm, workers
from weft.target import Target

pytest.importorskip("triton", reason="Triton is not installed: it is in the extras dev and gpu")

# A process that has a job at work, and a forked child that outlives it.
OWNER = """
import os, sys, threading, time
from dataclasses import replace
from pathlib import Path
from testkit.run.gpu_kernels import JOB
from weft.run.gpu import assemble, workers
said = Path(sys.argv[1])
text = f"import os, pathlib, time\\npathlib.Path({str(said)!r}).write_text(str(os.getpid()))\\ntime.sleep(100)\\n"
threading.Thread(target=assemble, args=(replace(JOB, text=text),), daemon=True).start()
while not (said.exists() and said.read_text()):
    time.sleep(0.01)
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(100)
    os._exit(0)
print(workers._serving[0]._process.pid, said.read_text(), child, flush=True)
END
"""


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    """Ends what an earlier test has started, and what this one has."""
    workers.retire()
    yield
    workers.retire()


def until(happens: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Waits for what `happens` asks; tells whether it has."""
    deadline = time.monotonic() + seconds
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.01)
    return happens()


def lives(pid: int) -> bool:
    """Tells whether there is such a process that has not ended."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def serving() -> int:
    """Returns the process that serves jobs now."""
    (worker,) = workers._serving
    return worker._process.pid


def says(said: Path) -> bool:
    return said.exists() and said.read_text() != ""


def at_work(said: Path, seconds: float) -> Job:
    """Makes a job that writes its child's number to `said` and takes so many seconds more."""
    begin = (
        f"import os, pathlib, time\npathlib.Path({str(said)!r}).write_text(str(os.getpid()))\ntime.sleep({seconds})\n"
    )
    return replace(JOB, text=begin + TEXT)


def in_a_thread(job: Job, seconds: float = 100.0) -> tuple[threading.Thread, list[Assembled | CompilerError]]:
    """Has another thread compile; the list is what comes of it."""
    found: list[Assembled | CompilerError] = []

    def work() -> None:
        try:
            found.append(assemble(job, seconds))
        except CompilerError as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, found


def test_all_jobs_have_one_process_that_is_started_ahead() -> None:
    warm(H100)
    pid = serving()
    warm(H100)
    made = side_by_side([partial(assemble, replace(JOB, warps=n)) for n in (1, 2, 4, 8)], workers=4)
    assert [m.threads for m in made if isinstance(m, Assembled)] == [32, 64, 128, 256]
    assert serving() == pid


def test_a_process_that_cannot_be_started_ahead_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.sys, "executable", "/no/such/python")
    warm(H100)
    with pytest.raises(CompilerError, match=r"Triton's process could not be started: .*no/such/python"):
        assemble(JOB)


def test_a_job_leaves_nothing_to_the_next() -> None:
    text = "import os, triton\nassert not hasattr(triton, 'met')\ntriton.met = os.environ['MET'] = '1'\n" + TEXT
    for _ in range(2):
        assert assemble(replace(JOB, text=text)).parameters
    assert assemble(replace(JOB, text="import os\nassert 'MET' not in os.environ\n" + TEXT)).parameters


def test_triton_is_imported_before_there_is_a_job() -> None:
    text = "import sys\nassert False, sorted(m for m in sys.modules if m.startswith('triton.'))\n"
    with pytest.raises(CompilerError) as caught:
        assemble(replace(JOB, text=text))
    assert "triton.compiler.code_generator" in caught.value.output  # which only a compilation imports


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_crash_ends_one_job(number: signal.Signals, tmp_path: Path) -> None:
    slow = at_work(tmp_path / "said", 0.5)
    crash = replace(JOB, text=f"import os\nos.write(2, b'stack of the crash')\nos.kill(os.getpid(), {int(number)})\n")
    warm(H100)
    pid = serving()
    first, crashed = side_by_side([partial(assemble, slow), partial(assemble, crash)], workers=2)
    assert isinstance(first, Assembled)
    assert isinstance(crashed, CompilerError)
    assert f"Triton crashed (exit status -{int(number)})" in crashed.what
    assert "stack of the crash" in crashed.output
    assert serving() == pid


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "hip:gfx942"])
def test_the_process_that_forks_has_one_thread(target: str) -> None:
    """A forked child of a process with threads may wait for a lock that one of them holds."""
    job = replace(JOB, target=Target.parse(target))
    warm(job.target)
    assert assemble(job).parameters or "hip" in target
    assert len(list(Path(f"/proc/{serving()}/task").iterdir())) == 1


def test_what_a_job_prints_is_reported_with_its_error_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    text = "import os\nprint('printed')\nos.write(1, b'written')\n"
    noisy, quiet = f"{text}raise ValueError('a')\n", "raise ValueError('b')\n"
    jobs = [replace(JOB, text=each) for each in (noisy, quiet)]
    outputs = [e.output for e in side_by_side([partial(assemble, job) for job in jobs]) if isinstance(e, CompilerError)]
    assert "printed" in outputs[0]
    assert "written" in outputs[0]
    assert outputs[1] == "b"


def test_a_job_that_takes_too_long_ends_alone(tmp_path: Path) -> None:
    warm(H100)
    pid, said = serving(), tmp_path / "said"
    thread, found = in_a_thread(at_work(tmp_path / "other", 3.0))
    assert until(lambda: says(tmp_path / "other"))
    with pytest.raises(CompilerError, match="had not finished after 1 s and was stopped"):
        assemble(at_work(said, 100.0), 1.0)
    assert until(lambda: not lives(int(said.read_text())))
    thread.join()
    assert isinstance(found[0], Assembled)
    assert serving() == pid


def test_a_killed_process_is_replaced() -> None:
    assemble(JOB)
    pid = serving()
    os.kill(pid, signal.SIGKILL)
    assert assemble(JOB).parameters
    assert serving() != pid


def test_jobs_at_work_outlive_a_killed_process(tmp_path: Path) -> None:
    said, stuck = tmp_path / "said", tmp_path / "stuck"
    thread, found = in_a_thread(at_work(said, 1.0))
    late, failed = in_a_thread(at_work(stuck, 100.0), 6.0)
    assert until(lambda: says(said) and says(stuck))
    os.kill(serving(), signal.SIGKILL)
    thread.join()
    assert isinstance(found[0], Assembled)
    assert assemble(JOB).parameters
    late.join()
    assert isinstance(failed[0], CompilerError)
    assert "had not finished after 6 s" in failed[0].what
    assert until(lambda: not lives(int(stuck.read_text())))


def test_a_job_that_is_killed_with_the_process_is_a_crash(tmp_path: Path) -> None:
    """Though what it has started lives on, and has all of its descriptors that can be inherited, as Triton starts ptxas."""
    said, started = tmp_path / "said", tmp_path / "started"
    job = at_work(said, 100.0)
    begin = "import pathlib, subprocess\nchild = subprocess.Popen(['sleep', '100'], close_fds=False)\n"
    begin += f"pathlib.Path({str(started)!r}).write_text(str(child.pid))\n"
    thread, found = in_a_thread(replace(job, text=begin + job.text))
    assert until(lambda: says(said))
    os.kill(serving(), signal.SIGKILL)
    os.kill(int(said.read_text()), signal.SIGKILL)
    thread.join(20.0)
    assert lives(int(started.read_text()))
    os.kill(int(started.read_text()), signal.SIGKILL)
    assert isinstance(found[0], CompilerError)
    assert "Triton crashed with the process that had started it" in found[0].what


def test_a_job_ends_whoever_has_copies_of_its_channel(tmp_path: Path) -> None:
    """A process that C code has forked from this one has them, and does not know."""
    said = tmp_path / "said"
    thread, found = in_a_thread(at_work(said, 100.0), 4.0)
    assert until(lambda: says(said))
    copies = [os.dup(each.fileno()) for each in workers._sockets]
    thread.join()
    assert isinstance(found[0], CompilerError)
    assert until(lambda: not lives(int(said.read_text())))
    for each in copies:
        os.close(each)


def test_a_process_without_jobs_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workers, "IDLE_SECONDS", 0.3)
    assert assemble(at_work(tmp_path / "said", 1.0)).parameters  # which is not idle
    (worker,) = workers._serving
    assert worker._process.wait(20.0) == 0
    assert assemble(JOB).parameters
    assert workers._serving != [worker]


def test_other_settings_let_jobs_at_work_be_finished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    thread, found = in_a_thread(at_work(tmp_path / "said", 3.0))
    assert until(lambda: says(tmp_path / "said"))
    pid = serving()
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    assert assemble(JOB).parameters
    assert serving() != pid
    thread.join()
    assert isinstance(found[0], Assembled)
    assert until(lambda: not lives(pid))


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit()"])
def test_a_process_ends_with_its_owner(end: str, tmp_path: Path) -> None:
    """Though a forked child of the owner lives on, which had copies of all its sockets."""
    ran = subprocess.run(
        [sys.executable, "-c", OWNER.replace("END", end), str(tmp_path / "said")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=subprocess.PIPE,
        check=False,
        text=True,
        timeout=100,
    )
    worker, job, child = map(int, ran.stdout.split())
    try:
        assert until(lambda: not lives(worker) and not lives(job))
        assert lives(child)
    finally:
        for pid in (worker, job, child):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_forked_child_leaves_the_processes_alone(tmp_path: Path) -> None:
    thread, found = in_a_thread(at_work(tmp_path / "said", 2.0))
    assert until(lambda: says(tmp_path / "said"))
    pid = serving()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert not workers._serving
            assert not workers._sockets
            workers.retire()
            assert assemble(JOB).parameters  # by a process of its own
            assert serving() != pid
            workers.retire()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    assert isinstance(found[0], Assembled)
    assert serving() == pid


def test_an_interrupt_ends_the_job_alone(tmp_path: Path) -> None:
    said = tmp_path / "said"
    warm(H100)
    pid, main = serving(), threading.get_ident()

    def interrupt() -> None:
        if until(lambda: says(said)):
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            assemble(at_work(said, 100.0), 50.0)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert until(lambda: not lives(int(said.read_text())))
    assert assemble(JOB).parameters
    assert serving() == pid


def test_a_triton_that_crashes_as_it_is_imported(other_triton: Path) -> None:
    other_triton.write_text("import os\nos.write(2, b'no such driver')\nos.abort()\n")
    made = side_by_side([partial(assemble, JOB)] * 2, workers=2)
    for each in made:
        assert isinstance(each, CompilerError)
        assert "Triton's process ended at once (exit status -6)" in each.what
        assert "no such driver" in each.output


def test_a_process_that_never_begins_is_replaced(other_triton: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_STUCK_SECONDS", 0.5)
    other_triton.write_text("import time\ntime.sleep(100)\n")
    with pytest.raises(CompilerError, match=r"had not finished after 0\.2 s"):
        assemble(JOB, 0.2)
    pid = serving()
    with pytest.raises(CompilerError, match="had not finished after 1 s"):
        assemble(JOB, 1.0)
    assert until(lambda: not lives(pid))
    other_triton.write_text("raise ImportError('no such library')\n")
    with pytest.raises(CompilerError, match="no such library"):
        assemble(JOB)


def test_a_system_without_room_for_a_child(other_triton: Path) -> None:
    fork = f"import os\ndef fork():\n    raise OSError({errno.EAGAIN}, 'no')\nos.fork = fork\nraise ImportError\n"
    other_triton.write_text(fork)
    with pytest.raises(CompilerError, match=r"Triton's process could not be started: .*Resource temporarily"):
        assemble(JOB)
