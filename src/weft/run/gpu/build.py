"""Building a GPU kernel: cache key, cache or emitter, launch; then for each class of calls, cache or Triton."""

from __future__ import annotations

import copy
import functools
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import cast

import torch

from weft.errors import CompilerError, NotBuiltError, TargetError, UnsupportedError, WeftError
from weft.options import current
from weft.run import stats
from weft.run.cache import CacheFolder, Json
from weft.run.gpu import interpreted
from weft.run.gpu.assemble import ASSEMBLY_SECONDS, Assembled, Job, assemble, begun
from weft.run.gpu.classes import KernelClass, class_of, following
from weft.run.gpu.launch import cuda, make_gpu_launcher, refusing
from weft.run.gpu.signature import GpuSignature
from weft.run.gpu.workers import WorkerError, triton_variables
from weft.run.key import cache_key, source_hash
from weft.run.launch import Launcher, Made, dense
from weft.target import Target

_TEXT = "kernel.py"
_MOST_FAILED = 256
# Seconds after which the cache is asked again for a binary that others make.
_LOOK_AGAIN = 0.25
_FILES = {"cuda": ("kernel.cubin", "kernel.ptx"), "hip": ("kernel.hsaco", "kernel.amdgcn")}
# What the names of Triton's packages have been.
_PACKAGES = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
# Variables of Triton that change no binary.
_HARMLESS = frozenset({"TRITON_INTERPRET", "TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_PRINT_AUTOTUNING"})


_exactly: ContextVar[bool] = ContextVar("_exactly", default=False)


@contextmanager
def exact_binaries() -> Generator[None]:
    """Has each call take the binary of its own class, compiled if need be: this process makes binaries for another one."""
    token = _exactly.set(True)
    try:
        yield
    finally:
        _exactly.reset(token)


@dataclass(frozen=True, slots=True)
class GpuSource:
    """What `emit` gives: the text and the interface that it keeps to.

    Attributes:
        text: a Python module with the Triton function.
        signature: its interface.
        meta: anything to be had back on a warm start: the schedule, the verdict.
    """

    text: str
    signature: GpuSignature
    meta: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True, slots=True)
class GpuBinary(Made[GpuSignature]):
    """A kernel for a GPU that can be called, where that is: `launch` raises TargetError where the target cannot run.

    `target` is what it is compiled for; its text comes from the cache or not, its binaries are made for each class of calls.
    """

    target: Target
    _classes: Classes

    @property
    def assembled(self) -> tuple[Assembled, ...]:
        """The binaries that this process has met so far, one for each class of calls."""
        return self._classes.met()

    def launching(self, allocate: Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]) -> Launcher:
        """Makes another launcher, with outputs that `allocate` makes of sizes, strides and an element type.

        It runs the binaries that this process has, where one serves a call.
        """
        return _launcher(self._classes.source, self.target, self._classes, allocate)

    def class_for(
        self, sizes: Mapping[str, int], strides: Sequence[Sequence[int]], *, starts: Sequence[int] = ()
    ) -> KernelClass:
        """Returns the class of calls.

        Args:
            sizes: of every run-time size, by name.
            strides: of each input, in elements.
            starts: what is left of each input's address when it is divided by 16. Without them it is nothing, as of PyTorch's
                own tensors and of all outputs.

        Raises:
            UnsupportedError: such a call cannot be made (`classes.class_of`).
        """
        kernel = self.signature.kernel
        addresses = [*(starts or [0] * len(kernel.inputs)), *[0] * len(kernel.outputs)]
        return class_of(self.signature, addresses, sizes, [s for each in strides for s in each])

    def begin_any_length(
        self,
        sizes: Mapping[str, int],
        strides: Sequence[Sequence[int]],
        varying: Collection[str],
        *,
        starts: Sequence[int] = (),
    ) -> None:
        """Begins to compile, in a thread, the binary for calls like these of any lengths `varying`, by name. Later calls take it
        where there is none of their own. Raises as `class_for`.
        """
        kind = self.class_for(sizes, strides, starts=starts)
        places = following(self.signature, sizes, [s for each in strides for s in each], varying)
        self._classes.begin_any_length(kind, places)

    def settle(self) -> None:
        self._classes.settle()

    def assemble_for(
        self,
        sizes: Mapping[str, int],
        strides: Sequence[Sequence[int]],
        *,
        starts: Sequence[int] = (),
        seconds: float = ASSEMBLY_SECONDS,
    ) -> Assembled:
        """Gets the binary for calls of one class (`class_for`), from the cache or compiled now; no GPU needs to be here.

        Triton is stopped after so many `seconds`.

        Raises:
            CompilerError: Triton is missing or refused the kernel.
            UnsupportedError: such a call cannot be made, or a thread block needs more shared memory than the target has.
        """
        return self._classes.of(self.class_for(sizes, strides, starts=starts), seconds)


