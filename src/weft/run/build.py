"""Building a CPU kernel: cache key, cache or compiler, load, launch.

Compilers run side by side: `start` begins to build what `build` will be asked for, and `build` waits for it.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, cast
from weakref import WeakValueDictionary

from weft.errors import CompilerError
from weft.options import current
from weft.phases import phase
from weft.run import stats
from weft.run.cache import CacheFolder, Json, write_file
from weft.run.compiler import compile_object, compile_shared_library, stop_compilers
from weft.run.key import cache_key, environment_parts
from weft.run.launch import KernelSignature, Made, PackedCall, make_launcher
from weft.run.load import NativeFunction, load
from weft.run.scratch import private_folder
from weft.run.spread import processors

_BINARY, _SOURCE, _OBJECT = "kernel.so", "kernel.cpp", "shared.o"
_MOST = 8
"""Compilers that run at the same time, at most: each takes 0.1 to 0.2 GB."""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """What `emit` gives: the text, the interface that it keeps to, where its includes lie.

    Attributes:
        text: C++, the whole translation unit.
        signature: the kernel's interface (`launch`).
        include_dirs: folders of the `#include "..."` in the text; they lie in weft's own source.
        meta: anything to be had back on a warm start: the schedule, the verdict.
        shared: texts of what other kernels contain too, by the macro that says that it is linked: each compiled once, and kept.
    """

    text: str
    signature: KernelSignature
    include_dirs: tuple[Path, ...] = ()
    meta: Mapping[str, Json] = field(default_factory=dict[str, Json])
    shared: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Binary(Made[KernelSignature]):
    """A kernel in a shared library.

    Attributes:
        library: where the shared library lies.
        function: the library's function, which `launch` calls.
        threads: as of `make_launcher`.
    """

    library: Path
    function: NativeFunction
    threads: int | None = None

    @property
    def packed(self) -> PackedCall:
        return PackedCall(self.signature, self.function, self.threads)


def build(
    parts: Mapping[str, str],
    emit: Callable[[], KernelSource],
    folder: CacheFolder | None = None,
) -> Binary:
    """Gets the kernel that `parts` describe: from the cache, else emitted, compiled and stored.

    Args:
        parts: all that the kernel depends on in the program, by name: its text, schedule, dtypes,
            layouts, target. What it depends on beside that (compiler, options, weft) is added here,
            under names of its own ("weft", "torch", "machine", "compiler", "flags", "options").
        emit: prints the kernel; called on a miss alone.
        folder: the cache; None: the one of the options in force.

    Raises:
        CacheFolderError: the folder is not safe.
        CompilerError: no compiler, or it refused the kernel, or its binary cannot be loaded.
        ValueError: `parts` uses a name that is added here.
    """
    folder, every_part = folder or CacheFolder(), _every_part(parts)
    key = cache_key(every_part)
    begun = _begun.pop((str(folder.path), key), None)
    if begun is not None:
        with suppress(CancelledError):  # another thread was interrupted
            return _waited_for(begun)
    known = _known(folder, key)
    return _built(folder, key, every_part, emit) if known is None else known


def start(
    parts: Mapping[str, str], emit: Callable[[], KernelSource], folder: CacheFolder | None = None
) -> Begun | None:
    """Begins to build what `build` will be asked for with the same arguments, if the cache lacks it.

    It is printed now, and compiled while the caller goes on; what fails in the compiler is raised by `build`. As many compilers
    run at a time as there are processors.

    Returns:
        What is being built: whoever holds it keeps it for `build`. None where there is nothing to build.

    Raises:
        As `build`, but for what the compiler says; and whatever `emit` does.
    """
    folder, every_part = folder or CacheFolder(), _every_part(parts)
    key = cache_key(every_part)
    begun = _begun.get((str(folder.path), key))
    if (begun is None or begun.cancelled()) and folder.lookup(key, counted=False) is None:
        source = emit()
        begun = _compilers().submit(copy_context().run, _built, folder, key, every_part, lambda: source)
        _begun[str(folder.path), key] = begun
    return begun


Begun: TypeAlias = "Future[Binary]"
"""A kernel that is being compiled."""

_begun: WeakValueDictionary[tuple[str, str], Begun] = WeakValueDictionary()
_pool: list[ThreadPoolExecutor] = []
_pool_lock = threading.Lock()


def _compilers() -> ThreadPoolExecutor:
    """Returns the threads that wait for compilers."""
    with _pool_lock:
        if not _pool:
            _pool.append(ThreadPoolExecutor(min(_MOST, processors()), "weft-compiler"))
        return _pool[0]


def _in_a_child() -> None:
    """Forgets what the parent builds: its threads are not here."""
    global _pool_lock  # noqa: PLW0603 - a lock that a thread of the parent may hold
    _pool_lock = threading.Lock()
    _pool.clear()
    _begun.clear()


os.register_at_fork(after_in_child=_in_a_child)


@phase("compiler")
def _waited_for(begun: Begun) -> Binary:
    try:
        return begun.result()
    except (KeyboardInterrupt, SystemExit):
        _drop_waiting()  # the end of the process would wait for them
        raise


def end_compilers() -> None:
    """Drops all that waits for a compiler, and stops the compilers that run: where this process ends."""
    _drop_waiting()
    stop_compilers()


def _drop_waiting() -> None:
    with _pool_lock:
        pools = tuple(_pool)
        _pool.clear()
    for pool in pools:
        pool.shutdown(wait=False, cancel_futures=True)


def _every_part(parts: Mapping[str, str]) -> dict[str, str]:
    environment = environment_parts()
    if taken := environment.keys() & parts.keys():
        raise ValueError(f"parts of a key that only weft.run may state: {sorted(taken)}")
    return {**environment, **parts}


def _built(folder: CacheFolder, key: str, parts: Mapping[str, str], emit: Callable[[], KernelSource]) -> Binary:
    """Builds a kernel that was not in the cache; finds it there where another process has built it meanwhile."""
    with folder.alone(key):
        known = _known(folder, key)
        if known is not None:
            return known
        source = emit()
        function, library = _compile(folder, key, parts, source)
    threads = current().threads
    launch = make_launcher(source.signature, function, threads)
    return Binary(launch, source.signature, source.text, source.meta, key, False, library, function, threads)


def restored(signature: KernelSignature, text: str, library: bytes, key: str) -> Binary:
    """Restores the kernel that was compiled before, elsewhere, from `text` to `library`.

    Raises:
        CompilerError: the library has no such function.
        OSError: there is no room for the library, or the system does not load it.
    """
    path = private_folder() / f"{hashlib.sha256(library).hexdigest()}.so"
    write_file(path, library)
    function = load(path, signature.name)
    threads = current().threads
    launch = make_launcher(signature, function, threads)
    return Binary(launch, signature, text, {}, key, True, path, function, threads)


def recalled(key: str) -> Binary | None:
    """Read the kernel with this key from the cache; None where it is not there or cannot be loaded."""
    return _known(CacheFolder(), key)


def _known(folder: CacheFolder, key: str) -> Binary | None:
    """Reads the kernel from the cache. None where it is not there, cannot be loaded from there, or is not the entry of a kernel."""
    entry = folder.lookup(key, counted=False)
    if entry is None:
        return None
    try:
        signature = KernelSignature.from_json(entry.meta["signature"])
        meta = dict(cast("Mapping[str, Json]", entry.meta["meta"]))
        text = entry.files[_SOURCE].read_text(encoding="utf-8")
        function = load(entry.files[_BINARY], signature.name)
        threads = current().threads
        launch = make_launcher(signature, function, threads)
    except (OSError, CompilerError, LookupError, TypeError, ValueError):
        return (
            None  # gone since the look; on a file system that forbids execution; another entry's content: built again
        )
    stats.count("cache_hits")
    return Binary(launch, signature, text, meta, key, True, entry.files[_BINARY], function, threads)


def _compile(
    folder: CacheFolder, key: str, parts: Mapping[str, str], source: KernelSource
) -> tuple[NativeFunction, Path]:
    shared = {name: _shared(folder, text, source.include_dirs) for name, text in source.shared.items()}
    stats.count("compiles")
    library = compile_shared_library(source.text, source.include_dirs, shared)
    stats.count("binaries_emitted")
    files = {_BINARY: library, _SOURCE: source.text.encode()}
    meta: dict[str, Json] = {"signature": source.signature.to_json(), "meta": dict(source.meta)}
    try:
        entry = folder.store(key, files, meta, parts=parts)
        try:
            return load(entry.files[_BINARY], source.signature.name), entry.files[_BINARY]
        except OSError:
            entry = folder.store(key, files, meta, parts=parts, private=True)
            return load(entry.files[_BINARY], source.signature.name), entry.files[_BINARY]
    except OSError as error:
        raise CompilerError(
            f"the compiled kernel could not be loaded: {error}",
            where=str(folder.path),
            todo="name a folder in WEFT_CACHE_DIR whose file system has space and allows execution",
        ) from error


def _shared(folder: CacheFolder, text: str, include_dirs: tuple[Path, ...]) -> bytes:
    """Gets what kernels have in common, as an object: from the cache, else compiled and stored."""
    parts = _every_part({"shared": text})
    key = cache_key(parts)
    with folder.alone(key):  # other kernels of this process wait for it too
        entry = folder.lookup(key, counted=False)
        if entry is not None and _OBJECT in entry.files:
            with suppress(OSError):  # gone since the look
                return entry.files[_OBJECT].read_bytes()
        made = compile_object(text, include_dirs)
        with suppress(OSError):  # no room: compiled again for the next kernel
            folder.store(key, {_OBJECT: made}, parts=parts)
    return made
