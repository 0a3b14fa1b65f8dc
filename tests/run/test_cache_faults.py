"""The cache under fault: a short share of the campaign in `run.cache_faults`, and each fault that takes no luck to hit."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import weft
from testkit.processes.running import ran
from testkit.run import cache_faults as faults
from testkit.run import children
from testkit.run.cache_faults import is_right, made
from testkit.run.children import child
from weft.errors import CacheFolderError
from weft.plan.measure import trial
from weft.plan.measure.clock import Timed, Timing
from weft.run import cache, files, key, manifest, scratch, stats
from weft.run.cache import CacheFolder, Entry

pytestmark = [
    pytest.mark.as_shipped,  # its processes compile so
    pytest.mark.filterwarnings("ignore:weft keeps no kernels:RuntimeWarning"),
]

HOUR = 3600.0

_READ_BY_OTHERS = all(path.stat().st_mode & 0o001 for path in Path(torch.__file__).parents)
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not _READ_BY_OTHERS,
    reason="only root can become another user, who must then be able to read PyTorch",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def of_nobody() -> Iterator[Path]:
    """A folder of a user without rights, where that user can get to it."""
    base = Path(tempfile.mkdtemp(prefix="weft-test-"))
    base.chmod(0o755)
    path = base / "cache"
    path.mkdir(mode=0o700)
    os.chown(path, children.NOBODY, children.NOBODY)
    yield path
    shutil.rmtree(base)


def in_mounts(*arguments):
    try:
        return children.in_mounts(*arguments)
    except PermissionError:
        pytest.skip("this process may not mount file systems")


# --- The campaign's quick share


def test_writers_that_are_killed(folder: Path) -> None:
    assert faults.killed(folder, 12, seed=1) == 12


def test_a_writer_that_is_killed_while_its_compiler_runs(folder: Path) -> None:
    assert faults.killed(folder, 1, seed=2, compiled=True, most=1.0) == 1


def test_every_file_damaged_in_every_way(folder: Path) -> None:
    assert faults.damaged(folder, seed=3) > 90


def test_every_call_to_the_system_fails_in_turn(tmp_path: Path) -> None:
    assert faults.failing_calls(tmp_path, (errno.ENOSPC, errno.EACCES)) > 50


def test_files_that_may_not_grow(folder: Path) -> None:
    assert faults.cut_short(folder) >= 8


def test_a_disk_that_is_full_at_each_file_in_turn(folder: Path) -> None:
    try:
        assert faults.small_disk(folder) > 2
    except PermissionError:
        pytest.skip("this process may not mount file systems")


def test_eight_processes_at_once_compile_each_kernel_once(folder: Path) -> None:
    assert faults.at_once(folder, 8, 1) == 1


def test_without_locks_some_work_is_done_twice_and_nothing_else_changes(folder: Path) -> None:
    assert 1 <= faults.at_once(folder, 4, 1, locks=False) <= 4


def test_a_folder_that_is_removed_again_and_again(folder: Path) -> None:
    assert faults.removed_under_way(folder, 0.5) > 3


def test_an_entry_whose_folder_is_removed_while_it_is_written_is_written_again(folder: Path, monkeypatch) -> None:
    write, removed = cache.write_file, []

    def write_file(path: Path, content: bytes) -> None:
        if not removed:
            removed.append(path)
            shutil.rmtree(folder)
        write(path, content)

    monkeypatch.setattr(cache, "write_file", write_file)
    assert is_right(made(CacheFolder(folder), 1))
    assert made(CacheFolder(folder), 1).from_cache


def test_a_folder_that_goes_while_it_is_looked_at_is_made_again(folder: Path, monkeypatch) -> None:
    make, times = os.mkdir, []

    def mkdir(path, *arguments) -> None:
        if Path(path) == folder and len(times) < 3:
            times.append(path)
            raise FileExistsError(errno.EEXIST, "File exists", str(path))  # and then it is gone
        make(path, *arguments)

    folder.rmdir()
    monkeypatch.setattr(os, "mkdir", mkdir)
    assert CacheFolder(folder).path.is_dir()
    assert len(times) == 3


def test_a_folder_that_became_another_users_is_not_written_to(folder: Path) -> None:
    opened = CacheFolder(folder)
    folder.chmod(0o777)
    with pytest.raises(CacheFolderError, match="can be written to by others"):
        made(opened, 1)
    assert list(folder.iterdir()) == []
    folder.chmod(0o700)


# --- Folders that cannot be written to


def _costs_speed_only(folder: Path) -> tuple[bool, int, str]:
    """Built twice: whether both are right and the second comes from memory; failures to write; where the entry lies."""
    before = stats.snapshot().cache_write_failures
    opened = CacheFolder(folder)
    right = is_right(made(opened, 1, compiled=True)) and made(opened, 1).from_cache
    entry = opened.lookup(made(opened, 1).key)
    assert entry is not None
    return right, stats.snapshot().cache_write_failures - before, str(next(iter(entry.files.values())))


@needs_root
@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_a_users_folder_that_the_user_cannot_write_to(of_nobody: Path, mode: int) -> None:
    of_nobody.chmod(mode)
    right, failures, where = children.as_nobody(_costs_speed_only, of_nobody)
    assert (right, failures) == (True, 1)
    assert not where.startswith(str(of_nobody))
    assert list(of_nobody.iterdir()) == []


@needs_root
def test_a_users_folder_where_there_is_none_and_none_can_be_made(of_nobody: Path) -> None:
    right, failures, _ = children.as_nobody(_costs_speed_only, of_nobody.parent / "other" / "cache")
    assert (right, failures) == (True, 1)


@needs_root
def test_what_lies_in_a_read_only_folder_is_used(of_nobody: Path) -> None:
    assert children.as_nobody(lambda: is_right(made(CacheFolder(of_nobody), 1)))
    of_nobody.chmod(0o500)
    assert children.as_nobody(lambda: made(CacheFolder(of_nobody), 1).from_cache)


def test_a_file_system_that_is_read_only(folder: Path) -> None:
    right, failures, where = in_mounts(lambda: children.mount_read_only(folder), _costs_speed_only, folder)
    assert (right, failures) == (True, 1)
    assert not where.startswith(str(folder))


def test_no_room_anywhere_and_pytorch_runs(folder: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = """
import sys, torch, weft
def linear(x, w):
    return torch.relu(x @ w)
