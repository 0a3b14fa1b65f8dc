"""Entries that are carried in a file: whole, checked, by whoever may run code here; and what damage or a full disk costs."""

from __future__ import annotations

import errno
import os
import random
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from testkit.processes.running import ran
from weft.errors import FileError, MissingFileError
from weft.run import archive, artifacts
from weft.run import files as on_disk
from weft.run import manifest as manifests
from weft.run.cache import CacheFolder
from weft.run.key import cache_key

SCRIPT = """
import sys, torch, weft
def f(x, w):
    return torch.softmax(torch.relu(x @ w), -1)
x, w = torch.randn(16, 8), torch.randn(8, 12)
compiled = weft.compile(f, measure="never")
torch.testing.assert_close(compiled(x, w), f(x, w))
now = weft.stats()
print(now.kernels, now.compiles, now.cache_hits, now.fallbacks)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that only this user can write to."""
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o700)
    return folder


def filled(path: Path, count: int = 5) -> CacheFolder:
    folder = CacheFolder(path)
    for number in range(count):
        parts = {"program": f"p{number}", "weft": "w"}
        files = {"kernel.so": random.Random(number).randbytes(700 * number), "kernel.cpp": b"text"}
        folder.store(cache_key(parts), files, {"number": number}, parts=parts)
    return folder


def content(folder: CacheFolder) -> dict[str, bytes | None]:
    return {entry.key: folder.packed(entry.key) for entry in folder.entries()}


def exported(folder: CacheFolder, path: Path) -> Path:
    keys = [entry.key for entry in folder.entries()]
    assert archive.export(path, ((key, folder.packed(key) or b"") for key in keys)) == len(keys)
    return path


def test_entries_arrive_as_they_were(place) -> None:
    one, two = filled(place / "one"), CacheFolder(place / "two")
    file = exported(one, place / "saved")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = archive.take_all(two, file)
    assert (len(found.new), found.here, found.damaged, found.whole) == (5, 0, 0, True)
    assert content(two) == content(one)
    again = archive.take_all(two, file)
    assert (len(again.new), again.here, again.damaged) == (0, 5, 0)


def test_what_arrived_counts_as_used_only_once_it_is_looked_up(place) -> None:
    parts = {"program": "p", "weft": "w"}
    key = cache_key(parts)
    manifest = manifests.describe(key, {}, {}, parts)
    manifest["created"] = "2024-05-06T07:08:09+00:00"
    archive.export(place / "saved", [(key, artifacts.packed(manifest, {}))])
    folder = CacheFolder(place / "two")
    archive.take_all(folder, place / "saved")
    (entry,) = folder.entries()
    assert entry.used == datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    folder.lookup(key)
    (entry,) = folder.entries()
    assert entry.used is not None
    assert entry.used.year > 2024


def test_another_process_compiles_nothing(place) -> None:
    def run(*command: str, cache: str) -> str:
        variables = {**os.environ, "WEFT_CACHE_DIR": str(place / cache)}
        return ran(command, variables).stdout

    assert run("-c", SCRIPT, cache="one").split() == ["1", "1", "0", "0"]
    file = str(place / "saved")
    assert "exported" in run("-m", "weft", "cache", "export", file, cache="one")
    assert "0 were here already" in run("-m", "weft", "cache", "import", file, cache="two")
    kernels, compiles, hits, fallbacks = map(int, run("-c", SCRIPT, cache="two").split())
    assert (kernels, compiles, fallbacks) == (1, 0, 0)
    assert hits