class Classes:
    """The binaries of one kernel by class of calls: of this process, of the cache, or compiled now."""

    def __init__(
        self,
        source: GpuSource,
        target: Target,
        folder: CacheFolder,
        known: Sequence[Assembled] = (),
        *,
        compiles: bool = True,
    ) -> None:
        """Keeps binaries as entries of `folder`, but for those that are `known`; without `compiles` others put them there."""
        self.source, self._target, self._folder, self._compiles = source, target, folder, compiles
        self._met = {each.kind: each for each in known}
        self._failed: dict[KernelClass, tuple[WeftError, float]] = {}
        self._missed: dict[KernelClass, float] = {}
        self._making: dict[KernelClass, threading.Lock] = {}
        self._lengths: frozenset[int] = frozenset()  # places of the arguments that depend on lengths which change
        self._coming: dict[KernelClass, tuple[object, Callable[[], None]]] = {}
        self._lock = threading.Lock()
        _all.add(self)

    def unlock(self) -> None:
        """Begins with locks that nobody holds, in a forked child: threads of the parent are not here."""
        self._lock, self._making, self._coming = threading.Lock(), {}, {}

    def met(self) -> tuple[Assembled, ...]:
        """Returns the binaries that were asked for so far."""
        with self._lock:
            return tuple(self._met.values())

    def job(self, kind: KernelClass) -> Job:
        """Returns the job that compiles for `kind`, for `assemble`."""
        signature = self.source.signature
        return Job(self.source.text, signature.name, kind, self._target, signature.warps, signature.stages)

    def of(self, kind: KernelClass, seconds: float = ASSEMBLY_SECONDS) -> Assembled:
        """Gets the binary for `kind`. Errors as `assemble`.

        Triton is not asked again for a class that it refused; after a crash or a timeout, it is asked again only with more
        time than before.
        """
        with self._lock:
            alone = self._making.setdefault(kind, threading.Lock())
        with alone:  # other threads may compile for other classes meanwhile
            found = self._met.get(kind)
            if found is None:
                self._demand_hope(kind, seconds)
                try:
                    found = self._found(kind, seconds)
                except NotBuiltError:
                    raise
                except (UnsupportedError, CompilerError) as error:
                    self._failed_in(kind, error, seconds)
                    raise
                with self._lock:
                    self._met[kind] = found
            return found

    def serving(self, kind: KernelClass) -> Assembled:
        """Gets a binary that serves calls of `kind`: its own, or another one that was asked for before, else as `of`."""
        met = self.met()
        known = next((each for each in met if each.kind == kind), None)
        return known or next((each for each in met if each.kind.serves(kind)), None) or self.of(kind)

    def called(self, kind: KernelClass, better: Callable[[], None]) -> Assembled:
        """Gets a binary for a call of `kind`. Errors as `of`.

        Where lengths change (`begin_any_length`) it is the one for any length, unless there is its own. Its own is begun where all
        lengths are multiples of what is asked, so that a kernel has two binaries, beside that of its example.

        Args:
            kind: of the call.
            better: is called when its own binary is there, from another thread.
        """
        if _exactly.get():
            return self.of(kind)
        found = self._met.get(kind)
        any_length = kind.least(self._lengths)
        if found is not None or any_length == kind:
            return found or self._alone(kind)
        try:
            found = self.of(any_length)
        except (UnsupportedError, CompilerError):
            return self._alone(kind)
        if kind == kind.most(self._lengths):
            self._begin(kind, better)
        return found

    def begin_any_length(self, kind: KernelClass, places: frozenset[int]) -> None:
        """Begins to make, in a thread, the binary for calls like `kind` of any length.

        Later calls take it (`called`), or one that has their own constants and strides.

        Args:
            kind: of a call.
            places: of the arguments that depend on lengths which change (`classes.following`).
        """
        if self._compiles and not _exactly.get():
            self._lengths = places
            self._begin(kind.least(places))

    def settle(self) -> None:
        """Waits until what was begun is there, or refused."""
        with self._lock:
            coming = {kind: then for kind, (_, then) in self._coming.items()}
        for kind, then in coming.items():
            with suppress(WeftError, OSError):
                self._make(kind, then)

    def _begin(self, kind: KernelClass, then: Callable[[], None] = lambda: None) -> None:
        """Begins to make the binary for `kind` in a thread, unless that was done; `then` is called when it is there."""
        with self._lock:
            if kind not in self._met and kind not in self._coming and kind not in self._failed:
                self._coming[kind] = begun(functools.partial(self._make, kind, then)), then

    def _make(self, kind: KernelClass, then: Callable[[], None]) -> None:
        try:
            self.of(kind)
        finally:
            with self._lock:
                self._coming.pop(kind, None)
        then()

    def _alone(self, kind: KernelClass) -> Assembled:
        """Gets the binary for `kind`, or where none can be made, as without Triton, another one of this process that serves it."""
        try:
            return self.of(kind)
        except CompilerError:
            found = next((each for each in self.met() if each.kind.serves(kind)), None)
            if found is None:
                raise
            return found

    def _demand_hope(self, kind: KernelClass, seconds: float) -> None:
        """Raises what Triton's refusal of `kind` was, unless it had less time then."""
        with self._lock:
            error, had = self._failed.get(kind, (None, 0.0))
        if error is not None and seconds <= had:
            raise copy.copy(error)  # whose frames keep no call's tensors

    def _failed_in(self, kind: KernelClass, error: UnsupportedError | CompilerError, seconds: float) -> None:
        """Remembers that `kind` was refused; what is wrong with Triton as a whole may be mended."""
        if isinstance(error, CompilerError) and not error.kernel:
            return
        with self._lock:
            self._failed[kind] = copy.copy(error), seconds if isinstance(error.__cause__, WorkerError) else math.inf
            while len(self._failed) > _MOST_FAILED:
                del self._failed[next(iter(self._failed))]

    def _found(self, kind: KernelClass, seconds: float) -> Assembled:
        job = self.job(kind)
        if time.monotonic() < self._missed.get(kind, -math.inf) + _LOOK_AGAIN:
            raise NotBuiltError(f"kernel {job.name} has no binary yet for calls of this class: {kind}")
        # Kernels with the same text have the same binaries, whatever program they were printed for.
        parts = {
            "weft": source_hash(),
            "triton": triton_version(),
            "triton settings": triton_settings(),
            "text": job.text,
            "class": str(kind),
            "machine": str(job.target),
            "tuning": f"{job.warps} warps, {job.stages} stages",
        }
        key = cache_key(parts)
        known = self._known(key)
        if known is not None:
            return known
        if not self._compiles:
            self._missed[kind] = time.monotonic()
            raise NotBuiltError(f"kernel {job.name} has no binary yet for calls of this class: {kind}")
        with self._folder.alone(key):
            known = self._known(key)  # whom this one waited for has compiled it
            if known is not None:
                return known
            made = assemble(job, seconds)
            binary, assembly = _FILES[self._target.kind]
            files = {binary: made.binary, assembly: made.assembly.encode()}
            self._folder.store(key, files, {"assembled": made.to_json()}, parts=parts)
        return made

    def _known(self, key: str) -> Assembled | None:
        entry = self._folder.lookup(key, counted=False)
        if entry is None:
            return None
        binary, assembly = _FILES[self._target.kind]
        try:
            content, text = entry.files[binary].read_bytes(), entry.files[assembly].read_text(encoding="utf-8")
            found = Assembled.from_json(entry.meta["assembled"], content, text)
        except (OSError, LookupError, TypeError, ValueError):
            return None  # gone since the look, or another entry's content: compiled again
        stats.count("cache_hits")
        return found


