"""The toolchain of a CPU."""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from weft.block.program import BlockProgram
from weft.emit import cpp
from weft.errors import MissingFileError, ProgramFileError, TargetError
from weft.options import current
from weft.phases import phase
from weft.plan.targets.base import Built, LaunchSpec, Meta, SavedText, Toolchain, launch_specs
from weft.plan.targets.bench import Bench
from weft.plan.targets.candidates import Selection
from weft.plan.targets.interface import signature
from weft.run.build import Binary, KernelSource, build, recalled, restored, start
from weft.run.cache import Json
from weft.run.child import can_fork, ends_well
from weft.run.key import cpu_features, environment_parts
from weft.run.launch import KernelSignature, Launcher, make_launcher
from weft.schedule import kernels

SECONDS = 20.0
"""After so many a kernel that is judged does not end."""


@dataclass(eq=False)
class ChildBench(Bench):
    """Notes what is launched, and runs it in a child process: a crash or an endless loop ends the child alone."""

    words: list[tuple[Binary, bytes]] = field(default_factory=list[tuple[Binary, bytes]])
    _flags: list[ctypes.c_int64] = field(default_factory=list[ctypes.c_int64])

    def launcher(self, made: Binary) -> Launcher:
        def noted(given: bytes) -> None:
            self.words.append((made, given))

        def flag() -> ctypes.c_int64:
            self._flags.append(ctypes.c_int64())  # it is there when the kernel runs
            return self._flags[-1]

        return make_launcher(made.signature, noted, 1, self.memory.allocate, flag)

    def ended(self, meanwhile: Callable[[], None]) -> str | None:
        def work() -> None:
            for made, given in self.words:
                made.function(given)

        failed = ends_well(work, SECONDS, meanwhile) if can_fork() else work()
        return failed or super().ended(meanwhile)


def _emitted(spec: LaunchSpec, meta: Meta) -> KernelSource:
    kept = meta()
    with phase("emit"):
        text = cpp.emit(spec.applied, spec.part, spec.name, spec.dims)
        called = signature(spec.applied, spec.part, spec.name, spec.dims)
    return KernelSource(text, called, (cpp.INCLUDE_DIR,), kept, cpp.shared(text))


@dataclass(frozen=True)
class Cpp(Toolchain):
    """C++ kernels for the CPU that weft runs on."""

    kinds = ("cpu",)
    recalls = True

    def environment(self) -> dict[str, str]:
        return environment_parts()

    def build(self, spec: LaunchSpec, meta: Meta) -> Built:
        return Built(build(self._parts(spec), functools.partial(_emitted, spec, meta)))

    def started(self, selection: Selection, device: torch.device | None, meta: Meta) -> Iterator[object]:
        del device
        chosen = selection.chosen
        for spec in launch_specs(selection.program, chosen.applied, chosen.schedule, selection.example):
            yield start(self._parts(spec), functools.partial(_emitted, spec, meta))

    def recalled(self, key: str) -> Built | None:
        found = recalled(key)
        return None if found is None else Built(found)

    def _parts(self, spec: LaunchSpec) -> dict[str, str]:
        return spec.key_parts | {"target": str(self.target)}

    def demand_legal(self, applied: BlockProgram) -> None:
        for part in kernels(applied):
            cpp.demand_legal(applied, part)

    def narrow_matmuls(self) -> bool:
        return current().brgemm != "off"

    def bench(self, device: torch.device | None) -> Bench:
        del device
        return ChildBench()

    def manifest(self) -> dict[str, Json]:
        return {"features": list[Json](sorted(cpu_features()))}

    def demand_fit(self, path: Path, manifest: Mapping[str, Any], torch_version: str) -> None:
        if manifest["torch"] != torch_version:
            raise ProgramFileError(
                f"{path} has kernels that are linked with libraries of PyTorch {manifest['torch']}; this is {torch_version}",
                todo="save the program again with this one, or load it with that one",
            )
        if lacking := set(manifest["features"]) - cpu_features():
            raise TargetError(
                f"{path} is for a CPU with {', '.join(sorted(lacking))}, which this machine lacks",
                todo="save the program again on a machine like this one",
            )

    def saved(self, made: Binary, put: Callable[[bytes], str]) -> tuple[tuple[str, ...], ...]:
        try:
            return ((put(made.library.read_bytes()),),)
        except FileNotFoundError as error:
            todo = "call weft.optimize again: the cache was cleared since"
            raise MissingFileError(f"there is no file {made.library}", todo=todo) from error

    def restored(self, saved: SavedText, files: Mapping[str, bytes], *, compiles: bool = True) -> Built:
        del compiles  # one library serves all calls
        ((name,),) = saved.binaries
        called = KernelSignature.from_json(json.loads(saved.signature))
        try:
            return Built(restored(called, saved.text, files[name], saved.key))
        except OSError as error:
            raise TargetError(
                f"kernel {called.name} cannot be loaded here: {error}",
                todo="save the program again on this machine; if the folder for temporary files forbids execution, set TMPDIR",
            ) from error
