"""weft's cache entries among PyTorch's cache artifacts: what is saved serves another process; what is damaged is passed over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.compiler import _cache

from testkit.processes.running import ran
from weft.errors import CacheFolderWarning
from weft.run import artifacts
from weft.run import manifest as manifests
from weft.run.cache import CacheFolder, Entry
from weft.run.key import cache_key

PARTS = {"program": "p", "weft": "w"}
KEY = cache_key(PARTS)
FILES = {"kernel.so": b"binary", "kernel.cpp": b"text"}

SAVE = """
import sys, torch, weft
mode, file = sys.argv[1:]
def f(x, w):
    return torch.softmax(torch.relu(x @ w), -1)
x, w = torch.randn(16, 8), torch.randn(8, 12)
if mode.startswith("load"):
    from weft.run.cache import CacheFolder
    info = torch.compiler.load_cache_artifacts(open(file, "rb").read())
    assert info.weft_artifacts, info
    def refuse(*_, **more):
        raise SystemExit(f"made anew: {more['parts']}")
    CacheFolder.store = refuse
compiled = torch.compile(f, backend="weft", options={"measure": "never", "compile": mode.split()[1]})
compiled(x, w)
assert weft.ready(compiled, 300)
torch.testing.assert_close(compiled(x, w), f(x, w))
now = weft.stats()
assert now.kernels and not now.failed and not now.fallbacks, now
assert (now.compiles, now.cache_hits > 0) == ((1, False) if mode.startswith("save") else (0, True)), now
if mode.startswith("save"):
    data, info = torch.compiler.save_cache_artifacts()
    assert info.weft_artifacts, info
    open(file, "wb").write(data)
"""


def run(mode: str, file: Path, cache: Path) -> None:
    ran(["-c", SAVE, mode, str(file)], os.environ | {"WEFT_CACHE_DIR": str(cache)}, as_shipped=True)


@pytest.mark.parametrize("how", ["blocking", "background"])
def test_another_process_compiles_and_chooses_nothing(tmp_path, how) -> None:
    run(f"save {how}", tmp_path / "saved", tmp_path / "first")
    run(f"load {how}", tmp_path / "saved", tmp_path / "second")


def packed(**changed: object) -> bytes:
    manifest = manifests.describe(KEY, FILES, {"meta": 1}, PARTS)
    return artifacts.packed({**manifest, **changed}, FILES)  # pyright: ignore[reportArgumentType]


def test_an_entry_arrives_whole(tmp_path) -> None:
    folder = CacheFolder(tmp_path / "cache")
    assert folder.take(KEY, packed())
    found = folder.lookup(KEY)
    assert found is not None
    assert {name: path.read_bytes() for name, path in found.files.items()} == FILES
    assert (found.meta, found.parts) == ({"meta": 1}, PARTS)


def test_nothing_is_taken_of_what_is_not_whole(tmp_path) -> None:
    folder, whole = CacheFolder(tmp_path / "cache"), packed()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        assert not folder.take(KEY, bytes(damaged)), place
        assert not folder.take(KEY, whole[:place]), place
    assert not folder.take(KEY, whole + b"more")
    assert not list(folder.path.iterdir())


def test_an_entry_cannot_take_the_place_of_another(tmp_path) -> None:
    folder = CacheFolder(tmp_path / "cache")
    other = cache_key({"program": "another"})
    assert not folder.take(other, packed())
    assert not folder.take(other, packed(key=other))  # its own parts make another key
    assert not folder.take("../escape", packed())
    assert not list(folder.path.iterdir())


def test_what_is_newer_here_stays(tmp_path) -> None:
    folder = CacheFolder(tmp_path / "cache")
    folder.store(KEY, {"kernel.so": b"newer"}, parts=PARTS)
    assert folder.take(KEY, packed(created="2020-01-01T00:00:00+00:00"))
    kept = folder.lookup(KEY)
    assert isinstance(kept, Entry)
    assert kept.files["kernel.so"].read_bytes() == b"newer"


def test_pytorch_passes_over_a_damaged_entry(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    with _cache.CacheArtifactManager.with_fresh_cache():
        _cache.CacheArtifactManager.record_artifact(artifacts.KIND, KEY, packed()[:-1])
        saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    with pytest.warns(CacheFolderWarning, match="damaged"):
        torch.compiler.load_cache_artifacts(saved[0])
    assert not list(CacheFolder().entries())


def test_a_pytorch_without_the_register_is_said_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(artifacts, "_state", {})
    monkeypatch.delattr(_cache, "CacheArtifactFactory")
    artifacts.register(lambda key, data: None)
    folder = CacheFolder(tmp_path / "cache")
    with pytest.warns(CacheFolderWarning, match="save_cache_artifacts") as said:
        assert folder.store(KEY, FILES, parts=PARTS) == folder.lookup(KEY)
    assert len(said) == 1
