"""One process at a time measures on a GPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial
from types import SimpleNamespace

import torch

from weft.run.gpu import alone as module
from weft.run.gpu.alone import alone, alone_on

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


def test_a_gpu_is_the_same_one_by_whatever_number(tmp_path, monkeypatch):
    """Processes that see one GPU each call it the first."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    known = {0: "GPU-a", 1: "GPU-b"}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: SimpleNamespace(uuid=known[d.index]))
    monkeypatch.setattr(module, "alone", partial(alone, seconds=0.0))
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    with alone_on(first) as held, alone_on(second) as other:
        assert (held, other) == (True, True)
        known[1] = "GPU-a"
        with alone_on(second) as again:
            assert not again
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: SimpleNamespace())
    with alone_on(first) as held, alone_on(second) as other:  # a PyTorch that does not say
        assert (held, other) == (True, True)


def test_without_a_folder_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with alone("a GPU", 5.0) as held:
        assert not held