def test_damage_costs_the_entries_that_it_lies_in(place) -> None:
    one = filled(place / "one")
    file, wanted = exported(one, place / "saved"), content(one)
    whole = file.read_bytes()
    starts = [whole.index(f"weft entry {key}".encode()) for key in wanted] + [whole.index(b"weft end ")]
    lines = (*range(starts[1], starts[1] + 90), *range(starts[-1], len(whole)))
    for number, at in enumerate((*range(13, len(whole), 331), *lines)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        two = CacheFolder(place / f"two{number}")
        found = archive.take_all(two, file)
        hit = sum(start <= at for start in starts) - 1
        left = {key: data for i, (key, data) in enumerate(wanted.items()) if i != hit}
        assert content(two) == left, at
        in_the_end = at >= starts[-1]
        assert (len(found.new), found.damaged, found.whole) == (len(left), int(not in_the_end), not in_the_end), at


def test_what_was_cut_off_is_missed_and_the_rest_is_taken(place) -> None:
    one = filled(place / "one")
    file, wanted = exported(one, place / "saved"), content(one)
    whole = file.read_bytes()
    starts = [whole.index(f"weft entry {key}".encode()) for key in wanted] + [whole.index(b"weft end ")]
    for number, length in enumerate(range(13, len(whole), 331)):
        file.write_bytes(whole[:length])
        two = CacheFolder(place / f"two{number}")
        found = archive.take_all(two, file)
        assert len(found.new) == sum(end <= length for end in starts[1:]), length
        assert not found.whole
        assert content(two).items() <= wanted.items()


def test_an_entry_of_another_key_is_none(place) -> None:
    one = filled(place / "one", 2)
    first, second = content(one).items()
    archive.export(place / "saved", [(first[0], second[1] or b""), (second[0], second[1] or b"")])
    two = CacheFolder(place / "two")
    found = archive.take_all(two, place / "saved")
    assert (len(found.new), found.damaged) == (1, 1)
    assert content(two) == dict([second])


@pytest.mark.parametrize("created", ["0001-01-01T00:00:00", "yesterday"])
def test_an_entry_of_a_time_that_no_clock_has_is_passed_over(place, created) -> None:
    """The next one is taken."""
    entries: list[tuple[str, bytes]] = []
    for when in (created, "2026-01-01T00:00:00+00:00"):
        key = cache_key({"when": when})
        made = manifests.describe(key, {"kernel.so": b"text"}, {}, {"when": when})
        entries.append((key, artifacts.packed({**made, "created": when}, {"kernel.so": b"text"})))
    archive.export(place / "saved", entries)
    found = archive.take_all(CacheFolder(place / "two"), place / "saved")
    assert (found.new, found.damaged) == (({"when": "2026-01-01T00:00:00+00:00"},), 1)


def test_a_newer_entry_stays(place) -> None:
    two = filled(place / "two", 1)
    ((key, own),) = content(two).items()
    found = artifacts.unpacked(key, own or b"")
    assert found is not None
    older = artifacts.packed({**found[0], "meta": {}, "created": "2020-01-01T00:00:00+00:00"}, found[1])
    archive.export(place / "saved", [(key, older)])
    assert archive.take_all(two, place / "saved").here == 1
    assert content(two) == {key: own}
    assert len(archive.take_all(CacheFolder(place / "three"), place / "saved").new) == 1


@pytest.mark.parametrize("text", [b"", b"weft", b"PK\x03\x04" + bytes(200), b"weft cache 2\n", b"weft cache x\n"])
def test_other_files_are_refused(place, text) -> None:
    (place / "other").write_bytes(text)
    with pytest.raises(FileError, match=r"weft cache export|later version"):
        archive.take_all(CacheFolder(place / "two"), place / "other")
    with pytest.raises(MissingFileError):
        archive.take_all(CacheFolder(place / "two"), place / "none")


def refused(place: Path, file: Path, match: str) -> None:
    """Importing is refused, unless the file is trusted."""
    two = CacheFolder(place / "two")
    with pytest.raises(FileError, match=match) as error:
        archive.take_all(two, file)
    assert "--trust" in str(error.value)
    assert not list(two.entries())
    assert len(archive.take_all(two, file, trusted=True).new) == 2


def test_a_file_that_others_can_write_to_is_refused(place) -> None:
    file = exported(filled(place / "one", 2), place / "saved")
    file.chmod(0o620)
    refused(place, file, r"can be written to by others \(mode 0620\)")


def test_a_file_of_another_user_is_refused(place, monkeypatch) -> None:
    file = exported(filled(place / "one", 2), place / "saved")
    demand = archive._demand_own

    def of_another(path: Path, found: os.stat_result, *, trusted: bool) -> None:
        fields = list(found)
        fields[stat.ST_UID] = found.st_uid + 1
        demand(path, os.stat_result(fields), trusted=trusted)

    monkeypatch.setattr(archive, "_demand_own", of_another)
    refused(place, file, "belongs to another user")


def test_a_file_in_a_folder_of_others_is_refused(place) -> None:
    shared = place / "shared"
    shared.mkdir()
    file = exported(filled(place / "one", 2), shared / "saved")
    shared.chmod(0o777)
    refused(place, file, "in a folder that others")


def test_a_link_is_refused_and_a_pipe_is_no_file(place) -> None:
    exported(filled(place / "one", 2), place / "saved")
    (place / "link").symlink_to(place / "saved")
    refused(place, place / "link", "is a link")
    os.mkfifo(place / "pipe")
    for trusted in (False, True):
        with pytest.raises(FileError, match="is no file"):
            archive.take_all(CacheFolder(place / "two"), place / "pipe", trusted=trusted)


def test_a_full_disk_is_said_and_loses_nothing(place, monkeypatch) -> None:
    one, two = filled(place / "one"), filled(place / "two", 2)
    file, before = exported(one, place / "saved"), content(two)
    written: list[Path] = []
    write = on_disk.write_file

    def full(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) > 4:  # two payloads and a manifest are an entry
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    monkeypatch.setattr("weft.run.cache.write_file", full)
    with pytest.raises(FileError, match=r"No space left on device; of the file, 1 entry was written"):
        archive.take_all(two, file)
    monkeypatch.undo()
    now = content(two)
    assert before.items() <= now.items()
    assert len(now) == 3
    assert len(archive.take_all(two, file).new) == 2


def test_an_export_that_fails_leaves_what_was_there(place, monkeypatch) -> None:
    one = filled(place / "one")
    file = exported(one, place / "saved")
    before = file.read_bytes()

    def fails():
        yield from [(key, data or b"") for key, data in content(one).items()][:2]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(FileError, match="No space left"):
        archive.export(file, fails())
    assert file.read_bytes() == before
    assert sorted(path.name for path in place.iterdir()) == ["one", "saved"]
