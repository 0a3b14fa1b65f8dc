"""The way through: a miss compiles, a hit does not, and what goes wrong costs speed only."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from weft.errors import CacheFolderWarning, CompilerError
from weft.options import options
from weft.run import build as build_module
from weft.run import cache, stats
from weft.run.build import Binary, KernelSource, build
from weft.run.cache import CacheFolder
from weft.run.child import ends_well
from weft.run.load import NativeFunction, load

Emit: TypeAlias = Callable[[], KernelSource]

KEEPS_NONE = pytest.mark.filterwarnings("ignore:weft keeps no kernels:RuntimeWarning")
PARTS = {"program": "affine", "target": "cpu"}


def emit_never() -> KernelSource:
    raise AssertionError("emitted although it was cached")


@pytest.fixture
def emit(affine_source: KernelSource) -> Emit:
    return lambda: affine_source


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(tmp_path / "cache")


def is_right(binary: Binary) -> bool:
    a, b, c = torch.randn(5, 3), torch.randn(3, 5), torch.randn(3)
    return torch.allclose(binary.launch(a, b, c)[0], a * b.T + c)


def counted(run: Callable[[], Binary]) -> tuple[Binary, dict[str, int]]:
    before = stats.snapshot()
    binary = run()
    after = stats.snapshot()
    names = ("compiles", "binaries_emitted", "cache_hits", "cache_write_failures")
    return binary, {name: getattr(after, name) - getattr(before, name) for name in names}


def test_a_miss_compiles_and_a_hit_does_not(emit: Emit, folder: CacheFolder) -> None:
    cold, counts = counted(lambda: build(PARTS, emit, folder))
    assert list(counts.values()) == [1, 1, 0, 0]
    warm, counts = counted(lambda: build(PARTS, emit_never, CacheFolder(folder.path)))
    assert list(counts.values()) == [0, 0, 1, 0]
    assert (cold.from_cache, warm.from_cache) == (False, True)
    assert is_right(cold)
    assert is_right(warm)
    for name in ("signature", "text", "meta", "key"):
        assert getattr(cold, name) == getattr(warm, name)
    assert warm.meta == {"schedule": "grid(m)"}


def test_the_folder_of_the_options_is_used(emit: Emit, tmp_path: Path) -> None:
    with options(cache_dir=str(tmp_path / "mine")):
        binary = build(PARTS, emit)
    assert (tmp_path / "mine" / binary.key / "manifest.json").exists()


def test_other_parts_or_options_are_another_kernel(emit: Emit, folder: CacheFolder) -> None:
    keys = {build(PARTS, emit, folder).key, build({**PARTS, "target": "x"}, emit, folder).key}
    with options(threads=1):
        one = build(PARTS, emit, folder)
    assert len(keys | {one.key}) == 3
    a, b, c = torch.randn(5, 3), torch.randn(3, 5), torch.randn(3)
    assert one.launch(a, b, c)[1].tolist() == [1]


def test_parts_cannot_hide_the_environment(emit: Emit, folder: CacheFolder) -> None:
    with pytest.raises(ValueError, match="compiler"):
        build({"compiler": "mine"}, emit, folder)


def test_a_damaged_binary_is_rebuilt(emit: Emit, folder: CacheFolder) -> None:
    binary = build(PARTS, emit, folder)
    [library] = (folder.path / binary.key).glob("*.so")
    library.rename(library.with_suffix(".old"))  # the process above has it open
    library.write_bytes(b"\x7fELF")
    again, counts = counted(lambda: build(PARTS, emit, folder))
    assert counts["compiles"] == 1
    assert is_right(again)
    assert build(PARTS, emit_never, folder).from_cache


@pytest.mark.parametrize("hit", [True, False])
def test_a_folder_that_forbids_execution_costs_speed_only(
    emit: Emit, folder: CacheFolder, monkeypatch: pytest.MonkeyPatch, hit: bool
) -> None:
    if hit:
        build(PARTS, emit, folder)

    def refuse(path: Path, symbol: str) -> NativeFunction:
        if path.is_relative_to(folder.path):
            raise OSError(f"{path}: failed to map segment from shared object")
        return load(path, symbol)

    monkeypatch.setattr(build_module, "load", refuse)
    with pytest.warns(CacheFolderWarning, match="kernels cannot be loaded from the cache folder"):
        assert is_right(build(PARTS, emit, folder))
    assert build(PARTS, emit_never, folder).from_cache  # from the private folder


@KEEPS_NONE
def test_a_full_disk_costs_speed_only(emit: Emit, folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write = cache.write_file

    def full(path: Path, content: bytes) -> None:
        if path.is_relative_to(folder.path):
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(cache, "write_file", full)
    binary, counts = counted(lambda: build(PARTS, emit, folder))
    assert counts["cache_write_failures"] == 1
    assert is_right(binary)
    assert build(PARTS, emit_never, folder).from_cache


@KEEPS_NONE
def test_what_can_be_loaded_from_nowhere(emit: Emit, folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, symbol: str) -> NativeFunction:
        raise OSError("failed to map segment")

    monkeypatch.setattr(build_module, "load", refuse)
    with pytest.raises(CompilerError, match="failed to map segment") as error:
        build(PARTS, emit, folder)
    assert "WEFT_CACHE_DIR" in error.value.todo


def test_a_refused_kernel_leaves_no_entry(folder: CacheFolder, affine_source: KernelSource) -> None:
    refused = replace(affine_source, text="no C++")
    before = stats.snapshot()
    with pytest.raises(CompilerError):
        build(PARTS, lambda: refused, folder)
    after = stats.snapshot()
    assert after.compiles - before.compiles == 1
    assert after.binaries_emitted == before.binaries_emitted
    assert folder.size() == 0


# Side by side.


def test_kernels_that_were_started_are_compiled_at_the_same_time(emit: Emit, folder: CacheFolder, monkeypatch) -> None:
    both = threading.Barrier(2, timeout=20)
    compile_ = build_module.compile_shared_library

    def meeting(text: str, *more: Any) -> bytes:
        both.wait()
        return compile_(text, *more)

    monkeypatch.setattr(build_module, "compile_shared_library", meeting)
    monkeypatch.setattr(build_module, "_pool", [])
    monkeypatch.setattr(build_module.os, "sched_getaffinity", lambda _: {0, 1})
    other = {**PARTS, "target": "x"}
    held = [build_module.start(PARTS, emit, folder), build_module.start(other, emit, folder)]
    assert build_module.start(PARTS, emit_never, folder) is held[0]
    found, counts = counted(lambda: build(PARTS, emit_never, folder))
    build(other, emit_never, folder)
    assert is_right(found)
    assert not found.from_cache
    assert counts["cache_hits"] == 0
    assert build_module.start(PARTS, emit_never, folder) is None  # the cache has it


def test_what_the_compiler_says_of_a_kernel_that_was_started_is_raised_where_it_is_built(
    emit: Emit, folder: CacheFolder
) -> None:
    held = build_module.start(PARTS, lambda: replace(emit(), text="not C++"), folder)
    with pytest.raises(CompilerError, match="refused"):
        build(PARTS, emit_never, folder)
    del held
    assert is_right(build(PARTS, emit, folder))


def test_a_kernel_that_was_started_and_is_not_held_is_built_anew(emit: Emit, folder: CacheFolder) -> None:
    held = build_module.start(PARTS, lambda: replace(emit(), text="not C++"), folder)
    assert held is not None
    assert held.exception() is not None
    del held
    gc.collect()
    assert is_right(build(PARTS, emit, folder))


def test_a_child_does_not_wait_for_what_its_parent_builds(emit: Emit, folder: CacheFolder, monkeypatch) -> None:
    compile_, parent = build_module.compile_shared_library, os.getpid()
    ready = threading.Event()

    def slow(text: str, *more: Any) -> bytes:
        if os.getpid() == parent:
            ready.wait(60)
        return compile_(text, *more)

    monkeypatch.setattr(build_module, "compile_shared_library", slow)
    held = build_module.start(PARTS, emit, folder)

    def work() -> None:
        assert is_right(build(PARTS, emit, CacheFolder(folder.path / "child")))
        assert is_right(build({**PARTS, "target": "y"}, emit, CacheFolder(folder.path / "child")))

    try:
        assert ends_well(work, 60) is None
    finally:
        ready.set()
    assert held is not None
    assert is_right(build(PARTS, emit_never, folder))


def test_an_interrupt_drops_what_waits_and_other_threads_build_it_themselves(
    emit: Emit, folder: CacheFolder, monkeypatch
) -> None:
    compile_, go, running = build_module.compile_shared_library, threading.Event(), threading.Event()

    def slow(text: str, *more: object) -> bytes:
        running.set()
        go.wait(60)
        return compile_(text)

    monkeypatch.setattr(build_module, "compile_shared_library", slow)
    monkeypatch.setattr(build_module, "_pool", [])
    monkeypatch.setattr(build_module.os, "sched_getaffinity", lambda _: {0})
    names = ["a", "b", "c"]
    held = [build_module.start({**PARTS, "target": name}, emit, folder) for name in names]
    assert running.wait(60)
    found: list[Binary] = []
    other = threading.Thread(target=lambda: found.append(build({**PARTS, "target": "c"}, emit, folder)))
    other.start()
    while any(each is held[2] for each in build_module._begun.values()):  # until the other thread waits for it
        time.sleep(0.01)
    monkeypatch.setattr(held[1], "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build({**PARTS, "target": "b"}, emit_never, folder)
    assert held[1] is not None
    assert held[1].cancelled()
    go.set()
    other.join(60)
    assert is_right(found[0])


def interrupted() -> Binary:
    raise KeyboardInterrupt


def test_what_kernels_share_is_compiled_once_and_linked_into_each(emit: Emit, folder: CacheFolder, monkeypatch) -> None:
    made: list[str] = []
    compile_ = build_module.compile_object

    def noted(text: str, *more: Any) -> bytes:
        made.append(text)
        return compile_(text, *more)

    monkeypatch.setattr(build_module, "compile_object", noted)
    shared = {"SEVEN_ELSEWHERE": 'extern "C" __attribute__((visibility("hidden"))) int seven() { return 7; }\n'}
    head = '#ifndef SEVEN_ELSEWHERE\n#error "it is not told"\n#endif\nextern "C" int seven();\nstatic int kept = seven();\n'

    def sharing() -> KernelSource:
        return replace(emit(), text=head + emit().text, shared=shared)

    held = [build_module.start({**PARTS, "target": each}, sharing, folder) for each in ("a", "b")]
    assert is_right(build({**PARTS, "target": "a"}, emit_never, folder))
    assert is_right(build({**PARTS, "target": "b"}, emit_never, folder))
    assert made == list(shared.values())
    del held