_all: weakref.WeakSet[Classes] = weakref.WeakSet()


def _in_a_child() -> None:
    for each in _all:
        each.unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_child)


def build_gpu(
    parts: Mapping[str, str],
    emit: Callable[[], GpuSource],
    target: Target,
    folder: CacheFolder | None = None,
    *,
    kept: bool = True,
) -> GpuBinary:
    """Gets the kernel that `parts` describe: its text from the cache, else emitted and stored. Binaries are made as
    calls need them.

    With TRITON_INTERPRET=1 in the environment, its launcher has Triton's interpreter run the text.

    Args:
        parts: all that the kernel depends on in the program, by name: its text, schedule, dtypes, layouts. What it depends on
            beside that (Triton, options, weft, the target) is added here, under names of its own.
        emit: prints the kernel; called on a miss alone.
        target: a GPU.
        folder: the cache; None: the one of the options in force.
        kept: whether the text is looked for and stored; its binaries are in any case.

    Raises:
        CacheFolderError: the folder is not safe.
        TargetError: `target` is no GPU.
        ValueError: `parts` uses a name that is added here.
    """
    if target.kind not in _FILES:
        raise TargetError(f"{target} is no GPU", todo='use "cuda:90" or "hip:gfx942"')
    environment = gpu_parts(target)
    if taken := environment.keys() & parts.keys():
        raise ValueError(f"parts of a key that only weft.run may state: {sorted(taken)}")
    every_part = {**environment, **parts}
    key = cache_key(every_part)
    folder = folder or CacheFolder()
    source = _known(folder, key) if kept else None
    from_cache = source is not None
    if source is None:
        source = emit()
    if kept and not from_cache:
        meta: dict[str, Json] = {"signature": source.signature.to_json(), "meta": dict(source.meta)}
        folder.store(key, {_TEXT: source.text.encode()}, meta, parts=every_part)
    return _binary(source, target, key, Classes(source, target, folder), from_cache=from_cache)