x, w = torch.randn(8, 4), torch.randn(4, 6)
assert torch.equal(weft.compile(linear, cache_dir=sys.argv[1])(x, w), linear(x, w))
"""

    def fill() -> None:
        for where in (folder, temporary, "/dev/shm"):
            children.mount_small(where, 4)

    def run() -> str:  # in a process of its own: what this one has loaded needs no folder
        command = [sys.executable, "-c", script, str(folder)]
        environment = {**os.environ, "TMPDIR": str(temporary)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr

    said = in_mounts(fill, run)
    assert "weft runs this graph in PyTorch" in said
    assert "what to do: free space in the folder for temporary files, or name another one in TMPDIR" in said


# --- Folders that are not safe


@needs_root
def test_another_users_folder_is_refused_by_name_and_number(of_nobody: Path) -> None:
    with pytest.raises(CacheFolderError) as error:
        CacheFolder(of_nobody)
    assert f"belongs to another user (uid {children.NOBODY}, yours is 0)" in error.value.what
    assert "WEFT_CACHE_DIR" in error.value.todo


@needs_root
def test_a_link_to_another_users_folder_is_refused(of_nobody: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(of_nobody)
    with pytest.raises(CacheFolderError, match="another user"):
        CacheFolder(tmp_path / "link")


@needs_root
def test_another_users_files_in_an_entry_are_not_read(folder: Path) -> None:
    found = made(CacheFolder(folder), 1)
    for name in ("manifest.json", "*.so"):
        [path] = (folder / found.key).glob(name)
        os.chown(path, children.NOBODY, children.NOBODY)
        assert not faults.check(folder, 1)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_weft_compile_refuses_a_folder_of_others_even_under_way(folder: Path, mode: int) -> None:
    x = torch.randn(8)
    weft.compile(lambda x: torch.exp(x) + 1, cache_dir=str(folder))(x)
    folder.chmod(mode)
    torch.compiler.reset()
    with pytest.raises(CacheFolderError) as error:
        weft.compile(lambda x: torch.exp(x) + 1, cache_dir=str(folder))(x)
    assert "what to do: run `chmod 700 " in str(error.value)
    folder.chmod(0o700)
    torch.compiler.reset()
    assert weft.compile(lambda x: torch.exp(x) + 1, cache_dir=str(folder))(x).shape == (8,)


def test_a_link_to_a_folder_of_ones_own_is_as_good(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    made(CacheFolder(tmp_path / "link"), 1)
    assert made(CacheFolder(folder), 1).from_cache


@pytest.mark.parametrize("kind", ["file", "pipe", "link to nowhere", "link to itself"])
def test_what_is_no_folder(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "cache"
    match kind:
        case "file":
            path.touch()
        case "pipe":
            os.mkfifo(path)
        case "link to nowhere":
            path.symlink_to(tmp_path / "nowhere")
        case _:
            path.symlink_to(path)
    with pytest.raises(CacheFolderError) as error:
        CacheFolder(path)
    assert f"the cache folder {path} is not a folder" in error.value.what
    assert f"remove {path}" in error.value.todo


def test_a_file_above_the_folder_costs_speed_only(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    right, failures, _ = _costs_speed_only(tmp_path / "file" / "cache")
    assert (right, failures) == (True, 1)


# --- No home


def test_a_user_without_a_home_keeps_kernels_for_the_process() -> None:
    environment = {k: v for k, v in os.environ.items() if k not in {"HOME", "XDG_CACHE_HOME", "WEFT_CACHE_DIR"}}
    program = (
        "import pwd, sys; pwd.getpwuid = lambda uid: {}[uid]\n"
        "from weft.run.cache import CacheFolder\n"
        "f = CacheFolder(); e = f.store('0' * 64, {'a.so': b'x'}); g = CacheFolder()\n"
        "print(f.persistent, e.persistent, g.lookup('0' * 64) == e, list(g.entries()), f.path)\n"
    )
    out = ran(["-c", program], environment)
    assert out.stdout.startswith("False False True [] ")
    assert out.stderr.count("CacheFolderWarning: weft keeps no kernels: there is no cache folder") == 1
    assert not Path(out.stdout.split()[-1]).exists()  # it went with the process


def test_a_home_that_is_named_and_unknown_is_an_error() -> None:
    with pytest.raises(CacheFolderError) as error:
        CacheFolder("~no-such-user/cache")
    assert "name a folder by its full path in WEFT_CACHE_DIR" in error.value.todo


# --- Clocks, versions, and what is left behind


def _age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.parametrize("years", [-30, 30])
def test_a_clock_that_jumps(folder: Path, monkeypatch: pytest.MonkeyPatch, years: int) -> None:
    key = made(CacheFolder(folder), 1).key
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + years * 365 * 24 * HOUR)
    assert made(CacheFolder(folder), 1).from_cache
    assert is_right(made(CacheFolder(folder), 2))
    CacheFolder(folder).sweep()
    monkeypatch.undo()
    CacheFolder(folder).sweep()
    assert made(CacheFolder(folder), 1).from_cache
    assert made(CacheFolder(folder), 2).from_cache
    entry = CacheFolder(folder).lookup(key)
    assert entry is not None
    assert entry.used is not None


def test_two_versions_of_weft_do_not_meet(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weft").mkdir()
    (tmp_path / "weft" / "errors.py").write_text("# another version")
    other = key.source_hash(tmp_path / "weft")
    ours, theirs = key.source_hash, lambda: other
    built: list[bool] = []
    for version in (ours, theirs, ours, theirs):
        monkeypatch.setattr(key, "source_hash", version)
        built.append(made(CacheFolder(folder), 1).from_cache)
    assert built == [False, False, True, True]
    assert len(list(CacheFolder(folder).entries())) == 2


def test_what_killed_writers_left_is_swept_when_it_is_old(folder: Path) -> None:
    found = made(CacheFolder(folder), 1)
    entry, unfinished, foreign = folder / found.key, folder / ("a" * 64), folder / ("b" * 64)
    unfinished.mkdir(mode=0o700)
    foreign.mkdir(mode=0o700)
    left = [
        entry / ".kernel.so.123.0123456789ab",
        entry / "kernel.0123456789abcdef.so",  # of a writer that another overtook
        unfinished / "kernel.0123456789abcdef.so",
        unfinished / ".manifest.json.5.0123456789ab",
        folder / f".{'c' * 64}.lock",
    ]
    others = [foreign / "holiday.jpg", folder / "notes.txt", folder / ".kernel.so.123.0123456789ab", entry / "notes"]
    for path in (*left, *others):
        path.write_bytes(b"...")
    assert CacheFolder(folder).sweep() == 0  # a writer may still be at work
    for path in (*left, *others, unfinished, foreign):
        _age(path, 2 * HOUR)
    assert CacheFolder(folder).sweep() == len(left) + 1
    assert [path.exists() for path in left] == [False] * len(left)
    assert [path.exists() for path in others] == [True] * len(others)
    assert not unfinished.exists()
    assert made(CacheFolder(folder), 1).from_cache


def test_a_store_sweeps_once_a_day(folder: Path) -> None:
    lock = folder / f".{'c' * 64}.lock"
    swept: list[bool] = []
    for age in (None, 2 * HOUR, 25 * HOUR, -25 * HOUR):  # of the last sweep
        lock.touch()
        _age(lock, 2 * HOUR)
        if age is not None:
            _age(folder / ".swept", age)
        made(CacheFolder(folder), len(swept))
        swept.append(not lock.exists())
    assert swept == [True, False, True, True]


def test_folders_of_killed_compilers_and_processes_are_swept(tmp_path: Path) -> None:
    dead = child(os.getpid)()
    left = [tmp_path / "weft-compile-abc12345", tmp_path / f"weft-private-{dead}-abc12345"]
    others = [tmp_path / f"weft-private-{os.getpid()}-abc12345", tmp_path / "weft-mine", tmp_path / "weft-compile-"]
    for path in (*left, *others):
        path.mkdir()
        (path / "kernel.cpp").touch()
    scratch.sweep.__wrapped__(tmp_path)
    assert all(path.exists() for path in (*left, *others))
    for path in (*left, *others):
        _age(path, 2 * HOUR)
    scratch.sweep.__wrapped__(tmp_path)
    assert [path.exists() for path in (*left, *others)] == [False] * 2 + [True] * 3


def test_the_private_folder_is_made_anew_where_it_was_removed_and_for_a_forked_child() -> None:
    first = scratch.private_folder()
    assert scratch.private_folder() == first
    shutil.rmtree(first)
    second = scratch.private_folder()
    assert second != first
    assert stat.S_IMODE(second.stat().st_mode) == 0o700
    assert Path(child(lambda: str(scratch.private_folder()))()) != second


# --- Waiting for another that builds the same


def test_a_lock_that_is_held_for_too_long_is_not_waited_for(folder: Path) -> None:
    begin = time.monotonic()
    with files.alone(folder, "a" * 64), files.alone(folder, "a" * 64, seconds=0.2):
        assert 0.2 <= time.monotonic() - begin < 10
    assert list(folder.iterdir()) == []


def test_a_lock_of_a_process_that_died_is_free(folder: Path) -> None:
    def die() -> None:
        with files.alone(folder, "a" * 64):
            os.kill(os.getpid(), 9)

    with pytest.raises(EOFError):
        child(die)()
    begin = time.monotonic()
    with files.alone(folder, "a" * 64, seconds=60):
        assert time.monotonic() - begin < 30


def test_threads_wait_for_one_another_too(folder: Path) -> None:
    before = stats.snapshot().compiles
    found: list[bool] = []
    work = [
        threading.Thread(target=lambda: found.append(is_right(made(CacheFolder(folder), 1, compiled=True))))
        for _ in "ab"
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert found == [True, True]
    assert stats.snapshot().compiles == before + 1


# --- What else is kept: which of two runs was faster


@pytest.mark.parametrize("meta", [{}, {"weft": "fast", "eager": 1.0}, {"weft": 1.0}, {"weft": 1, "eager": None}])
def test_a_record_of_the_trial_that_says_nothing_is_measured_anew(folder: Path, monkeypatch, meta) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(folder))
    monkeypatch.setenv("WEFT_MEASURE", "auto")
    measured: list[int] = []

    def measure(*_: object) -> Timed:
        measured.append(1)
        return Timed((Timing(1.0), Timing(2.0)))

    monkeypatch.setattr(trial, "measure", measure)

    def run() -> None:
        torch.compiler.reset()
        x = torch.linspace(-1, 1, 64)
        torch.testing.assert_close(weft.compile(lambda x: torch.exp(x) + 3)(x), torch.exp(x) + 3)

    run()
    run()
    assert len(measured) == 1
    [record] = [e for e in CacheFolder(folder).entries() if "trial" in e.parts]
    CacheFolder(folder).store(record.key, {}, meta, parts=record.parts)
    run()
    assert len(measured) == 2
    path = folder / record.key / manifest.NAME
    path.write_bytes(path.read_bytes().replace(b'"weft": 1.0', b'"weft": 9.0'))
    run()
    assert len(measured) == 3
    assert isinstance(next(why for k, why in CacheFolder(folder).examine() if k == record.key), Entry)
