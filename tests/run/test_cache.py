"""The persistent cache: nothing half-written, damaged or foreign is ever given back."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from weft.errors import CacheFolderError, CacheFolderWarning
from weft.options import options
from weft.run import cache, scratch, stats
from weft.run.cache import CacheFolder
from weft.run.key import cache_key

KEY = cache_key({"program": "relu(x @ w)"})
FILES = {"kernel.so": bytes(range(256)) * 64, "kernel.cpp": b"// source"}


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(tmp_path / "cache")


def forked(run: Callable[..., None], *args: object) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=run, args=args)
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads; these children touch files only.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return process


def failures() -> int:
    return stats.snapshot().cache_write_failures


def test_what_was_stored_comes_back(folder: CacheFolder) -> None:
    assert folder.lookup(KEY) is None
    hits = stats.snapshot().cache_hits
    stored = folder.store(KEY, FILES, {"schedule": [1, "grid"]}, parts={"program": "p"})
    found = CacheFolder(folder.path).lookup(KEY)  # as another process would
    assert found == stored
    assert found is not None
    assert found.persistent
    assert {name: path.read_bytes() for name, path in found.files.items()} == FILES
    assert (found.meta["schedule"], found.parts["program"]) == ([1, "grid"], "p")
    assert found.size == sum(map(len, FILES.values()))
    assert stats.snapshot().cache_hits == hits + 1
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_key_is_all_of_its_parts_in_any_order() -> None:
    assert cache_key({"a": "1", "b": "2"}) == cache_key({"b": "2", "a": "1"})
    keys = {cache_key(parts) for parts in ({"a": "1"}, {"a": "2"}, {"b": "1"}, {"a": "1", "b": ""})}
    assert len(keys) == 4


@pytest.mark.parametrize("key", ["", "../etc", KEY.upper(), KEY + "0"])
def test_what_is_no_key_never_becomes_a_path(folder: CacheFolder, key: str) -> None:
    with pytest.raises(ValueError, match="not a cache key"):
        folder.lookup(key)
    with pytest.raises(ValueError, match="not a cache key"):
        folder.store(key, FILES)


def test_what_is_no_name_of_a_payload_never_becomes_a_path(folder: CacheFolder) -> None:
    with pytest.raises(ValueError, match="not the name of a payload"):
        folder.store(KEY, {"../kernel.so": b""})


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _lie(path: Path) -> None:
    """Still good JSON of the right form, if it is a manifest."""
    path.write_bytes(path.read_bytes().replace(b'"program": "p"', b'"program": "q"'))


@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("victim", ["manifest.json", "kernel.*.so", "kernel.*.cpp"])
def test_a_damaged_entry_is_a_miss_and_is_rebuilt(
    folder: CacheFolder, damage: Callable[[Path], None], victim: str
) -> None:
    folder.store(KEY, FILES)
    [path] = (folder.path / KEY).glob(victim)
    damage(path)
    assert folder.lookup(KEY) is None
    assert list(folder.entries()) == []
    assert folder.store(KEY, FILES).persistent
    assert folder.lookup(KEY) is not None


def test_a_manifest_that_says_something_else_is_damaged(folder: CacheFolder) -> None:
    folder.store(KEY, FILES, parts={"program": "p"})
    _lie(folder.path / KEY / "manifest.json")
    assert folder.lookup(KEY) is None


def test_an_entry_under_another_name_is_not_that_entry(folder: CacheFolder) -> None:
    other = cache_key({"program": "other"})
    folder.store(KEY, FILES)
    (folder.path / KEY).rename(folder.path / other)
    assert folder.lookup(other) is None


@pytest.mark.parametrize("put", [Path.touch, lambda path: path.symlink_to(path.parent), lambda path: None])
def test_what_weft_cannot_have_made_is_replaced(folder: CacheFolder, put: Callable[[Path], None]) -> None:
    entry = folder.path / KEY
    put(entry)
    if not entry.exists():  # a whole entry, but one that others could write to
        folder.store(KEY, FILES)
        entry.chmod(0o770)
    assert folder.lookup(KEY) is None
    assert folder.store(KEY, FILES).persistent
    assert folder.lookup(KEY) is not None
    assert entry.lstat().st_mode & 0o777 == 0o700


def _store_and_die(folder: CacheFolder, file_number: int, half: bool) -> None:
    """Kills its own process while (half) or after it writes file number `file_number`, from 0."""
    write, written = cache.write_file, 0

    def write_file(path: Path, content: bytes) -> None:
        nonlocal written
        if written == file_number and half:
            path.with_name(f".{path.name}.left").write_bytes(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, content)
        if written == file_number:
            os.kill(os.getpid(), signal.SIGKILL)
        written += 1

    cache.write_file = write_file
    folder.store(KEY, FILES)


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("file_number", [0, 1, 2])
def test_a_writer_that_is_killed_leaves_no_entry_or_a_whole_one(
    folder: CacheFolder, file_number: int, half: bool
) -> None:
    writer = forked(_store_and_die, folder, file_number, half)
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    manifest_is_in = file_number == len(FILES) and not half  # the manifest is written last
    assert (folder.lookup(KEY) is not None) == manifest_is_in
    folder.store(KEY, FILES)
    assert folder.lookup(KEY) is not None


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def refuse(self: Path, target: Path) -> None:
        assert self.read_bytes() == b"new"  # whole before it takes the name
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no"):
        cache.write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def _store_and_look(folder: CacheFolder, seed: int) -> None:
    for turn in range(20):
        # What the processes write differs, as binaries of a compiler that is not deterministic do.
        files = {"kernel.so": bytes([seed]) * (10_000 + turn), "kernel.cpp": b"// source"}
        stored = folder.store(KEY, files)
        found = folder.lookup(KEY)
        assert stored.persistent
        assert found is not None
        assert len(set(found.files["kernel.so"].read_bytes())) == 1


def test_eight_processes_at_once(folder: CacheFolder) -> None:
    processes = [forked(_store_and_look, folder, seed) for seed in range(8)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    assert folder.lookup(KEY) is not None
    assert not [path for path in (folder.path / KEY).iterdir() if path.name.startswith(".")]


def _full(path: Path, content: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_a_full_disk_costs_the_entry_not_the_run(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write = cache.write_file
    monkeypatch.setattr(cache, "write_file", lambda p, c: (_full if p.is_relative_to(folder.path) else write)(p, c))
    before = failures()
    with pytest.warns(CacheFolderWarning, match="cannot be written to: No space left on device; each process") as said:
        stored = folder.store(KEY, FILES)
    folder.store("0" * 64, FILES)
    assert failures() == before + 2
    assert [each.filename for each in said] == [__file__]  # once
    assert "what to do: name a folder that you may write to in WEFT_CACHE_DIR" in str(said[0].message)
    assert not stored.persistent
    assert stored.files["kernel.so"].read_bytes() == FILES["kernel.so"]
    assert stored.files["kernel.so"].is_relative_to(scratch.private_folder())
    assert scratch.private_folder().stat().st_mode & 0o777 == 0o700
    assert folder.lookup(KEY) == stored
    assert CacheFolder(folder.path).lookup(KEY) is None


def test_no_room_anywhere_is_an_os_error(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "write_file", _full)
    with pytest.raises(OSError, match="No space left"):
        folder.store(KEY, FILES)


def test_a_read_only_folder_costs_the_entry_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Path.mkdir

    def mkdir(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        # As a read-only file system does; permission bits would not stop a test that runs as root.
        if self.is_relative_to(tmp_path):
            raise OSError(errno.EROFS, "Read-only file system", str(self))
        make(self, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    folder = CacheFolder(tmp_path / "cache")
    assert folder.lookup(KEY) is None
    before = failures()
    with pytest.warns(CacheFolderWarning, match="cache cannot be written to: Read-only file system"):
        assert not folder.store(KEY, FILES).persistent
    assert failures() == before + 1
    assert folder.lookup(KEY) is not None


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(CacheFolderError) as error:
        CacheFolder(tmp_path)
    assert f"{mode:04o}" in error.value.what
    assert f"chmod 700 {tmp_path}" in error.value.todo
    assert "WEFT_CACHE_DIR" in error.value.todo
    tmp_path.chmod(0o755)  # others may read
    assert CacheFolder(tmp_path).path == tmp_path


def test_another_users_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(CacheFolderError, match="another user"):
        CacheFolder(tmp_path)


def test_another_users_entry_is_not_taken(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.store(KEY, FILES)
    monkeypatch.setattr(os, "geteuid", lambda: folder.path.stat().st_uid + 1)
    assert folder.lookup(KEY) is None


def test_a_file_is_no_cache_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheFolderError, match="is not a folder"):
        CacheFolder(tmp_path / "file")


def test_the_folder_is_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "variable"))
    assert CacheFolder().path == tmp_path / "variable"
    with options(cache_dir=str(tmp_path / "option")):
        assert CacheFolder().path == tmp_path / "option"
    monkeypatch.delenv("WEFT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "platform"))
    assert CacheFolder().path == tmp_path / "platform" / "weft"


def test_entries_size_and_remove(folder: CacheFolder) -> None:
    keys = sorted(cache_key({"n": str(n)}) for n in range(3))
    for key in keys:
        folder.store(key, FILES)
    (folder.path / "mine").mkdir()
    (folder.path / "mine" / "notes.txt").write_text("the user's own")
    assert [entry.key for entry in folder.entries()] == keys
    on_disk = sum(path.stat().st_size for key in keys for path in (folder.path / key).iterdir())
    assert folder.size() == on_disk > 3 * sum(map(len, FILES.values()))
    assert all(folder.remove(key) for key in keys)
    assert (folder.size(), list(folder.entries())) == (0, [])
    assert {path.name for path in folder.path.rglob("[!.]*")} == {"mine", "notes.txt"}
    assert folder.store(KEY, FILES).persistent


def test_the_manifest_tells_people_what_it_is(folder: CacheFolder) -> None:
    folder.store(KEY, FILES, parts={"program": "relu"})
    manifest = json.loads((folder.path / KEY / "manifest.json").read_text())
    assert manifest["parts"] == {"program": "relu"}
    assert set(manifest["versions"]) == {"python", "weft", "torch"}
    assert manifest["created"].endswith("+00:00")


def test_a_folder_removed_under_way_is_made_again(folder: CacheFolder) -> None:
    folder.path.rmdir()
    assert folder.lookup(KEY) is None
    assert folder.store(KEY, FILES).persistent
    assert folder.path.stat().st_mode & 0o777 == 0o700