def restored_gpu(
    source: GpuSource, target: Target, binaries: Sequence[Assembled], key: str, *, compiles: bool = True
) -> GpuBinary:
    """Restores the kernel of `source` with binaries that were made before, elsewhere; for other classes of calls they
    are made as ever, or without `compiles` only looked for in the cache: such a call raises NotBuiltError where there is none.
    """
    classes = Classes(source, target, CacheFolder(), binaries, compiles=compiles)
    return _binary(source, target, key, classes, from_cache=True)


def recalled_gpu(key: str, target: Target) -> GpuBinary | None:
    """Reads the kernel with this key from the cache; None where it is not there. Its binaries are had as calls need them."""
    folder = CacheFolder()
    source = _known(folder, key)
    return None if source is None else _binary(source, target, key, Classes(source, target, folder), from_cache=True)


def _binary(source: GpuSource, target: Target, key: str, classes: Classes, *, from_cache: bool) -> GpuBinary:
    launch = _launcher(source, target, classes)
    return GpuBinary(launch, source.signature, source.text, source.meta, key, from_cache, target, classes)


def gpu_parts(target: Target) -> dict[str, str]:
    """Returns the parts of a key that are the same for every kernel of this process's weft for `target`."""
    return {
        "weft": source_hash(),
        "triton": triton_version(),
        "triton settings": triton_settings(),
        "options": current().key(),
        "machine": str(target),
    }


def triton_settings() -> str:
    """Returns the variables by which Triton makes other binaries, as one text."""
    return str(sorted((n, v) for n, v in triton_variables().items() if n not in _HARMLESS))


@functools.cache
def triton_version() -> str:
    """Returns Triton's version, without importing it; "none" where it is not installed."""
    for name in _PACKAGES:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "none"


def _known(folder: CacheFolder, key: str) -> GpuSource | None:
    entry = folder.lookup(key, counted=False)
    if entry is None:
        return None
    try:
        return GpuSource(
            entry.files[_TEXT].read_text(encoding="utf-8"),
            GpuSignature.from_json(entry.meta["signature"]),
            dict(cast("Mapping[str, Json]", entry.meta["meta"])),
        )
    except (OSError, LookupError, TypeError, ValueError):
        return None  # gone since the look, or another entry's content: emitted again


def _launcher(
    source: GpuSource,
    target: Target,
    classes: Classes,
    allocate: Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor] | None = None,
) -> Launcher:
    if interpreted.is_asked_for():
        given = () if allocate is None else (dense(allocate),)
        return interpreted.make_interpreted(source.text, source.signature, *given)
    if target.kind != "cuda":
        return refusing(target)
    if allocate is None:
        return make_gpu_launcher(source.signature, classes.called)
    return make_gpu_launcher(
        source.signature, lambda kind, _: classes.serving(kind), lambda: replace(cuda(), allocate=allocate)
    )
