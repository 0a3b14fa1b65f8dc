"""One process at a time measures on a GPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

from weft.run.gpu.alone import alone

OTHER = """
from weft.run.gpu.alone import alone
with alone("a GPU", 30.0) as held:
    print(held, flush=True)
    input()
"""


def test_one_holds_it_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with alone("a GPU") as first:
        assert first
        start = time.monotonic()
        with alone("a GPU", 0.1) as second:
            assert not second
        assert time.monotonic() - start >= 0.1
        with alone("another/../GPU", 0.0) as other:
            assert other
    with alone("a GPU", 0.0) as again:
        assert again
    assert sorted(path.name.partition("-a")[2] for path in tmp_path.iterdir()) == ["-GPU.lock", "nother----GPU.lock"]


def test_it_excludes_another_process_and_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"True\n"
        with alone("a GPU", 0.0) as held:
            assert not held
        process.kill()
        process.wait()
        with alone("a GPU", 10.0) as held:
            assert held


def test_without_a_folder_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with alone("a GPU", 5.0) as held:
        assert not held
